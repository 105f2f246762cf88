"""The process around `dledger namesrv` and `dledger broker`: arguments, logging, signals, uvloop.

This module changes the state of the process, so the simulator does not run it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from dledger.runtime.env import Env
from dledger.runtime.live_settings import SettingsSource
from dledger.runtime.log_files import LogFile
from dledger.runtime.log_writer import QueuedHandler, flush_logs, say, say_what_ended, standard_error
from dledger.runtime.options import Options, WrongUsage
from dledger.runtime.program import run_until_signal
from dledger.runtime.properties_file import read_properties
from dledger.runtime.settings import ConfigError, Property, Schema

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"

ANNOUNCE_LIMIT_S = 0.3
"""Limit, in seconds, of the wait for standard output to accept the boot line. The event loop is blocked
during this time."""

EXIT_FAILED = 1
EXIT_BAD_CONFIG = 2


C = TypeVar("C")


@dataclass(frozen=True)
class Arguments:
    """The command line of NameServer and broker, decoded."""

    config_file: str | None
    print_all: bool
    print_important: bool
    overrides: tuple[Property, ...]


def arguments_of(options: Options) -> Arguments:
    """Convert the declared options of a server. Raises WrongUsage for a word that does not belong to a
    property."""
    rest, overrides = list(options.properties), []
    if name_servers := getattr(options, "name_servers", None):
        overrides.append(Property("namesrvAddr", name_servers))
    while rest:
        key, separator, value = rest.pop(0).partition("=")
        if not key.startswith("--") or not (separator or rest):
            raise WrongUsage(f"{key}: expected --name value")
        overrides.append(Property(key.removeprefix("--"), value if separator else rest.pop(0)))
    return Arguments(options.config, options.print, options.important, tuple(overrides))


def configure(env: Env, schema: Schema[C], arguments: Arguments) -> tuple[C, list[str], SettingsSource]:
    """Read the settings. Returns them with the warnings and with the source from which they can be read
    again. Raises ConfigError for settings that are wrong."""
    path = arguments.config_file
    wrong: list[str] = []
    properties = read_properties(env.files, path, wrong) if path else []
    config, warnings = schema.load(properties, arguments.overrides, wrong)
    # The file is replaced at its real path, so that a link to it stays a link.
    real = os.path.realpath(path) if path else ""
    return config, warnings, SettingsSource(real, tuple(item.key for item in arguments.overrides))


def print_settings(schema: Schema[C], config: C, arguments: Arguments, warnings: Iterable[str] = ()) -> bool:
    """Print the settings if `-p` or `-m` was given; returns False if neither was. Properties that were given
    but have no effect come first, as comments."""
    if not (arguments.print_all or arguments.print_important):
        return False
    lines = [f"# {warning}" for warning in warnings]
    lines += [
        f"{key}={value}" for key, value in schema.format(config, important=arguments.print_important).items()
    ]
    try:
        print("\n".join(lines), flush=True)
    except OSError as error:
        logging.getLogger().warning("cannot write to standard output: %s", error.strerror or error)
    return True


def set_up_logging(
    log_dir: str | None,
    file_name: str,
    level: int = logging.INFO,
    apart: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Log to a rotating file in `log_dir`, which is made if it is missing. Without `log_dir`, log to standard
    error.

    A thread writes the lines. If it is too slow, some lines are dropped and counted (`QueuedHandler`), and
    the service continues. `apart` maps names of loggers to their own files; without a directory these loggers
    write nothing. Raises ConfigError if the directory cannot be used.
    """
    handler: logging.Handler
    if log_dir:
        try:
            handler = _rotating(log_dir, file_name)
            own = {name: _rotating(log_dir, file) for name, file in apart.items()}
        except OSError as error:
            raise ConfigError(f"logDir {log_dir}: cannot be used: {error.strerror or error}") from error
    else:
        target = standard_error()
        handler = logging.StreamHandler(sys.stderr) if target is None else QueuedHandler(target)
        own = {name: logging.NullHandler() for name in apart}
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    root = logging.getLogger()
    root.setLevel(level)
    root.addHandler(handler)
    for name, one in own.items():
        logging.getLogger(name).propagate = False
        logging.getLogger(name).addHandler(one)


def _rotating(log_dir: str, file_name: str) -> logging.Handler:
    target = LogFile(os.path.join(log_dir, file_name))
    handler = QueuedHandler(target, _complain_of_log)
    target.line_of = handler.line_of
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    return handler


def reopen_logs() -> str:
    """Open the log files by name again before the next line is written, because they may have been moved
    away. Errors are printed to standard error."""
    loggers = [logging.getLogger(), *map(logging.getLogger, sorted(logging.root.manager.loggerDict))]
    for handler in (handler for one in loggers for handler in one.handlers):
        if isinstance(handler, QueuedHandler) and isinstance(handler.target, LogFile):
            handler.target.reopen()
    return ""


def _complain_of_log(text: str) -> None:
    with suppress(OSError):
        say(f"error: {text}")


def run_program(env: Env, start: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> int:
    """Run a program until it ends or a signal stops it; returns the exit code.

    The first SIGTERM or SIGINT sets the event that `start` gets (stop in good order); the second one cancels
    the program. An OSError at the start, such as a port in use, is printed as one line.
    """
    sys.excepthook = say_what_ended
    try:
        env.reloads.add("log file", reopen_logs)
        run_until_signal(start, env.pauses, env.reloads)
    except ConfigError as error:
        return complain(str(error), EXIT_BAD_CONFIG)
    except OSError as error:
        logging.getLogger().error("ended: %s", error)
        return complain(error.strerror or str(error), EXIT_FAILED)
    except asyncio.CancelledError:
        return complain("stopped before the shutdown was complete", EXIT_FAILED)
    return 0


def complain(message: str, code: int) -> int:
    """Print one error line to standard error for each line of `message`, after everything that was logged
    before. Returns `code`."""
    flush_logs()
    with suppress(OSError):
        for line in message.splitlines():
            say(f"error: {line}")
    return code


def announce(line: str) -> None:
    """Print the boot line to standard output at once.

    If standard output does not accept it (for example because the disk is full, or its reader has ended or
    pauses), the line is logged instead and the server runs anyway.
    """
    try:
        say(line, stdout=True, limit_s=ANNOUNCE_LIMIT_S)
    except OSError as error:
        logging.getLogger().warning("cannot write to standard output (%s): %s", error.strerror or error, line)

"""The outer shell of `dledger namesrv`, `dledger broker`: arguments, logging, signals, uvloop.

Everything here touches the process and is therefore outside of what the simulator runs.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from dledger.runtime.env import Env
from dledger.runtime.live_settings import SettingsSource
from dledger.runtime.log_files import LogFile
from dledger.runtime.program import run_until_signal
from dledger.runtime.properties_file import read_properties
from dledger.runtime.settings import ConfigError, Property, Schema

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"

EXIT_FAILED = 1
EXIT_BAD_CONFIG = 2


C = TypeVar("C")


@dataclass(frozen=True)
class Arguments:
    """The command line that NameServer and broker share."""

    config_file: str | None
    print_all: bool
    print_important: bool
    overrides: tuple[Property, ...]


def parse_arguments(program: str, description: str, argv: list[str] | None = None) -> Arguments:
    """`[-c FILE] [-p | -m] [--name value ...]`; exits with usage on anything else."""
    parser = argparse.ArgumentParser(
        prog=f"dledger {program}",
        description=description,
        usage="%(prog)s [-h] [-c FILE] [-p | -m] [--name value ...]",
        epilog="--name value, or --name=value, sets any property: it wins over the file.",
        allow_abbrev=False,
    )
    parser.add_argument("-c", "--config", metavar="FILE", help="properties file (key=value lines)")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("-p", "--print", action="store_true", help="print the effective properties and exit")
    shown.add_argument("-m", "--important", action="store_true", help="print the important ones and exit")
    namespace, rest = parser.parse_known_args(argv)
    overrides = []
    while rest:
        key, separator, value = rest.pop(0).partition("=")
        if not key.startswith("--") or not (separator or rest):
            parser.error(f"{key}: --name value is expected")
        overrides.append(Property(key.removeprefix("--"), value if separator else rest.pop(0)))
    return Arguments(namespace.config, namespace.print, namespace.important, tuple(overrides))


def configure(env: Env, schema: Schema[C], arguments: Arguments) -> tuple[C, list[str], SettingsSource]:
    """The settings, warnings, and where the settings came from; ConfigError."""
    path = arguments.config_file
    wrong: list[str] = []
    properties = read_properties(env.files, path, wrong) if path else []
    config, warnings = schema.load(properties, arguments.overrides, wrong)
    # A link stays when the file that it names is replaced.
    real = os.path.realpath(path) if path else ""
    return config, warnings, SettingsSource(real, tuple(item.key for item in arguments.overrides))


def print_settings(schema: Schema[C], config: C, arguments: Arguments, warnings: Iterable[str] = ()) -> bool:
    """What `-p` and `-m` ask for; False when they do not. What was given and does not count comes first, in
    comments."""
    if not (arguments.print_all or arguments.print_important):
        return False
    for warning in warnings:
        announce(f"# {warning}")
    for key, value in schema.format(config, important=arguments.print_important).items():
        announce(f"{key}={value}")
    return True


def set_up_logging(
    log_dir: str | None,
    file_name: str,
    level: int = logging.INFO,
    apart: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Log to a rotating file in `log_dir` (made if missing), or without one to standard error.

    `apart`: names of loggers with a file of their own; without a directory they are silent. ConfigError when
    the directory cannot be used.
    """
    handler: logging.Handler
    if log_dir:
        try:
            handler = _rotating(log_dir, file_name)
            own = {name: _rotating(log_dir, file) for name, file in apart.items()}
        except OSError as error:
            raise ConfigError(f"logDir {log_dir}: cannot be used: {error.strerror or error}") from error
    else:
        handler = logging.StreamHandler(sys.stderr)
        own = {name: logging.NullHandler() for name in apart}
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    root = logging.getLogger()
    root.setLevel(level)
    root.addHandler(handler)
    for name, one in own.items():
        logging.getLogger(name).propagate = False
        logging.getLogger(name).addHandler(one)


def _rotating(log_dir: str, file_name: str) -> logging.Handler:
    handler = LogFile(os.path.join(log_dir, file_name))
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    return handler


def reopen_logs() -> str:
    """Close the log files and open them by their names again, as they may have been moved away. Empty, or why
    one cannot be opened: what was open stays so."""
    loggers = [logging.getLogger(), *map(logging.getLogger, sorted(logging.root.manager.loggerDict))]
    files = [handler for one in loggers for handler in one.handlers if isinstance(handler, LogFile)]
    wrong = [handler.reopen() for handler in files]
    return "; ".join(filter(None, wrong))


def run_program(env: Env, start: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> int:
    """Run until it ends or a signal asks it to stop; the exit code.

    The first SIGTERM or SIGINT sets the event (stop in good order), the second cancels. An OSError at the
    start, such as a port in use, is printed as one line.
    """
    try:
        env.reloads.add("log file", reopen_logs)
        run_until_signal(start, env.pauses, env.reloads)
    except ConfigError as error:
        return complain(str(error), EXIT_BAD_CONFIG)
    except OSError as error:
        logging.getLogger().error("ended: %s", error)
        return complain(error.strerror or str(error), EXIT_FAILED)
    except asyncio.CancelledError:
        return complain("stopped before everything was in order", EXIT_FAILED)
    return 0


def complain(message: str, code: int) -> int:
    """Print an error to standard error, or one for each line of `message`; returns `code`."""
    for line in message.splitlines():
        print(f"error: {line}", file=sys.stderr, flush=True)
    return code


def announce(line: str) -> None:
    """Print the boot line (or any line) to standard output at once.

    A server runs all the same when standard output takes no line, as on a full disk or with a reader that has
    gone: then the line is in the log alone.
    """
    try:
        print(line, flush=True)
    except OSError as error:
        logging.getLogger().warning("standard output takes no line (%s): %s", error.strerror or error, line)

"""The outer shell of `dledger namesrv`, `dledger broker`: arguments, logging, signals, uvloop.

Everything here touches the process and is therefore outside of what the simulator runs.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import logging.handlers
import os
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from dledger.remoting.properties_file import ConfigError, Property, parse_properties
from dledger.runtime.atomic_file import read_file
from dledger.runtime.env import Env
from dledger.runtime.program import run_until_signal

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
LOG_FILE_SIZE = 32 * 1024 * 1024
"""Bytes of one log file before the next is begun."""
LOG_FILES = 5
"""Older log files that are kept."""

EXIT_FAILED = 1
EXIT_BAD_CONFIG = 2


@dataclass(frozen=True)
class Arguments:
    """The command line that NameServer and broker share."""

    config_file: str | None
    print_config: bool


def parse_arguments(program: str, description: str, argv: list[str] | None = None) -> Arguments:
    """`[-c FILE] [-p]`; exits with usage on anything else."""
    parser = argparse.ArgumentParser(prog=f"dledger {program}", description=description)
    parser.add_argument("-c", "--config", metavar="FILE", help="properties file (key=value lines)")
    parser.add_argument("-p", "--print", action="store_true", help="print the effective properties and exit")
    namespace = parser.parse_args(argv)
    return Arguments(namespace.config, namespace.print)


def read_properties(env: Env, path: str) -> list[Property]:
    """The properties of a file; ConfigError when it cannot be read."""
    try:
        data = read_file(env.files, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    if data is None:
        raise ConfigError(f"{path}: no such file")
    try:
        return parse_properties(data.decode(), path)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8") from error


def set_up_logging(log_dir: str | None, file_name: str, level: int = logging.INFO) -> None:
    """Log to a rotating file in `log_dir` (made if missing), or without one to standard error.

    ConfigError when the directory cannot be used.
    """
    handler: logging.Handler
    if log_dir:
        try:
            os.makedirs(log_dir, exist_ok=True)
            handler = logging.handlers.RotatingFileHandler(
                os.path.join(log_dir, file_name),
                maxBytes=LOG_FILE_SIZE,
                backupCount=LOG_FILES,
                encoding="utf-8",
            )
        except OSError as error:
            raise ConfigError(f"logDir {log_dir}: cannot be used: {error.strerror or error}") from error
    else:
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    root = logging.getLogger()
    root.setLevel(level)
    root.addHandler(handler)


def run_program(env: Env, start: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> int:
    """Run until it ends or a signal asks it to stop; the exit code.

    The first SIGTERM or SIGINT sets the event (stop in good order), the second cancels. An OSError at the
    start, such as a port in use, is printed as one line.
    """
    try:
        run_until_signal(start, env.pauses)
    except ConfigError as error:
        return complain(str(error), EXIT_BAD_CONFIG)
    except OSError as error:
        logging.getLogger().error("ended: %s", error)
        return complain(error.strerror or str(error), EXIT_FAILED)
    except asyncio.CancelledError:
        return complain("stopped before everything was in order", EXIT_FAILED)
    return 0


def complain(message: str, code: int) -> int:
    """Print an error of one line to standard error; returns `code`."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    return code


def announce(line: str) -> None:
    """Print the boot line (or any line) to standard output at once."""
    print(line, flush=True)

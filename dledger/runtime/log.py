"""Access to the log. Each event is one line with named fields. This module has no clock of its own."""

from __future__ import annotations

import logging
from typing import Protocol

MAX_LINE = 16 * 1024
"""Limit, in characters, of one event, because fields may contain data from the network; the rest is cut
off."""


class Log(Protocol):
    """The log of a program. `event` is a short constant text, fields carry the data."""

    def debug(self, event: str, **fields: object) -> None:
        """Log a detail for developers."""

    def info(self, event: str, **fields: object) -> None:
        """Log something that an operator may want to see once."""

    def warning(self, event: str, **fields: object) -> None:
        """Log an event that an operator should examine."""

    def error(self, event: str, **fields: object) -> None:
        """Log something that failed."""

    def child(self, name: str) -> Log:
        """Return a log whose name has this part added."""


class StandardLog:
    """A `Log` that uses Python's logging. The program sets up handlers and levels."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger = logging.getLogger(name)

    def _emit(self, level: int, event: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            text = event
            if fields:
                text += " " + " ".join(f"{key}={value}" for key, value in fields.items())
            if len(text) > MAX_LINE:
                text = f"{text[:MAX_LINE]} ... ({len(text)} characters)"
            self._logger.log(level, "%s", text)

    def debug(self, event: str, **fields: object) -> None:
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._emit(logging.ERROR, event, fields)

    def child(self, name: str) -> StandardLog:
        return StandardLog(f"{self._name}.{name}")

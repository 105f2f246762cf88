"""Logs exceptions that code of the application raised: the first at each place with its traceback, later ones
with a count."""

from __future__ import annotations

import reprlib
from traceback import extract_tb, format_exception

from dledger.runtime.log import Log

MAX_PLACES = 256
"""Number of places whose failures are counted separately. All further places share one count."""
TOLD_EACH = 10
"""How many failures of a place are logged one by one. After that, only those whose number is a power of two
are logged."""

_SHORT = reprlib.Repr()  # of an object of any class, whatever its own __repr__ does
_SHORT.maxother = 500


class Failures:
    """The failures of one client's callbacks. A place is the innermost line and the class of the error."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._times: dict[str, int] = {}

    def log_raised(self, event: str, error: BaseException, **fields: object) -> None:
        """Log an exception; the first one at its place with its traceback."""
        place = raised_at(error)
        times = self._count(f"{type(error).__qualname__} {place}")
        if times == 1:
            fields["traceback"] = "\n" + "".join(format_exception(error)).rstrip()
        self._log_times(event, times, error=short(error), at=place, **fields)

    def log_returned(self, event: str, value: object, **fields: object) -> None:
        """Log a value that was returned by mistake; values of one class are counted together."""
        self._log_times(event, self._count(type(value).__qualname__), returned=short(value), **fields)

    def _count(self, place: str) -> int:
        if place not in self._times and len(self._times) >= MAX_PLACES:
            place = "others"
        self._times[place] = times = self._times.get(place, 0) + 1
        return times

    def _log_times(self, event: str, times: int, **fields: object) -> None:
        if times > 1:
            fields["times"] = times
        if times <= TOLD_EACH or not times & (times - 1):
            self._log.warning(event, **fields)


def short(value: object) -> str:
    """A short description of any object of the application."""
    return _SHORT.repr(value)


def raised_at(error: BaseException) -> str:
    """Where an exception was raised: the innermost line of its traceback."""
    for frame in reversed(extract_tb(error.__traceback__)):
        return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return "an unknown place"

"""Logs what code of the application raised: with its traceback the first time at each place, then counted."""

from __future__ import annotations

import reprlib
from traceback import extract_tb, format_exception

from dledger.runtime.log import Log

MAX_PLACES = 256
"""Places whose failures are counted. All further ones count as one."""
TOLD_EACH = 10
"""Failures of a place that have a line each; of the others those whose number is a power of two."""

_SHORT = reprlib.Repr()  # of an object of any class, whatever its own __repr__ does
_SHORT.maxother = 500


class Failures:
    """The failures of one client's callbacks. A place is the innermost line and the class of the error."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._times: dict[str, int] = {}

    def log_raised(self, event: str, error: BaseException, **fields: object) -> None:
        """Log what was raised: at the first time of its place in full."""
        place = raised_at(error)
        times = self._count(f"{type(error).__qualname__} {place}")
        if times == 1:
            fields["traceback"] = "\n" + "".join(format_exception(error)).rstrip()
        self._log_times(event, times, error=short(error), at=place, **fields)

    def log_returned(self, event: str, value: object, **fields: object) -> None:
        """Log what was returned; a place is its class."""
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
    """Any object of the application in a few words."""
    return _SHORT.repr(value)


def raised_at(error: BaseException) -> str:
    """Where to look: the innermost line."""
    for frame in reversed(extract_tb(error.__traceback__)):
        return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return "an unknown place"

"""What code of the application raised, for the log: with its traceback once a place, then counted."""

from __future__ import annotations

import reprlib
from traceback import extract_tb, format_exception

from dledger.runtime.log import Log

MAX_PLACES = 256
"""Places whose failures are counted. At further ones each failure is a line without a traceback."""

_SHORT = reprlib.Repr()  # of an object of any class, whatever its own __repr__ does
_SHORT.maxother = 500


class Failures:
    """The failures of one client's callbacks. A place is the innermost line and the class of the error."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._times: dict[str, int] = {}

    def tell(self, event: str, error: BaseException, **fields: object) -> None:
        """Log a failure: the first one of its place in full, the others with their number."""
        place = raised_at(error)
        key = f"{type(error).__qualname__} {place}"
        if key in self._times:
            self._times[key] += 1
            fields["times"] = self._times[key]
        elif len(self._times) < MAX_PLACES:
            self._times[key] = 1
            fields["traceback"] = "\n" + "".join(format_exception(error)).rstrip()
        self._log.warning(event, error=short(error), at=place, **fields)


def short(value: object) -> str:
    """Any object of the application in a few words."""
    return _SHORT.repr(value)


def raised_at(error: BaseException) -> str:
    """Where to look: the innermost line."""
    for frame in reversed(extract_tb(error.__traceback__)):
        return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return "an unknown place"

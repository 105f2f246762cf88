"""Filters, which decide the messages of a queue that a consumer gets.

A unit of the ConsumeQueue contains the hash of a message's tags (the tag code). All other properties are only
in the log. For a tag code, a filter returns YES, NO or LOOK. LOOK means that the message must be read; the
filter then decides by its properties. To add a kind of filter, write one class and add it to `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from dledger.broker.filter.sql_filter import sql_filter
from dledger.broker.filter.verdicts import LOOK, NO, YES
from dledger.remoting.bodies import subscription_codes
from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import RemotingError

__all__ = ["ALL", "LOOK", "NO", "YES", "AllMessages", "MessageFilter", "TagFilter", "filter_of", "tag_filter"]


class MessageFilter(Protocol):
    """Interface of all filters. A filter is pure: it gives the same result for equal messages."""

    def by_code(self, code: int) -> int:
        """Return YES, NO or LOOK for the tag code in a unit of the ConsumeQueue
        (`formats.message_ids.tags_code`). The code is 0 for a message without tags."""

    def by_properties(self, properties: bytes) -> bool:
        """Return whether the message matches. Called only if `by_code` returned LOOK. `properties` are
        encoded as they are stored."""

    def cost(self, properties: bytes) -> int:
        """Return the cost of a call of `by_properties` with these properties. Its unit is the time that it
        takes to decode one byte of properties."""


class AllMessages:
    """Filter that lets every message through."""

    def by_code(self, code: int) -> int:
        """Always return YES."""
        return YES

    def by_properties(self, properties: bytes) -> bool:
        """Never called, because `by_code` does not return LOOK."""
        return True

    def cost(self, properties: bytes) -> int:
        """Never called, because `by_code` does not return LOOK."""
        return 0


ALL: Final = AllMessages()


class TagFilter:
    """Filter that lets messages through whose tags have one of these hashes. Different tags may have the same
    hash, so clients compare the tags as text."""

    def __init__(self, codes: Iterable[int]) -> None:
        self._codes = frozenset(codes)

    def by_code(self, code: int) -> int:
        """Return YES or NO, never LOOK."""
        return YES if code in self._codes else NO

    def by_properties(self, properties: bytes) -> bool:
        """Never called, because `by_code` does not return LOOK."""
        return True

    def cost(self, properties: bytes) -> int:
        """Never called, because `by_code` does not return LOOK."""
        return 0


def tag_filter(expression: str) -> MessageFilter:
    """Return the filter for a subscription by tags such as `a || b`. The text `*` and an empty text mean all
    messages."""
    codes = subscription_codes(expression)[1]
    return TagFilter(codes) if codes else ALL


MAX_EXPRESSION = 16 * 1024
"""Limit, in characters, of a subscription; a longer one is refused. There is a limit because the Java hash of
each tag is computed at each pull."""
TAG: Final = "TAG"
CLASS_FILTER: Final = "class filter"
"""Expression type of subscriptions by uploaded Java code, which RocketMQ no longer supports."""
KINDS: Final[Mapping[str, Callable[[str], MessageFilter]]] = MappingProxyType(
    {TAG: tag_filter, "SQL92": sql_filter}
)
"""Maps an expression type to the function that makes the filter. The function raises RemotingError 23
SUBSCRIPTION_PARSE_FAILED if the expression is invalid."""


def filter_of(kind: str, expression: str, *, by_property: bool) -> MessageFilter:
    """Return the filter of a subscription. `by_property` says whether types other than tags are enabled
    (`enablePropertyFilter`). Raises RemotingError 1 SYSTEM_ERROR, as RocketMQ does, if the type is disabled
    or unknown, and 23 SUBSCRIPTION_PARSE_FAILED if the expression is invalid or too long."""
    if len(expression) > MAX_EXPRESSION:
        raise RemotingError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the subscription expression has {len(expression)} characters; the limit is {MAX_EXPRESSION}",
        )
    maker = KINDS.get(kind or TAG)
    if maker is None or (maker is not tag_filter and not by_property):
        instead = ": subscribe by SQL92 or by tags" if kind == CLASS_FILTER else ""
        raise RemotingError(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {kind}{instead}",
        )
    return maker(expression)

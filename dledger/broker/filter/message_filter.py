"""Filters as values: which messages of a queue a consumer gets.

A unit of the ConsumeQueue holds the hash of a message's tags; everything else is in the log. For a hash, a
filter answers YES, NO or LOOK; after LOOK it is asked again with the properties of the message. A new kind of
filter is one class.
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
    """A filter. It is pure, and gives the same result for equal messages."""

    def by_code(self, code: int) -> int:
        """YES, NO or LOOK, by the tag code of a unit (`formats.message_ids.tags_code`; 0 without tags)."""

    def by_properties(self, properties: bytes) -> bool:
        """Whether the message matches, asked after LOOK. `properties`: as they are stored."""

    def cost(self, properties: bytes) -> int:
        """The cost of `by_properties` for these properties, as the number of bytes of properties that could
        be decoded in the same time."""


class AllMessages:
    """Every message."""

    def by_code(self, code: int) -> int:
        """YES."""
        return YES

    def by_properties(self, properties: bytes) -> bool:
        """Never called."""
        return True

    def cost(self, properties: bytes) -> int:
        """Never called."""
        return 0


ALL: Final = AllMessages()


class TagFilter:
    """Messages whose tags have one of these hashes. Different tags may have the same hash, so clients compare
    the text."""

    def __init__(self, codes: Iterable[int]) -> None:
        self._codes = frozenset(codes)

    def by_code(self, code: int) -> int:
        """Never LOOK."""
        return YES if code in self._codes else NO

    def by_properties(self, properties: bytes) -> bool:
        """Never called."""
        return True

    def cost(self, properties: bytes) -> int:
        """Never called."""
        return 0


def tag_filter(expression: str) -> MessageFilter:
    """The filter of a subscription such as `a || b`; `*` and an empty text mean all messages."""
    codes = subscription_codes(expression)[1]
    return TagFilter(codes) if codes else ALL


MAX_EXPRESSION = 16 * 1024
"""Characters of a subscription; a longer one is refused, because the Java hash of each tag is computed at
each pull."""
TAG: Final = "TAG"
CLASS_FILTER: Final = "class filter"
"""Kind of a subscription by uploaded Java code, which RocketMQ no longer supports."""
KINDS: Final[Mapping[str, Callable[[str], MessageFilter]]] = MappingProxyType(
    {TAG: tag_filter, "SQL92": sql_filter}
)
"""Expression type -> function that makes the filter. It raises RemotingError 23 for an invalid expression."""


def filter_of(kind: str, expression: str, *, by_property: bool) -> MessageFilter:
    """The filter of a subscription. `by_property`: whether kinds other than tags are enabled
    (`enablePropertyFilter`). RemotingError 1, as in RocketMQ, for a kind that is disabled or unknown."""
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

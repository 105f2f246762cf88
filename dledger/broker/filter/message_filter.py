"""Filters as values: which messages of a queue a consumer gets.

A unit of the ConsumeQueue holds the hash of a message's tags; more than that is in the log. A filter says of
a hash YES, NO, or LOOK: then it is shown the properties of the message. A new kind of filter is one class.
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
    """Pure, and the same for equal messages."""

    def by_code(self, code: int) -> int:
        """YES, NO or LOOK, by the tag code of a unit (`formats.message_ids.tags_code`; 0 without tags)."""

    def by_properties(self, properties: bytes) -> bool:
        """Asked after LOOK. `properties` as they are stored."""

    def cost(self, properties: bytes) -> int:
        """What `by_properties` takes of them, in bytes of properties that would be decoded meanwhile."""


class AllMessages:
    """Every message."""

    def by_code(self, code: int) -> int:
        """YES."""
        return YES

    def by_properties(self, properties: bytes) -> bool:
        """Never asked."""
        return True

    def cost(self, properties: bytes) -> int:
        """Never asked."""
        return 0


ALL: Final = AllMessages()


class TagFilter:
    """Messages whose tags have one of these hashes. Two tags may have one: clients compare the text."""

    def __init__(self, codes: Iterable[int]) -> None:
        self._codes = frozenset(codes)

    def by_code(self, code: int) -> int:
        """Never LOOK."""
        return YES if code in self._codes else NO

    def by_properties(self, properties: bytes) -> bool:
        """Never asked."""
        return True

    def cost(self, properties: bytes) -> int:
        """Never asked."""
        return 0


def tag_filter(expression: str) -> MessageFilter:
    """Of a subscription such as `a || b`: `*` and nothing mean all."""
    codes = subscription_codes(expression)[1]
    return TagFilter(codes) if codes else ALL


MAX_EXPRESSION = 16 * 1024
"""Characters of a subscription: each tag's Java hash is worked out at each pull."""
TAG: Final = "TAG"
CLASS_FILTER: Final = "class filter"
"""Kind of a subscription by uploaded Java code, which RocketMQ has given up."""
KINDS: Final[Mapping[str, Callable[[str], MessageFilter]]] = MappingProxyType(
    {TAG: tag_filter, "SQL92": sql_filter}
)
"""Expression type -> maker of filters. It raises RemotingError 23 for an expression that is none."""


def filter_of(kind: str, expression: str, *, by_property: bool) -> MessageFilter:
    """The filter of a subscription. `by_property`: whether others than by tags are on
    (`enablePropertyFilter`). RemotingError 1 for a kind that is off, or that this version does not have, as
    RocketMQ answers."""
    if len(expression) > MAX_EXPRESSION:
        raise RemotingError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"a subscription of {len(expression)} characters: at most {MAX_EXPRESSION}",
        )
    maker = KINDS.get(kind or TAG)
    if maker is None or (maker is not tag_filter and not by_property):
        instead = ": subscribe by SQL92 or by tags" if kind == CLASS_FILTER else ""
        raise RemotingError(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {kind}{instead}",
        )
    return maker(expression)

"""The filter for messages of a retry topic."""

from __future__ import annotations

from collections.abc import Callable

from dledger.broker.filter.message_filter import MessageFilter
from dledger.broker.filter.verdicts import LOOK
from dledger.formats.properties import RETRY_TOPIC, find_property

_RETRY_TOPIC = RETRY_TOPIC.encode()


class RetryFilter:
    """Filter for messages of a retry topic: each message is filtered by the group's subscription to the topic
    that the message came from. It corresponds to RocketMQ's `filterSupportRetry`
    (ExpressionForRetryMessageFilter). `of_topic` returns the group's filter for a topic."""

    def __init__(self, of_topic: Callable[[str], MessageFilter]) -> None:
        self._of_topic = of_topic

    def by_code(self, code: int) -> int:
        """Always return LOOK."""
        return LOOK

    def by_properties(self, properties: bytes) -> bool:
        """Return whether the filter of the original topic accepts the message."""
        return self._origin(properties).by_properties(properties)

    def cost(self, properties: bytes) -> int:
        """Return the cost of finding the original topic, plus the cost of that topic's filter."""
        return len(properties) + self._origin(properties).cost(properties)

    def _origin(self, properties: bytes) -> MessageFilter:
        found = find_property(properties, _RETRY_TOPIC) or b""
        return self._of_topic(found.decode("utf-8", "replace"))

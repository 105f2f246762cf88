"""Finds messages whose topic was deleted while they were on their way to it. They are not delivered.

Such messages wait in a delay level or as half messages, or were sent back by a consumer. The position at
which a message was first stored shows whether it was sent to the present topic of that name or to an earlier
one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from dledger.broker.filter.message_filter import MessageFilter
from dledger.broker.filter.verdicts import LOOK, NO
from dledger.formats.addresses import split_address
from dledger.formats.message_ids import decode_message_id, pack_ipv4_host
from dledger.formats.properties import ORIGIN_MESSAGE_ID, REAL_TOPIC, RETRY_TOPIC, find_property
from dledger.formats.state import TopicDeletion, was_deleted

Deleted = Mapping[str, TopicDeletion]
_RETRY_TOPIC, _ORIGIN = RETRY_TOPIC.encode(), ORIGIN_MESSAGE_ID.encode()


def is_gone(deleted: Deleted, properties: Mapping[str, str], position: int, hosts: Collection[bytes]) -> bool:
    """Whether the destination of a waiting message was deleted. `position`: where the message was first
    stored; `hosts`: addresses of this group's brokers, in the form that records have."""
    if not deleted:
        return False
    real = properties.get(REAL_TOPIC)
    if real is not None and was_deleted(deleted, real, position):
        return True
    return _came_back(deleted, properties.get(RETRY_TOPIC), properties.get(ORIGIN_MESSAGE_ID), hosts)


def _came_back(deleted: Deleted, topic: str | None, origin: str | None, hosts: Collection[bytes]) -> bool:
    """Whether the original topic of a message in a retry topic was deleted since the message was first
    stored."""
    if topic is None or origin is None or topic not in deleted:
        return False
    try:
        host, position = decode_message_id(origin)
    except ValueError:
        return False  # a client made this id, so the position of the message is unknown
    return host in hosts and was_deleted(deleted, topic, position)


class OfLivingTopics:
    """A filter for a retry topic: matches messages whose original topic still exists and that match a second
    filter, `inner`."""

    def __init__(self, deleted: Deleted, hosts: Collection[bytes], inner: MessageFilter) -> None:
        self._deleted = deleted
        self._hosts = hosts
        self._inner = inner

    def by_code(self, code: int) -> int:
        """Judge a message by its tag code alone. Returns NO if the filter `inner` rules it out. Otherwise
        returns LOOK: the message must be read to know whether its topic still exists."""
        return NO if self._inner.by_code(code) == NO else LOOK

    def by_properties(self, properties: bytes) -> bool:
        """Whether the original topic still exists and the filter `inner` matches."""
        topic, origin = (find_property(properties, name) for name in (_RETRY_TOPIC, _ORIGIN))
        texts = [None if one is None else one.decode("utf-8", "replace") for one in (topic, origin)]
        if _came_back(self._deleted, texts[0], texts[1], self._hosts):
            return False
        return self._inner.by_properties(properties)

    def cost(self, properties: bytes) -> int:
        """Return the cost of the filter `inner` plus the cost of finding two properties."""
        return len(properties) + self._inner.cost(properties)


def hosts_of(members: Callable[[], Mapping[str, str]]) -> frozenset[bytes]:
    """Return the addresses of the brokers of a group, in the form that records have for hosts. `members`: a
    function that returns the addresses by member; those that are not numeric are left out."""
    found = set()
    for address in members().values():
        try:
            host, port = split_address(address)
            found.add(pack_ipv4_host(host, port))
        except ValueError:
            continue
    return frozenset(found)

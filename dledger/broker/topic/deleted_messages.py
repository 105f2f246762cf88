"""Messages that are on their way to a topic that was deleted meanwhile: nobody gets them.

They wait in a delay level, as half messages, or were given back by a consumer. Where they were first stored
tells whether the topic of that name is the one that they were meant for.
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
    """Whether what a message waits for was deleted. `position`: where it was first stored; `hosts`: of the
    brokers of this group, as records have them."""
    if not deleted:
        return False
    real = properties.get(REAL_TOPIC)
    if real is not None and was_deleted(deleted, real, position):
        return True
    return _came_back(deleted, properties.get(RETRY_TOPIC), properties.get(ORIGIN_MESSAGE_ID), hosts)


def _came_back(deleted: Deleted, topic: str | None, origin: str | None, hosts: Collection[bytes]) -> bool:
    """Whether the topic that a message of a retry topic came from was deleted since."""
    if topic is None or origin is None or topic not in deleted:
        return False
    try:
        host, position = decode_message_id(origin)
    except ValueError:
        return False  # a client's own: nobody knows where that one was
    return host in hosts and was_deleted(deleted, topic, position)


class OfLivingTopics:
    """Messages of a retry topic whose topic is still the one that they came from, of those that another
    filter takes."""

    def __init__(self, deleted: Deleted, hosts: Collection[bytes], inner: MessageFilter) -> None:
        self._deleted = deleted
        self._hosts = hosts
        self._inner = inner

    def by_code(self, code: int) -> int:
        """LOOK, but for what the other takes in no case."""
        return NO if self._inner.by_code(code) == NO else LOOK

    def by_properties(self, properties: bytes) -> bool:
        """Neither gone nor unwanted."""
        topic, origin = (find_property(properties, name) for name in (_RETRY_TOPIC, _ORIGIN))
        texts = [None if one is None else one.decode("utf-8", "replace") for one in (topic, origin)]
        if _came_back(self._deleted, texts[0], texts[1], self._hosts):
            return False
        return self._inner.by_properties(properties)

    def cost(self, properties: bytes) -> int:
        """The other's, and finding two of them."""
        return len(properties) + self._inner.cost(properties)


def hosts_of(members: Callable[[], Mapping[str, str]]) -> frozenset[bytes]:
    """Host fields of the records of a group, from its members' addresses; those that are no numbers are left
    out."""
    found = set()
    for address in members().values():
        try:
            host, port = split_address(address)
            found.add(pack_ipv4_host(host, port))
        except ValueError:
            continue
    return frozenset(found)

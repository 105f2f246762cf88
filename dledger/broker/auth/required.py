"""Rules of ACL 1.0: which permission on which topic and group a request needs, or an administrator
(Permission, PlainAccessValidator).

Each request names its rule where it is declared: `@handles(..., may=required.CONSUME)`. Where RocketMQ
requires too little (for example, anybody with an account may reset the offsets of a group), the rule here
requires the permission that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from dledger.broker.auth.plain_acl import PUB, SUB
from dledger.broker.topic.topic_names import RETRY_PREFIX, is_system_topic
from dledger.formats.properties import REAL_TOPIC, decode_properties
from dledger.formats.record import Record
from dledger.remoting.bodies import LockRequest, decode_body, decode_client_config, decode_heartbeat
from dledger.remoting.commands import Request
from dledger.remoting.pop_bodies import decode_assignment_query, decode_batch_ack

Needed = tuple[str, int]
"""A resource (a topic, or a group by its retry topic) and permission bits, of which one is needed. An empty
name stands for any topic."""


@dataclass(frozen=True)
class Rule:
    """What one request code needs. Missing header fields are skipped here: the request is refused for them
    anyway."""

    admin: bool = False
    """Whether only administrators may make the request."""
    topic: str = ""
    """Header field that contains a topic."""
    perm: int = SUB
    """The permission needed on that topic."""
    groups: tuple[str, ...] = ()
    """Header fields that contain groups whose messages are consumed."""
    special: Callable[[Request, Mapping[str, str]], Iterable[Needed]] | None = None
    """Finds further permissions, from the body or from several fields."""

    @property
    def names_something(self) -> bool:
        """Whether the rule needs more than an account."""
        return bool(self.admin or self.topic or self.groups or self.special)

    @cached_property
    def plain_topic(self) -> bool:
        """Whether it needs a permission on one topic and nothing else."""
        return bool(self.topic) and not self.groups and self.special is None and not self.admin

    def needed(self, request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
        """The permissions that a request needs."""
        groups = [fields[name] for name in self.groups if fields.get(name)]
        for group in groups:
            yield RETRY_PREFIX + group, SUB
        topic = fields.get(self.topic) if self.topic else None
        if topic:
            yield _resource(topic, self.perm, groups)
        if self.special is not None:
            yield from self.special(request, fields)


def _resource(topic: str, perm: int, groups: Iterable[str] = ()) -> Needed:
    """A topic and the permission needed on it. A retry topic belongs to its group: a member that may consume
    may also send back. Retry topics of pops have the topic's name behind that of the group."""
    if topic.startswith(RETRY_PREFIX):
        for group in groups:
            own = RETRY_PREFIX + group
            if topic.startswith((own + "_", own + "+")):
                return own, SUB
        return topic, SUB
    return topic, perm


def to_consume(record: Record, group: str) -> Needed:
    """The permission that a consumer of this group needs for a message that it names by its position. The
    topic is known only when the message is read. A message that waits for delivery counts for the topic that
    it will go to."""
    return _resource(_topic_of(record), SUB, (group,))


def to_send(record: Record) -> Needed:
    """The permission that a producer needs for a message that it names by its position."""
    return _resource(_topic_of(record), PUB)


def _topic_of(record: Record) -> str:
    if not is_system_topic(record.topic):
        return record.topic
    return decode_properties(record.properties).get(REAL_TOPIC, record.topic)


def of_heartbeat(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    """All groups and topics that a heartbeat names."""
    for consumer in decode_heartbeat(request.body).consumerDataSet:
        yield RETRY_PREFIX + consumer.groupName, SUB
        for subscription in consumer.subscriptionDataSet:
            yield _resource(subscription.topic, SUB, (consumer.groupName,))


def of_client_config(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    """The group and the topic in the body of a CHECK_CLIENT_CONFIG."""
    config = decode_client_config(request.body)
    if config.group:
        yield RETRY_PREFIX + config.group, SUB
    if config.subscriptionData is not None:
        yield _resource(config.subscriptionData.topic, SUB, (config.group,))


def of_locks(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    """The group that locks queues."""
    yield RETRY_PREFIX + decode_body(request.body, LockRequest, "lock request").consumerGroup, SUB


def of_assignment(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    """The group and the topic whose queues are divided."""
    query = decode_assignment_query(request.body)
    yield RETRY_PREFIX + query.consumerGroup, SUB
    yield _resource(query.topic, SUB, (query.consumerGroup,))


def of_batch_ack(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    """The groups and topics of all acknowledgements in the body."""
    for ack in decode_batch_ack(request.body).acks:
        yield RETRY_PREFIX + ack.c, SUB
        yield _resource(ack.t, SUB, (ack.c,))


def of_any_topic(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    """Any topic: the position of a message does not reveal its topic, and the client's word is not proof."""
    yield "", SUB


ACCOUNT = Rule()
"""Any account may make the request."""
ADMIN = Rule(admin=True)
"""Only administrators may make the request."""
CONSUME = Rule(topic="topic", groups=("consumerGroup",))
"""To consume the topic in the header, as a member of the group in the header."""
OF_CONSUMER_GROUP = Rule(groups=("consumerGroup",))
"""To consume as a member of the group in the header field `consumerGroup`."""
OF_GROUP = Rule(groups=("group",))
"""To consume as a member of the group in the header field `group`."""
READ = Rule(topic="topic")
"""To consume the topic in the header."""

"""Rules of ACL 1.0: what each request needs, either permissions on a topic and on groups, or an administrator
(Permission, PlainAccessValidator).

Each request names its rule where it is declared: `@handles(..., may=required.CONSUME)`. For some requests
RocketMQ requires too little. For example, anybody with an account may reset the offsets of a group. In these
cases the rule of this broker requires the permission that fits.
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
"""A resource (a topic, or the retry topic that stands for a group) and permission bits. At least one of these
permissions is needed on the resource. An empty name stands for any topic."""


@dataclass(frozen=True)
class Rule:
    """What a request with one code needs. A header field that is missing is skipped, because other code
    refuses such a request."""

    admin: bool = False
    """Whether only administrators may make the request."""
    topic: str = ""
    """Name of the header field that contains a topic; empty if there is none."""
    perm: int = SUB
    """The permission needed on that topic."""
    groups: tuple[str, ...] = ()
    """Names of the header fields that contain groups whose messages are consumed."""
    special: Callable[[Request, Mapping[str, str]], Iterable[Needed]] | None = None
    """Finds further permissions, from the body or from several fields."""

    @property
    def names_something(self) -> bool:
        """Whether the rule needs more than any valid account."""
        return bool(self.admin or self.topic or self.groups or self.special)

    @cached_property
    def plain_topic(self) -> bool:
        """Whether the rule needs a permission on one topic and nothing else."""
        return bool(self.topic) and not self.groups and self.special is None and not self.admin

    def needed(self, request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
        """Yield the permissions that a request needs."""
        groups = [fields[name] for name in self.groups if fields.get(name)]
        for group in groups:
            yield RETRY_PREFIX + group, SUB
        topic = fields.get(self.topic) if self.topic else None
        if topic:
            yield _resource(topic, self.perm, groups)
        if self.special is not None:
            yield from self.special(request, fields)


def _resource(topic: str, perm: int, groups: Iterable[str] = ()) -> Needed:
    """Return a topic and the permission needed on it. A retry topic counts as its group, and permission SUB
    is needed: a member that may consume may also send messages back to this topic. The name of a retry topic
    for pops consists of the group's name and the topic's name."""
    if topic.startswith(RETRY_PREFIX):
        for group in groups:
            own = RETRY_PREFIX + group
            if topic.startswith((own + "_", own + "+")):
                return own, SUB
        return topic, SUB
    return topic, perm


def to_consume(record: Record, group: str) -> Needed:
    """Return the permission that a consumer of this group needs for a message that it names by its position.
    The topic is known only after the message was read. For a message that waits for delivery in a system
    topic, it is the topic to which the message will be delivered."""
    return _resource(_topic_of(record), SUB, (group,))


def to_send(record: Record) -> Needed:
    """Return the permission that a producer needs for a message that it names by its position."""
    return _resource(_topic_of(record), PUB)


def _topic_of(record: Record) -> str:
    if not is_system_topic(record.topic):
        return record.topic
    return decode_properties(record.properties).get(REAL_TOPIC, record.topic)


def of_heartbeat(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    """Yield the permissions for all groups and topics that a heartbeat names."""
    for consumer in decode_heartbeat(request.body).consumerDataSet:
        yield RETRY_PREFIX + consumer.groupName, SUB
        for subscription in consumer.subscriptionDataSet:
            yield _resource(subscription.topic, SUB, (consumer.groupName,))


def of_client_config(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    """Yield the permissions for the group and the topic in the body of request 46 CHECK_CLIENT_CONFIG."""
    config = decode_client_config(request.body)
    if config.group:
        yield RETRY_PREFIX + config.group, SUB
    if config.subscriptionData is not None:
        yield _resource(config.subscriptionData.topic, SUB, (config.group,))


def of_locks(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    """Yield the permission for the group that locks queues."""
    yield RETRY_PREFIX + decode_body(request.body, LockRequest, "lock request").consumerGroup, SUB


def of_assignment(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    """Yield the permissions for the group and the topic whose queues are assigned to consumers."""
    query = decode_assignment_query(request.body)
    yield RETRY_PREFIX + query.consumerGroup, SUB
    yield _resource(query.topic, SUB, (query.consumerGroup,))


def of_batch_ack(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    """Yield the permissions for the groups and topics of all acknowledgements in the body."""
    for ack in decode_batch_ack(request.body).acks:
        yield RETRY_PREFIX + ack.c, SUB
        yield _resource(ack.t, SUB, (ack.c,))


def of_any_topic(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    """Yield a permission on the resource "any topic". The request names a message by its position, which does
    not reveal the topic, and the topic that the client names is not proof."""
    yield "", SUB


ACCOUNT = Rule()
"""Any account may make the request."""
ADMIN = Rule(admin=True)
"""Only administrators may make the request."""
CONSUME = Rule(topic="topic", groups=("consumerGroup",))
"""Needs the permission to consume the topic in the header field `topic`, as a member of the group in
`consumerGroup`."""
OF_CONSUMER_GROUP = Rule(groups=("consumerGroup",))
"""Needs the permission to consume as a member of the group in the header field `consumerGroup`."""
OF_GROUP = Rule(groups=("group",))
"""Needs the permission to consume as a member of the group in the header field `group`."""
READ = Rule(topic="topic")
"""Needs the permission to consume the topic in the header field `topic`."""

"""What a request needs: which permission on which topic and group, or an administrator (Permission,
PlainAccessValidator).

Every request that a broker answers has its line in RULES. Where RocketMQ asks for less than a request can do,
such as the reset of a group's offsets by anybody with an account, this asks for what belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from dledger.broker.admin.refusals import REFUSED
from dledger.broker.auth.plain_acl import PUB, SUB
from dledger.broker.topic.topic_names import RETRY_PREFIX, is_system_topic
from dledger.formats.properties import REAL_TOPIC, decode_properties
from dledger.formats.record import Record
from dledger.remoting.bodies import LockRequest, decode_body, decode_client_config, decode_heartbeat
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Request
from dledger.remoting.pop_bodies import decode_assignment_query, decode_batch_ack

Needed = tuple[str, int]
"""Resource (a topic, or a group by its retry topic) and permission bits, of which one is needed. The empty
name: any topic."""


@dataclass(frozen=True)
class Rule:
    """Of one request code. Header fields that are missing need nothing: the request is refused for that."""

    admin: bool = False
    """Whether only administrators may."""
    topic: str = ""
    """Header field with a topic."""
    perm: int = SUB
    """What is needed on that."""
    groups: tuple[str, ...] = ()
    """Header fields with groups whose messages are consumed."""
    special: Callable[[Request, Mapping[str, str]], Iterable[Needed]] | None = None
    """What else, from the body or from several fields."""

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
    """A retry topic belongs to its group: whoever consumes may give back. Those of pops have the name of the
    topic behind that of the group."""
    if topic.startswith(RETRY_PREFIX):
        for group in groups:
            own = RETRY_PREFIX + group
            if topic.startswith((own + "_", own + "+")):
                return own, SUB
        return topic, SUB
    return topic, perm


def to_consume(record: Record, group: str) -> Needed:
    """What a message needs that a consumer of this group names by its place: it tells its topic when it is
    read. What waits is of the topic that it waits for."""
    return _resource(_topic_of(record), SUB, (group,))


def to_send(record: Record) -> Needed:
    """The same for a producer."""
    return _resource(_topic_of(record), PUB)


def _topic_of(record: Record) -> str:
    if not is_system_topic(record.topic):
        return record.topic
    return decode_properties(record.properties).get(REAL_TOPIC, record.topic)


def _of_heartbeat(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    for consumer in decode_heartbeat(request.body).consumerDataSet:
        yield RETRY_PREFIX + consumer.groupName, SUB
        for subscription in consumer.subscriptionDataSet:
            yield _resource(subscription.topic, SUB, (consumer.groupName,))


def _of_client_config(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    config = decode_client_config(request.body)
    if config.group:
        yield RETRY_PREFIX + config.group, SUB
    if config.subscriptionData is not None:
        yield _resource(config.subscriptionData.topic, SUB, (config.group,))


def _of_locks(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    yield RETRY_PREFIX + decode_body(request.body, LockRequest, "lock request").consumerGroup, SUB


def _of_assignment(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    query = decode_assignment_query(request.body)
    yield RETRY_PREFIX + query.consumerGroup, SUB
    yield _resource(query.topic, SUB, (query.consumerGroup,))


def _of_batch_ack(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    for ack in decode_batch_ack(request.body).acks:
        yield RETRY_PREFIX + ack.c, SUB
        yield _resource(ack.t, SUB, (ack.c,))


def _of_view(request: Request, fields: Mapping[str, str]) -> Iterator[Needed]:
    """The place of a message does not tell its topic, and what a client says need not be true."""
    yield "", SUB


ACCOUNT = Rule()
"""Any account may."""
ADMIN = Rule(admin=True)
_CONSUME = Rule(topic="topic", groups=("consumerGroup",))
_GROUP = Rule(groups=("consumerGroup",))
_OF_GROUP = Rule(groups=("group",))
_READ = Rule(topic="topic")

RULES: Mapping[int, Rule] = MappingProxyType(
    {
        RequestCode.SEND_MESSAGE: Rule(topic="topic", perm=PUB),
        RequestCode.SEND_MESSAGE_V2: Rule(topic="b", perm=PUB),
        RequestCode.SEND_BATCH_MESSAGE: Rule(topic="b", perm=PUB),
        RequestCode.RECALL_MESSAGE: Rule(topic="topic", perm=PUB),
        RequestCode.SEND_REPLY_MESSAGE: ACCOUNT,  # goes to who asked, over its connection
        RequestCode.SEND_REPLY_MESSAGE_V2: ACCOUNT,
        RequestCode.CONSUMER_SEND_MSG_BACK: _OF_GROUP,  # and `to_consume`
        RequestCode.END_TRANSACTION: ACCOUNT,  # `to_send`
        RequestCode.PULL_MESSAGE: _CONSUME,
        RequestCode.LITE_PULL_MESSAGE: _CONSUME,
        RequestCode.POP_MESSAGE: _CONSUME,
        RequestCode.PEEK_MESSAGE: _CONSUME,
        RequestCode.ACK_MESSAGE: _CONSUME,
        RequestCode.BATCH_ACK_MESSAGE: Rule(special=_of_batch_ack),
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _CONSUME,
        RequestCode.NOTIFICATION: _CONSUME,
        RequestCode.POLLING_INFO: _CONSUME,
        RequestCode.QUERY_ASSIGNMENT: Rule(special=_of_assignment),
        RequestCode.SET_MESSAGE_REQUEST_MODE: ADMIN,
        RequestCode.HEART_BEAT: Rule(special=_of_heartbeat),
        RequestCode.CHECK_CLIENT_CONFIG: Rule(special=_of_client_config),
        RequestCode.UNREGISTER_CLIENT: _GROUP,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: _GROUP,
        RequestCode.LOCK_BATCH_MQ: Rule(special=_of_locks),
        RequestCode.UNLOCK_BATCH_MQ: Rule(special=_of_locks),
        RequestCode.QUERY_CONSUMER_OFFSET: _CONSUME,
        RequestCode.UPDATE_CONSUMER_OFFSET: _CONSUME,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Rule(topic="topic", groups=("group",)),
        RequestCode.CLONE_GROUP_OFFSET: Rule(topic="topic", groups=("srcGroup", "destGroup")),
        RequestCode.QUERY_MESSAGE: _READ,
        RequestCode.VIEW_MESSAGE_BY_ID: Rule(special=_of_view),
        RequestCode.QUERY_CONSUME_QUEUE: _READ,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: ACCOUNT,
        RequestCode.GET_MAX_OFFSET: ACCOUNT,
        RequestCode.GET_MIN_OFFSET: ACCOUNT,
        RequestCode.GET_EARLIEST_MSG_STORETIME: ACCOUNT,
        RequestCode.UPDATE_AND_CREATE_TOPIC: ADMIN,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ADMIN,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: ADMIN,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ADMIN,
        RequestCode.DELETE_TOPIC_IN_BROKER: ADMIN,
        RequestCode.DELETE_SUBSCRIPTIONGROUP: ADMIN,
        RequestCode.DELETE_EXPIRED_COMMITLOG: ADMIN,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: ADMIN,
        RequestCode.CLEAN_UNUSED_TOPIC: ADMIN,
        RequestCode.GET_BROKER_HA_STATUS: ACCOUNT,
        RequestCode.GET_BROKER_EPOCH_CACHE: ACCOUNT,
        RequestCode.GET_ALL_DELAY_OFFSET: ACCOUNT,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: ACCOUNT,
        RequestCode.GET_ALL_PRODUCER_INFO: ACCOUNT,
        RequestCode.QUERY_CORRECTION_OFFSET: ACCOUNT,
        **dict.fromkeys(REFUSED, ACCOUNT),
        RequestCode.UPDATE_BROKER_CONFIG: ADMIN,
        RequestCode.AUTH_CREATE_USER: ADMIN,
        RequestCode.AUTH_UPDATE_USER: ADMIN,
        RequestCode.AUTH_DELETE_USER: ADMIN,
        RequestCode.AUTH_GET_USER: ADMIN,
        RequestCode.AUTH_LIST_USER: ADMIN,
        RequestCode.AUTH_CREATE_ACL: ADMIN,
        RequestCode.AUTH_UPDATE_ACL: ADMIN,
        RequestCode.AUTH_DELETE_ACL: ADMIN,
        RequestCode.AUTH_GET_ACL: ADMIN,
        RequestCode.AUTH_LIST_ACL: ADMIN,
        RequestCode.GET_BROKER_CONFIG: ACCOUNT,
        RequestCode.GET_BROKER_RUNTIME_INFO: ACCOUNT,
        RequestCode.GET_ALL_TOPIC_CONFIG: ACCOUNT,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ACCOUNT,
        RequestCode.GET_ALL_CONSUMER_OFFSET: ACCOUNT,
        RequestCode.GET_TOPIC_CONFIG: ACCOUNT,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: ACCOUNT,
        RequestCode.GET_TOPIC_STATS_INFO: ACCOUNT,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: ACCOUNT,
        RequestCode.GET_PRODUCER_CONNECTION_LIST: ACCOUNT,
        RequestCode.GET_CONSUME_STATS: ACCOUNT,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _OF_GROUP,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: ACCOUNT,
        RequestCode.QUERY_CONSUME_TIME_SPAN: ACCOUNT,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: ACCOUNT,
        RequestCode.GET_CONSUMER_RUNNING_INFO: _GROUP,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: Rule(groups=("consumerGroup",), special=_of_view),
        RequestCode.VIEW_BROKER_STATS_DATA: ACCOUNT,
        RequestCode.GET_BROKER_CONSUME_STATS: ACCOUNT,
        RequestCode.QUERY_TOPICS_BY_CONSUMER: ACCOUNT,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: ACCOUNT,
        # The whole log:
        RequestCode.AUDIT_DESCRIBE: ADMIN,
        RequestCode.AUDIT_SEGMENT: ADMIN,
        RequestCode.AUDIT_SIDE: ADMIN,
        RequestCode.AUDIT_DRILL: ADMIN,
        RequestCode.AUDIT_PAGE: ADMIN,
        RequestCode.AUDIT_STAMP: ADMIN,
        RequestCode.AUDIT_ENTRIES: ADMIN,
        RequestCode.AUDIT_UNITS: ADMIN,
        RequestCode.TELL_CONSUMERS: ADMIN,  # never asked: `Broker._authorize`
        RequestCode.TELL_PULLS: ADMIN,  # the same
        RequestCode.CHECK_TRANSACTION_STATE: ADMIN,  # the same
    }
)
"""Request code -> what it needs. A code without a line is not answered by brokers."""

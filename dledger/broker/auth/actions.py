"""What a request does to which resource, for policies of ACL 2.0 (DefaultAuthorizationContextBuilder, the
annotations RocketMQAction and RocketMQResource).

What a request needs in ACL 1.0 (`required.RULES`) is what it does here, sending or consuming, but for the
codes with a line in ACTIONS. A code that needs an administrator there, and has no line, needs a super user.
Where RocketMQ asks for nothing, as for a change of the broker's settings, this asks for what is done to the
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dledger.broker.admin.refusals import REFUSED
from dledger.broker.auth.plain_acl import PUB, SUB
from dledger.broker.auth.policies import Action
from dledger.broker.auth.required import RULES, Needed
from dledger.broker.topic.topic_names import RETRY_PREFIX
from dledger.remoting.bodies import (
    GroupConfigList,
    LockRequest,
    SubscriptionGroupConfig,
    TopicConfigList,
    decode_body,
)
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Request
from dledger.remoting.pop_bodies import decode_request_mode

TOPIC, GROUP, CLUSTER = "Topic:", "Group:", "Cluster:"
Done = tuple[str, int]
"""Resource, and actions of which one must be allowed. The topic without a name: any topic."""


@dataclass(frozen=True)
class Does:
    """Of one request code. Header fields that are missing mean nothing: the request is refused for that."""

    actions: int = 0
    topics: tuple[str, ...] = ()
    """Header fields with topics."""
    groups: tuple[str, ...] = ()
    """Header fields with groups."""
    cluster: bool = False
    """Whether it is done to the cluster."""
    body: Callable[[Request], Iterable[str]] | None = None
    """What else, from the body."""


def done_by(request: Request, fields: Mapping[str, str], cluster: str) -> Iterator[Done] | None:
    """All of it must be allowed; None: only a super user may. What the body must say and does not raises
    BadBody."""
    does = ACTIONS.get(request.code)
    if does is not None:
        return _listed(does, request, fields, cluster)
    rule = RULES.get(request.code)
    if rule is None or rule.admin:
        return None
    return map(done_with, rule.needed(request, fields))


def done_with(needed: Needed) -> Done:
    """What is done with a permission of ACL 1.0."""
    resource, perm = needed
    return resource_named(resource), _OF_PERM[perm]


def resource_named(topic: str) -> str:
    """The resource that a topic is; a retry topic belongs to its group."""
    if topic.startswith(RETRY_PREFIX):
        return GROUP + topic[len(RETRY_PREFIX) :]
    return TOPIC + topic


def _listed(does: Does, request: Request, fields: Mapping[str, str], cluster: str) -> Iterator[Done]:
    if does.cluster:
        yield CLUSTER + cluster, does.actions
    for name in does.groups:
        if fields.get(name):
            yield GROUP + fields[name], does.actions
    for name in does.topics:
        if fields.get(name):
            yield resource_named(fields[name]), does.actions
    if does.body is not None:
        for resource in does.body(request):
            yield resource, does.actions


def _of_locks(request: Request) -> Iterator[str]:
    body = decode_body(request.body, LockRequest, "lock request")
    yield GROUP + body.consumerGroup
    for topic in dict.fromkeys(queue.topic for queue in body.mqSet):
        if not topic.startswith(RETRY_PREFIX):
            yield TOPIC + topic


def _of_topics(request: Request) -> Iterator[str]:
    for one in decode_body(request.body, TopicConfigList, "list of topics").topicConfigList:
        yield resource_named(one.topicName)


def _of_group(request: Request) -> Iterator[str]:
    yield GROUP + decode_body(request.body, SubscriptionGroupConfig, "subscription group").groupName


def _of_groups(request: Request) -> Iterator[str]:
    for one in decode_body(request.body, GroupConfigList, "list of groups").groupConfigList:
        yield GROUP + one.groupName


def _of_mode(request: Request) -> Iterator[str]:
    yield GROUP + decode_request_mode(request.body).consumerGroup


def _any_topic(request: Request) -> Iterator[str]:
    """The place of a message does not tell its topic, and what a client says need not be true."""
    yield TOPIC


_OF_PERM = {PUB: Action.PUB, SUB: Action.SUB}
_SEEN = Action.GET | Action.SUB
"""Who may consume may see as much."""
NOTHING = Does()
"""Any user may."""
_CONSUMED = Does(_SEEN, topics=("topic",), groups=("consumerGroup",))
_SHOWN_TOPIC = Does(Action.GET, topics=("topic",))
_OFFSET = Does(_SEEN, topics=("topic",))
_SHOWN = Does(Action.GET, cluster=True)
_LISTED = Does(Action.GET | Action.LIST, cluster=True)
_CHANGED = Does(Action.UPDATE, cluster=True)
_LOCKED = Does(Action.SUB, body=_of_locks)

ACTIONS: Mapping[int, Does] = MappingProxyType(
    {
        RequestCode.SEND_REPLY_MESSAGE: NOTHING,  # goes to who asked, over its connection
        RequestCode.SEND_REPLY_MESSAGE_V2: NOTHING,
        RequestCode.END_TRANSACTION: Does(Action.PUB, topics=("topic",)),  # and `to_send`
        RequestCode.POLLING_INFO: _CONSUMED,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: Does(_SEEN, groups=("consumerGroup",)),
        RequestCode.LOCK_BATCH_MQ: _LOCKED,
        RequestCode.UNLOCK_BATCH_MQ: _LOCKED,
        RequestCode.QUERY_CONSUMER_OFFSET: _CONSUMED,
        RequestCode.UPDATE_CONSUMER_OFFSET: Does(
            Action.SUB | Action.UPDATE, topics=("topic",), groups=("consumerGroup",)
        ),
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Does(Action.UPDATE, topics=("topic",), groups=("group",)),
        RequestCode.CLONE_GROUP_OFFSET: Does(Action.UPDATE, topics=("topic",), groups=("destGroup",)),
        RequestCode.SET_MESSAGE_REQUEST_MODE: Does(Action.UPDATE, body=_of_mode),
        RequestCode.QUERY_MESSAGE: _OFFSET,
        RequestCode.VIEW_MESSAGE_BY_ID: Does(_SEEN, body=_any_topic),
        RequestCode.QUERY_CONSUME_QUEUE: Does(Action.GET, topics=("topic",), groups=("consumerGroup",)),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _OFFSET,
        RequestCode.GET_MAX_OFFSET: _OFFSET,
        RequestCode.GET_MIN_OFFSET: _OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME: _OFFSET,
        RequestCode.UPDATE_AND_CREATE_TOPIC: Does(Action.CREATE, topics=("topic",)),
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: Does(Action.CREATE, body=_of_topics),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Does(Action.CREATE, body=_of_group),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Does(Action.CREATE, body=_of_groups),
        RequestCode.DELETE_TOPIC_IN_BROKER: Does(Action.DELETE, topics=("topic",)),
        RequestCode.DELETE_SUBSCRIPTIONGROUP: Does(Action.DELETE, groups=("groupName",)),
        RequestCode.DELETE_EXPIRED_COMMITLOG: _CHANGED,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _CHANGED,
        RequestCode.CLEAN_UNUSED_TOPIC: _CHANGED,
        RequestCode.UPDATE_BROKER_CONFIG: _CHANGED,
        RequestCode.AUTH_CREATE_USER: _CHANGED,
        RequestCode.AUTH_UPDATE_USER: _CHANGED,
        RequestCode.AUTH_DELETE_USER: _CHANGED,
        RequestCode.AUTH_GET_USER: _SHOWN,
        RequestCode.AUTH_LIST_USER: _SHOWN,
        RequestCode.AUTH_CREATE_ACL: _CHANGED,
        RequestCode.AUTH_UPDATE_ACL: _CHANGED,
        RequestCode.AUTH_DELETE_ACL: _CHANGED,
        RequestCode.AUTH_GET_ACL: _SHOWN,
        RequestCode.AUTH_LIST_ACL: _SHOWN,
        RequestCode.GET_BROKER_CONFIG: _SHOWN,
        RequestCode.GET_BROKER_RUNTIME_INFO: _SHOWN,
        RequestCode.GET_BROKER_HA_STATUS: _SHOWN,
        RequestCode.GET_BROKER_EPOCH_CACHE: _SHOWN,
        RequestCode.GET_ALL_DELAY_OFFSET: _SHOWN,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: _LISTED,
        RequestCode.GET_ALL_PRODUCER_INFO: _SHOWN,
        RequestCode.GET_ALL_TOPIC_CONFIG: _LISTED,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _LISTED,
        RequestCode.GET_ALL_CONSUMER_OFFSET: _LISTED,
        RequestCode.VIEW_BROKER_STATS_DATA: _SHOWN,
        RequestCode.GET_BROKER_CONSUME_STATS: _SHOWN,
        RequestCode.GET_PRODUCER_CONNECTION_LIST: _SHOWN,
        RequestCode.QUERY_CORRECTION_OFFSET: Does(Action.GET, topics=("topic",), groups=("compareGroup",)),
        RequestCode.GET_TOPIC_CONFIG: _SHOWN_TOPIC,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Does(Action.GET, groups=("group",)),
        RequestCode.GET_TOPIC_STATS_INFO: _SHOWN_TOPIC,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: Does(Action.GET, groups=("consumerGroup",)),
        RequestCode.GET_CONSUME_STATS: Does(Action.GET, topics=("topic",), groups=("consumerGroup",)),
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Does(
            Action.GET, topics=("topic",), groups=("group",)
        ),
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _SHOWN_TOPIC,
        RequestCode.QUERY_CONSUME_TIME_SPAN: Does(Action.GET, topics=("topic",), groups=("group",)),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: NOTHING,
        RequestCode.GET_CONSUMER_RUNNING_INFO: Does(Action.GET, groups=("consumerGroup",)),
        RequestCode.QUERY_TOPICS_BY_CONSUMER: Does(Action.GET, groups=("group",)),
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: Does(Action.GET, topics=("topic",), groups=("group",)),
        **dict.fromkeys(REFUSED, NOTHING),
    }
)
"""Request code -> what it does, where that is more than sending or consuming."""

"""Rules of ACL 2.0: what a request does to which resource (DefaultAuthorizationContextBuilder, the
annotations RocketMQAction and RocketMQResource).

Each request that does more than to send or to consume says so where it is declared:
`@handles(..., does=actions.SHOWN)`. Without that it does what it needs in ACL 1.0 (`required`). One that
needs an administrator there, and does not say what it does, needs a super user. Where RocketMQ asks for
nothing, as for a change of the broker's settings, the request does something to the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from dledger.broker.auth.plain_acl import PUB, SUB
from dledger.broker.auth.policies import Action
from dledger.broker.auth.required import Needed, Rule
from dledger.broker.topic.topic_names import RETRY_PREFIX
from dledger.remoting.bodies import (
    GroupConfigList,
    LockRequest,
    SubscriptionGroupConfig,
    TopicConfigList,
    decode_body,
)
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


def done_by(
    rule: Rule, does: Does | None, request: Request, fields: Mapping[str, str], cluster: str
) -> Iterator[Done] | None:
    """What a request does; all of it must be allowed. None: only a super user may send it.

    BadBody if the body must name a resource and does not."""
    if does is not None:
        return _listed(does, request, fields, cluster)
    return None if rule.admin else map(done_with, rule.needed(request, fields))


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


def of_locks(request: Request) -> Iterator[str]:
    """The group that locks queues, and their topics."""
    body = decode_body(request.body, LockRequest, "lock request")
    yield GROUP + body.consumerGroup
    for topic in dict.fromkeys(queue.topic for queue in body.mqSet):
        if not topic.startswith(RETRY_PREFIX):
            yield TOPIC + topic


def of_topics(request: Request) -> Iterator[str]:
    """The topics in the body."""
    for one in decode_body(request.body, TopicConfigList, "list of topics").topicConfigList:
        yield resource_named(one.topicName)


def of_group(request: Request) -> Iterator[str]:
    """The consumer group in the body."""
    yield GROUP + decode_body(request.body, SubscriptionGroupConfig, "subscription group").groupName


def of_groups(request: Request) -> Iterator[str]:
    """The consumer groups in the body."""
    for one in decode_body(request.body, GroupConfigList, "list of groups").groupConfigList:
        yield GROUP + one.groupName


def of_mode(request: Request) -> Iterator[str]:
    """The group whose way of reading changes."""
    yield GROUP + decode_request_mode(request.body).consumerGroup


def any_topic(request: Request) -> Iterator[str]:
    """Any topic: the place of a message does not tell its topic, and what a client says need not be true."""
    yield TOPIC


_OF_PERM = {PUB: Action.PUB, SUB: Action.SUB}
SEEN = Action.GET | Action.SUB
"""Whoever may consume may see as much."""
NOTHING = Does()
"""Any user may."""
CONSUMED = Does(SEEN, topics=("topic",), groups=("consumerGroup",))
"""Shows something of a topic and of a group that consumes it."""
SHOWN_TOPIC = Does(Action.GET, topics=("topic",))
"""Shows something of a topic."""
OFFSET = Does(SEEN, topics=("topic",))
"""Shows something of a topic that its consumers may see."""
SHOWN = Does(Action.GET, cluster=True)
"""Shows something of the cluster."""
LISTED = Does(Action.GET | Action.LIST, cluster=True)
"""Lists something of the cluster."""
CHANGED = Does(Action.UPDATE, cluster=True)
"""Changes the cluster."""
LOCKED = Does(Action.SUB, body=of_locks)
"""Locks queues."""

"""Rules of ACL 2.0: which actions a request performs on which resource (DefaultAuthorizationContextBuilder,
the annotations RocketMQAction and RocketMQResource).

Each request that does more than to send or to consume names its actions where it is declared: `@handles(...,
does=actions.SHOWN)`. Without that, the actions follow from its rule in ACL 1.0 (`required`). A request that
needs an administrator there and names no actions needs a super user. Where RocketMQ requires nothing, as for
a change of the broker's settings, the request is an action on the cluster.
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
"""A resource and a set of actions, of which one must be allowed. A topic without a name stands for any
topic."""


@dataclass(frozen=True)
class Does:
    """The actions of one request code. Missing header fields are skipped here: the request is refused for
    them anyway."""

    actions: int = 0
    topics: tuple[str, ...] = ()
    """Header fields that contain topics."""
    groups: tuple[str, ...] = ()
    """Header fields that contain groups."""
    cluster: bool = False
    """Whether the action is on the cluster."""
    body: Callable[[Request], Iterable[str]] | None = None
    """Finds further resources in the body."""


def done_by(
    rule: Rule, does: Does | None, request: Request, fields: Mapping[str, str], cluster: str
) -> Iterator[Done] | None:
    """The actions of a request; all of them must be allowed. None: only a super user may make it. BadBody if
    the body must name a resource and does not."""
    if does is not None:
        return _listed(does, request, fields, cluster)
    return None if rule.admin else map(done_with, rule.needed(request, fields))


def done_with(needed: Needed) -> Done:
    """The action that corresponds to a permission of ACL 1.0."""
    resource, perm = needed
    return resource_named(resource), _OF_PERM[perm]


def resource_named(topic: str) -> str:
    """The resource of a topic; a retry topic belongs to its group."""
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
    """The group whose request mode changes."""
    yield GROUP + decode_request_mode(request.body).consumerGroup


def any_topic(request: Request) -> Iterator[str]:
    """Any topic: the position of a message does not reveal its topic, and the client's word is not proof."""
    yield TOPIC


_OF_PERM = {PUB: Action.PUB, SUB: Action.SUB}
SEEN = Action.GET | Action.SUB
"""Actions of which one is needed to see what consumers may see."""
NOTHING = Does()
"""No action: any user may make the request."""
CONSUMED = Does(SEEN, topics=("topic",), groups=("consumerGroup",))
"""Shows something about a topic and a group that consumes it."""
SHOWN_TOPIC = Does(Action.GET, topics=("topic",))
"""Shows something about a topic."""
OFFSET = Does(SEEN, topics=("topic",))
"""Shows something about a topic that its consumers may see."""
SHOWN = Does(Action.GET, cluster=True)
"""Shows something about the cluster."""
LISTED = Does(Action.GET | Action.LIST, cluster=True)
"""Lists something about the cluster."""
CHANGED = Does(Action.UPDATE, cluster=True)
"""Changes the cluster."""
LOCKED = Does(Action.SUB, body=of_locks)
"""Locks queues."""

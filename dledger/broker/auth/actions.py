"""Rules of ACL 2.0: which actions a request performs on which resource (DefaultAuthorizationContextBuilder,
the annotations RocketMQAction and RocketMQResource).

Requests that only send or consume need no rule of their own: their actions follow from their rule in ACL 1.0
(`required`). Every other request names its actions where it is declared: `@handles(..., does=actions.SHOWN)`.
If such a request names none and its rule in ACL 1.0 requires an administrator, it needs a super user in ACL
2.0. Where RocketMQ requires nothing, for example for a change of the broker's settings, the request counts as
an action on the cluster.
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
"""A resource, and a set of actions as bits. At least one of these actions must be allowed on the resource. A
topic with an empty name stands for any topic."""


@dataclass(frozen=True)
class Does:
    """The actions that one request code performs. A header field that is missing is skipped, because other
    code refuses such a request."""

    actions: int = 0
    topics: tuple[str, ...] = ()
    """Names of the header fields that contain topics."""
    groups: tuple[str, ...] = ()
    """Names of the header fields that contain groups."""
    cluster: bool = False
    """Whether the request is also an action on the cluster."""
    body: Callable[[Request], Iterable[str]] | None = None
    """Finds further resources in the body of the request."""


def done_by(
    rule: Rule, does: Does | None, request: Request, fields: Mapping[str, str], cluster: str
) -> Iterator[Done] | None:
    """Return the actions of a request, all of which must be allowed, or None if only a super user may make
    the request. Raises BadBody if the body must name a resource and does not."""
    if does is not None:
        return _listed(does, request, fields, cluster)
    return None if rule.admin else map(done_with, rule.needed(request, fields))


def done_with(needed: Needed) -> Done:
    """Return the action that corresponds to a permission of ACL 1.0."""
    resource, perm = needed
    return resource_named(resource), _OF_PERM[perm]


def resource_named(topic: str) -> str:
    """Return the resource that stands for a topic. For a retry topic it is the consumer group."""
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
    """Yield the group that locks queues, and the topics of these queues."""
    body = decode_body(request.body, LockRequest, "lock request")
    yield GROUP + body.consumerGroup
    for topic in dict.fromkeys(queue.topic for queue in body.mqSet):
        if not topic.startswith(RETRY_PREFIX):
            yield TOPIC + topic


def of_topics(request: Request) -> Iterator[str]:
    """Yield the topics in the body of the request."""
    for one in decode_body(request.body, TopicConfigList, "list of topics").topicConfigList:
        yield resource_named(one.topicName)


def of_group(request: Request) -> Iterator[str]:
    """Yield the consumer group in the body of the request."""
    yield GROUP + decode_body(request.body, SubscriptionGroupConfig, "subscription group").groupName


def of_groups(request: Request) -> Iterator[str]:
    """Yield the consumer groups in the body of the request."""
    for one in decode_body(request.body, GroupConfigList, "list of groups").groupConfigList:
        yield GROUP + one.groupName


def of_mode(request: Request) -> Iterator[str]:
    """Yield the group whose request mode (pull or pop) changes."""
    yield GROUP + decode_request_mode(request.body).consumerGroup


def any_topic(request: Request) -> Iterator[str]:
    """Yield the resource "any topic". The request names a message by its position, which does not reveal the
    topic, and the topic that the client names is not proof."""
    yield TOPIC


_OF_PERM = {PUB: Action.PUB, SUB: Action.SUB}
SEEN = Action.GET | Action.SUB
"""Actions that let a user see what consumers may see. One of them is enough."""
NOTHING = Does()
"""No action, so any user may make the request."""
CONSUMED = Does(SEEN, topics=("topic",), groups=("consumerGroup",))
"""For a request that shows something about a topic and a group that consumes it."""
SHOWN_TOPIC = Does(Action.GET, topics=("topic",))
"""For a request that shows something about a topic."""
OFFSET = Does(SEEN, topics=("topic",))
"""For a request that shows something about a topic that its consumers may see as well."""
SHOWN = Does(Action.GET, cluster=True)
"""For a request that shows something about the cluster."""
LISTED = Does(Action.GET | Action.LIST, cluster=True)
"""For a request that lists something about the cluster."""
CHANGED = Does(Action.UPDATE, cluster=True)
"""For a request that changes something about the cluster."""
LOCKED = Does(Action.SUB, body=of_locks)
"""For a request that locks queues."""

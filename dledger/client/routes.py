"""Reads a topic's route: its queues for sending and for reading, and the addresses of their brokers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TypeVar

from dledger.client.message import MessageQueue
from dledger.remoting.bodies import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    Body,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicList,
    TopicRoute,
    decode_body,
)
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import BadBody

B = TypeVar("B", bound=Body)


def parse_route(body: bytes) -> TopicRoute:
    """Decode an answer to request 105 GET_ROUTEINFO_BY_TOPIC. Lists in it are sorted, so that equal routes
    compare equal. Raises BadBody."""
    route = decode_body(body, TopicRoute, "route")
    route.queueDatas.sort(key=lambda data: data.brokerName)
    route.brokerDatas.sort(key=lambda data: data.brokerName)
    return route


def groups_of_route(route: TopicRoute) -> frozenset[str]:
    """Names of the broker groups at which the topic has queues."""
    return frozenset(data.brokerName for data in route.queueDatas)


def groups_of_answer(answer: Response) -> frozenset[str]:
    """Names of the broker groups in an answer to request 105 GET_ROUTEINFO_BY_TOPIC; none if the answer is a
    refusal or cannot be read."""
    route = _told(answer, TopicRoute)
    return frozenset() if route is None else groups_of_route(route)


def groups_in_cluster(answer: Response) -> int:
    """Number of broker groups in an answer to request 106 GET_BROKER_CLUSTER_INFO."""
    info = _told(answer, ClusterInfo)
    return 0 if info is None else len(info.brokerAddrTable)


def topics_in_list(answer: Response) -> int:
    """Number of topics in an answer to request 206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER or 304
    GET_SYSTEM_TOPIC_LIST_FROM_NS."""
    listed = _told(answer, TopicList)
    return 0 if listed is None else len(listed.topicList)


def _told(answer: Response, kind: type[B]) -> B | None:
    """Decode an answer; None if it is a refusal or cannot be read."""
    if answer.code != ResponseCode.SUCCESS:
        return None
    try:
        return decode_body(answer.body, kind, kind.__name__)
    except BadBody:
        return None


def merge_routes(routes: Sequence[TopicRoute]) -> TopicRoute:
    """Merge the routes of one topic that several NameServers returned. If several of them know the same
    broker group, the first entry that names a master is taken."""
    if len(routes) == 1:
        return routes[0]
    queues: dict[str, QueueData] = {}
    brokers = _merge_brokers(chain.from_iterable(route.brokerDatas for route in routes))
    filters: dict[str, list[str]] = {}
    for route in routes:
        queues = {data.brokerName: data for data in route.queueDatas} | queues
        filters = route.filterServerTable | filters
    for route in reversed(routes):
        with_master = {data.brokerName for data in route.brokerDatas if data.master is not None}
        queues |= {data.brokerName: data for data in route.queueDatas if data.brokerName in with_master}
    return TopicRoute(
        [queues[name] for name in sorted(queues)],
        [brokers[name] for name in sorted(brokers)],
        filters,
        next((route.orderTopicConf for route in routes if route.orderTopicConf is not None), None),
    )


def merge_clusters(found: Sequence[ClusterInfo]) -> ClusterInfo:
    """Merge the clusters that several NameServers returned. For a broker group that several of them know, the
    first entry that names a master is taken."""
    names: dict[str, dict[str, None]] = {}
    for info in found:
        for cluster, members in info.clusterAddrTable.items():
            names.setdefault(cluster, {}).update(dict.fromkeys(members))
    return ClusterInfo(
        _merge_brokers(chain.from_iterable(info.brokerAddrTable.values() for info in found)),
        {cluster: list(members) for cluster, members in names.items()},
    )


def _merge_brokers(found: Iterable[BrokerData]) -> dict[str, BrokerData]:
    brokers: dict[str, BrokerData] = {}
    for data in found:
        before = brokers.get(data.brokerName)
        if before is None or (before.master is None and data.master is not None):
            brokers[data.brokerName] = data
    return brokers


def publish_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """The queues of a topic that accept messages, sorted by broker name and queue id
    (topicRouteData2TopicPublishInfo).

    Unlike RocketMQ's clients this one includes queues of broker groups without a leader, because the groups
    will soon have one again.
    """
    return _queues(topic, route, PERM_WRITE)


def subscribe_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """The queues of a topic that can be read, sorted by broker name and queue id
    (topicRouteData2TopicSubscribeInfo)."""
    return _queues(topic, route, PERM_READ)


def inherited_route(default: TopicRoute, queues: int) -> TopicRoute:
    """The route of a topic that brokers will create because we send to it.

    `default` is the route of TBW102; the new topic has at most `queues` queues in each group.
    """
    return TopicRoute(
        queueDatas=[
            type(data)(
                data.brokerName,
                min(queues, data.readQueueNums),
                min(queues, data.writeQueueNums),
                data.perm & ~PERM_INHERIT,
                data.topicSysFlag,
            )
            for data in default.queueDatas
            if data.perm & PERM_INHERIT
        ],
        brokerDatas=default.brokerDatas,
    )


def _queues(topic: str, route: TopicRoute, perm: int) -> list[MessageQueue]:
    groups = [data.brokerName for data in route.brokerDatas if data.brokerAddrs]
    return [
        MessageQueue(topic, data.brokerName, number)
        for data in sorted(route.queueDatas, key=lambda data: data.brokerName)
        if data.perm & perm and data.brokerName in groups
        for number in range(data.writeQueueNums if perm == PERM_WRITE else data.readQueueNums)
    ]

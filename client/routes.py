"""What a topic's route says: its queues to send to and to read from, and the addresses behind them. Pure."""

from __future__ import annotations

from dledger.client.message import MessageQueue
from dledger.remoting.bodies import PERM_INHERIT, PERM_READ, PERM_WRITE, TopicRoute, decode_body


def parse_route(body: bytes) -> TopicRoute:
    """Answer to 105 GET_ROUTEINFO_BY_TOPIC; BadBody when it is none. Equal routes compare equal."""
    route = decode_body(body, TopicRoute, "route")
    route.queueDatas.sort(key=lambda data: data.brokerName)
    route.brokerDatas.sort(key=lambda data: data.brokerName)
    return route


def publish_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Queues that take messages, by broker name and number (topicRouteData2TopicPublishInfo).

    Unlike RocketMQ's clients ours keeps groups without a leader: it is about to have one again.
    """
    return _queues(topic, route, PERM_WRITE)


def subscribe_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Queues that can be read, by broker name and number (topicRouteData2TopicSubscribeInfo)."""
    return _queues(topic, route, PERM_READ)


def inherited_route(default: TopicRoute, queues: int) -> TopicRoute:
    """The route that a topic will have which the brokers create because we send to it.

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

"""The queues of a topic on all broker groups (TopicRouteInfoManager): the own from the log, the others' from
a NameServer, asked again after a while."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from dledger.broker.config import BrokerConfig
from dledger.broker.registration.name_servers import NameServers
from dledger.remoting.bodies import PERM_READ, MessageQueue, TopicRoute, decode_body
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import GetRouteHeader
from dledger.runtime.live_settings import LiveSettings

FRESH_S = 5.0
"""For so long a route is taken as it was."""
MAX_ROUTES = 2000
"""Topics whose routes are kept; the one that was asked for longest ago goes first."""
ASK_S = 1.0
"""How long one NameServer may take."""


class QueueRoutes:
    """Routes that consumers asked for."""

    def __init__(
        self, settings: LiveSettings[BrokerConfig], name_servers: NameServers, client: RemotingClient
    ) -> None:
        self._settings = settings
        self._name_servers = name_servers
        self._client = client
        self._known: OrderedDict[str, tuple[float, tuple[MessageQueue, ...]]] = OrderedDict()

    def fresh(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """The queues of the other groups, if they were asked for a moment ago, or there is nobody to ask."""
        if not self._name_servers.addresses:
            return ()
        known = self._known.get(topic)
        if known is None or asyncio.get_running_loop().time() - known[0] > FRESH_S:
            return None
        return known[1]

    async def others(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of the other groups; RemotingError when no NameServer says anything and nothing is
        known from before."""
        problem = RemotingError(ResponseCode.SYSTEM_ERROR, "no NameServer is configured")
        for addr in self._name_servers.addresses:
            try:
                answer = await self._client.invoke(
                    addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic), timeout_s=ASK_S
                )
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    return self._keep(topic, ())
                if answer.code == ResponseCode.SUCCESS:
                    route = decode_body(answer.body, TopicRoute, "route")
                    return self._keep(topic, self._queues(topic, route))
                problem = RemotingError(answer.code, answer.remark or "")
            except RemotingError as error:
                problem = error
        known = self._known.get(topic)
        if known is not None:
            return known[1]
        raise RemotingError(
            ResponseCode.SYSTEM_ERROR, f"no NameServer tells the queues of topic[{topic}]: {problem}"
        )

    def _queues(self, topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
        own = self._settings.now.broker_name
        return tuple(
            MessageQueue(topic, data.brokerName, queue_id)
            for data in route.queueDatas
            if data.brokerName != own and data.perm & PERM_READ
            for queue_id in range(data.readQueueNums)
        )

    def _keep(self, topic: str, queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
        self._known[topic] = asyncio.get_running_loop().time(), queues
        self._known.move_to_end(topic)
        while len(self._known) > MAX_ROUTES:
            self._known.popitem(last=False)
        return queues

"""The queues of a topic on all broker groups (TopicRouteInfoManager): this group's from the log, those of
other groups from a NameServer, which is asked again after a while."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from itertools import chain

from dledger.broker.config import BrokerConfig
from dledger.broker.registration.name_servers import NameServers
from dledger.remoting.bodies import PERM_READ, MessageQueue, TopicRoute, decode_body
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import GetRouteHeader
from dledger.runtime.live_settings import LiveSettings

FRESH_S = 5.0
"""Seconds for which a route is used before a NameServer is asked again."""
MAX_ROUTES = 2000
"""Topics whose routes are kept; beyond this the one that was refreshed longest ago is dropped."""
ASK_S = 1.0
"""Time-out of a request to one NameServer, in seconds."""


class QueueRoutes:
    """Routes of the topics that consumers asked for."""

    def __init__(
        self, settings: LiveSettings[BrokerConfig], name_servers: NameServers, client: RemotingClient
    ) -> None:
        self._settings = settings
        self._name_servers = name_servers
        self._client = client
        self._known: OrderedDict[str, tuple[float, tuple[MessageQueue, ...]]] = OrderedDict()

    def fresh(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """The queues of the other groups if they are known and fresh, or if no NameServer is configured; else
        None."""
        if not self._name_servers.addresses:
            return ()
        known = self._known.get(topic)
        if known is None or asyncio.get_running_loop().time() - known[0] > FRESH_S:
            return None
        return known[1]

    async def others(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of the other groups, from the NameServers. RemotingError if no NameServer answers and no
        older route is known."""
        addresses = self._name_servers.addresses
        found = await asyncio.gather(*(self._ask(address, topic) for address in addresses))
        routes = [route for route in found if not isinstance(route, RemotingError)]
        if routes:
            queues: dict[str, tuple[MessageQueue, ...]] = {}
            for route in routes:  # one that was just started knows a part only
                queues = self._queues(topic, route) | queues
            return self._keep(topic, tuple(chain.from_iterable(queues[name] for name in sorted(queues))))
        known = self._known.get(topic)
        if known is not None:
            return known[1]
        problem = found[-1] if found else "no NameServer is configured"
        raise RemotingError(
            ResponseCode.SYSTEM_ERROR, f"no NameServer could name the queues of topic[{topic}]: {problem}"
        )

    async def _ask(self, address: str, topic: str) -> TopicRoute | RemotingError:
        """The route that one NameServer knows (empty if it does not know the topic), or the error."""
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        try:
            answer = await self._client.invoke(address, code, GetRouteHeader(topic), timeout_s=ASK_S)
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return TopicRoute([], [])
            if answer.code == ResponseCode.SUCCESS:
                return decode_body(answer.body, TopicRoute, "route")
        except RemotingError as error:
            return error
        return RemotingError(answer.code, answer.remark or "")

    def _queues(self, topic: str, route: TopicRoute) -> dict[str, tuple[MessageQueue, ...]]:
        """The readable queues by broker name, without those of this broker group."""
        own = self._settings.now.broker_name
        return {
            data.brokerName: tuple(
                MessageQueue(topic, data.brokerName, queue_id) for queue_id in range(data.readQueueNums)
            )
            for data in route.queueDatas
            if data.brokerName != own and data.perm & PERM_READ
        }

    def _keep(self, topic: str, queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
        self._known[topic] = asyncio.get_running_loop().time(), queues
        self._known.move_to_end(topic)
        while len(self._known) > MAX_ROUTES:
            self._known.popitem(last=False)
        return queues

"""The queues of a topic on all broker groups (TopicRouteInfoManager): the own from the log, the others' from
a NameServer, asked again after a while."""

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
            ResponseCode.SYSTEM_ERROR, f"no NameServer tells the queues of topic[{topic}]: {problem}"
        )

    async def _ask(self, address: str, topic: str) -> TopicRoute | RemotingError:
        """What one NameServer knows, an empty route when that is nothing; or why it does not say."""
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
        """The queues that can be read, by broker name, without our own."""
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

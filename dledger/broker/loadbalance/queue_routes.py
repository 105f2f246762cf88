"""The queues of a topic on all broker groups (TopicRouteInfoManager). The queues of this broker's group are
in the replicated state. Those of other groups come from the NameServers, which are asked again after
`FRESH_S`."""

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
"""Seconds for which a route is used before the NameServers are asked again."""
MAX_ROUTES = 2000
"""Largest number of topics whose routes are kept. Beyond it, the route is dropped that was refreshed longest
ago."""
ASK_S = 1.0
"""Time-out of a request to one NameServer, in seconds."""


class QueueRoutes:
    """Routes of the topics for which consumers have asked."""

    def __init__(
        self, settings: LiveSettings[BrokerConfig], name_servers: NameServers, client: RemotingClient
    ) -> None:
        self._settings = settings
        self._name_servers = name_servers
        self._client = client
        self._known: OrderedDict[str, tuple[float, tuple[MessageQueue, ...]]] = OrderedDict()

    def fresh(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """Return the queues of the other broker groups if they were fetched at most `FRESH_S` ago, otherwise
        None. If no NameServer is configured, return an empty list of queues."""
        if not self._name_servers.addresses:
            return ()
        known = self._known.get(topic)
        if known is None or asyncio.get_running_loop().time() - known[0] > FRESH_S:
            return None
        return known[1]

    async def others(self, topic: str) -> tuple[MessageQueue, ...]:
        """Fetch the queues of the other broker groups from the NameServers. If no NameServer answers, an
        older route is returned. Raises RemotingError if there is none."""
        addresses = self._name_servers.addresses
        found = await asyncio.gather(*(self._ask(address, topic) for address in addresses))
        routes = [route for route in found if not isinstance(route, RemotingError)]
        if routes:
            queues: dict[str, tuple[MessageQueue, ...]] = {}
            for route in routes:  # a new NameServer knows only a part
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
        """Return the route of a topic that one NameServer knows, or the error. The route is empty if the
        NameServer does not know the topic."""
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
        """Return the readable queues in a route by broker name. The queues of this broker's own group are
        left out."""
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

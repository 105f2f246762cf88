"""A client machine with a consumer that does not notice lost connections, like consumers of other projects.
If a leader is lost, other brokers answer the pulls that waited at that leader
(`dledger/broker/longpolling/stranded_pulls.py`)."""

from __future__ import annotations

import asyncio

from dledger.chaos.scenarios.broker_clients import Consumer
from dledger.chaos.scenarios.broker_history import Stood
from dledger.chaos.scenarios.client_stage import BROKER_NAME
from dledger.chaos.scenarios.oracle import Queue
from dledger.chaos.scenarios.unaware_client import UnawareClient
from dledger.client.encoding import received_all
from dledger.client.routes import parse_route, subscribe_queues
from dledger.remoting.bodies import MASTER_ID, ConsumerData, Heartbeat, Subscription
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import PULL_SUSPEND, GetRouteHeader, PullMessageHeader
from dledger.remoting.response_headers import PullMessageResponseHeader
from dledger.runtime.env import Env

UNAWARE_GROUP = "unaware"
PULL_TIMEOUT_S, HOLD_MS = 30.0, 15_000
"""How long this consumer waits for the answer to a pull (in seconds), and how long a broker may hold the pull
(in ms)."""
HEARTBEAT_S = 10.0
"""Time between heartbeats, in seconds. Clients of other projects send them every 30 s. This client sends them
more often, because a heartbeat is what connects it to a broker that was just started."""
ROUTES_S, LOOK_S = 30.0, 2.0
"""Time between two requests for a route, in seconds: if the route is known, and if it is not."""
PAUSE_S = 3.0
"""Pause after a pull that failed, in seconds."""
TOLD_S = 0.5
"""Time, in seconds, after which all brokers of a healthy group know a pull that waits."""
AT_ONCE = 32
GOES_ON = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
"""Answer codes of a pull whose answer says at which offset to continue."""


class UnawareReader(Consumer):
    """A pull consumer that does not notice lost connections. After each start it reads all queues of all
    topics from the first message on, and it commits no offsets."""

    group = UNAWARE_GROUP
    _client: UnawareClient | None = None
    _heard: tuple[object, ...] = ()
    """The connections over which every broker accepted the last heartbeat. Empty if a broker did not accept
    it."""
    _heard_since = 0.0
    """Time of the event loop since when all brokers know this consumer over these connections (see `_heard`).
    """

    async def main(self, env: Env) -> None:
        self.lives += 1
        self.routes = {}
        client = self._client = UnawareClient(env)
        due: dict[str, float] = {}
        reading: dict[Queue, None] = {}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat(client), name="heartbeats")
            while True:
                for topic in list(self._topics):
                    now = asyncio.get_running_loop().time()
                    if now >= due.get(topic, now) and await self._look(client, topic):
                        due[topic] = now + ROUTES_S
                    known = self.routes.get(topic)
                    for one in [] if known is None else subscribe_queues(topic, known):
                        queue = topic, one.queue_id
                        if queue not in reading:
                            reading[queue] = None
                            tasks.create_task(self._read(client, queue, self.lives), name=f"pulls-{queue}")
                await asyncio.sleep(LOOK_S)

    # Questions of the judge

    def is_known(self) -> bool:
        """Whether a pull waits for each queue, and all brokers know these pulls."""
        client = self._client
        if client is None or not self._heard or client.links(self._addresses()) != self._heard:
            return False
        pulls = [asked for asked in client.asked.values() if asked.code == RequestCode.PULL_MESSAGE]
        queues = {one for topic, route in self.routes.items() for one in subscribe_queues(topic, route)}
        known = all(asked.link.up and asked.since > self._heard_since for asked in pulls)
        return known and len(pulls) == len(queues) and all(asked.age() > TOLD_S for asked in pulls)

    def stands_still(self) -> bool:
        """Whether a pull without an answer was sent over a connection that is lost. If a broker forwarded the
        pull to the leader, the connection to that broker counts."""
        client = self._client
        return client is not None and not all(asked.link.up for asked in client.asked.values())

    # Brokers

    def _addresses(self) -> list[str]:
        every = [one for route in self.routes.values() for one in route.brokerDatas]
        return sorted({address for one in every for address in one.brokerAddrs.values()})

    async def _look(self, client: UnawareClient, topic: str) -> bool:
        """Ask the NameServer for the route of a topic. Returns whether it has one."""
        address, header = self._stage.namesrv_addr, GetRouteHeader(topic)
        try:
            answer, _ = await client.ask(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        except OSError:
            return False
        if answer.code == ResponseCode.SUCCESS:
            self.routes = {**self.routes, topic: parse_route(answer.body)}
        return answer.code == ResponseCode.SUCCESS

    async def _beat(self, client: UnawareClient) -> None:
        """Send heartbeats to every broker of the group."""
        while True:
            addresses, took = self._addresses(), 0
            wanted = [Subscription(topic, subVersion=1) for topic in self.routes]
            group = ConsumerData(
                self.group, consumeFromWhere="CONSUME_FROM_FIRST_OFFSET", subscriptionDataSet=wanted
            )
            body = Heartbeat(f"{self.name}@unaware", consumerDataSet=[group]).encode()
            for address in addresses:
                try:
                    answer, _ = await client.ask(address, RequestCode.HEART_BEAT, None, body)
                except OSError:
                    continue
                took += answer.code == ResponseCode.SUCCESS
            heard = client.links(addresses) if took == len(addresses) else ()
            if heard != self._heard:
                self._heard, self._heard_since = heard, asyncio.get_running_loop().time()
            await asyncio.sleep(HEARTBEAT_S if took else LOOK_S)

    async def _read(self, client: UnawareClient, queue: Queue, life: int) -> None:
        """Pull from a queue again and again."""
        offset, broker_id = 0, MASTER_ID
        while True:
            header = PullMessageHeader(
                self.group, *queue, offset, AT_ONCE, PULL_SUSPEND, 0, HOLD_MS, 1, expressionType="TAG"
            )
            addresses = self._group_of(queue[0])
            address = addresses.get(broker_id) or next(iter(addresses.values()), "")
            try:
                answer, elsewhere = await client.ask(
                    address, RequestCode.PULL_MESSAGE, header, timeout_s=PULL_TIMEOUT_S
                )
            except OSError:
                await asyncio.sleep(PAUSE_S)
                continue
            if answer.code not in GOES_ON:
                await asyncio.sleep(PAUSE_S)
                continue
            found = answer.header(PullMessageResponseHeader)
            if elsewhere:
                self._history.stood.append(Stood(queue, offset, answer.code, found.nextBeginOffset))
                self._stage.marks.reach("a pull of a lost leader was answered over another connection")
            if answer.code == ResponseCode.SUCCESS:
                for message in received_all(answer.body, BROKER_NAME):
                    self.handed(life, message)
            offset, broker_id = found.nextBeginOffset, found.suggestWhichBrokerId

    def _group_of(self, topic: str) -> dict[int, str]:
        """Maps the broker ids of a topic's brokers to their addresses."""
        brokers = self.routes[topic].brokerDatas
        return brokers[0].brokerAddrs if brokers else {}

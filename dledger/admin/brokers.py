"""Brokers: their settings and figures, their logs, and what they clean up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dledger.admin.asking import LOOK_S, Asking, ClusterView, Refused, read_body
from dledger.client.errors import BrokerRefused, NoBroker
from dledger.remoting.bodies import KvTable
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Response
from dledger.remoting.frames import Fields
from dledger.remoting.headers import QueryConsumeQueueHeader
from dledger.remoting.operator_bodies import BrokerStatsData, ConsumeQueueBody, EpochCache, HaStatus
from dledger.remoting.operator_headers import ViewBrokerStatsHeader


class Brokers:
    """What operators do with brokers. ClientError where a server refuses, or does not answer."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def cluster(self) -> ClusterView:
        """Which brokers there are (106)."""
        return await self._asking.cluster()

    async def masters(self, cluster: str | None = None, broker_name: str | None = None) -> dict[str, str]:
        """Names of the broker groups and addresses of their masters, of a cluster, of one group, or of all. A
        group that has none is waited for, up to `failover_timeout_s`; then NoBroker."""
        core = self._asking.core
        deadline = core.now() + core.options.failover_timeout_s
        while True:
            view = await self._asking.cluster()
            try:
                return view.masters(cluster, broker_name)
            except NoBroker:
                if core.now() + LOOK_S >= deadline:
                    raise
            await asyncio.sleep(LOOK_S)

    async def runtime(self, address: str) -> dict[str, str]:
        """Figures of the broker there (28)."""
        answer = await self._asking.broker(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(sorted(read_body("figures", KvTable, answer.body).table.items()))

    async def settings(self, address: str) -> dict[str, str]:
        """Its settings by property name (26)."""
        answer = await self._asking.broker(address, RequestCode.GET_BROKER_CONFIG)
        return parse_settings(answer.body)

    async def change_settings(self, address: str, properties: Mapping[str, str]) -> None:
        """Change settings of this one broker while it runs (25)."""
        await self._asking.broker(address, RequestCode.UPDATE_BROKER_CONFIG, None, settings_body(properties))

    async def stats(self, address: str, name: str, key: str) -> BrokerStatsData:
        """One statistic of the broker there (315), as TOPIC_PUT_NUMS of a topic. Refused with code 1 where it
        counted nothing."""
        header = ViewBrokerStatsHeader(name, key)
        answer = await self._asking.broker(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        return read_body("statistic", BrokerStatsData, answer.body)

    async def consume_queue(
        self, address: str, topic: str, queue_id: int, index: int, count: int, group: str | None = None
    ) -> ConsumeQueueBody:
        """Units of a ConsumeQueue as they are stored there (321)."""
        header = QueryConsumeQueueHeader(topic, queue_id, index, count, group)
        code = RequestCode.QUERY_CONSUME_QUEUE
        answer = await self._asking.broker(address, code, header)
        if not answer.body:
            raise Refused(code.name, address, answer.code, answer.remark or "nothing is there")
        return read_body("ConsumeQueue", ConsumeQueueBody, answer.body)

    async def ha_status(self, address: str) -> HaStatus:
        """How far its followers are, or where it stands itself (907)."""
        answer = await self._asking.broker(address, RequestCode.GET_BROKER_HA_STATUS)
        return read_body("replication", HaStatus, answer.body)

    async def epochs(self, address: str) -> EpochCache:
        """Which leader wrote which bytes of its log (1007)."""
        answer = await self._asking.broker(address, RequestCode.GET_BROKER_EPOCH_CACHE)
        return read_body("epochs", EpochCache, answer.body)

    async def clean_consume_queues(self, address: str) -> None:
        """Files of ConsumeQueues that point at nothing any more go (306)."""
        await self._asking.broker(address, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def clean_unused_topics(self, address: str) -> None:
        """Files of topics that are gone go (316)."""
        await self._asking.broker(address, RequestCode.CLEAN_UNUSED_TOPIC)

    async def delete_expired(self, address: str) -> None:
        """Segments that are older than they are kept go now (329)."""
        await self._asking.broker(address, RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def other(
        self, address: str, code: RequestCode, header: Fields = None, body: bytes = b""
    ) -> Response:
        """A request that ours refuse and only Apache's servers answer: controllers, containers, cold
        reads."""
        return await self._asking.broker(address, code, header, body)


def parse_settings(body: bytes) -> dict[str, str]:
    """Properties as brokers and NameServers tell them, a line each."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise BrokerRefused(f"the settings are not UTF-8: {error}") from error
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return dict(sorted((key, value) for key, _, value in (line.partition("=") for line in lines)))


def settings_body(properties: Mapping[str, str]) -> bytes:
    """The same the other way."""
    return "".join(f"{key}={value}\n" for key, value in properties.items()).encode()

"""Brokers: their settings, figures and logs, and removing what they no longer need."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dledger.admin.asking import LOOK_S, Asking, ClusterView, Refused, read_body
from dledger.admin.blocking import Blocking, Face
from dledger.client.errors import BrokerRefused, NoBroker
from dledger.remoting.bodies import KvTable
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Response
from dledger.remoting.frames import Fields
from dledger.remoting.headers import QueryConsumeQueueHeader
from dledger.remoting.node_report import NodeReport
from dledger.remoting.operator_bodies import (
    BrokerStatsData,
    ConsumeQueueBody,
    EpochCache,
    HaStatus,
)
from dledger.remoting.operator_headers import ViewBrokerStatsHeader


class Brokers:
    """Operations on brokers. Raises ClientError if a server refuses or does not answer."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def cluster(self) -> ClusterView:
        """The brokers that the NameServers know (request 106 GET_BROKER_CLUSTER_INFO)."""
        return await self._asking.cluster()

    async def masters(self, cluster: str | None = None, broker_name: str | None = None) -> dict[str, str]:
        """Maps the name of a broker group to the address of its master: for one cluster, for one group, or
        for all groups. For a group without a master it waits up to `failover_timeout_s`, and then raises
        NoBroker."""
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
        """Runtime figures of one broker (request 28 GET_BROKER_RUNTIME_INFO)."""
        answer = await self._asking.broker(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(sorted(read_body("figures", KvTable, answer.body).table.items()))

    async def node(self, address: str) -> NodeReport:
        """Health of one broker, the addresses of its group, and the last changes of its role (request 28011
        SHOW_NODE). Raises Refused with code 3 if the broker is not one of ours."""
        answer = await self._asking.broker(address, RequestCode.SHOW_NODE)
        return read_body("node", NodeReport, answer.body)

    async def settings(self, address: str) -> dict[str, str]:
        """Settings of one broker by property name (request 26 GET_BROKER_CONFIG)."""
        answer = await self._asking.broker(address, RequestCode.GET_BROKER_CONFIG)
        return parse_settings(answer.body)

    async def change_settings(self, address: str, properties: Mapping[str, str]) -> None:
        """Change settings of one broker while it runs (request 25 UPDATE_BROKER_CONFIG)."""
        await self._asking.broker(address, RequestCode.UPDATE_BROKER_CONFIG, None, settings_body(properties))

    async def stats(self, address: str, name: str, key: str) -> BrokerStatsData:
        """One statistic of a broker (request 315 VIEW_BROKER_STATS_DATA), for example TOPIC_PUT_NUMS of a
        topic. Raises Refused with code 1 if nothing was counted."""
        header = ViewBrokerStatsHeader(name, key)
        answer = await self._asking.broker(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        return read_body("statistic", BrokerStatsData, answer.body)

    async def consume_queue(
        self, address: str, topic: str, queue_id: int, index: int, count: int, group: str | None = None
    ) -> ConsumeQueueBody:
        """Entries of a ConsumeQueue as a broker stores them, `count` of them from `index` on (request 321
        QUERY_CONSUME_QUEUE)."""
        header = QueryConsumeQueueHeader(topic, queue_id, index, count, group)
        code = RequestCode.QUERY_CONSUME_QUEUE
        answer = await self._asking.broker(address, code, header)
        if not answer.body:
            raise Refused(code.name, address, answer.code, answer.remark or "the broker sent no units")
        return read_body("ConsumeQueue", ConsumeQueueBody, answer.body)

    async def ha_status(self, address: str) -> HaStatus:
        """Replication status of a broker: the positions of its followers, or its own position if it is a
        follower (request 907 GET_BROKER_HA_STATUS)."""
        answer = await self._asking.broker(address, RequestCode.GET_BROKER_HA_STATUS)
        return read_body("replication", HaStatus, answer.body)

    async def epochs(self, address: str) -> EpochCache:
        """Which leader wrote which bytes of the broker's log (request 1007 GET_BROKER_EPOCH_CACHE)."""
        answer = await self._asking.broker(address, RequestCode.GET_BROKER_EPOCH_CACHE)
        return read_body("epochs", EpochCache, answer.body)

    async def clean_consume_queues(self, address: str) -> None:
        """Delete files of ConsumeQueues whose messages are all gone (request 306
        CLEAN_EXPIRED_CONSUMEQUEUE)."""
        await self._asking.broker(address, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def clean_unused_topics(self, address: str) -> None:
        """Delete files of topics that were deleted (request 316 CLEAN_UNUSED_TOPIC)."""
        await self._asking.broker(address, RequestCode.CLEAN_UNUSED_TOPIC)

    async def delete_expired(self, address: str) -> None:
        """Delete segments that are older than the retention time, without waiting for the usual hour (request
        329 DELETE_EXPIRED_COMMITLOG)."""
        await self._asking.broker(address, RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def other(
        self, address: str, code: RequestCode, header: Fields = None, body: bytes = b""
    ) -> Response:
        """Send a request that only Apache's servers carry out; ours refuse it. Such requests concern
        controllers, containers or cold reads."""
        return await self._asking.broker(address, code, header, body)


def parse_settings(body: bytes) -> dict[str, str]:
    """Parse properties as brokers and NameServers send them, one per line."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise BrokerRefused(f"the settings are not UTF-8: {error}") from error
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return dict(sorted((key, value) for key, _, value in (line.partition("=") for line in lines)))


def settings_body(properties: Mapping[str, str]) -> bytes:
    """Encode properties; inverse of `parse_settings`."""
    return "".join(f"{key}={value}\n" for key, value in properties.items()).encode()


class BlockingBrokers(Face[Brokers]):
    """The methods of `Brokers` as blocking methods."""

    cluster = Blocking(Brokers.cluster)
    masters = Blocking(Brokers.masters)
    runtime = Blocking(Brokers.runtime)
    node = Blocking(Brokers.node)
    settings = Blocking(Brokers.settings)
    change_settings = Blocking(Brokers.change_settings)
    stats = Blocking(Brokers.stats)
    consume_queue = Blocking(Brokers.consume_queue)
    ha_status = Blocking(Brokers.ha_status)
    epochs = Blocking(Brokers.epochs)
    clean_consume_queues = Blocking(Brokers.clean_consume_queues)
    clean_unused_topics = Blocking(Brokers.clean_unused_topics)
    delete_expired = Blocking(Brokers.delete_expired)
    other = Blocking(Brokers.other)

"""Registration of this broker with every NameServer (BrokerOuterAPI.registerBrokerAll, safety.md S23).

This broker registers with the id 0 (master) only while it serves as leader. It then sends its term as
`DataVersion.stateVersion`, so that a NameServer can refuse a leader that was replaced. At all other times it
registers with its own id as a follower, which removes its address from id 0. A change of role or of a topic
is reported at once. Without changes the registration is repeated every 30 s. Each NameServer has its own
task, so that a slow NameServer does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.config import BrokerConfig
from dledger.broker.ports import Node
from dledger.broker.registration.name_servers import NameServers
from dledger.broker.services import LeaderService
from dledger.broker.topic.topic_table import TopicTable
from dledger.formats.addresses import join_address
from dledger.remoting import registration as wire
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import BrokerIdentityHeader, RegisterBrokerHeader
from dledger.runtime.env import Env
from dledger.runtime.live_settings import LiveSettings

COALESCE_S = 0.005
"""Changes within this many seconds are reported together."""
RETRY_S = 1.0
"""Seconds after a failure until the broker tries again to register with the same NameServer."""
ANSWER_LIMIT_S = 1.0
"""Largest number of seconds that a caller of `announce` waits for the registration."""
HEARTBEAT_TIMEOUT_MS = 120_000
"""Milliseconds without a heartbeat after which a NameServer may forget this broker."""


class Registrar(LeaderService):
    """Keeps the registration at every NameServer up to date."""

    def __init__(
        self,
        env: Env,
        settings: LiveSettings[BrokerConfig],
        node: Node,
        table: TopicTable,
        client: RemotingClient,
        name_servers: NameServers,
    ) -> None:
        self._env = env
        self._settings = settings
        self._name_servers = name_servers
        self._node = node
        self._table = table
        self._client = client
        self._version = 0
        self._leader_term = 0
        self._changed_ms = 0
        self._wake_table = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wakes: dict[str, asyncio.Event] = {}
        self._told: dict[str, int] = {}
        """Maps each NameServer to the version that was sent to it last, whether or not the NameServer
        accepted it."""
        self._body: tuple[tuple[wire.DataVersion, int], bytes, int] | None = None
        """The newest body that was sent to any NameServer, as three values: a pair of its version and
        `TopicTable.encoded`, the body, and its CRC."""
        self.registered: dict[str, bool] = {}
        """Maps each NameServer to whether the last registration with it succeeded."""
        self.failures: dict[str, RemotingError] = {}
        """Maps a NameServer to the error of the last registration with it, if that registration failed."""
        self.failed: Counter[tuple[str, str]] = Counter()
        """Number of registrations that failed since the start, by NameServer and kind of error."""
        self._told_id: dict[str, int] = {}
        """Maps each NameServer to the broker id that it accepted last."""
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._follow()
        name_servers.listen(self._follow)

    def changed(self) -> None:
        """Register soon with all NameServers, because the role, the leader or the topics have changed."""
        self._version += 1
        self._changed_ms = self._env.wall.now_ms()
        for wake in (self._wake_table, *self._wakes.values()):
            wake.set()

    def leader_known(self, term: int) -> None:
        """Note that this term has a leader. Only such terms are reported, because a NameServer that knew a
        candidate's higher term would refuse the present leader."""
        self._leader_term = max(self._leader_term, term)

    def announce(self, done: Callable[[], None]) -> None:
        """Register with all NameServers as `changed` does. Calls `done` when the registration with each
        NameServer has succeeded or failed, at the latest after 1 s."""
        self.changed()
        if not self._wakes:
            done()
            return
        self._waiting.append((self._version, done))
        asyncio.get_running_loop().call_later(ANSWER_LIMIT_S, self._finish, done)

    def begin(self, writer: CommitLogWriter) -> None:
        """Register with id 0, because this node now leads."""
        self.leader_known(writer.term)
        self.changed()

    def end(self, reason: str) -> None:
        """Register with the follower's own id, because this node no longer leads."""
        self.changed()

    async def keep_informed(self) -> None:
        """Keep the registrations up to date until cancelled, both as leader and as follower."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._keep_encoded(), name="encode-topics")
                for addr in self._wakes:
                    self._start(group, addr)
        finally:
            self._group = None

    def _start(self, group: asyncio.TaskGroup, addr: str) -> None:
        self._tasks[addr] = group.create_task(self._keep_registered(addr), name=f"register-{addr}")

    def _follow(self) -> None:
        """Use the current list of NameServers: start to register with new ones, and unregister from those
        that were removed."""
        addresses = self._name_servers.addresses
        for addr in addresses:
            if addr not in self._wakes:
                self._wakes[addr] = asyncio.Event()
                self._told[addr] = -1
                self.registered[addr] = False
                if self._group is not None:
                    self._start(self._group, addr)
        for addr in [addr for addr in self._wakes if addr not in addresses]:
            del self._wakes[addr], self._told[addr], self.registered[addr]
            self.failures.pop(addr, None)
            if self._group is not None:
                self._tasks.pop(addr).cancel()
                self._group.create_task(self._unregister(addr), name=f"unregister-{addr}")
        self._answer()

    async def unregister(self, timeout_s: float = 1.0) -> None:
        """Unregister from all NameServers (request 104 UNREGISTER_BROKER) in a clean shutdown. Failures are
        ignored."""
        async with asyncio.TaskGroup() as group:
            for addr in self._wakes:
                group.create_task(self._unregister(addr, timeout_s), name=f"unregister-{addr}")

    def data_version(self) -> wire.DataVersion:
        """Return the version to report: the highest term that is known to have a leader, the number of topic
        changes, and the time of the last reported change."""
        return wire.DataVersion(self._leader_term, self._table.version, self._changed_ms)

    def lost(self, addr: str) -> None:
        """Register again with a NameServer after the connection to it has ended, because the NameServer has
        then dropped this broker's routes."""
        if addr in self._wakes:
            self._wakes[addr].set()

    async def _keep_registered(self, addr: str) -> None:
        pause = self._settings.now.register_first_s
        wake = self._wakes[addr]
        while True:
            wake.clear()
            if self._node.removed:
                ok = await self._stay_away(addr)
            else:
                ok = await self._register(addr)
            try:
                async with asyncio.timeout(pause if ok else RETRY_S):
                    await wake.wait()
            except TimeoutError:
                pause = self._settings.now.register_interval_s
                continue
            await asyncio.sleep(COALESCE_S)

    async def _stay_away(self, addr: str) -> bool:
        """Unregister from this NameServer, so that clients do not find this broker through it. Called if the
        broker was removed from its group."""
        if addr in self._told_id or self._told[addr] < 0:
            await self._unregister(addr)
        self.registered[addr], self._told[addr] = False, self._version
        self._answer()
        return True

    async def _keep_encoded(self) -> None:
        """Keep the encoded topic table up to date, even if there are no NameServers, because a leader needs
        the size of the table when its term opens."""
        while True:
            self._wake_table.clear()
            await self._table.prepare()
            await self._wake_table.wait()
            await asyncio.sleep(COALESCE_S)

    async def _register(self, addr: str) -> bool:
        await self._table.prepare()
        # Nothing is awaited until the request is sent, so id, term and table belong together (safety.md S23).
        version = self._version
        config = self._settings.now
        body, crc = self._encoded()
        header = RegisterBrokerHeader(
            brokerName=config.broker_name,
            brokerAddr=config.client_addr,
            clusterName=config.cluster_name,
            haServerAddr=join_address(config.broker_ip, config.listen_port + 1),
            brokerId=self._broker_id(),
            heartbeatTimeoutMillis=HEARTBEAT_TIMEOUT_MS,
            bodyCrc32=crc,
            wholeTable=True,
            zoneName=config.zone or None,
        )
        try:
            response = await self._client.invoke(
                addr, RequestCode.REGISTER_BROKER, header, body, config.register_timeout_s
            )
            response.checked()
            ok = True
            self.failures.pop(addr, None)
        except RemotingError as error:
            ok = False
            self.failures[addr] = error
            self.failed[addr, type(error).__name__] += 1
            if self.registered[addr] or self._told[addr] < 0:
                self._env.log.warning("registration failed", namesrv=addr, reason=error.remark)
        if ok and (not self.registered[addr] or self._told_id.get(addr) != header.brokerId):
            self._told_id[addr] = header.brokerId
            self._env.log.info("registered", namesrv=addr, broker_id=header.brokerId)
        self.registered[addr] = ok
        self._told[addr] = version
        self._answer()
        return ok

    def _answer(self) -> None:
        """Call those of the waiting functions `done` that wait for a version which was sent to all
        NameServers."""
        told = min(self._told.values(), default=self._version)
        for asked, done in [waiting for waiting in self._waiting if waiting[0] <= told]:
            self._waiting.remove((asked, done))
            done()

    def _encoded(self) -> tuple[bytes, int]:
        """Return the current body and its CRC. They are made once for all NameServers."""
        entries = self._table.entries()
        made_of = (self.data_version(), self._table.encoded)
        if self._body is None or self._body[0] != made_of:
            body = wire.registration_body(entries, made_of[0], [])
            self._body = (made_of, body, wire.body_crc(body))
        return self._body[1:]

    async def _unregister(self, addr: str, timeout_s: float = 1.0) -> None:
        # The id that the NameServer knows. Just after a hand-over it may still be the leader's.
        told = self._told_id.pop(addr, self._broker_id())
        config = self._settings.now
        header = BrokerIdentityHeader(config.broker_name, config.client_addr, config.cluster_name, told)
        try:
            await self._client.invoke(addr, RequestCode.UNREGISTER_BROKER, header, timeout_s=timeout_s)
        except RemotingError as error:
            self._env.log.info("unregistration failed", namesrv=addr, reason=error.remark)

    def _broker_id(self) -> int:
        return 0 if self._node.serving else self._settings.now.follower_id

    def _finish(self, done: Callable[[], None]) -> None:
        for waiting in self._waiting:
            if waiting[1] is done:
                self._waiting.remove(waiting)
                done()
                return

"""Stand-alone nodes: one process with one port, which runs a node for each of one or several groups.

The groups share only the port and the environment (worker threads, random numbers, logging). Each node has
its own directory. If a node fails, the other nodes continue.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Annotated

from dledger.commands.counting import CountingHost
from dledger.config import BindAddress, NodeConfig, NodeSettings, Peers, SelfId, StoreRoot
from dledger.errors import NodeFailed
from dledger.formats.addresses import split_address
from dledger.node.leadership import FAREWELL_S
from dledger.node.node import Node
from dledger.peers.listener import PeerPort
from dledger.runtime import Env
from dledger.runtime.settings import ConfigError, Schema, Setting, names
from dledger.runtime.tls import PeerTls, TlsFiles

TRANSFER_TIMEOUT_S = 2.0
"""When a node is stopped: how long to wait for another node to take over leadership, in seconds."""


NODE_DEFAULTS = NodeSettings(segment_size=64 * 1024 * 1024)


@dataclass(frozen=True)
class StandaloneConfig:
    """Settings of stand-alone nodes. The properties have the same names as for brokers."""

    groups: Annotated[
        tuple[str, ...], Setting("dLegerGroup", parse=names, format=";".join, important=True)
    ] = ()
    """Names of the groups, such as `blue;green`. Each group has a directory of the same name."""
    self_id: SelfId = ""
    """This node's id in `dLegerPeers`."""
    peers: Peers = field(default_factory=dict)
    """All members of the groups when these were founded, as `n0-host:port;n1-host:port`."""
    store_dir: StoreRoot = ""
    """Directory of the groups' stores."""
    bind_host: BindAddress = "0.0.0.0"
    """Address on which to listen."""
    node: NodeSettings = NODE_DEFAULTS
    """Settings of each group's log. Nothing is deleted automatically, because the log is the only place
    where the data is."""
    tls: TlsFiles = field(default_factory=TlsFiles)

    def check(self, given: Collection[str]) -> None:
        """Raise ConfigError, which names the settings that are missing, have no effect, or do not fit
        together."""
        for key, value in (
            ("dLegerGroup", self.groups),
            ("dLegerSelfId", self.self_id),
            ("dLegerPeers", self.peers),
            ("storePathRootDir", self.store_dir),
        ):
            if not value:
                raise ConfigError(f"{key} is missing")
        if len(dict.fromkeys(self.groups)) < len(self.groups):
            raise ConfigError("dLegerGroup names a group twice")
        if any("/" in group or group in (".", "..") for group in self.groups):
            raise ConfigError("dLegerGroup: the name of a group must be usable as a directory name")
        retention = self.node.retention
        for key in ("deleteWhen", "diskMaxUsedSpaceRatio"):
            if key in given and retention.reserved_hours == math.inf:
                raise ConfigError(f"{key} has no effect without fileReservedTime")
        if "diskSpaceCleanForciblyRatio" in given and not retention.clean_forcibly:
            raise ConfigError(
                "diskSpaceCleanForciblyRatio has no effect without cleanFileForciblyEnable=true"
            )
        for group in self.groups:
            self.node_config(group)

    @property
    def peer_tls(self) -> TlsFiles | None:
        """Return the files for TLS between peers; None if TLS is off."""
        return self.tls if self.tls.certificate else None

    def node_config(self, group: str) -> NodeConfig:
        """Return the settings of the node of one group, whose directory is `<store_dir>/<group>`. Raises
        ConfigError."""
        return NodeConfig.of(
            self.node,
            group=group,
            self_id=self.self_id,
            peers=self.peers,
            store_dir=f"{self.store_dir}/{group}",
            bind_host=self.bind_host,
        )


SETTINGS = Schema(StandaloneConfig)


async def main(
    env: Env,
    config: StandaloneConfig,
    stop: asyncio.Event,
    *,
    tls: PeerTls | None = None,
    on_ready: Callable[[list[Node]], None] | None = None,
) -> list[NodeFailed]:
    """Run the nodes until `stop` is set or all have failed; returns the failures. When `stop` is set, each
    leadership is handed over to another node, and then the states are saved.

    Raises NodeFailed if the port is in use.
    """
    _, number = split_address(config.peers[config.self_id])
    port = PeerPort(
        env,
        config.node.peer_bind or config.bind_host,
        number,
        tls=tls,
        expected=config.groups,
        peers=None if config.node.peer_bind else config.peers,
        self_id=config.self_id,
    )
    await port.open()
    members = [_Member(env, config.node_config(group), port, tls) for group in config.groups]

    def ended() -> None:
        if all(member.ended.is_set() for member in members):
            stop.set()

    try:
        async with asyncio.TaskGroup() as tasks:
            for member in members:
                member.task = tasks.create_task(member.run(ended), name=f"group-{member.group}")
            tasks.create_task(_tell_ready(members, stop, on_ready), name="ready")
            await stop.wait()
            async with asyncio.TaskGroup() as stops:
                for member in members:
                    stops.create_task(member.stop(), name=f"stop-{member.group}")
    finally:
        await port.close()
    return [member.failure for member in members if member.failure is not None]


async def _tell_ready(
    members: list[_Member], stop: asyncio.Event, on_ready: Callable[[list[Node]], None] | None
) -> None:
    for member in members:
        await member.host.opened.wait()
    if on_ready is not None and not stop.is_set():
        on_ready([member.node for member in members if member.failure is None])


class _Member:
    """The node of one group, with the state machine that it runs."""

    def __init__(self, env: Env, config: NodeConfig, port: PeerPort, tls: PeerTls | None) -> None:
        self.group = config.group
        own = replace(env, log=env.log.child(config.group))
        self._log = own.log
        self._port = port
        self.host = CountingHost(own, config.store_dir)
        self.node = Node(own, config, self.host, port=port, tls=tls)
        self.task: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        self.failure: NodeFailed | None = None

    async def run(self, on_ended: Callable[[], None]) -> None:
        """Run the node until it ends. If it fails, the failure is stored, and the nodes of other groups
        continue."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.node.run(), name=f"{self.group}-node")
                tasks.create_task(self.host.run(), name=f"{self.group}-host")
        except BaseExceptionGroup as failures:
            error: BaseException = failures
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if not isinstance(error, NodeFailed):
                raise
            self._failed(error)
        finally:
            self.host.opened.set()
            self.ended.set()
            on_ended()

    async def stop(self) -> None:
        """Hand leadership over, save the state, and end the node."""
        if self.task is None or self.ended.is_set():
            return
        if self.node.serving:
            moved = await self.node.step_aside(timeout_s=TRANSFER_TIMEOUT_S)
            self._log.info("stopping", handed_over=moved)
            if moved:
                await asyncio.sleep(FAREWELL_S)
        self.task.cancel()
        await self.ended.wait()
        try:
            if not await self.host.save():
                self._log.warning(
                    "stopped without saving the last state: the next start rebuilds it from the log"
                )
        except NodeFailed as error:
            self._failed(error)

    def _failed(self, error: NodeFailed) -> None:
        self._log.error("the node ended", reason=error.reason, exit_code=error.exit_code)
        self.failure = error
        self._port.failed(self.group)

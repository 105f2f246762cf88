"""Stand-alone nodes: one process, one port, a node for each of one or several groups.

The groups share the environment (worker threads, chance, log) and the port, and nothing else: each node has
its own directory, and one that fails ends without the others.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dledger.commands.counting import CountingHost
from dledger.config import ConfigError, NodeConfig, parse_peers
from dledger.errors import NodeFailed
from dledger.formats.addresses import split_address
from dledger.log.retention import RetentionSettings
from dledger.node.leadership import FAREWELL_S
from dledger.node.node import Node
from dledger.peers.listener import PeerPort
from dledger.properties import RETENTION, directory, name, names, pool_segments, segment_size, sync_flush
from dledger.runtime import Env
from dledger.runtime.tls import PeerTls, TlsFiles

TRANSFER_TIMEOUT_S = 2.0
"""How long a stop waits for another node to take over."""


@dataclass(frozen=True)
class StandaloneConfig:
    """Names of the properties are RocketMQ's; see `PROPERTIES`."""

    groups: tuple[str, ...] = ()
    self_id: str = ""
    peers: Mapping[str, str] = field(default_factory=dict)
    store_dir: str = ""
    bind_host: str = "0.0.0.0"
    segment_size: int = 64 * 1024 * 1024
    pool_segments: int = 2
    sync_flush: bool = True
    certificate: str = ""
    key: str = ""
    key_password: str = ""
    authority: str = ""
    reserved_hours: int | None = None
    """None: nothing goes because of its age. Nobody derives anything from this log: it is the data itself."""
    delete_hours: tuple[int, ...] = (4,)
    utc_offset_s: int = 0
    """Of the local time that `delete_hours` means; the outer shell knows it."""
    clean_percent: int = 75
    force_percent: int = 85
    refuse_percent: int = 90
    clean_forcibly: bool = False
    """True: above `force_percent` the oldest segments go whatever their age."""
    clean_interval_ms: int = 10_000

    def check(self) -> None:
        """ConfigError names what is missing or does not fit."""
        for key, value in (
            ("dLegerGroup", self.groups),
            ("dLegerSelfId", self.self_id),
            ("dLegerPeers", self.peers),
            ("storePathRootDir", self.store_dir),
        ):
            if not value:
                raise ConfigError(f"{key} is missing")
        if len(dict.fromkeys(self.groups)) < len(self.groups):
            raise ConfigError("dLegerGroup: a group is named twice")
        if any("/" in group or group in (".", "..") for group in self.groups):
            raise ConfigError("dLegerGroup: a group's name is the name of its directory")
        tls = (self.certificate, self.key, self.authority)
        if any(tls) and not all(tls):
            raise ConfigError(
                "tls.peer.certPath, tls.peer.keyPath, tls.peer.trustCertPath: all or none must be set"
            )
        try:
            for group in self.groups:
                self.node_config(group)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    @property
    def tls(self) -> TlsFiles | None:
        """Files for TLS between peers; None without."""
        if not self.certificate:
            return None
        return TlsFiles(self.certificate, self.key, self.authority, self.key_password)

    def node_config(self, group: str) -> NodeConfig:
        """Settings of the node of one group: it lies in `<store_dir>/<group>`."""
        return NodeConfig(
            group,
            self.self_id,
            self.peers,
            f"{self.store_dir}/{group}",
            bind_host=self.bind_host,
            segment_size=self.segment_size,
            pool_segments=self.pool_segments,
            sync_flush=self.sync_flush,
            disk_full_ratio=self.refuse_percent / 100,
            retention=RetentionSettings(
                reserved_hours=math.inf if self.reserved_hours is None else self.reserved_hours,
                delete_hours=self.delete_hours,
                utc_offset_s=self.utc_offset_s,
                clean_ratio=self.clean_percent / 100,
                force_ratio=self.force_percent / 100,
                clean_forcibly=self.clean_forcibly,
                interval_s=self.clean_interval_ms / 1000,
            ),
        )


PROPERTIES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "dLegerGroup": ("groups", names),
    "dLegerSelfId": ("self_id", name),
    "dLegerPeers": ("peers", parse_peers),
    "storePathRootDir": ("store_dir", directory),
    "bindAddress": ("bind_host", str),
    "mapedFileSizeCommitLog": ("segment_size", segment_size),
    "segmentPoolSize": ("pool_segments", pool_segments),
    "flushDiskType": ("sync_flush", sync_flush),
    "tls.peer.certPath": ("certificate", str),
    "tls.peer.keyPath": ("key", str),
    "tls.peer.keyPassword": ("key_password", str),
    "tls.peer.trustCertPath": ("authority", str),
    **RETENTION,
}


def load(properties: Mapping[str, str]) -> StandaloneConfig:
    """Settings from property names and texts; ConfigError begins with the one that cannot work."""
    config = StandaloneConfig()
    for key, text in properties.items():
        if key not in PROPERTIES:
            raise ConfigError(f"unknown key {key!r}; known are {', '.join(PROPERTIES)}")
        attribute, parse = PROPERTIES[key]
        try:
            config = replace(config, **{attribute: parse(text)})
        except ConfigError:  # it names its property
            raise
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from error
    for key in ("deleteWhen", "diskMaxUsedSpaceRatio"):
        if key in properties and config.reserved_hours is None:
            raise ConfigError(f"{key} has no effect without fileReservedTime")
    if "diskSpaceCleanForciblyRatio" in properties and not config.clean_forcibly:
        raise ConfigError("diskSpaceCleanForciblyRatio has no effect without cleanFileForciblyEnable=true")
    if config.reserved_hours is None:  # nothing expires: the lower one of the two ratios means nothing
        config = replace(config, clean_percent=min(config.clean_percent, config.force_percent))
    config.check()
    return config


async def main(
    env: Env,
    config: StandaloneConfig,
    stop: asyncio.Event,
    *,
    tls: PeerTls | None = None,
    on_ready: Callable[[list[Node]], None] | None = None,
) -> list[NodeFailed]:
    """Run the nodes until `stop` is set or all have failed; the failures. NodeFailed: the port is in use.

    On `stop` each leadership is handed over first, and the states are saved.
    """
    _, number = split_address(config.peers[config.self_id])
    port = PeerPort(env, config.bind_host, number, tls=tls, expected=config.groups)
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
    """The node of one group with its host."""

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
        """The node's life; how it failed is kept, the other groups go on."""
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
        """Hand leadership over, save, end."""
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
                self._log.warning("stopped without its last state: the next start makes it from the log")
        except NodeFailed as error:
            self._failed(error)

    def _failed(self, error: NodeFailed) -> None:
        self._log.error("the node ended", reason=error.reason, exit_code=error.exit_code)
        self.failure = error
        self._port.failed(self.group)

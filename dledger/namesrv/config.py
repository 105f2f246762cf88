"""Configuration of a NameServer: RocketMQ's property names (NamesrvConfig, NettyServerConfig) and ours."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

from dledger.formats.addresses import check_host, split_address
from dledger.namesrv.replicated_kv import KvPeers
from dledger.remoting import rocketmq_names
from dledger.remoting.limits import ServerLimits
from dledger.remoting.listening import Place, is_loopback, listening_twice, meet, within
from dledger.runtime.remoting_tls import TlsSettings
from dledger.runtime.settings import ConfigError, Schema, Setting

_NO_POOL = "one event loop serves all requests"
_NO_BUFFERS = "sockets use the buffer sizes of the system"
IGNORED = MappingProxyType(
    {
        "rocketmqHome": "no file is read from there",
        "configStorePath": "changes are saved in the file that -c names",
        "productEnvName": "RocketMQ does not use it either",
        "clusterTest": "there are no test clusters",
        "serverWorkerThreads": _NO_POOL,
        "serverCallbackExecutorThreads": _NO_POOL,
        "serverSelectorThreads": _NO_POOL,
        "serverOnewaySemaphoreValue": _NO_POOL,
        "serverAsyncSemaphoreValue": _NO_POOL,
        "serverSocketSndBufSize": _NO_BUFFERS,
        "serverSocketRcvBufSize": _NO_BUFFERS,
        "serverPooledByteBufAllocatorEnable": "Python has no such allocator",
        "useEpollNativeSelector": "uvloop is used where it is installed",
    }
)
"""Properties of RocketMQ's NameServer that are accepted but have no effect here. Maps a name to the
reason."""


@dataclass(frozen=True)
class NamesrvConfig:
    """Settings of one NameServer."""

    listen_port: Annotated[int, Setting("listenPort", 0, 65535, important=True)] = 9876
    """Port at which the NameServer listens; 0 picks a free one."""
    bind_address: Annotated[str, Setting("bindAddress", parse=check_host, important=True)] = "0.0.0.0"
    """Address at which the NameServer listens."""
    http_port: Annotated[int, Setting("httpPort", 0, 65535, important=True)] = 0
    """Port of `/health` and `/metrics`; 0: off. It needs the extra `server`."""
    http_address: Annotated[str, Setting("httpAddress", parse=check_host, important=True)] = "127.0.0.1"
    """Address at which the NameServer listens for HTTP."""
    log_dir: Annotated[str | None, Setting("logDir", important=True)] = None
    """Directory of namesrv.log. If it is empty, the log goes to standard error."""
    kv_path: Annotated[str | None, Setting("kvConfigPath", important=True)] = None
    """File of the key-value table. If it is empty, the file is kvConfig.json in the directory of the
    configuration file."""
    order_messages: Annotated[bool, Setting("orderMessageEnable", hot=True)] = True
    """Adds the order configuration of a topic (KV namespace ORDER_TOPIC_CONFIG) to its route. RocketMQ's
    default is false. Here it is true, because an entry exists only if somebody has set it."""
    return_orders: Annotated[bool, Setting("returnOrderTopicConfigToBroker", hot=True)] = True
    """Sends the order configurations of all topics to a broker that registers."""
    scan_interval_ms: Annotated[int, Setting("scanNotActiveBrokerInterval", 1, 3_600_000, "ms", hot=True)] = (
        5000
    )
    """Interval at which brokers that have become silent are looked for."""
    server: ServerLimits = field(default_factory=ServerLimits)
    kv: KvPeers = field(default_factory=KvPeers)
    tls: TlsSettings = field(default_factory=TlsSettings)

    def check(self, given: Collection[str]) -> None:
        """Check the settings. Raises ConfigError with each pair of settings that mean the same place."""
        found = [
            f"kvPeers names {address} twice" for address in self.kv.peers if self.kv.peers.count(address) > 1
        ]
        own = [Place("listenPort", self.bind_address, self.listen_port)]
        if self.http_port:
            own.append(Place("httpPort", self.http_address, self.http_port))
        for address in self.kv.peers:
            host, port = split_address(address)
            if address == self.kv.self_address:
                own.append(Place("kvSelfAddress", host, port))
            elif is_loopback(host) and port == self.listen_port and meet(host, self.bind_address):
                found.append(f"kvPeers {address} is the listenPort of this NameServer: give it another port")
        found += listening_twice(own)
        directories = {"kvDirectory": self.kv.directory, "logDir": self.log_dir}
        if self.kv_path:
            found += [
                f"kvConfigPath {self.kv_path}: it is a file, and {name} needs it as a directory"
                for name, path in directories.items()
                if path and within(path, self.kv_path)
            ]
        if found:
            raise ConfigError("\n".join(dict.fromkeys(found)))


SETTINGS = Schema(
    NamesrvConfig,
    ignored=IGNORED,
    foreign=rocketmq_names.NAMESRV,
    foreign_why=rocketmq_names.WITHOUT_COUNTERPART,
)

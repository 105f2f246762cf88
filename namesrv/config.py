"""Configuration of a NameServer: RocketMQ's property names (NamesrvConfig, NettyServerConfig) and ours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dledger.formats.addresses import check_host
from dledger.remoting.properties_file import Property, load_config

IGNORED = (
    "rocketmqHome",
    "configStorePath",
    "productEnvName",
    "clusterTest",
    "returnOrderTopicConfigToBroker",
    "serverWorkerThreads",
    "serverCallbackExecutorThreads",
    "serverSelectorThreads",
    "serverOnewaySemaphoreValue",
    "serverAsyncSemaphoreValue",
    "serverSocketSndBufSize",
    "serverSocketRcvBufSize",
    "serverPooledByteBufAllocatorEnable",
    "useEpollNativeSelector",
)
"""Properties of RocketMQ's NameServer that have no meaning here: accepted, without effect."""


@dataclass(frozen=True)
class NamesrvConfig:
    """Settings of one NameServer."""

    listenPort: int = 9876
    """Port; 0 picks a free one."""
    bindAddress: str = "0.0.0.0"
    """Address to listen on (ours)."""
    logDir: str | None = None
    """Directory of namesrv.log (ours); without it the log goes to standard error."""
    kvConfigPath: str | None = None
    """File of the key-value table; without it the table lives in memory only."""
    orderMessageEnable: bool = True
    """Add the order configuration of a topic (KV namespace ORDER_TOPIC_CONFIG) to its route. RocketMQ's
    default is false; an entry is only there if somebody wants it."""
    scanNotActiveBrokerInterval: int = 5000
    """Milliseconds between looks for brokers that went silent."""
    serverChannelMaxIdleTimeSeconds: int = 120
    """Seconds without traffic after which a connection is closed."""
    maxConnections: int = 4096
    """Connections at the same time (ours); one more is closed at once."""

    def __post_init__(self) -> None:
        if not 0 <= self.listenPort <= 65535:
            raise ValueError(f"listenPort must be from 0 to 65535, not {self.listenPort}")
        try:
            check_host(self.bindAddress)
        except ValueError as error:
            raise ValueError(f"bindAddress {error}") from error
        for name in ("scanNotActiveBrokerInterval", "serverChannelMaxIdleTimeSeconds", "maxConnections"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


def load(properties: Iterable[Property]) -> NamesrvConfig:
    """From the lines of a file; ConfigError names file, line and key."""
    return load_config(NamesrvConfig, properties, ignored=IGNORED)

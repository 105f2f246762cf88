"""Settings of a broker, under RocketMQ's property names (BrokerConfig, MessageStoreConfig).

`PROPERTIES` maps names to fields; those marked "ours" do not exist in RocketMQ. Sizes in bytes, times in
seconds unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from dledger.config import NodeConfig, parse_peers
from dledger.formats.addresses import check_host, split_address
from dledger.formats.message_ids import pack_ipv4_host
from dledger.formats.record import MAX_TOPIC_V1
from dledger.log.retention import RetentionSettings
from dledger.peers.wire import PROTOCOL_MAX, PROTOCOL_MIN, PROTOCOL_WITH_PROOF
from dledger.properties import (
    RETENTION,
    directory,
    flag,
    name,
    names,
    number,
    pool_segments,
    segment_size,
    sync_flush,
)
from dledger.runtime.remote_files import absolute, is_url
from dledger.runtime.tls import TlsFiles

MAX_MESSAGE_SIZE = 4 * 1024 * 1024
MAX_GROUP_NAME = 120
"""Characters of a consumer or producer group name (Validators.CHARACTER_MAX_LENGTH)."""


class ConfigError(ValueError):
    """A property that cannot work. `key` is its name; the shell adds the line of the file."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason if reason.startswith(key) else f"{key}: {reason}")
        self.key = key
        self.reason = reason


@dataclass(frozen=True)
class BrokerConfig:
    """One broker of a group. Defaults are RocketMQ's, but for flushDiskType (rule 3)."""

    cluster_name: str = "DefaultCluster"
    broker_name: str = "broker-a"
    broker_ip: str = "127.0.0.1"
    """Told to clients, peers and in message ids. Not where we listen: that is `bind_address`."""
    listen_port: int = 10911
    bind_address: str = "0.0.0.0"
    namesrv_addr: tuple[str, ...] = ()
    store_root: str = "store"
    dledger_enabled: bool = True
    dledger_group: str = ""
    peers: Mapping[str, str] = field(default_factory=dict)
    self_id: str = "n0"
    preferred_leaders: tuple[str, ...] = ()
    sync_flush: bool = True
    segment_size: int = 1024 * 1024 * 1024
    pool_segments: int = 2
    lease_reads: bool = False
    protocol_min: int = PROTOCOL_WITH_PROOF
    protocol_max: int = PROTOCOL_MAX
    auto_create_topic: bool = True
    auto_create_group: bool = True
    default_topic_queues: int = 8
    """Queues of TBW102, the bound on what auto-creation may give a topic."""
    max_message_size: int = MAX_MESSAGE_SIZE
    """Bytes of one message body, and of the body of one batch."""
    pull_max_count: int = 1024
    """Messages of one pull; Java asks for 32, so its own 32 is no limit to those who ask for more."""
    pull_max_bytes: int = 1024 * 1024
    pull_max_count_cold: int = 256
    pull_max_bytes_cold: int = 256 * 1024
    long_polling: bool = True
    short_polling_ms: int = 1000
    http_port: int = 0
    http_address: str = "127.0.0.1"
    log_dir: str = ""
    tls_certificate: str = ""
    """PEM files for TLS between the peers (not for clients); all three, or none."""
    tls_key: str = ""
    tls_key_password: str = ""
    tls_authority: str = ""
    region_id: str = "DefaultRegion"
    trace_on: bool = True

    reserved_hours: int = 72
    delete_hours: tuple[int, ...] = (4,)
    utc_offset_s: int = 0
    """Of the local time that `delete_hours` means; the outer shell knows it."""
    clean_percent: int = 75
    force_percent: int = 85
    refuse_percent: int = 90
    clean_forcibly: bool = True
    clean_interval_ms: int = 10_000

    audit_bytes_per_s: int = 32 * 1024 * 1024
    """What scans of the own store for auditors read at most; 0: no limit."""
    scrub_bytes_per_s: int = 20 * 1024 * 1024
    """What the scrub of the log reads at most (`dledger/log/scrub.py`); 0: there is none."""
    scrub_pause_ms: int = 3_600_000
    """Its rest between two passes."""
    digest_ship_path: str = ""
    """A directory or URL where this broker writes digests of its store for auditors; empty: it does not."""
    digest_ship_interval_ms: int = 600_000
    digest_rescan_hours: int = 168
    """After that a segment in which nothing changed is scanned again, as media rot; 0: never."""

    max_topics: int = 50_000
    """Topics of the group, with those of retries and dead letters; one more is refused."""
    max_topic_table_bytes: int = 15 * 1024 * 1024
    """Bytes of the encoded topic table: what makes it larger is refused (`Catalog.put_topic`). Below the
    16 MiB of one frame, as a header comes with it. A topic takes 150, twice its name, and its attributes."""
    max_groups: int = 50_000
    """Consumer groups; one more is refused."""
    max_held_pulls: int = 20_000
    """Long polls held at once; one more is answered at once."""
    hold_while_opening_s: float = 0.2
    """How long a request waits for a term to open (safety.md S24), then 14."""
    hold_while_opening_bytes: int = 16 * 1024 * 1024
    """Bodies of such requests together; more is answered 14 at once."""
    offset_flush_s: float = 0.2
    """Consumer offsets of a group become one entry at most this often (safety.md S28)."""
    client_expiry_s: float = 120.0
    """A client without heartbeat is forgotten."""
    client_sweep_s: float = 10.0
    register_first_s: float = 10.0
    register_interval_s: float = 30.0
    register_timeout_s: float = 3.0
    transfer_timeout_s: float = 2.0

    @property
    def client_addr(self) -> str:
        """Where clients reach this broker."""
        return f"{self.broker_ip}:{self.listen_port}"

    @property
    def store_host(self) -> bytes:
        """Host field of the records that this broker seals."""
        return pack_ipv4_host(self.broker_ip, self.listen_port)

    @property
    def follower_id(self) -> int:
        """brokerId while not leading: nK -> K + 1 (DLedgerCommitLog.id)."""
        return int(self.self_id[1:]) + 1

    @property
    def peer_tls(self) -> TlsFiles | None:
        """Files for TLS between the peers; None without."""
        if not self.tls_certificate:
            return None
        return TlsFiles(self.tls_certificate, self.tls_key, self.tls_authority, self.tls_key_password)

    def node_config(self) -> NodeConfig:
        """Settings of the replicated log."""
        return NodeConfig(
            group=self.dledger_group or self.broker_name,
            self_id=self.self_id,
            peers=self.peers,
            store_dir=self.store_root,
            meta={"client_addr": self.client_addr},
            client_appends=False,
            bind_host=self.bind_address,
            segment_size=self.segment_size,
            sync_flush=self.sync_flush,
            pool_segments=self.pool_segments,
            scrub_bytes_per_s=self.scrub_bytes_per_s,
            scrub_pause_s=self.scrub_pause_ms / 1000,
            disk_full_ratio=self.refuse_percent / 100,
            retention=RetentionSettings(
                reserved_hours=self.reserved_hours,
                delete_hours=self.delete_hours,
                utc_offset_s=self.utc_offset_s,
                clean_ratio=self.clean_percent / 100,
                force_ratio=self.force_percent / 100,
                clean_forcibly=self.clean_forcibly,
                interval_s=self.clean_interval_ms / 1000,
            ),
            lease_reads=self.lease_reads,
            protocol_min=self.protocol_min,
            protocol_max=self.protocol_max,
            preferred_leaders=self.preferred_leaders,
        )


def _text(value: str) -> str:
    if not value:
        raise ValueError("empty")
    return value


def _host(value: str) -> str:
    return check_host(_text(value))


def _any_text(value: str) -> str:
    return value


def _place(value: str) -> str:
    """A directory, or a URL of an object store; `file:` is a directory."""
    if not is_url(value) and not value.startswith("file:"):
        return value.rstrip("/") or value[:1]
    scheme, separator, name = value.partition("://")
    if "::" in value or not separator or not name.strip("/"):
        raise ValueError(f"{value!r}: expected a directory, or a URL as s3://bucket/digests")
    # Files have renames, and would be written in place through a driver.
    return absolute(f"file://{name}") if scheme.lower() in ("file", "local") else value.rstrip("/")


def _ipv4(value: str) -> str:
    pack_ipv4_host(value, 0)
    return value


def _addresses(value: str) -> tuple[str, ...]:
    addresses = tuple(part for part in (piece.strip() for piece in value.split(";")) if part)
    for address in addresses:
        split_address(address)
    return addresses


_PORT = number(1, 65535)

PROPERTIES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "brokerClusterName": ("cluster_name", name),
    "brokerName": ("broker_name", name),
    "brokerIP1": ("broker_ip", _ipv4),
    "listenPort": ("listen_port", _PORT),
    "bindAddress": ("bind_address", _host),  # ours
    "namesrvAddr": ("namesrv_addr", _addresses),
    "storePathRootDir": ("store_root", directory),
    "enableDLegerCommitLog": ("dledger_enabled", flag),
    "dLegerGroup": ("dledger_group", name),
    "dLegerPeers": ("peers", parse_peers),
    "dLegerSelfId": ("self_id", name),
    "preferredLeaderId": ("preferred_leaders", names),
    "flushDiskType": ("sync_flush", sync_flush),
    "mapedFileSizeCommitLog": ("segment_size", segment_size),
    "segmentPoolSize": ("pool_segments", pool_segments),  # ours
    "leaseReads": ("lease_reads", flag),  # ours
    "peerProtocolMin": ("protocol_min", number(PROTOCOL_MIN, PROTOCOL_MAX)),  # ours
    "peerProtocolMax": ("protocol_max", number(PROTOCOL_MIN, PROTOCOL_MAX)),  # ours
    **RETENTION,
    "auditBytesPerSecond": ("audit_bytes_per_s", number(0, 1 << 40)),  # ours
    "scrubBytesPerSecond": ("scrub_bytes_per_s", number(0, 1 << 40)),  # ours
    "scrubPauseMs": ("scrub_pause_ms", number(10, 366 * 24 * 3_600_000)),  # ours
    "digestShipPath": ("digest_ship_path", _place),  # ours
    "digestShipIntervalMs": ("digest_ship_interval_ms", number(100, 7 * 24 * 3_600_000)),  # ours
    "digestRescanHours": ("digest_rescan_hours", number(0, 24 * 366)),  # ours
    "autoCreateTopicEnable": ("auto_create_topic", flag),
    "autoCreateSubscriptionGroup": ("auto_create_group", flag),
    "defaultTopicQueueNums": ("default_topic_queues", number(1, 1024)),
    "maxMessageSize": ("max_message_size", number(1, MAX_MESSAGE_SIZE)),
    "maxTransferCountOnMessageInMemory": ("pull_max_count", number(1, 65536)),
    "maxTransferBytesOnMessageInMemory": ("pull_max_bytes", number(1, 8 << 20)),
    "maxTransferCountOnMessageInDisk": ("pull_max_count_cold", number(1, 65536)),
    "maxTransferBytesOnMessageInDisk": ("pull_max_bytes_cold", number(1, 8 << 20)),
    "longPollingEnable": ("long_polling", flag),
    "shortPollingTimeMills": ("short_polling_ms", number(1, 60_000)),
    "httpPort": ("http_port", number(0, 65535)),  # ours; 0: off
    "httpAddress": ("http_address", _host),  # ours
    "logDir": ("log_dir", _any_text),  # ours
    "tls.peer.certPath": ("tls_certificate", _any_text),  # ours, named like RocketMQ's tls.server.certPath
    "tls.peer.keyPath": ("tls_key", _any_text),
    "tls.peer.keyPassword": ("tls_key_password", _any_text),
    "tls.peer.trustCertPath": ("tls_authority", _any_text),
    "regionId": ("region_id", _text),
    "traceOn": ("trace_on", flag),
}

# Accepted and without effect here, so that a broker.conf of RocketMQ's works as it is.
IGNORED = frozenset({"brokerId", "brokerRole", "sendMessageThreadPoolNums"})


def load_config(properties: Mapping[str, str]) -> tuple[BrokerConfig, list[str]]:
    """Typed settings, and the names of properties that nobody knows. ConfigError names the first bad one."""
    values: dict[str, Any] = {}
    unknown: list[str] = []
    for key, text in properties.items():
        if key not in PROPERTIES:
            if key not in IGNORED:
                unknown.append(key)
            continue
        attribute, parse = PROPERTIES[key]
        try:
            values[attribute] = parse(text)
        except ValueError as error:
            raise ConfigError(key, str(error)) from error
    config = BrokerConfig(**values)
    if not config.dledger_enabled:
        raise ConfigError("enableDLegerCommitLog", "must be true: this broker has no other commit log")
    if not config.peers:
        raise ConfigError("dLegerPeers", "missing; for a single node: n0-127.0.0.1:40911")
    if config.self_id not in config.peers:
        raise ConfigError("dLegerSelfId", f"{config.self_id!r} is not in dLegerPeers")
    tls = (config.tls_certificate, config.tls_key, config.tls_authority)
    if any(tls) and not all(tls):
        raise ConfigError(
            "tls.peer.certPath", "tls.peer.keyPath and tls.peer.trustCertPath: all or none must be set"
        )
    if len(config.broker_name) > MAX_TOPIC_V1 or len(config.cluster_name) > MAX_TOPIC_V1:
        raise ConfigError(
            "brokerName", f"and brokerClusterName name topics: at most {MAX_TOPIC_V1} characters"
        )
    try:
        config.node_config()
    except ValueError as error:
        key = str(error).partition(" ")[0]
        raise ConfigError(key if key in PROPERTIES else "dLegerPeers", str(error)) from error
    return config, unknown


def effective_properties(config: BrokerConfig) -> dict[str, str]:
    """All properties as they count, for `-p`."""
    known = {item.name for item in fields(config)}
    result = {}
    for key, (attribute, _) in PROPERTIES.items():
        if attribute in known:
            result[key] = _as_property(attribute, getattr(config, attribute))
    return result


def _as_property(attribute: str, value: object) -> str:
    if attribute == "tls_key_password":
        return "***" if value else ""
    if attribute == "sync_flush":
        return "SYNC_FLUSH" if value else "ASYNC_FLUSH"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ";".join(f"{item:02d}" if isinstance(item, int) else item for item in value)
    if isinstance(value, Mapping):
        return ";".join(f"{node}-{address}" for node, address in value.items())
    return str(value)

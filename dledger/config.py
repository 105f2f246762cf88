"""Settings of one node, as properties and as a class for programs. Times are in seconds, sizes in bytes.

`NodeSettings` holds what an operator may set, under the names of RocketMQ and DLedger where they have one.
Brokers and stand-alone nodes include it as one group of their settings. `NodeConfig` adds the identity of the
node: group, id, peers and store directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from ipaddress import ip_network
from typing import Annotated, Any

from dledger.election.configuration import MAX_ID, MAX_MEMBERS, ConfigurationRefused, check_node
from dledger.election.preferred import PreferredSettings
from dledger.formats.addresses import check_host, split_address
from dledger.formats.entry import HEADER_SIZE, MAX_ENTRY_SIZE
from dledger.log.retention import RetentionSettings
from dledger.protocol import PROTOCOL_MAX, PROTOCOL_MIN, PROTOCOL_WITH_PROOF
from dledger.runtime.settings import ConfigError, Setting, directory, name, names

HEARTBEATS_PER_TIMEOUT = 2
"""An election time-out lasts at least this many heartbeats, so that one late heartbeat does not depose a
leader."""
PAGE = 4096
"""Page size in bytes. The size of a segment is a multiple of it."""
NOWHERE = ("0.0.0.0", "::")
"""Addresses that mean "all addresses of this machine": a server can listen at them, a client cannot connect
to them."""
MAX_RATE = 1 << 40
"""Largest rate that may be set, in bytes a second."""
MIN_CLOCK_SKEW_MS = 1000
"""Smallest limit of clock skew that may be set, in milliseconds. Clocks that differ by less count as equal
(`dledger.node.clocks`)."""
MAX_CLOCK_SKEW_MS = 366 * 24 * 3_600_000
MAX_FLIGHT_MB = 1024
"""Largest flight recording that may be set, in MiB."""


def parse_peers(text: str) -> dict[str, str]:
    """Parse dLegerPeers: `n0-127.0.0.1:40911;n1-...` becomes {"n0": "127.0.0.1:40911", ...}. Raises
    ConfigError."""
    peers: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        node, separator, address = part.partition("-")
        if not separator or not node or not address:
            raise ConfigError(f"dLegerPeers: {part!r}: expected id-host:port")
        try:
            check_node(node, address)
        except ConfigurationRefused as refused:
            raise ConfigError(f"dLegerPeers: {node[:MAX_ID]}: {refused}") from refused
        if node in peers:
            raise ConfigError(f"dLegerPeers: {node} is given twice")
        peers[node] = address
    if not peers:
        raise ConfigError("dLegerPeers is empty")
    nodes: dict[tuple[str, int], str] = {}
    for node, address in peers.items():
        host, port = split_address(address)
        if len(peers) > 1 and host in NOWHERE:
            raise ConfigError(
                f"dLegerPeers: {node}: {address}: the other members cannot connect to this address. "
                "To set where this node listens, use bindAddress or peerBindAddress"
            )
        first = nodes.setdefault((host.lower().rstrip("."), port), node)
        if first != node:
            raise ConfigError(f"dLegerPeers: {first} and {node} have the same address, {address}")
    if len(peers) > MAX_MEMBERS:
        raise ConfigError(f"dLegerPeers: a group has at most {MAX_MEMBERS} members")
    return peers


def format_peers(peers: Mapping[str, str]) -> str:
    """Format peers as in dLegerPeers; the inverse of `parse_peers`."""
    return ";".join(f"{node}-{address}" for node, address in peers.items())


def _host_or_none(text: str) -> str:
    return check_host(text) if text else ""


def _sources(text: str) -> tuple[str, ...]:
    found = names(text)
    for source in found:
        if source != "*":
            try:
                ip_network(source)
            except ValueError as error:
                raise ValueError(
                    f"{error}: expected an address, a network such as 10.1.0.0/16, or *"
                ) from error
    return found


SelfId = Annotated[str, Setting("dLegerSelfId", parse=name, important=True)]
Peers = Annotated[
    Mapping[str, str],
    Setting("dLegerPeers", parse=parse_peers, format=format_peers, important=True),
]
StoreRoot = Annotated[str, Setting("storePathRootDir", parse=directory, important=True)]
BindAddress = Annotated[str, Setting("bindAddress", parse=check_host, important=True)]


def _in_order(
    settings: object, given: Mapping[str, object], times: Sequence[str], least: Sequence[int]
) -> dict[str, float]:
    """Return new defaults for times that have to ascend, where `times[i]` must be at least `least[i]` times
    the time before it.

    A default is changed only if a time that was given would break this order. Then the default is moved by
    the same factor as the given time, so that the proportion of the defaults is kept.
    """
    default = {name: float(getattr(settings, name)) for name in times}
    now = {name: value for name in times if isinstance(value := given.get(name), (int, float))}
    moved: dict[str, float] = {}
    for at in range(1, len(times)):  # upwards from what is given
        below, name = times[at - 1], times[at]
        if name not in now and below in now:
            fits = default[name] >= least[at] * now[below]
            now[name] = default[name] if fits else now[below] * max(least[at], default[name] / default[below])
            moved[name] = now[name]
    for at in reversed(range(1, len(times))):  # downwards
        name, above = times[at - 1], times[at]
        if name not in now and above in now:
            fits = now[above] >= least[at] * default[name]
            now[name] = default[name] if fits else now[above] / max(least[at], default[above] / default[name])
            moved[name] = now[name]
    return moved


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """Settings of a node that an operator may change. Each says what breaks if it is misused."""

    # Constants of the group, checked between peers (safety.md S9, S18).
    segment_size: Annotated[
        int,
        Setting(
            "mapedFileSizeCommitLog",
            2 * MAX_ENTRY_SIZE,
            1 << 40,
            "bytes",
            important=True,
        ),
    ] = 1024 * 1024 * 1024
    """Size of a log segment, a multiple of 4096. It must hold at least two entries of the largest size. All
    members need the same value."""
    max_entry_bytes: int = MAX_ENTRY_SIZE
    """Largest entry in bytes, including its header; a segment holds at least two. Simulations use smaller
    entries and segments."""
    sync_flush: Annotated[
        bool, Setting("flushDiskType", choices={"SYNC_FLUSH": True, "ASYNC_FLUSH": False}, important=True)
    ] = True
    """`SYNC_FLUSH`: an acknowledgement means that the message is fsynced on a majority. `ASYNC_FLUSH`: it is
    written on a majority, and fsynced later. All members need the same value."""
    lease_reads: Annotated[bool, Setting("leaseReads")] = False
    """Whether read points come from the leader's lease instead of a round of heartbeats. This has two costs.
    Failover is slower, because a refused connection then does not count as a hint that the leader is gone.
    And the clocks of the machines must be reliable. All members need the same value, and the same
    `electionTimeoutMinMs`."""
    clock_drift_margin: Annotated[float, Setting("clockDriftMarginPercent", 1, 90, "percent")] = 0.1
    """Largest difference between the rates of two nodes' monotonic clocks. A lease is shortened by this
    share. A machine that suspends, or whose hypervisor stops its clock, must not take part in lease reads."""
    index_units_per_file: int = 5 * 1024 * 1024
    pool_segments: Annotated[int, Setting("segmentPoolSize", 0, 1024)] = 2
    """How many prepared segment files are kept ready. Each takes the disk space of a segment."""

    # Election.
    heartbeat_interval_s: Annotated[
        float, Setting("heartBeatTimeIntervalMs", 5, 10000, "ms", important=True)
    ] = 0.1
    """Time between two heartbeats of a leader."""
    election_timeout_min_s: Annotated[
        float, Setting("electionTimeoutMinMs", 10, 120000, "ms", important=True)
    ] = 0.4
    """Shortest time without a heartbeat after which a follower stands for election. It must cover several
    heartbeats and be far longer than any stall of the machine. Otherwise another node is elected although the
    leader is healthy."""
    election_timeout_max_s: Annotated[
        float, Setting("electionTimeoutMaxMs", 10, 240000, "ms", important=True)
    ] = 0.8
    """Longest time without a heartbeat after which a follower stands for election. It bounds how long a
    silent loss of the leader goes unnoticed."""
    vote_retry_min_s: Annotated[float, Setting("minVoteIntervalMs", 1, 60000, "ms")] = 0.02
    """First pause after a round of votes without a winner; it doubles up to the election time-out."""

    max_clock_skew_ms: Annotated[
        int, Setting("maxClockSkewMs", 0, MAX_CLOCK_SKEW_MS, "ms", important=True)
    ] = 60_000
    """How far a node's clock may be ahead of the clocks of most members. A leader whose clock is further
    ahead transfers leadership, and a node with such a clock leads only while no other node can. The same
    limit applies to store times: a store time that is further ahead of the clock causes a warning. At least
    1000; 0 switches both checks off. Keep the clocks in step (NTP) in any case."""

    # Replication.
    push_bytes: Annotated[int, Setting("pushFrameBytes", 4096, 8 << 20, "bytes")] = 1024 * 1024
    """Target size of one frame of entries to a peer. A client batch that is larger is still sent whole."""
    inflight_bytes: Annotated[int, Setting("peerInflightBytes", 1 << 16, 1 << 32, "bytes")] = 16 * 1024 * 1024
    """Limit, in bytes, of entries that are in flight to one peer or wait for its disk. When it is reached,
    the leader sends no more to this peer for the moment. It should be at least bandwidth x (round trip +
    fsync), otherwise the link is idle at times. Below 16 MiB a peer's disk is idle at times."""
    inflight_frames: Annotated[int, Setting("peerInflightFrames", 1, 100000)] = 1000
    """Limit of unacknowledged frames to one peer. When it is reached, the leader sends larger frames instead
    of more frames."""
    pending_bytes: Annotated[int, Setting("maxPendingBytes", 2 * MAX_ENTRY_SIZE, 1 << 34, "bytes")] = (
        64 * 1024 * 1024
    )
    """Limit, in bytes, of entries that are appended but not yet committed, or not yet on the leader's disk.
    Above it appends are refused until there is room."""
    pending_entries: Annotated[int, Setting("maxPendingRequestsNum", 1, 10000000)] = 200_000
    """Limit of the number of entries that are appended but not yet committed, or not yet on the leader's
    disk. Above it appends are refused until there is room, as with `maxPendingBytes`."""
    throttle_lag_bytes: Annotated[int, Setting("peerPushThrottlePoint", 1 << 20, 1 << 44, "bytes")] = (
        300 * 1024 * 1024
    )
    """Limit, in bytes, by which a peer may lag behind and still be sent entries at full speed. Beyond it,
    entries are read from the disk and sent at the rate `peerPushQuota`, so that refilling the peer does not
    take the disk and the link from the clients. There is no such limit while a quorum needs this peer."""
    throttle_bytes_per_s: Annotated[int, Setting("peerPushQuota", 1 << 16, MAX_RATE, "bytes/s")] = (
        20 * 1024 * 1024
    )
    """Highest rate at which a peer beyond `peerPushThrottlePoint` is sent entries. If the log grows fast, the
    limit is twice its growth rate instead."""

    # Members and peers.
    protocol_min: Annotated[int, Setting("peerProtocolMin", PROTOCOL_MIN, PROTOCOL_MAX)] = PROTOCOL_WITH_PROOF
    """Lowest version of the peer protocol that this node speaks. The value 1 admits peers of version 1, for
    an upgrade node by node. Recorded bytes of such a connection can be replayed by an attacker
    (docs/reference/protocol.md)."""
    protocol_max: Annotated[int, Setting("peerProtocolMax", PROTOCOL_MIN, PROTOCOL_MAX)] = PROTOCOL_MAX
    """Highest version of the peer protocol that this node speaks. Lower it before a staged upgrade. When all
    nodes run the new program, raise it again node by node. Until then nothing is written that the old program
    does not know."""
    preferred_leaders: Annotated[
        tuple[str, ...], Setting("preferredLeaderId", parse=names, format=";".join)
    ] = ()
    """Ids of the nodes that should lead, separated by `;`, the most preferred first. A replicated setting
    (`dledger prefer`) overrides it."""
    preferred: PreferredSettings = field(default_factory=PreferredSettings)
    promote_lag_entries: Annotated[int, Setting("promoteLagEntries", 0, 10000000)] = 1000
    """Limit for a learner to count as caught up: it lacks at most this many entries. Only such a learner may
    be promoted, or become leader."""
    promote_lag_bytes: Annotated[int, Setting("promoteLagBytes", 0, 1 << 34, "bytes")] = 1024 * 1024
    """Limit, in bytes, for a learner to count as caught up: it lacks at most this much of the log. Both this
    limit and `promoteLagEntries` have to hold."""
    max_frame_bytes: int = 16 * 1024 * 1024
    """Largest peer frame in bytes. A larger one closes the connection. The limit must be the same on all
    members."""
    hello_timeout_s: Annotated[float, Setting("peerHelloTimeoutMs", 10, 60000, "ms")] = 2.0
    """How long a peer may take to introduce itself on a new connection."""
    dial_timeout_s: Annotated[float, Setting("peerDialTimeoutMs", 10, 60000, "ms")] = 1.0
    """How long connecting to a peer may take."""
    redial_min_s: Annotated[float, Setting("peerRedialMinMs", 1, 60000, "ms")] = 0.005
    """First pause after a failed attempt to connect to a peer; it doubles with each attempt. It is short
    because a dying process may still accept a connection, and only the next attempt is refused."""
    redial_max_s: Annotated[float, Setting("peerRedialMaxMs", 1, 600000, "ms")] = 1.0
    """Longest pause between two attempts to connect to a peer."""

    peer_bind: Annotated[str, Setting("peerBindAddress", parse=_host_or_none)] = ""
    """Address to listen at for peers. When it is empty, the node listens at `bindAddress` if that is a single
    address or TLS is used. Otherwise it listens at its own address in `dLegerPeers`, or at all addresses if
    that one does not belong to this machine."""
    allowed_sources: Annotated[
        tuple[str, ...], Setting("peerAllowedSources", parse=_sources, format=";".join)
    ] = ()
    """Further addresses from which nodes may connect as members and change the group, when TLS is not used.
    The addresses of members and of this machine are always allowed. Addresses and networks (`10.1.0.0/16`)
    are separated by `;`. `*` means anybody who reaches the port."""

    # The client protocol of DLedger, at the port for peers.
    max_client_connections: Annotated[int, Setting("maxLogClientConnections", 1, 100000)] = 64
    """Limit of connections at the port for peers that come from commands, or from clients of a stand-alone
    node. Beyond it a new connection is refused."""
    read_timeout_s: Annotated[float, Setting("readPointTimeoutMs", 10, 60000, "ms")] = 1.0
    """How long a read of a command, or of a client of a stand-alone node, waits for its read point."""

    # Disk.
    disk_stall_s: Annotated[float, Setting("diskStallMs", 50, 600000, "ms")] = 2.0
    """Longest time for a write or fsync. If it takes longer, a leader transfers leadership or steps down. A
    leader's disk also counts as slow if it is far behind the disks of the others for at least this time. If
    the value is near the latency of a busy disk, leadership moves back and forth."""
    disk_full_ratio: Annotated[float, Setting("diskSpaceWarningLevelRatio", 10, 100, "percent", hot=True)] = (
        0.90
    )
    """Share of the file system that may be in use. From this share on, appends (sends) are refused."""
    disk_check_s: Annotated[float, Setting("diskCheckIntervalMs", 10, 600000, "ms")] = 1.0
    """Time between two checks of the free space."""
    repair_limit_s: Annotated[float, Setting("repairLimitMs", 0, 3600000, "ms")] = 5.0
    """How long a leader with corrupt entries goes on leading if no peer can repair them."""
    scrub_bytes_per_s: Annotated[int, Setting("scrubBytesPerSecond", 0, MAX_RATE, "bytes/s", hot=True)] = (
        20 * 1024 * 1024
    )
    """Highest rate at which the scrub reads the log; 0 switches the scrub off."""
    scrub_pause_s: Annotated[float, Setting("scrubPauseMs", 10, 366 * 24 * 3_600_000, "ms", hot=True)] = (
        3600.0
    )
    """Rest between two passes of the scrub."""
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    """How long entries are kept. They are kept for ever unless one of these settings is given."""

    # The flight recorder.
    flight_recorder_mb: Annotated[int, Setting("flightRecorderMb", 0, MAX_FLIGHT_MB, "MiB")] = 0
    """Size of the flight recording on the disk, in the directory `flight/` of the node's log. It holds the
    inputs of election and replication of the last minutes, without the bodies of messages; `dledger chaos
    replay` shows and checks it. 0 switches the recorder off."""

    # The process.
    checkpoint_interval_s: Annotated[float, Setting("checkpointIntervalMs", 10, 600000, "ms")] = 1.0
    """Time between two checkpoints of what is committed and durable. The longer it is, the more of the log a
    node has to check when it starts."""
    lag_probe_s: Annotated[float, Setting("loopLagProbeMs", 5, 60000, "ms")] = 0.05
    """Time between two measurements of the event loop's lag."""
    apply_bytes: Annotated[int, Setting("applyChunkBytes", 4096, 16 << 20, "bytes")] = 256 * 1024
    """Limit, in bytes, of the committed entries that are applied in one step. While a step runs, everything
    else on the event loop waits."""

    def moved_defaults(self, given: Mapping[str, object]) -> dict[str, object]:
        """Return new defaults that fit the times that were given. The proportions between the defaults are
        kept."""
        moved: dict[str, float] = {}
        moved |= _in_order(self, given, ("redial_min_s", "redial_max_s"), (1, 1))
        times = ("heartbeat_interval_s", "election_timeout_min_s", "election_timeout_max_s")
        moved |= _in_order(self, given, times, (1, HEARTBEATS_PER_TIMEOUT, 1))
        return dict(moved)

    def __post_init__(self) -> None:
        if not HEADER_SIZE < self.max_entry_bytes <= MAX_ENTRY_SIZE:
            raise ConfigError(f"max_entry_bytes is {self.max_entry_bytes}; the limit is {MAX_ENTRY_SIZE}")
        if self.segment_size < 2 * self.max_entry_bytes:
            raise ConfigError(
                f"mapedFileSizeCommitLog {self.segment_size}: at least {2 * self.max_entry_bytes} bytes, "
                "so that the largest batch fits one segment"
            )
        if self.segment_size % PAGE:
            raise ConfigError(f"mapedFileSizeCommitLog {self.segment_size}: must be a multiple of {PAGE}")
        least, most = self.election_timeout_min_s, self.election_timeout_max_s
        if not 0 < HEARTBEATS_PER_TIMEOUT * self.heartbeat_interval_s <= least:
            raise ConfigError(
                f"electionTimeoutMinMs {least * 1000:g}: at least {HEARTBEATS_PER_TIMEOUT} times "
                f"heartBeatTimeIntervalMs ({self.heartbeat_interval_s * 1000:g})"
            )
        if most < least:
            raise ConfigError(
                f"electionTimeoutMaxMs {most * 1000:g}: not below electionTimeoutMinMs ({least * 1000:g})"
            )
        if 0 < self.max_clock_skew_ms < MIN_CLOCK_SKEW_MS:
            raise ConfigError(
                f"maxClockSkewMs {self.max_clock_skew_ms}: at least {MIN_CLOCK_SKEW_MS}, or 0 (off)"
            )
        if self.redial_max_s < self.redial_min_s:
            raise ConfigError("peerRedialMaxMs must not be below peerRedialMinMs")
        if not 0 < self.clock_drift_margin < 1:
            raise ConfigError(f"clock_drift_margin {self.clock_drift_margin}: between 0 and 1")
        if not PROTOCOL_MIN <= self.protocol_max <= PROTOCOL_MAX:
            raise ConfigError(f"protocol_max {self.protocol_max}: {PROTOCOL_MIN} to {PROTOCOL_MAX}")
        if not PROTOCOL_MIN <= self.protocol_min <= self.protocol_max:
            limits = f"from {PROTOCOL_MIN} to peerProtocolMax ({self.protocol_max})"
            raise ConfigError(
                f"peerProtocolMin {self.protocol_min}: {limits}; to accept nodes that speak version "
                "1, set it to 1"
            )
        if self.max_frame_bytes < self.push_bytes + MAX_ENTRY_SIZE + 4096:
            raise ConfigError("max_frame_bytes must hold push_bytes and one entry more")

    def at_utc_offset(self, seconds: int) -> NodeSettings:
        """Return these settings with the hours of `deleteWhen` read as local time at this UTC offset."""
        return replace(self, retention=replace(self.retention, utc_offset_s=seconds))

    @property
    def lease_s(self) -> float:
        """How long a leader's lease lasts; 0 without lease reads."""
        return self.election_timeout_min_s * (1 - self.clock_drift_margin) if self.lease_reads else 0.0

    @property
    def lease_promise_ms(self) -> int:
        """How long, in milliseconds, a voter votes for nobody else after it heard from a leader. It is
        announced in the hello; 0 without lease reads."""
        return round(self.election_timeout_min_s * 1000) if self.lease_reads else 0


@dataclass(frozen=True)
class NodeConfig(NodeSettings):
    """The configuration of one member of a group. `peers` maps the node id ("n0") of each member, including
    this one, to "host:port"."""

    group: str
    self_id: str
    peers: Mapping[str, str]
    store_dir: str
    """Root directory of the store (storePathRootDir). The log is in `<store_dir>/dledger-<self_id>/`."""
    _: KW_ONLY
    meta: Mapping[str, str] = field(default_factory=dict)
    """Key-values that are announced to the peers in the hello, for example {"client_addr":
    "10.0.0.1:10911"}."""
    bind_host: str = "0.0.0.0"
    """Address to listen at for peers; the port is that of `peers[self_id]`."""
    state_version: int = 1
    """Newest version of the state machine's operations that this program reads (`dledger.versions`)."""
    client_appends: bool = True
    """Whether clients of DLedger's protocol may append. For a broker this is False: its log accepts only
    messages, because nothing in a broker reads entries of another kind."""

    @classmethod
    def of(
        cls,
        settings: NodeSettings,
        *,
        group: str,
        self_id: str,
        peers: Mapping[str, str],
        store_dir: str,
        **more: Any,
    ) -> NodeConfig:
        """Make the configuration of a node from these settings. `more` holds further fields of this class.
        Raises ConfigError."""
        values = {item.name: getattr(settings, item.name) for item in fields(NodeSettings)}
        return cls(group, self_id, peers, store_dir, **(values | more))

    def __post_init__(self) -> None:
        if self.self_id not in self.peers:
            raise ConfigError(
                f"dLegerSelfId {self.self_id!r} is not in dLegerPeers ({', '.join(sorted(self.peers))})"
            )
        for node, address in self.peers.items():
            try:
                split_address(address)
            except ValueError as error:
                raise ConfigError(f"dLegerPeers: {node}: {error}") from error
        try:
            check_host(self.bind_host)
        except ValueError as error:
            raise ConfigError(f"bindAddress {error}") from error
        super().__post_init__()

    @property
    def node_dir(self) -> str:
        """Directory of this node's log."""
        return f"{self.store_dir}/dledger-{self.self_id}"

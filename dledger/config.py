"""Settings of one node, as properties and for programs. Times in seconds, sizes in bytes.

`NodeSettings` is what an operator may set, by the names of RocketMQ and DLedger where they have one; brokers
and stand-alone nodes have it as a group of theirs. `NodeConfig` adds who the node is.
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
"""An election time-out is no shorter than so many heartbeats: one that is late must not depose a leader."""
PAGE = 4096
"""Bytes: a segment is a multiple of it."""
NOWHERE = ("0.0.0.0", "::")
"""All addresses of a machine: to listen at, not to connect to."""
MAX_RATE = 1 << 40
"""Bytes a second."""
MIN_CLOCK_SKEW_MS = 1000
"""Clocks that differ by less agree (`dledger.node.clocks`)."""
MAX_CLOCK_SKEW_MS = 366 * 24 * 3_600_000


def parse_peers(text: str) -> dict[str, str]:
    """`n0-127.0.0.1:40911;n1-...` (dLegerPeers) as {"n0": "127.0.0.1:40911", ...}, or ConfigError."""
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
        raise ConfigError("dLegerPeers: empty")
    nodes: dict[tuple[str, int], str] = {}
    for node, address in peers.items():
        host, port = split_address(address)
        if len(peers) > 1 and host in NOWHERE:
            raise ConfigError(
                f"dLegerPeers: {node}: {address}: the other members cannot connect to it. Where to listen is "
                "bindAddress, or peerBindAddress"
            )
        first = nodes.setdefault((host.lower().rstrip("."), port), node)
        if first != node:
            raise ConfigError(f"dLegerPeers: {first} and {node} have one address, {address}")
    if len(peers) > MAX_MEMBERS:
        raise ConfigError(f"dLegerPeers: a group has at most {MAX_MEMBERS} members")
    return peers


def format_peers(peers: Mapping[str, str]) -> str:
    """Inverse of `parse_peers`."""
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
                raise ValueError(f"{error}: an address, a network such as 10.1.0.0/16, or *") from error
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
    """Times of which each is at least `least` times the one before it. Those that are not given move, by the
    proportion of the defaults, away from one that is given where they would be on its wrong side."""
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
    """What an operator may set of a node. Each says what breaks if it is misused."""

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
    """Size of a log segment, a multiple of 4096; at least two entries of the largest size. The same on all
    members."""
    max_entry_bytes: int = MAX_ENTRY_SIZE
    """Largest entry with its header; a segment holds at least two. Simulations shrink both."""
    sync_flush: Annotated[
        bool, Setting("flushDiskType", choices={"SYNC_FLUSH": True, "ASYNC_FLUSH": False}, important=True)
    ] = True
    """`SYNC_FLUSH`: an acknowledgement means fsynced on a majority. `ASYNC_FLUSH`: written on a majority,
    fsynced later. The same on all members."""
    lease_reads: Annotated[bool, Setting("leaseReads")] = False
    """Read points from the leader's lease instead of a round of heartbeats, at the price of a slower
    failover (a refused connection is no hint any more) and of trust in clocks. The same on all members,
    with `electionTimeoutMinMs`."""
    clock_drift_margin: Annotated[float, Setting("clockDriftMarginPercent", 1, 90, "percent")] = 0.1
    """How far the monotonic clocks of two nodes may differ in rate: a lease is shorter by it. A machine
    that suspends, or whose hypervisor stops its clock, must not take part in lease reads."""
    index_units_per_file: int = 5 * 1024 * 1024
    pool_segments: Annotated[int, Setting("segmentPoolSize", 0, 1024)] = 2
    """Prepared segments to hold ready; each costs a segment of disk."""

    # Election.
    heartbeat_interval_s: Annotated[
        float, Setting("heartBeatTimeIntervalMs", 5, 10000, "ms", important=True)
    ] = 0.1
    """Time between two heartbeats of a leader."""
    election_timeout_min_s: Annotated[
        float, Setting("electionTimeoutMinMs", 10, 120000, "ms", important=True)
    ] = 0.4
    """Time without a heartbeat after which a follower stands for election, at least: several heartbeats,
    and far above any stall of the machine, else a healthy leader is voted out."""
    election_timeout_max_s: Annotated[
        float, Setting("electionTimeoutMaxMs", 10, 240000, "ms", important=True)
    ] = 0.8
    """The same at most; it bounds how long a silent loss of the leader goes unseen."""
    vote_retry_min_s: Annotated[float, Setting("minVoteIntervalMs", 1, 60000, "ms")] = 0.02
    """First pause after a round that elected nobody; it doubles up to the election time-out."""

    max_clock_skew_ms: Annotated[
        int, Setting("maxClockSkewMs", 0, MAX_CLOCK_SKEW_MS, "ms", important=True)
    ] = 60_000
    """How far a node's clock may be ahead of those of most members: beyond it a leader hands over, and the
    node leads only while nobody else can. Also how far store time may be ahead of the clock without a
    warning. At least 1000; 0: neither is looked at. Keep the clocks in step (NTP) in any case."""

    # Replication.
    push_bytes: Annotated[int, Setting("pushFrameBytes", 4096, 8 << 20, "bytes")] = 1024 * 1024
    """Aim of one frame of entries to a peer; a client batch that is larger still goes whole."""
    inflight_bytes: Annotated[int, Setting("peerInflightBytes", 1 << 16, 1 << 32, "bytes")] = 16 * 1024 * 1024
    """Bytes to one peer, on the way or waiting for its disk, before the leader waits: bandwidth x round
    trip and fsync, else it idles. Below 16 MiB a peer's disk idles."""
    inflight_frames: Annotated[int, Setting("peerInflightFrames", 1, 100000)] = 1000
    """Unacknowledged frames to one peer; beyond it frames get larger instead of more."""
    pending_bytes: Annotated[int, Setting("maxPendingBytes", 2 * MAX_ENTRY_SIZE, 1 << 34, "bytes")] = (
        64 * 1024 * 1024
    )
    """Bytes appended but not committed, or not on the leader's disk, above which appends are refused until
    there is room."""
    pending_entries: Annotated[int, Setting("maxPendingRequestsNum", 1, 10000000)] = 200_000
    """The same in entries."""
    throttle_lag_bytes: Annotated[int, Setting("peerPushThrottlePoint", 1 << 20, 1 << 44, "bytes")] = (
        300 * 1024 * 1024
    )
    """Lag of a peer above which it is sent `peerPushQuota` at most, from the disk, so that refilling it
    does not take the disk and the link from the clients, unless a quorum needs it."""
    throttle_bytes_per_s: Annotated[int, Setting("peerPushQuota", 1 << 16, MAX_RATE, "bytes/s")] = (
        20 * 1024 * 1024
    )
    """What such a peer is sent at most; twice the rate at which the log grows, if that is more."""

    # Members and peers.
    protocol_min: Annotated[int, Setting("peerProtocolMin", PROTOCOL_MIN, PROTOCOL_MAX)] = PROTOCOL_WITH_PROOF
    """Lowest peer protocol to speak: 1 lets peers of version 1 in, for an upgrade node by node; recorded
    bytes of theirs can be played again (docs/reference/protocol.md)."""
    protocol_max: Annotated[int, Setting("peerProtocolMax", PROTOCOL_MIN, PROTOCOL_MAX)] = PROTOCOL_MAX
    """Highest peer protocol to speak. Lower it before a staged upgrade, and raise it again node by node
    when all run the new program: until then nothing is written that the old one does not know."""
    preferred_leaders: Annotated[
        tuple[str, ...], Setting("preferredLeaderId", parse=names, format=";".join)
    ] = ()
    """Who should lead, the first most: ids separated by `;`. A replicated setting (`dledger prefer`)
    overrides it."""
    preferred: PreferredSettings = field(default_factory=PreferredSettings)
    promote_lag_entries: Annotated[int, Setting("promoteLagEntries", 0, 10000000)] = 1000
    """A learner that lacks no more is caught up: it may be promoted, or become leader."""
    promote_lag_bytes: Annotated[int, Setting("promoteLagBytes", 0, 1 << 34, "bytes")] = 1024 * 1024
    """The same in bytes."""
    max_frame_bytes: int = 16 * 1024 * 1024
    """Largest peer frame; a larger one closes the connection. Peers rely on each other's."""
    hello_timeout_s: Annotated[float, Setting("peerHelloTimeoutMs", 10, 60000, "ms")] = 2.0
    """How long a new connection of a peer may take to say who it is."""
    dial_timeout_s: Annotated[float, Setting("peerDialTimeoutMs", 10, 60000, "ms")] = 1.0
    """How long a dial of a peer may take."""
    redial_min_s: Annotated[float, Setting("peerRedialMinMs", 1, 60000, "ms")] = 0.005
    """First pause after a failed dial; it doubles. A dying process may still accept: the next try is
    refused."""
    redial_max_s: Annotated[float, Setting("peerRedialMaxMs", 1, 600000, "ms")] = 1.0
    """Longest pause between dials."""

    peer_bind: Annotated[str, Setting("peerBindAddress", parse=_host_or_none)] = ""
    """Where to listen for peers. Empty: at `bindAddress` if that is one address, or with TLS; else at the
    node's own address in `dLegerPeers`, or everywhere if that is none of this machine's."""
    allowed_sources: Annotated[
        tuple[str, ...], Setting("peerAllowedSources", parse=_sources, format=";".join)
    ] = ()
    """Without TLS, who besides members' addresses and this machine may connect as a member and change the
    group: addresses and networks (`10.1.0.0/16`), separated by `;`; `*`: anybody who reaches the port."""

    # The client protocol of DLedger, at the port for peers.
    max_client_connections: Annotated[int, Setting("maxLogClientConnections", 1, 100000)] = 64
    """Connections of the commands that talk to the port for peers, and of clients of a stand-alone node."""
    read_timeout_s: Annotated[float, Setting("readPointTimeoutMs", 10, 60000, "ms")] = 1.0
    """How long a read of theirs waits for its read point."""

    # Disk.
    disk_stall_s: Annotated[float, Setting("diskStallMs", 50, 600000, "ms")] = 2.0
    """A write or fsync that is in flight for longer makes a leader hand over or step down; and how long, at
    least, a leader's disk is far behind the others' until it is slow. Near the latency of a busy disk
    leadership would wander."""
    disk_full_ratio: Annotated[float, Setting("diskSpaceWarningLevelRatio", 10, 100, "percent", hot=True)] = (
        0.90
    )
    """Share of the file system in use from which on appends (sends) are refused."""
    disk_check_s: Annotated[float, Setting("diskCheckIntervalMs", 10, 600000, "ms")] = 1.0
    """Time between two looks at the free space."""
    repair_limit_s: Annotated[float, Setting("repairLimitMs", 0, 3600000, "ms")] = 5.0
    """How long a leader keeps leading with rotten entries that nobody could repair."""
    scrub_bytes_per_s: Annotated[int, Setting("scrubBytesPerSecond", 0, MAX_RATE, "bytes/s", hot=True)] = (
        20 * 1024 * 1024
    )
    """What the scrub of the log reads at most; 0: there is none."""
    scrub_pause_s: Annotated[float, Setting("scrubPauseMs", 10, 366 * 24 * 3_600_000, "ms", hot=True)] = (
        3600.0
    )
    """Rest between two passes of the scrub."""
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    """How long entries are kept: for ever, if nothing is said."""

    # The process.
    checkpoint_interval_s: Annotated[float, Setting("checkpointIntervalMs", 10, 600000, "ms")] = 1.0
    """Time between two notes of what is committed and durable; a start checks more of the log after a
    longer one."""
    lag_probe_s: Annotated[float, Setting("loopLagProbeMs", 5, 60000, "ms")] = 0.05
    """Time between two measurements of the event loop's lag."""
    apply_bytes: Annotated[int, Setting("applyChunkBytes", 4096, 16 << 20, "bytes")] = 256 * 1024
    """Committed bytes handed on in one step: larger steps hold up everything else for longer."""

    def moved_defaults(self, given: Mapping[str, object]) -> dict[str, object]:
        """Times that were not given follow those that were, with the proportions of the defaults."""
        moved: dict[str, float] = {}
        moved |= _in_order(self, given, ("redial_min_s", "redial_max_s"), (1, 1))
        times = ("heartbeat_interval_s", "election_timeout_min_s", "election_timeout_max_s")
        moved |= _in_order(self, given, times, (1, HEARTBEATS_PER_TIMEOUT, 1))
        return dict(moved)

    def __post_init__(self) -> None:
        if not HEADER_SIZE < self.max_entry_bytes <= MAX_ENTRY_SIZE:
            raise ConfigError(f"max_entry_bytes {self.max_entry_bytes}: at most {MAX_ENTRY_SIZE}")
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
                f"peerProtocolMin {self.protocol_min}: {limits}; version 1 must be allowed by 1"
            )
        if self.max_frame_bytes < self.push_bytes + MAX_ENTRY_SIZE + 4096:
            raise ConfigError("max_frame_bytes must hold push_bytes and one entry more")

    def at_utc_offset(self, seconds: int) -> NodeSettings:
        """With the hours of `deleteWhen` those of a local time."""
        return replace(self, retention=replace(self.retention, utc_offset_s=seconds))

    @property
    def lease_s(self) -> float:
        """How long a leader's lease lasts; 0 without lease reads."""
        return self.election_timeout_min_s * (1 - self.clock_drift_margin) if self.lease_reads else 0.0

    @property
    def lease_promise_ms(self) -> int:
        """How long a voter keeps to a leader that it heard, as told in the hello; 0 without lease reads."""
        return round(self.election_timeout_min_s * 1000) if self.lease_reads else 0


@dataclass(frozen=True)
class NodeConfig(NodeSettings):
    """One member of a group. `peers` maps node id ("n0") to "host:port" and holds this node too."""

    group: str
    self_id: str
    peers: Mapping[str, str]
    store_dir: str
    """storePathRootDir; the log lies in `<store_dir>/dledger-<self_id>/`."""
    _: KW_ONLY
    meta: Mapping[str, str] = field(default_factory=dict)
    """Told to the peers in the hello, e.g. {"client_addr": "10.0.0.1:10911"}."""
    bind_host: str = "0.0.0.0"
    """Where to listen for peers; the port is that of `peers[self_id]`."""
    state_version: int = 1
    """Newest operations of the state machine above the log that this program reads (`dledger.versions`)."""
    client_appends: bool = True
    """Whether DLedger's client protocol may append. A broker's log takes messages only: of an entry that is
    none nobody reads anything."""

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
        """A node with these settings; `more` are fields of this class. ConfigError."""
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

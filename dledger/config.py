"""Settings of one node. Times in seconds, sizes in bytes; each says what breaks if it is misused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dledger.election.configuration import MAX_ID, MAX_MEMBERS, ConfigurationRefused, check_node
from dledger.election.preferred import PreferredSettings
from dledger.formats.addresses import check_host, split_address
from dledger.formats.entry import HEADER_SIZE, MAX_ENTRY_SIZE
from dledger.log.retention import RetentionSettings
from dledger.peers.wire import PROTOCOL_MAX, PROTOCOL_MIN, PROTOCOL_WITH_PROOF


class ConfigError(ValueError):
    """A setting that cannot work; the text names it."""


@dataclass(frozen=True)
class NodeConfig:
    """One member of a group. `peers` maps node id ("n0") to "host:port" and holds this node too."""

    group: str
    self_id: str
    peers: Mapping[str, str]
    store_dir: str
    """storePathRootDir; the log lies in `<store_dir>/dledger-<self_id>/`."""

    meta: Mapping[str, str] = field(default_factory=dict)
    """Told to the peers in the hello, e.g. {"client_addr": "10.0.0.1:10911"}."""

    bind_host: str = "0.0.0.0"
    """Where to listen for peers; the port is that of `peers[self_id]`."""

    # Constants of the group, checked between peers (safety.md S9, S18).
    segment_size: int = 1024 * 1024 * 1024
    max_entry_bytes: int = MAX_ENTRY_SIZE
    """Largest entry with its header; a segment holds at least two. Simulations shrink both."""
    sync_flush: bool = True
    """SYNC_FLUSH: an acknowledgement means fsynced on a majority. False: written on a majority."""

    lease_reads: bool = False
    """Read points from the leader's lease instead of a round of heartbeats, at the price of a slower failover
    (a refused connection is no hint any more) and of trust in clocks. Checked between peers with the
    minimum of the election time-out."""

    index_units_per_file: int = 5 * 1024 * 1024
    pool_segments: int = 2
    """Prepared segments to hold ready; each costs `segment_size` of disk."""

    # Election. The minimum must be several times the heartbeat interval and far above any stall of the
    # event loop, else a healthy leader is voted out; the maximum bounds how long a silent loss goes unseen.
    heartbeat_interval_s: float = 0.1
    election_timeout_min_s: float = 0.4
    election_timeout_max_s: float = 0.8
    vote_retry_min_s: float = 0.02
    """First pause after a round that elected nobody; doubles up to the election time-out."""
    clock_drift_margin: float = 0.1
    """Share by which the monotonic clocks of two nodes may differ in rate; a lease is shorter by it. A
    machine that suspends, or whose hypervisor stops its clock, must not take part in lease reads."""

    protocol_min: int = PROTOCOL_WITH_PROOF
    """Lowest peer protocol to speak. 1 lets peers of version 1 in, for an upgrade node by node: their hellos
    carry no nonce, so that recorded bytes can be played again."""
    state_version: int = 1
    """Newest operations of the state machine above the log that this program reads (`dledger.versions`)."""
    protocol_max: int = PROTOCOL_MAX
    """Highest peer protocol to speak. Lower it before a staged upgrade, and raise it again node by node when
    all run the new program: until then nothing is written that the old one does not know."""

    # Replication. In flight must cover bandwidth x round trip and fsync, else a follower idles.
    push_bytes: int = 1024 * 1024
    """Aim of one push frame; a client batch larger than this still goes whole."""
    inflight_bytes: int = 16 * 1024 * 1024
    """Bytes per peer, on the way or waiting for its disk, before the leader waits. Below twice the bytes of
    one write (8 MiB) a peer's disk idles."""
    inflight_frames: int = 1000
    """Unacknowledged frames per peer (maxPendingSize); beyond it frames get larger instead of more."""
    pending_bytes: int = 64 * 1024 * 1024
    """Appended bytes that are not committed, or not on the leader's disk, before LEADER_PENDING_FULL."""
    pending_entries: int = 200_000
    """Entries, counted alike."""
    throttle_lag_bytes: int = 300 * 1024 * 1024
    """A peer that lags by more (peerPushThrottlePoint) is sent at most `throttle_bytes_per_s` from the disk,
    so that refilling it does not take the disk and the link from the clients, unless a quorum needs it."""
    throttle_bytes_per_s: int = 20 * 1024 * 1024
    """peerPushQuota. Twice the rate at which the log grows if that is more: else a laggard would never catch
    up."""

    # Members.
    promote_lag_entries: int = 1000
    promote_lag_bytes: int = 1024 * 1024
    """A learner that lacks no more than this is caught up: it may be promoted, or become leader."""
    preferred_leaders: tuple[str, ...] = ()
    """preferredLeaderId: who should lead, the first most; a replicated setting overrides it."""
    preferred: PreferredSettings = field(default_factory=PreferredSettings)

    read_timeout_s: float = 1.0
    """How long a read of the client protocol waits for its read point."""

    max_frame_bytes: int = 16 * 1024 * 1024
    """Largest peer frame; a larger one closes the connection."""
    max_client_connections: int = 64
    """Connections of the DLedger client protocol."""
    client_appends: bool = True
    """Whether that protocol may append. A broker's log takes messages only: of an entry that is none
    nobody reads anything."""
    hello_timeout_s: float = 2.0
    dial_timeout_s: float = 1.0
    redial_min_s: float = 0.005
    """First pause after a failed dial; doubles. A dying process may still accept: the next try is refused."""
    redial_max_s: float = 1.0

    # Disk. A stall limit near the latency of a busy disk would make leadership wander.
    disk_stall_s: float = 2.0
    """A write or fsync in flight for longer is a stall: a leader hands over or steps down. A leader whose
    disk is far behind the commit for longer (`health.SLOW_LAG`) is slow: it hands over."""
    disk_full_ratio: float = 0.90
    """Share of the file system in use from which on appends are refused with DISK_FULL."""
    disk_check_s: float = 1.0
    """How often free space is measured."""
    repair_limit_s: float = 5.0
    """How long a leader keeps leading with rotten entries that nobody could repair."""
    scrub_bytes_per_s: int = 20 * 1024 * 1024
    """Rate of the background scrub; 0 switches it off."""
    scrub_pause_s: float = 3600.0
    """Rest between two passes of the scrub."""

    checkpoint_interval_s: float = 1.0
    lag_probe_s: float = 0.05
    """How often the event loop's lag is measured. Simulations ask seldom: most of an idle node's work."""
    apply_bytes: int = 256 * 1024
    """Committed bytes handed to the host in one step, so that the loop stays responsive."""
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    """How long entries are kept: for ever, if nothing is said."""

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
        if not HEADER_SIZE < self.max_entry_bytes <= MAX_ENTRY_SIZE:
            raise ConfigError(f"max_entry_bytes {self.max_entry_bytes}: at most {MAX_ENTRY_SIZE}")
        if self.segment_size < 2 * self.max_entry_bytes:
            raise ConfigError(
                f"mapedFileSizeCommitLog {self.segment_size}: at least {2 * self.max_entry_bytes} bytes, "
                "so that the largest batch fits one segment"
            )
        if self.segment_size % 4096:
            raise ConfigError(f"mapedFileSizeCommitLog {self.segment_size}: must be a multiple of 4096")
        if (
            not 0
            < 2 * self.heartbeat_interval_s
            <= self.election_timeout_min_s
            <= self.election_timeout_max_s
        ):
            raise ConfigError(
                "election time-out: minimum at least twice the heartbeat interval, maximum not below"
            )
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

    @property
    def lease_s(self) -> float:
        """How long a leader's lease lasts; 0 without lease reads."""
        return self.election_timeout_min_s * (1 - self.clock_drift_margin) if self.lease_reads else 0.0

    @property
    def lease_promise_ms(self) -> int:
        """How long a voter keeps to a leader that it heard, as told in the hello; 0 without lease reads."""
        return round(self.election_timeout_min_s * 1000) if self.lease_reads else 0

    @property
    def node_dir(self) -> str:
        """Directory of this node's log."""
        return f"{self.store_dir}/dledger-{self.self_id}"


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
    if len(peers) > MAX_MEMBERS:
        raise ConfigError(f"dLegerPeers: a group has at most {MAX_MEMBERS} members")
    return peers

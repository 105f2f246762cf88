"""Settings of one node. Times in seconds, sizes in bytes; each says what breaks if it is misused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dledger.log.retention import RetentionSettings
from formats.entry import HEADER_SIZE, MAX_ENTRY_SIZE


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

    # Replication. In flight must cover bandwidth x round trip and fsync, else a follower idles.
    push_bytes: int = 1024 * 1024
    """Aim of one push frame; a client batch larger than this still goes whole."""
    inflight_bytes: int = 16 * 1024 * 1024
    """Unacknowledged bytes per peer before the leader waits."""
    pending_bytes: int = 64 * 1024 * 1024
    """Appended but uncommitted bytes before LEADER_PENDING_FULL."""
    pending_entries: int = 200_000
    """Appended but uncommitted entries before LEADER_PENDING_FULL."""

    max_frame_bytes: int = 16 * 1024 * 1024
    """Largest peer frame; a larger one closes the connection."""
    max_client_connections: int = 64
    """Connections of the DLedger client protocol."""
    hello_timeout_s: float = 2.0
    dial_timeout_s: float = 1.0
    redial_min_s: float = 0.02
    redial_max_s: float = 1.0

    checkpoint_interval_s: float = 1.0
    apply_bytes: int = 256 * 1024
    """Committed bytes handed to the host in one step, so that the loop stays responsive."""
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    """How long entries are kept."""

    def __post_init__(self) -> None:
        if self.self_id not in self.peers:
            raise ConfigError(
                f"dLegerSelfId {self.self_id!r} is not in dLegerPeers ({', '.join(sorted(self.peers))})"
            )
        for node, address in self.peers.items():
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError(f"dLegerPeers: {node}-{address}: expected host:port")
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
        if self.max_frame_bytes < self.push_bytes + MAX_ENTRY_SIZE + 4096:
            raise ConfigError("max_frame_bytes must hold push_bytes and one entry more")

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
        if not (node[0].isalpha() and node[1:].isdigit()):
            raise ConfigError(f"dLegerPeers: {node!r}: a node id is one letter and digits, as n0")
        if node in peers:
            raise ConfigError(f"dLegerPeers: {node} is given twice")
        peers[node] = address
    if not peers:
        raise ConfigError("dLegerPeers is empty")
    return peers

"""The parts of `dledger.node.node.Node` that the broker uses, so that tests can replace it by a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from dledger.config import NodeSettings
from dledger.formats.entry import Kind
from dledger.host import LogReader, Role
from dledger.log.appender import Run
from dledger.messages import Code


class Appender(Protocol):
    """Seals entries for one leadership (safety.md S12). All calls are on the event loop."""

    @property
    def refusal(self) -> Code | None:
        """Why nothing may be added now: DISK_FULL or LEADER_PENDING_FULL; None if entries may be added."""

    @property
    def term(self) -> int:
        """The term of the leadership."""

    @property
    def max_batch(self) -> int:
        """Most bytes that `reserve` accepts."""

    def reserve(self, total_size: int) -> int:
        """Position of the first of the entries that are added next; `total_size` counts them with their
        headers."""

    def add(
        self, parts: tuple[bytes, ...], size: int, kind: int = Kind.MESSAGE, batch_remaining: int = 0
    ) -> int:
        """Add one entry whose body is `parts` joined, of `size` bytes. Returns its index."""

    def add_system(self, body: bytes) -> int:
        """Add one SYSTEM entry. Returns its index."""

    def add_reserved(self, body: bytes, kind: int = Kind.SYSTEM, batch_remaining: int = 0) -> int:
        """Add one entry of a batch, at the position that `reserve` gave. Returns its index."""

    def open_run(self) -> Run | None:
        """Begin to add messages in a row, which are not checked here; None if a message would be refused
        now."""

    def close_run(self, run: Run) -> None:
        """End a run: its messages are added."""

    def open_batch(self, total_size: int) -> Run:
        """Begin to add messages in a row as the first part of a batch of this many bytes; there must be room
        for them."""

    def close_batch(self, run: Run, following: int) -> None:
        """End the run of a batch: its messages are added; `following` more entries of the batch will
        follow."""

    @property
    def state_version(self) -> int:
        """Version of the operations that all voters understand (`formats.state`)."""

    def clock_ms(self) -> int:
        """The current time in ms: that of the wall clock, without short jumps."""

    def now_ms(self) -> int:
        """Store time of entries added in this turn of the loop, in ms: never before the newest record
        (S15)."""


class Node(Protocol):
    """The replicated log, as its host sees it."""

    @property
    def role(self) -> Role:
        """The current Raft role."""

    @property
    def term(self) -> int:
        """The current term."""

    @property
    def leader_id(self) -> str | None:
        """Id of the leader of this term, if it is known."""

    @property
    def removed(self) -> bool:
        """Whether the group is known to have removed this node."""

    @property
    def serving(self) -> bool:
        """Whether this node leads and its term is open."""

    @property
    def commit_index(self) -> int:
        """Highest index known to be committed."""

    @property
    def appender(self) -> Appender | None:
        """Set only while this node serves."""

    @property
    def log(self) -> LogReader:
        """Read access to the log."""

    @property
    def cluster_id(self) -> str:
        """Id of the group's log; empty while this node does not know it."""

    def peer_meta(self, node_id: str) -> Mapping[str, str]:
        """Data that a peer sent about itself; empty if it never connected."""

    def prove(self, peer: str, content: Sequence[bytes]) -> str:
        """A proof for a peer that a request with this content comes from a member; empty if the peer has
        shared no secret."""

    def proves(self, proof: str, content: Sequence[bytes]) -> bool:
        """Whether a member made this proof for this content and this process, and it was not used before."""

    @property
    def proof_receivers(self) -> Sequence[str]:
        """Peers for which proofs can be made."""

    @property
    def peers_without_proofs(self) -> Sequence[str]:
        """Connected peers whose older programs make no proofs."""

    def status(self) -> dict[str, object]:
        """Status for /health and /metrics."""

    async def run(self) -> None:
        """Run until cancelled. NodeFailed."""

    def retune(self, settings: NodeSettings) -> None:
        """Apply settings that may change while it runs."""

    def delete_expired(self) -> None:
        """Delete now what retention may delete, whatever hour it is."""

    def ask_read_point(self, timeout_s: float, done: Callable[[int | None], None]) -> None:
        """Get a read point that begins now (linearizable reads); None if there was none in time. ReadRefused
        if too many wait."""

    async def step_aside(self, timeout_s: float) -> bool:
        """Hand leadership over to a peer that is up to date."""

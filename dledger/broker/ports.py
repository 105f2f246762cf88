"""The parts of `dledger.node.node.Node` that the broker uses. Tests can replace the node by an object that
keeps its entries in a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from dledger.config import NodeSettings
from dledger.formats.entry import Kind
from dledger.host import LogReader, Role
from dledger.log.appender import Run
from dledger.messages import Code


class Appender(Protocol):
    """Adds entries to the log for one leadership (safety.md S12). All calls are on the event loop."""

    @property
    def refusal(self) -> Code | None:
        """Why nothing may be added now, DISK_FULL or LEADER_PENDING_FULL; None if entries may be added."""

    @property
    def term(self) -> int:
        """The term of the leadership."""

    @property
    def max_batch(self) -> int:
        """Largest size, in bytes, that `reserve` accepts."""

    def reserve(self, total_size: int) -> int:
        """Return the position of the first of the entries that are added next. `total_size`: bytes of these
        entries with their headers."""

    def add(
        self, parts: tuple[bytes, ...], size: int, kind: int = Kind.MESSAGE, batch_remaining: int = 0
    ) -> int:
        """Add one entry, whose body of `size` bytes is given in `parts`. Returns its index."""

    def add_system(self, body: bytes) -> int:
        """Add one SYSTEM entry. Returns its index."""

    def add_reserved(self, body: bytes, kind: int = Kind.SYSTEM, batch_remaining: int = 0) -> int:
        """Add one entry of a batch, at the position that `reserve` gave. Returns its index."""

    def open_run(self) -> Run | None:
        """Begin to add messages one directly after the other, without further checks. Returns None if a
        message would be refused now."""

    def close_run(self, run: Run) -> None:
        """End a run, which adds its messages to the log."""

    def open_batch(self, total_size: int) -> Run:
        """Begin a run of messages that is the first part of a batch of `total_size` bytes. There must be room
        for the batch."""

    def close_batch(self, run: Run, following: int) -> None:
        """End the run of a batch, which adds its messages to the log. `following`: number of entries of the
        batch that will follow."""

    @property
    def state_version(self) -> int:
        """Version of the operations that all voters know (`formats.state`)."""

    def clock_ms(self) -> int:
        """Return the current time in ms: the wall clock without short jumps."""

    def now_ms(self) -> int:
        """Return the store time, in ms, of entries added in this turn of the loop. It is never before that of
        the newest record (S15)."""


class Node(Protocol):
    """The replicated log, as the broker sees it."""

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
        """The object that adds entries. It is set only while this node serves."""

    @property
    def log(self) -> LogReader:
        """Read access to the log."""

    @property
    def cluster_id(self) -> str:
        """Id of the group's log, or empty while this node does not know it."""

    def peer_meta(self, node_id: str) -> Mapping[str, str]:
        """Return the data that a peer sent about itself; empty if the peer never connected."""

    def prove(self, peer: str, content: Sequence[bytes]) -> str:
        """Return a proof that a request with this content comes from a member. It is meant for `peer`, and is
        empty if that peer has not shared a secret with this node."""

    def proves(self, proof: str, content: Sequence[bytes]) -> bool:
        """Whether a member made this proof for this content and for this process, and whether the proof is
        used for the first time."""

    @property
    def proof_receivers(self) -> Sequence[str]:
        """Peers for which proofs can be made."""

    @property
    def peers_without_proofs(self) -> Sequence[str]:
        """Connected peers whose programs are too old to make proofs."""

    def status(self) -> dict[str, object]:
        """Return the status that /health and /metrics show."""

    def role_changes(self) -> list[dict[str, object]]:
        """Return the last changes of role, term and leader, as plain values (`dledger.node.role_history`)."""

    async def run(self) -> None:
        """Run until cancelled. Raises NodeFailed if the node must end."""

    def retune(self, settings: NodeSettings) -> None:
        """Apply those settings that may change while the node runs."""

    def delete_expired(self) -> None:
        """Delete now what retention may delete, whatever the time of day."""

    def ask_read_point(self, timeout_s: float, done: Callable[[int | None], None]) -> None:
        """Ask for a read point that begins now (linearizable reads). `done` is called with its index, or with
        None if there was no read point within `timeout_s`. Raises ReadRefused if too many requests wait."""

    async def step_aside(self, timeout_s: float) -> bool:
        """Hand leadership over to a peer that is up to date. Returns whether another node has taken it."""

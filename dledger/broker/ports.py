"""What the broker needs of `dledger.node.node.Node`, so that tests can put a list in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from dledger.config import NodeSettings
from dledger.formats.entry import Kind
from dledger.host import LogReader, Role
from dledger.log.appender import Run
from dledger.messages import Code


class Appender(Protocol):
    """Seals entries for one leadership (safety.md S12). All calls on the event loop."""

    @property
    def refusal(self) -> Code | None:
        """Why nothing may be added now: DISK_FULL, LEADER_PENDING_FULL; or None."""

    @property
    def term(self) -> int:
        """The leadership's term."""

    @property
    def max_batch(self) -> int:
        """Bytes that `reserve` takes at most."""

    def reserve(self, total_size: int) -> int:
        """Position of the first of the entries that are added next; `total_size` counts their headers."""

    def add(
        self, parts: tuple[bytes, ...], size: int, kind: int = Kind.MESSAGE, batch_remaining: int = 0
    ) -> int:
        """Add one entry whose body is `parts` joined, of `size` bytes. Its index."""

    def add_system(self, body: bytes) -> int:
        """Add one SYSTEM entry. Its index."""

    def add_reserved(self, body: bytes, kind: int = Kind.SYSTEM, batch_remaining: int = 0) -> int:
        """The same at the position that `reserve` gave, as a part of a batch."""

    def open_run(self) -> Run | None:
        """To add messages in a row, of which nothing is checked here; None when one would be refused now."""

    def close_run(self, run: Run) -> None:
        """The run is over: what it holds is added."""

    def open_batch(self, total_size: int) -> Run:
        """To add messages in a row as the first part of a batch of so many bytes, which there is room for."""

    def close_batch(self, run: Run, following: int) -> None:
        """What the run holds is added; as many entries of its batch follow it."""

    @property
    def state_version(self) -> int:
        """Version of the operations that all voters read (`formats.state`)."""

    def clock_ms(self) -> int:
        """What time it is, in ms: the wall clock's, but not where it leapt to for a moment."""

    def now_ms(self) -> int:
        """Store time of what is added in this turn of the loop: never before the newest record (S15)."""


class Node(Protocol):
    """The replicated log as its host sees it."""

    @property
    def role(self) -> Role:
        """Raft role now."""

    @property
    def term(self) -> int:
        """Current term."""

    @property
    def leader_id(self) -> str | None:
        """Who leads this term, as far as known."""

    @property
    def removed(self) -> bool:
        """Whether the group is known to have removed this node."""

    @property
    def serving(self) -> bool:
        """Leads, and the term is open."""

    @property
    def commit_index(self) -> int:
        """Highest index known to be committed."""

    @property
    def appender(self) -> Appender | None:
        """Not None only while serving."""

    @property
    def log(self) -> LogReader:
        """Read access."""

    @property
    def cluster_id(self) -> str:
        """Id of the group's log; empty before this node knows it."""

    def peer_meta(self, node_id: str) -> Mapping[str, str]:
        """What a peer said about itself; empty when it never connected."""

    def prove(self, peer: str, content: Sequence[bytes]) -> str:
        """A proof to a peer that a request with this content comes from a member; empty where the peer has
        told no secret."""

    def proves(self, proof: str, content: Sequence[bytes]) -> bool:
        """Whether a member made this proof of this content for this process, which did not see it before."""

    @property
    def proof_receivers(self) -> Sequence[str]:
        """Peers that proofs can be made for."""

    @property
    def peers_without_proofs(self) -> Sequence[str]:
        """Connected peers whose older programs make no proofs."""

    def status(self) -> dict[str, object]:
        """For /health and /metrics."""

    async def run(self) -> None:
        """Until cancelled; raises NodeFailed."""

    def retune(self, settings: NodeSettings) -> None:
        """Take over what may change while it runs."""

    def delete_expired(self) -> None:
        """What retention may take goes now, whatever hour it is."""

    def ask_read_point(self, timeout_s: float, done: Callable[[int | None], None]) -> None:
        """A read point that begins now (linearizable reads), None when there was none in time.
        ReadRefused when too many wait."""

    async def step_aside(self, timeout_s: float) -> bool:
        """Hand over to a peer that is up to date."""

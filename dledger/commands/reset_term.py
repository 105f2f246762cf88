"""`dledger recover --reset-term`: end a term that no elections can have made.

An older program adopted and saved any term that it received. After the highest term that fits no election is
possible. The command gives the store of a stopped node another term without a vote. A term that elections can
have made is never lowered.

The command makes the node forget its vote. So the new term must be above every term in which the node may
have voted: far above the last one in its log, which a leader opens with an entry.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.election.elector import MAX_TERM
from dledger.files.offline import node_directory, read_hard_state, read_identity, walk
from dledger.files.run_lock import RunLock
from dledger.formats.store_files import HardState
from dledger.log.hard_state import HardStateFile
from dledger.runtime import Env, Lane

TERM_JUMP = 1000
"""How far a new term is above every term known here. It must be above terms in which a node may have voted
without an entry in its log, and so high that NameServers, which compare terms (S23), prefer it to remains of
the old ones."""

MAX_ELECTIONS = 1 << 24
"""How many terms after the last one in the log elections may have made. An election takes a time-out of about
0.4 s, so this is 78 days of nothing but elections."""


class RecoverRefused(Exception):
    """Nothing was changed; the text says why."""


@dataclass(frozen=True)
class TermReport:
    """The present term of the store, and the new one."""

    directory: str
    node: str
    last_index: int
    last_term: int
    saved_term: int
    """Term in the saved term and vote."""
    new_term: int

    def lines(self, *, done: bool) -> list[str]:
        """The report as lines for people."""
        text = [
            f"store       {self.directory} (node {self.node})",
            f"log         up to entry {self.last_index}, last term {self.last_term}",
            f"term        {self.saved_term}: too high to be reached by elections",
            f"new term    {self.new_term}",
            "",
        ]
        if done:
            return [*text, "Done. Start the nodes when all nodes with such a term have a new one."]
        return [
            *text,
            "Nothing was changed. Look at all stores that have such a term, and give all of them the highest",
            "new term that is shown: --term TERM --yes. It must lie above every term of the nodes that run.",
        ]


async def take_store(env: Env, store: str) -> tuple[str, RunLock]:
    """The directory of a stopped node, and its lock. RecoverRefused when the node is running."""
    node_dir = await env.workers.run(Lane.DISK, node_directory, env.files, store)
    try:
        return node_dir, await env.workers.run(Lane.DISK, RunLock.take, env.files, node_dir, env.boot_id)
    except BlockingIOError as error:
        raise RecoverRefused(f"{node_dir} is in use: stop the node first") from error


async def reset_term(env: Env, store: str, term: int | None, *, yes: bool) -> TermReport:
    """Give a stopped node's store the term `term` (None: one far above its log's last) and no vote.

    Without `yes` nothing is changed. RecoverRefused, StoreUnreadable, OSError.
    """
    run, files = env.workers.run, env.files
    node_dir, lock = await take_store(env, store)
    try:
        identity = await run(Lane.DISK, read_identity, files, node_dir)
        log = await run(Lane.DISK, walk, files, node_dir, identity.segment_size)
        found = await run(Lane.DISK, read_hard_state, files, node_dir)
        saved = found[1].term if found else 0
        new = max(log.last_term, 0) + TERM_JUMP if term is None else term
        report = TermReport(node_dir, identity.node, log.last_index, log.last_term, saved, new)
        if saved - max(log.last_term, 0) <= MAX_ELECTIONS and new <= saved:
            raise RecoverRefused(
                f"term {saved} of {node_dir} can be the result of elections (the log ends in term "
                f"{log.last_term}), so it is not lowered: votes given in it would be forgotten"
            )
        if not log.last_term < new <= MAX_TERM:
            raise RecoverRefused(
                f"--term {new}: give a term above {log.last_term}, the last of the log, and at most "
                f"{MAX_TERM}"
            )
        if yes:
            hard_state = await run(Lane.DISK, HardStateFile.open, files, node_dir)
            try:
                await run(Lane.FLUSH, hard_state.save, HardState(new, None))
                await run(Lane.FLUSH, hard_state.save, HardState(new, None))  # in both slots
            finally:
                await run(Lane.DISK, hard_state.close)
        return report
    finally:
        lock.close()

"""`dledger recover --reset-term`: replaces a term that is too high to come from elections.

Older programs adopted and saved any term that they received. If a node has adopted the highest possible
term, it can take part in no further election. The command gives the store of a stopped node another term,
without a vote. A term that elections can have made is never lowered.

The command makes the node forget its vote. So the new term must be above every term in which the node may
have voted. It is therefore far above the last term in the node's log, because each leader opens its term
with an entry.
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
"""How far the new term is above every term that this store knows. It must be above every term in which the
node may have voted without getting an entry of that term. It must also be high enough for NameServers,
which compare terms (S23), to prefer it to registrations of old terms."""

MAX_ELECTIONS = 1 << 24
"""Limit for the number of terms after the last one in the log that elections may have made. An election
takes a time-out of about 0.4 s, so this many elections in a row would take 78 days."""


class RecoverRefused(Exception):
    """Raised if the command refuses to work; nothing was changed, and the text says why."""


@dataclass(frozen=True)
class TermReport:
    """The present term of the store, and the term that replaces it."""

    directory: str
    node: str
    last_index: int
    last_term: int
    saved_term: int
    """The term in the store's file of term and vote."""
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
    """Return the directory of a stopped node, and the lock on it. Raises RecoverRefused if the node is
    running."""
    node_dir = await env.workers.run(Lane.DISK, node_directory, env.files, store)
    try:
        return node_dir, await env.workers.run(Lane.DISK, RunLock.take, env.files, node_dir, env.boot_id)
    except BlockingIOError as error:
        raise RecoverRefused(f"{node_dir} is in use: stop the node first") from error


async def reset_term(env: Env, store: str, term: int | None, *, yes: bool) -> TermReport:
    """Give the store of a stopped node the term `term`, and no vote. If `term` is None, the term is
    chosen: far above the last one in the log. Unless `yes` is set, nothing is changed.

    Raises RecoverRefused, StoreUnreadable or OSError.
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

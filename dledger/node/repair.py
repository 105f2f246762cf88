"""Repair of corrupt entries with copies from any peer (safety.md S4; docs/explanation/decisions/0007).

The node asks its peers, leader or not, one after another, with a `RepairRequest`. The asked peer checks its
own copy, and answers HAVE with the bytes, or FAULTY, or NEVER_HAD. No leader and no quorum is needed. An
entry with a certain index and term is the same on every node that has it, and a copy is accepted only if it
fits the data that is left here (log/repair_writer.py). So a group in which every node has some corrupt
entries can still elect a leader afterwards.

A peer gets one request at a time, and answers it once. If the same entries were requested again and again
over a slow link, the answers would delay each other. So an answer counts whenever it comes. A request stays
open until it is answered, until the connection is lost, or until the peer must have forgotten it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from dledger.context.node_context import NodeContext
from dledger.context.node_events import NodeEvents
from dledger.formats.entry import unpack_header
from dledger.log.reading import Rotten, size_of
from dledger.log.repair_writer import Unfitting
from dledger.messages import Holding, RepairRequest, RepairResponse

ANSWER_LIMIT_S = 1.0
"""Time, in seconds, to wait for one peer's answer before the next peer is asked. The answer counts even if it
comes later."""
GIVE_UP_S = 60.0
"""Time, in seconds, after which an unanswered request counts as forgotten, and is sent again. A link of 0.56
Mbit/s carries 4 MiB in this time. Over a slower link an answer that comes later counts, too."""
PAUSE_S = 0.5
"""Pause, in seconds, between two rounds of requests if no peer could help."""
ENTRIES = 1024
"""Largest number of entries in one request."""
UNSENT = 64 * 1024
"""Limit, in bytes, of what waits on the connection to a peer. Above it the next answer to a repair request of
the peer has to wait. An earlier answer is then among the waiting bytes, because nothing else on the
connection is large. Peers with older programs repeat a request before they have the answer, and without this
limit would get the answer several times."""
UNSENT_POLL_S = 0.1
"""Interval, in seconds, at which an answer that has to wait is tried again."""
SINCE_VERSION = 2
SHOWN = 20
"""Largest number of faulty ranges that the status lists."""


@dataclass(eq=False, slots=True)
class Question:
    """A repair request that was sent to a peer over the current connection, with its answer."""

    request: RepairRequest
    until: float = 0.0
    """Loop time at which the request counts as forgotten."""
    answer: RepairResponse | None = None
    """The answer, if it has come and was not used yet."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the answer has come, or will not come."""
    awaited: bool = False
    """Whether `Repairer.run` waits for the answer now."""


class Repairer:
    """Repair on one node: asks peers for entries that are faulty here, and answers the repair requests of
    peers."""

    def __init__(self, context: NodeContext, events: NodeEvents) -> None:
        self._say = context.env.log.child("repair")
        self._log = context.log
        self._peers = context.peers
        self._events = events
        self._answer_bytes = context.config.push_bytes
        self._wake = asyncio.Event()
        self._number = 0
        self._open: dict[str, Question] = {}
        """Maps a peer to the open request that this node sent to it."""
        self._questions: dict[str, RepairRequest] = {}
        """Maps a peer to the newest request that came from it and is not answered yet."""
        self._asked = asyncio.Event()
        self._answers: dict[str, str] = {}
        self.repaired_entries: int = 0
        self.unfitting: int = 0

    # Asking

    def damage(self) -> None:
        """Start repairing, because an entry became faulty, or a peer has connected that may help."""
        if self._log.faulty:
            self._wake.set()

    async def run(self) -> None:
        """Repair when woken, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._log.faulty:
                await self._examine()
                repaired = False
                for first, last in self._log.faulty:
                    repaired = await self._use_late() or repaired
                    repaired = await self._repair(first, last) or repaired
                if not repaired and self._log.faulty:
                    await self._rest()
            await self._use_late()  # they are not needed any more
            self._answers.clear()
            self._events.repaired()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(PAUSE_S):
                await self._wake.wait()
                self._wake.clear()
                await asyncio.sleep(PAUSE_S / 10)  # more may come at once
        except TimeoutError:
            return

    async def _examine(self) -> None:
        """Examine entries about which a read was in doubt. They may be correct: perhaps an index unit was
        wrong, or the log was being cut."""
        before = self._log.faulty.count
        for first, last in self._log.suspects:
            await self._log.examine(first, last)
        if self._log.faulty.count < before:
            self._events.repaired()

    async def _repair(self, first: int, last: int) -> bool:
        """Ask for the entries of one range, up to ENTRIES at a time. Returns True if anything was
        repaired."""
        done = False
        while first <= last:
            end = await self._repair_piece(first, min(last, first + ENTRIES - 1))
            if end is None:
                break
            done = True
            first = end + 1
        if done:
            self._events.repaired()
        return done

    async def _repair_piece(self, first: int, last: int) -> int | None:
        """Ask every peer until one helps. Return the index of the last repaired entry, or None if no peer
        could help."""
        for peer in sorted(self._peers.hellos):
            if first not in self._log.faulty:
                return None
            hello = self._peers.hellos.get(peer)
            if hello is None or hello.protocol_max < SINCE_VERSION or not self._peers.connected(peer):
                continue
            question = await self._ask(peer, first, last)
            if question is None:
                self._answers[peer] = "waiting" if peer in self._open else "no answer"
                continue
            end = await self._use(peer, question)
            if end is not None:
                return end
        return None

    async def _ask(self, peer: str, first: int, last: int) -> Question | None:
        """Ask a peer and wait for the answer. Return the answered request, which is open no longer. None if
        it has no answer yet, or if a request for other entries is open."""
        question = self._question(peer, first, last)
        if question is None:
            return None
        question.awaited = True
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                await question.settled.wait()
        except TimeoutError:
            pass  # the answer may have come in the same moment
        finally:
            question.awaited = False
        if question.answer is None:
            return None
        del self._open[peer]
        return question

    def _question(self, peer: str, first: int, last: int) -> Question | None:
        """Return the open request to a peer; if there is none, send one. None if a request for other entries
        is open."""
        now = asyncio.get_running_loop().time()
        question = self._open.get(peer)
        same = question is not None and (question.request.first, question.request.last) == (first, last)
        if question is not None and (question.answer is not None or now < question.until):
            return question if same else None
        if question is None or not same:
            self._number += 1
            question = self._open[peer] = Question(RepairRequest(self._number, first, last))
        question.until = now + GIVE_UP_S
        self._peers.send(peer, question.request)  # a repetition has the same number: either answer counts
        return question

    async def _use_late(self) -> bool:
        """Use the answers that came after `run` stopped waiting for them, and close their requests. Returns
        True if anything was repaired."""
        done = False
        for peer, question in sorted(self._open.items(), key=lambda item: item[0]):
            if question.answer is not None:
                del self._open[peer]
                done = await self._use(peer, question) is not None or done
        if done:
            self._events.repaired()
        return done

    async def _use(self, peer: str, question: Question) -> int | None:
        """Repair entries with an answer. Return the index of the last repaired entry, or None if the answer
        did not help."""
        answer, request = question.answer, question.request
        if answer is None:
            return None
        first, last = request.first, answer.last
        self._answers[peer] = answer.holding.name
        if answer.holding is not Holding.HAVE or answer.first != first or not first <= last <= request.last:
            return None
        if not all(index in self._log.faulty for index in range(first, last + 1)):
            return None  # another peer was faster; entries that are still faulty are requested again
        try:
            await self._log.mend(first, last, bytes(answer.data))
        except Unfitting as error:
            self.unfitting += 1
            self._answers[peer] = f"unfitting: {error}"
            self._say.warning("a copy does not fit", peer=peer, first=first, last=last, why=error)
            return None
        self.repaired_entries += last - first + 1
        self._say.info("entries repaired", peer=peer, first=first, last=last)
        return last

    def lost(self, peer: str) -> None:
        """Forget the open request to a peer, because the connection on which it was sent is lost."""
        question = self._open.get(peer)
        if question is not None and question.answer is None:
            del self._open[peer]
            question.settled.set()

    # Answering

    def receive(self, peer: str, message: RepairRequest | RepairResponse) -> None:
        """Accept a repair request or an answer from a peer, whatever its role and term are."""
        if isinstance(message, RepairRequest):
            self._questions[peer] = message  # a new question replaces the earlier one
            self._asked.set()
            return
        question = self._open.get(peer)
        if question is None or question.request.number != message.number or question.answer is not None:
            return
        question.answer = message
        question.settled.set()
        if not question.awaited:
            self._wake.set()

    async def run_answers(self) -> None:
        """Answer the repair requests of peers, one after another, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(UNSENT_POLL_S if self._questions else None):
                    await self._asked.wait()
            except TimeoutError:
                pass  # try the delayed answers again
            self._asked.clear()
            for peer in list(self._questions):
                # Delayed, not dropped, because the next request may come only after GIVE_UP_S.
                if self._peers.answer_backlog(peer) <= UNSENT:
                    self._peers.send(peer, await self._answer(self._questions.pop(peer)))

    async def _answer(self, request: RepairRequest) -> RepairResponse:
        log = self._log
        first = request.first
        if first > log.last_index:
            return _without(request, Holding.NEVER_HAD)
        if first < log.first_index or request.last < first or first in log.faulty:
            return _without(request, Holding.FAULTY)
        last = min(
            request.last, log.last_index, first + ENTRIES - 1, log.range_end(first, self._answer_bytes)[0]
        )
        bad = log.faulty.within(first, last)
        last = last if bad is None else bad - 1
        cuts = log.cuts
        try:
            data, end = await log.read_range(first, last)
        except Rotten:
            return _without(request, Holding.FAULTY)
        except OSError as error:
            log.put_off(error, first, last)
            return _without(request, Holding.FAULTY)  # as below
        if log.cuts != cuts:
            return _without(request, Holding.FAULTY)  # when asked again, this node knows more
        # From here on only the data that was read counts: retention may have removed these entries since.
        pos = unpack_header(data).pos
        size = len(data) if end == last else size_of(data, last - first + 1)
        return RepairResponse(request.number, first, last, Holding.HAVE, pos, data[:size])

    # Status

    def status(self) -> dict[str, object]:
        """Return figures for /health, /metrics and `status`: the faulty entries, and what the peers answered
        about them."""
        return {
            "faulty": [list(item) for item in self._log.faulty][:SHOWN],
            "faulty_entries": self._log.faulty.count,
            "repaired_entries": self.repaired_entries,
            "repair_unfitting": self.unfitting,
            "repair_answers": dict(self._answers),
        }


def _without(request: RepairRequest, holding: Holding) -> RepairResponse:
    return RepairResponse(request.number, request.first, request.first, holding, -1, b"")

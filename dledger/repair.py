"""Repair of rotten entries from any peer (safety.md S4; docs/decisions/0007).

The node asks its peers, leader or not, one after another: `RepairRequest`. The asked one looks at its own
copy, checks it, and answers HAVE with the bytes, FAULTY or NEVER_HAD. No leader is needed, and no quorum:
an entry is the same on every node that has it under its index and term, and a copy is believed only if it
fits what is left here (mending.py). So a group in which every node has some rot can still elect a leader
afterwards.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from dledger.log.mending import Unfitting
from dledger.log.reading import Rotten, size_of
from dledger.log.store import LogStore
from dledger.messages import Holding, RepairRequest, RepairResponse
from dledger.peers import Peers
from formats.entry import unpack_header
from runtime import Env

ANSWER_LIMIT_S = 1.0
"""How long to wait for one peer's answer."""
PAUSE_S = 0.5
"""Between two rounds of asking when nobody could help."""
ENTRIES = 1024
"""Most entries of one request."""
QUEUE = 64
"""Requests of peers that wait; more are dropped, the peer asks again."""
SINCE_VERSION = 2
SHOWN = 20
"""Faulty ranges listed in the status."""


class RepairEvents(Protocol):
    """What the node does with the outcome."""

    def repaired(self) -> None:
        """Entries are whole again."""


class Repairer:
    """One per node: asks for what is faulty here, answers what others ask for."""

    def __init__(
        self, env: Env, log: LogStore, peers: Peers, events: RepairEvents, *, answer_bytes: int
    ) -> None:
        self._say = env.log.child("repair")
        self._log = log
        self._peers = peers
        self._events = events
        self._answer_bytes = answer_bytes
        self._wake = asyncio.Event()
        self._number = 0
        self._waiting: dict[int, tuple[str, asyncio.Future[RepairResponse]]] = {}
        self._questions: deque[tuple[str, RepairRequest]] = deque()
        self._asked = asyncio.Event()
        self._answers: dict[str, str] = {}
        self.repaired_entries = 0
        self.unfitting = 0

    # Asking

    def damage(self) -> None:
        """Something became faulty, or a peer came that may help."""
        if self._log.faulty:
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._log.faulty:
                await self._examine()
                repaired = False
                for first, last in self._log.faulty:
                    repaired = await self._repair(first, last) or repaired
                if not repaired and self._log.faulty:
                    await self._rest()
            self._answers.clear()
            self._events.repaired()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(PAUSE_S):
                await self._wake.wait()
                self._wake.clear()
                await asyncio.sleep(PAUSE_S / 10)  # news may come in a stream
        except TimeoutError:
            return

    async def _examine(self) -> None:
        """What a read could not believe may be whole: an index unit was wrong, or a cut went on meanwhile."""
        before = self._log.faulty.count
        for first, last in self._log.suspects:
            await self._log.examine(first, last)
        if self._log.faulty.count < before:
            self._events.repaired()

    async def _repair(self, first: int, last: int) -> bool:
        """Ask for one range, piece by piece; whether anything was repaired."""
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
        """Ask every peer until one helps: the last index that is whole now, None when nobody could."""
        for peer in sorted(self._peers.hellos):
            if first not in self._log.faulty:
                return None
            hello = self._peers.hellos.get(peer)
            if hello is None or hello.protocol_max < SINCE_VERSION or not self._peers.connected(peer):
                continue
            answer = await self._ask(peer, first, last)
            if answer is None:
                self._answers[peer] = "no answer"
                continue
            self._answers[peer] = answer.holding.name
            if (
                answer.holding is not Holding.HAVE
                or answer.first != first
                or not first <= answer.last <= last
            ):
                continue
            try:
                await self._log.mend(first, answer.last, bytes(answer.data))
            except Unfitting as error:
                self.unfitting += 1
                self._answers[peer] = f"unfitting: {error}"
                self._say.warning("a copy does not fit", peer=peer, first=first, last=answer.last, why=error)
                continue
            self.repaired_entries += answer.last - first + 1
            self._say.info("entries repaired", peer=peer, first=first, last=answer.last)
            return answer.last
        return None

    async def _ask(self, peer: str, first: int, last: int) -> RepairResponse | None:
        self._number += 1
        number = self._number
        future: asyncio.Future[RepairResponse] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (peer, future)
        self._peers.send(peer, RepairRequest(number, first, last))
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                return await future
        except TimeoutError:
            return None
        finally:
            del self._waiting[number]

    # Answering

    def receive(self, peer: str, message: RepairRequest | RepairResponse) -> None:
        """A message of a peer, of any role and term."""
        if isinstance(message, RepairResponse):
            waiting = self._waiting.get(message.number)
            if waiting is not None and waiting[0] == peer and not waiting[1].done():
                waiting[1].set_result(message)
        elif len(self._questions) < QUEUE:
            self._questions.append((peer, message))
            self._asked.set()

    async def run_answers(self) -> None:
        """Answer what peers ask for, one after another, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._questions:
                peer, request = self._questions.popleft()
                self._peers.send(peer, await self._answer(request))

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
        if log.cuts != cuts:
            return _without(request, Holding.FAULTY)  # asked again, this node knows better
        # From here on by what was read alone: retention may have taken these entries meanwhile.
        pos = unpack_header(data).pos
        size = len(data) if end == last else size_of(data, last - first + 1)
        return RepairResponse(request.number, first, last, Holding.HAVE, pos, data[:size])

    # Status

    def status(self) -> dict[str, object]:
        """For /health, /metrics and `status`: what is faulty, and what the peers say of it."""
        return {
            "faulty": [list(item) for item in self._log.faulty][:SHOWN],
            "faulty_entries": self._log.faulty.count,
            "repaired_entries": self.repaired_entries,
            "repair_unfitting": self.unfitting,
            "repair_answers": dict(self._answers),
        }


def _without(request: RepairRequest, holding: Holding) -> RepairResponse:
    return RepairResponse(request.number, request.first, request.first, holding, -1, b"")

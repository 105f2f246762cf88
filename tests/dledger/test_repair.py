"""Questions for rotten entries and their answers: one at a time, and late ones count (S4)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.election.identity import Hello
from dledger.formats.entry import HEADER_SIZE, unpack_header
from dledger.log.store import LogStore
from dledger.messages import Holding, Message, RepairRequest, RepairResponse
from dledger.node import repair
from dledger.node.inbox import Inbox
from dledger.node.repair import Repairer
from dledger.runtime.env import production_env
from tests.broker.harness import skip_s
from tests.dledger.node_context import context
from tests.dledger.test_log_races import indexed, use
from tests.dledger.test_snapshot_store import append

pytestmark = pytest.mark.usefixtures("index_in_memory")

WAIT_S = 60.0
"""For one answer, and between two rounds: no pause of the machine uses it up, the tests end each wait."""
NEVER_S = 1e9
UNSENT = 10_000
"""Bytes: a small answer has one entry, a large one more."""
HELLO = Hello("g", "n1", "i1", "c", 1, 2, 16 << 20, True, {})


class Lines:
    """Stands for the connections: keeps what is sent; the test says what waits on them."""

    def __init__(self, *names: str) -> None:
        self.hellos = {name: replace(HELLO, node=name) for name in names}
        self.sent: list[tuple[str, Message]] = []
        self.unsent: dict[str, int] = {}

    def connected(self, peer: str) -> bool:
        return peer in self.hellos

    def send(self, peer: str, message: Message) -> None:
        self.sent.append((peer, message))
        if isinstance(message, RepairResponse):
            self.unsent[peer] = self.unsent.get(peer, 0) + len(message.data)

    def answer_backlog(self, peer: str) -> int:
        return self.unsent.get(peer, 0)

    def asked(self, peer: str) -> list[RepairRequest]:
        return [it for name, it in self.sent if name == peer and isinstance(it, RepairRequest)]


class Events:
    """The node, which is told of repairs."""

    def repaired(self) -> None: ...


class Bench:
    """A log of 40 entries of 3000 bytes with a running `Repairer`, and whole copies of its entries."""

    def __init__(self, log: LogStore, lines: Lines, copies: dict[int, bytes]) -> None:
        self.log = log
        self.lines = lines
        self.copies = copies
        parts = context(env=production_env(), log=log, peers=lines)
        self.repairer = Repairer(parts, Events())  # type: ignore[arg-type]

    async def damage(self, *indexes: int) -> None:
        """Flip a byte in the body of each."""
        for index in indexes:
            pos, _ = self.log.locate(index)
            start = self.log._segments.start_of(pos)
            file = await self.log._segments.file(start)
            file.pwritev([bytes([self.copies[index][HEADER_SIZE] ^ 1])], pos - start + HEADER_SIZE)
            self.log.note_damage(index, index)
        self.repairer.damage()

    def answer(self, peer: str, request: RepairRequest, holding: Holding = Holding.HAVE) -> None:
        """The peer's answer arrives."""
        data = b"".join(self.copies[index] for index in range(request.first, request.last + 1))
        if holding is Holding.HAVE:
            message = RepairResponse(
                request.number, request.first, request.last, holding, unpack_header(data).pos, data
            )
        else:
            message = RepairResponse(request.number, request.first, request.first, holding, -1, b"")
        self.repairer.receive(peer, message)

    async def until(self, condition: Callable[[], object]) -> None:
        """Until it holds, though no wait ends."""
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def later(self, condition: Callable[[], object]) -> None:
        """Until it holds, while one wait after another ends."""
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            await end_waits(1)


async def end_waits(count: int) -> None:
    """So many times, what the repairer waits for is over."""
    for _ in range(count):
        await skip_s(WAIT_S)
        await asyncio.sleep(0.002)


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "ANSWER_LIMIT_S", WAIT_S)
    monkeypatch.setattr(repair, "GIVE_UP_S", NEVER_S)
    monkeypatch.setattr(repair, "PAUSE_S", WAIT_S)
    monkeypatch.setattr(repair, "UNSENT_POLL_S", WAIT_S, raising=False)
    monkeypatch.setattr(repair, "UNSENT", UNSENT, raising=False)


def run(directory: Path, lines: Lines, scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def work(log: LogStore) -> None:
        await append(log, 40)
        await indexed(log)
        copies = {index: (await log.read_range(index, index))[0] for index in range(40)}
        copies = {index: data[: log.locate(index)[1]] for index, data in copies.items()}
        bench = Bench(log, lines, copies)
        tasks = [
            asyncio.create_task(bench.repairer.run()),
            asyncio.create_task(bench.repairer.run_answers()),
        ]
        try:
            await scenario(bench)
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(result, asyncio.CancelledError):
                    raise AssertionError("ended by itself") from result

    use(directory, work)


@pytest.mark.parametrize("rounds", [2, 8])
def test_an_answer_that_comes_rounds_later_is_used(tmp_path: Path, rounds: int) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.damage(7)
        await bench.until(lambda: bench.lines.asked("n1"))
        await end_waits(rounds * 2)
        assert bench.repairer.status()["repair_answers"] == {"n1": "waiting"}
        bench.answer("n1", bench.lines.asked("n1")[0])
        await bench.later(lambda: not bench.log.faulty)
        assert bench.repairer.repaired_entries == 1 and bench.repairer.unfitting == 0
        assert (await bench.log.read_range(7, 7))[0].startswith(bench.copies[7])

    run(tmp_path, Lines("n1"), scenario)


def test_a_late_answer_ends_the_pause_between_two_rounds(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.damage(7)
        await bench.until(lambda: bench.lines.asked("n1"))
        await end_waits(1)
        assert bench.repairer.status()["repair_answers"] == {"n1": "waiting"}
        bench.answer("n1", bench.lines.asked("n1")[0])
        await skip_s(WAIT_S / 10)  # more answers may come right behind this one
        await bench.until(lambda: not bench.log.faulty)

    run(tmp_path, Lines("n1"), scenario)


def test_one_question_at_a_time_is_under_way_to_a_peer(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.damage(7, 20)
        await bench.later(lambda: len(bench.lines.sent) == 2)
        await end_waits(10)
        (one,), (other,) = bench.lines.asked("n1"), bench.lines.asked("n2")
        assert (one.first, one.last, other.first, other.last) == (7, 7, 7, 7)
        bench.answer("n1", one)
        await bench.later(lambda: len(bench.lines.asked("n1")) == 2)
        assert bench.lines.asked("n1")[1].first == 20
        assert len(bench.lines.asked("n2")) == 1, "its answer is still under way"
        bench.answer("n2", other)  # nobody needs it any more
        await bench.later(lambda: len(bench.lines.asked("n2")) == 2)
        bench.answer("n2", bench.lines.asked("n2")[1])
        await bench.later(lambda: not bench.log.faulty)
        assert bench.repairer.repaired_entries == 2 and bench.repairer.unfitting == 0

    run(tmp_path, Lines("n1", "n2"), scenario)


def test_a_late_answer_is_used_though_more_is_asked_for_by_now(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.damage(7)
        await bench.until(lambda: bench.lines.asked("n1"))
        await bench.damage(8)
        await end_waits(6)
        assert len(bench.lines.asked("n1")) == 1 and list(bench.log.faulty) == [(7, 8)]
        bench.answer("n1", bench.lines.asked("n1")[0])
        await bench.later(lambda: len(bench.lines.asked("n1")) == 2)
        assert list(bench.log.faulty) == [(8, 8)]
        assert (bench.lines.asked("n1")[1].first, bench.lines.asked("n1")[1].last) == (8, 8)

    run(tmp_path, Lines("n1"), scenario)


def test_who_does_not_have_it_is_asked_again_after_the_answer(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.damage(7)
        for number in range(1, 4):
            await bench.later(lambda number=number: len(bench.lines.asked("n1")) == number)
            await end_waits(3)
            assert len(bench.lines.asked("n1")) == number
            bench.answer("n1", bench.lines.asked("n1")[-1], Holding.FAULTY)
        assert len({request.number for request in bench.lines.asked("n1")}) == 3

    run(tmp_path, Lines("n1"), scenario)


def test_what_was_asked_over_a_lost_connection_is_asked_anew_over_the_next(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.damage(7)
        await bench.until(lambda: bench.lines.asked("n1"))
        hello = bench.lines.hellos.pop("n1")
        bench.repairer.lost("n1")
        await end_waits(3)
        assert len(bench.lines.asked("n1")) == 1
        assert bench.repairer.status()["repair_answers"] == {"n1": "no answer"}
        bench.lines.hellos["n1"] = hello
        bench.repairer.damage()
        await bench.later(lambda: len(bench.lines.asked("n1")) == 2)
        await end_waits(6)
        first, second = bench.lines.asked("n1")
        bench.answer("n1", first)
        await end_waits(3)
        assert bench.log.faulty, "an answer to what is not asked any more"
        bench.answer("n1", second)
        await bench.later(lambda: not bench.log.faulty)

    run(tmp_path, Lines("n1"), scenario)


def test_an_answer_that_came_before_the_connection_was_lost_counts(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.damage(7)
        await bench.until(lambda: bench.lines.asked("n1"))
        await end_waits(3)
        bench.answer("n1", bench.lines.asked("n1")[0])
        bench.lines.hellos.pop("n1")
        bench.repairer.lost("n1")
        await bench.later(lambda: not bench.log.faulty)

    run(tmp_path, Lines("n1"), scenario)


@pytest.mark.parametrize("which", [0, 1])
def test_a_question_that_a_peer_forgot_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """Under its number: if it was not forgotten but is very slow, the first answer counts."""
    monkeypatch.setattr(repair, "GIVE_UP_S", 20 * WAIT_S)

    async def scenario(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await bench.damage(7)
        await bench.later(lambda: len(bench.lines.asked("n1")) == 2)
        assert loop.time() - before >= 20 * WAIT_S
        bench.answer("n1", bench.lines.asked("n1")[which])
        await bench.later(lambda: not bench.log.faulty)
        bench.answer("n1", bench.lines.asked("n1")[1 - which])
        await bench.damage(9)
        await bench.later(lambda: len(bench.lines.asked("n1")) == 3)
        assert bench.repairer.unfitting == 0

    run(tmp_path, Lines("n1"), scenario)


def test_who_asks_again_before_the_answer_left_gets_no_second_one_on_top(tmp_path: Path) -> None:
    """Programs before this one ask every 1.5 s. What they ask last is answered when the line is free."""

    async def scenario(bench: Bench) -> None:
        lines = bench.lines

        def answers(peer: str) -> list[RepairResponse]:
            return [it for name, it in lines.sent if name == peer and isinstance(it, RepairResponse)]

        for number in range(1, 9):
            bench.repairer.receive("old", RepairRequest(number, 0, 30))
            await bench.until(lambda: answers("old"))
            await end_waits(2)
        assert [answer.number for answer in answers("old")] == [1]
        assert lines.unsent["old"] > UNSENT
        bench.repairer.receive("n1", RepairRequest(5, 3, 3))
        await bench.until(lambda: answers("n1"))
        assert [bytes(answer.data) for answer in answers("n1")] == [bench.copies[3]], "nobody else waits"
        lines.unsent["old"] = 0
        await bench.later(lambda: len(answers("old")) == 2)
        assert answers("old")[1].number == 8
        lines.unsent["old"] = 0
        await end_waits(3)
        assert len(answers("old")) == 2

    run(tmp_path, Lines("n1", "old"), scenario)


def test_a_small_answer_on_the_line_keeps_nobody_waiting(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(1, 4):
            bench.repairer.receive("n1", RepairRequest(number, 5, 5))
            await bench.until(lambda number=number: len(bench.lines.sent) == number)

    run(tmp_path, Lines("n1"), scenario)


def test_a_connection_that_comes_before_the_end_of_the_older_one_closes_its_question() -> None:
    """A dial that was cancelled may take long to end: then nobody hears that its connection is gone."""
    calls: list[str] = []
    repairer = SimpleNamespace(
        lost=lambda peer: calls.append(f"lost {peer}"), damage=lambda: calls.append("damage")
    )
    inbox: Any = SimpleNamespace(
        _parts=SimpleNamespace(repairer=repairer), _replicator=SimpleNamespace(leader=None)
    )
    Inbox.on_peer_up(inbox, "n1")
    assert calls == ["lost n1", "damage"]

"""Read points, one rule a test: which round proves what, batches, questions of followers, limits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from dledger.config import NodeConfig
from dledger.context.applier import Applier
from dledger.election.effects import Effect, RoundConfirmed, Send
from dledger.election.elector import ElectionSettings, Elector
from dledger.formats.store_files import HardState
from dledger.messages import (
    Code,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ReadIndexRequest,
    ReadIndexResponse,
    VoteResponse,
    VoteResult,
)
from dledger.node import reads as module
from dledger.node.leadership import Leadership
from dledger.node.reads import ReadPoints, ReadRefused
from tests.broker.harness import skip_s
from tests.dledger.node_context import context

SETTINGS = ElectionSettings(heartbeat_interval_s=5.0, timeout_min_s=20, timeout_max_s=40, retry_min_s=1)
VOTERS = ("n0", "n1", "n2")
AGAIN_S = 10.0
"""After which a follower asks again: no pause of the machine uses it up, the tests let it pass."""
CONFIG = NodeConfig(
    "g", "n0", dict.fromkeys(VOTERS, "h:1"), "unused",
    heartbeat_interval_s=AGAIN_S, election_timeout_min_s=20.0, election_timeout_max_s=40.0,
)  # fmt: skip


class Tip:
    last_index = 10
    last_term = 3


class FakePeers:
    def __init__(self) -> None:
        self.sent: list[tuple[str, Message]] = []
        self.versions = dict.fromkeys(VOTERS, 2)

    def send(self, peer: str, message: Message) -> None:
        self.sent.append((peer, message))

    def version(self, peer: str) -> int:
        return self.versions.get(peer, 0)


class Bench:
    """A node reduced to its elector and its read points."""

    def __init__(self) -> None:
        self.elector = Elector(
            SETTINGS, "n0", VOTERS, HardState(3, None), Tip(), random.Random(1), now=self.now() - 100
        )
        self.elector.set_members(VOTERS, VOTERS, self.now())
        self.peers = FakePeers()
        self.points = self.read_points(0)
        self.commit_index = 10
        self.applied_index = 10
        self.serving = False

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def read_points(self, first_number: int) -> ReadPoints:
        """This bench is whatever knows how far the node is."""
        parts = context(
            config=CONFIG, peers=self.peers, elector=self.elector, elections=self, replicator=self
        )
        return ReadPoints(parts, cast(Leadership, self), cast(Applier, self), first_number)

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, RoundConfirmed):
                self.points.round_confirmed(effect.round)
            elif isinstance(effect, Send):
                self.peers.send(effect.peer, effect.message)

    def lead(self) -> None:
        self.elector.tick(self.now())
        for pre in (True, False):
            response = VoteResponse(self.elector.term, self.elector.term + pre, pre, VoteResult.ACCEPT)
            self.perform(self.elector.receive("n1", response, self.now()))
        self.serving = True
        self.points.role_changed()

    def follow(self, leader: str) -> None:
        self.perform(self.elector.receive(leader, Heartbeat(self.elector.term, leader, 1), self.now()))
        self.points.role_changed()

    def depose(self) -> None:
        self.serving = False
        self.elector.higher_term(self.elector.term + 1, self.now())
        self.points.role_changed()

    def answer(self, peer: str, number: int) -> None:
        response = HeartbeatResponse(self.elector.term, Code.SUCCESS, number)
        self.perform(self.elector.receive(peer, response, self.now()))

    def ask(self, timeout_s: float = 600.0) -> list[int | None]:
        got: list[int | None] = []
        self.points.ask(timeout_s, got.append)
        return got

    def asked(self, kind: type) -> list[Any]:
        return [message for _, message in self.peers.sent if isinstance(message, kind)]


def scenario(work: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench()
        await work(bench)
        bench.points.close()

    asyncio.run(main())


async def turn(seconds: float = 0.0) -> None:
    await asyncio.sleep(max(seconds, 0.001))


async def retry() -> None:
    """What waits for an answer asks again."""
    await skip_s(AGAIN_S)
    await turn()


def test_a_round_sent_before_the_read_proves_nothing() -> None:
    async def work(bench: Bench) -> None:
        bench.lead()
        assert bench.elector.round == 1
        got = bench.ask()
        await turn()
        assert bench.elector.round == 2
        bench.answer("n1", 1)
        assert got == []
        bench.answer("n1", 2)
        assert got == [10]

    scenario(work)


def test_reads_of_one_turn_share_a_round_and_later_ones_wait_for_the_next() -> None:
    async def work(bench: Bench) -> None:
        bench.lead()
        first = [bench.ask() for _ in range(100)]
        await turn()
        bench.commit_index = bench.applied_index = 20
        second = [bench.ask() for _ in range(100)]
        await turn()
        assert bench.elector.round == 2
        bench.answer("n2", 2)
        assert first == [[10]] * 100 and second == [[]] * 100
        await turn()
        assert bench.elector.round == 3
        bench.answer("n2", 3)
        assert second == [[20]] * 100
        assert bench.points.rounds == 2

    scenario(work)


def test_a_read_point_is_answered_when_it_is_applied() -> None:
    async def work(bench: Bench) -> None:
        bench.lead()
        bench.applied_index = 7
        got = bench.ask()
        await turn()
        bench.answer("n1", 2)
        assert got == []
        for applied in (9, 10):
            bench.applied_index = applied
            bench.points.applied()
        assert got == [10]

    scenario(work)


def test_a_leader_whose_term_is_not_open_gives_no_read_point() -> None:
    async def work(bench: Bench) -> None:
        bench.lead()
        bench.serving = False
        got = bench.ask()
        await turn()
        bench.answer("n1", 1)
        assert bench.elector.round == 1 and got == []
        assert bench.points.why() == "the term is not open"
        bench.serving = True
        bench.points.applied()
        await turn()
        bench.answer("n1", 2)
        assert got == [10]

    scenario(work)


def test_a_read_outlives_the_leadership_it_began_under() -> None:
    async def work(bench: Bench) -> None:
        bench.lead()
        got = bench.ask()
        await turn()
        bench.depose()
        bench.follow("n2")
        await turn()
        ((peer, question),) = [sent for sent in bench.peers.sent if isinstance(sent[1], ReadIndexRequest)]
        assert peer == "n2" and isinstance(question, ReadIndexRequest)
        bench.points.receive("n1", ReadIndexResponse(5, Code.SUCCESS, question.number, 99))
        bench.points.receive("n2", ReadIndexResponse(5, Code.SUCCESS, question.number + 1, 99))
        assert got == [], "only the answer of the node that was asked counts"
        bench.points.receive("n2", ReadIndexResponse(5, Code.SUCCESS, question.number, 12))
        assert got == []
        bench.applied_index = 12
        bench.points.applied()
        assert got == [12]

    scenario(work)


def test_a_question_that_got_lost_is_asked_again_and_a_refusal_is_no_end() -> None:
    async def work(bench: Bench) -> None:
        bench.follow("n2")
        got = bench.ask()
        await turn()
        assert len(bench.asked(ReadIndexRequest)) == 1
        await retry()
        questions = bench.asked(ReadIndexRequest)
        assert len(questions) > 1 and got == []
        bench.points.receive("n2", ReadIndexResponse(3, Code.NOT_LEADER, questions[-1].number, -1))
        await retry()
        again = bench.asked(ReadIndexRequest)
        assert again[-1].number > questions[-1].number
        bench.points.receive("n2", ReadIndexResponse(3, Code.SUCCESS, again[-1].number, 10))
        assert got == [10]

    scenario(work)


def test_on_a_slow_link_the_answer_to_an_earlier_question_counts() -> None:
    async def work(bench: Bench) -> None:
        bench.follow("n2")
        got = bench.ask()
        await turn()
        await retry()
        first, *_, last = bench.asked(ReadIndexRequest)
        assert first.number < last.number
        bench.points.receive("n2", ReadIndexResponse(3, Code.SUCCESS, first.number, 10))
        assert got == [10]
        later = bench.ask()
        await turn()
        bench.points.receive("n2", ReadIndexResponse(3, Code.SUCCESS, last.number, 10))
        assert later == [], "that question was asked before this read began"

    scenario(work)


def test_an_answer_to_a_question_of_a_former_life_is_none() -> None:
    """A leader's round may take longer than the restart of who asked."""

    async def work(bench: Bench) -> None:
        bench.follow("n2")
        bench.ask()
        await turn()
        (before,) = bench.asked(ReadIndexRequest)
        bench.points = bench.read_points(1 << 40)
        got = bench.ask()
        await turn()
        bench.points.receive("n2", ReadIndexResponse(3, Code.SUCCESS, before.number, 9))
        assert got == [], "entries were acknowledged between that question and this read"
        bench.points.receive(
            "n2", ReadIndexResponse(3, Code.SUCCESS, bench.asked(ReadIndexRequest)[-1].number, 10)
        )
        assert got == [10]

    scenario(work)


def test_a_leader_answers_followers_and_says_so_when_it_leads_no_more() -> None:
    async def work(bench: Bench) -> None:
        bench.lead()
        bench.points.receive("n1", ReadIndexRequest(4, "n1", 7))
        await turn()
        bench.answer("n2", 2)
        assert bench.peers.sent[-1] == ("n1", ReadIndexResponse(4, Code.SUCCESS, 7, 10))
        bench.points.receive("n1", ReadIndexRequest(4, "n1", 8))
        await turn()
        bench.depose()
        assert bench.peers.sent[-1] == ("n1", ReadIndexResponse(5, Code.NOT_LEADER, 8, -1))
        bench.points.receive("n1", ReadIndexRequest(4, "n1", 9))
        assert bench.peers.sent[-1] == ("n1", ReadIndexResponse(5, Code.NOT_LEADER, 9, -1))

    scenario(work)


def test_of_a_follower_that_asks_again_only_the_last_question_waits() -> None:
    async def work(bench: Bench) -> None:
        bench.lead()
        bench.serving = False
        for number in range(1000):
            bench.points.receive("n1", ReadIndexRequest(4, "n1", number))
        assert len(bench.points._new) == 1

    scenario(work)


def test_old_peers_are_named_and_never_asked() -> None:
    async def work(bench: Bench) -> None:
        bench.peers.versions["n2"] = 1
        bench.follow("n2")
        with pytest.raises(ReadRefused, match="the leader n2 speaks an older protocol"):
            await bench.points.read_index(0.05)
        assert bench.asked(ReadIndexRequest) == []

    scenario(work)


def test_reads_that_wait_are_bounded_and_forgotten_when_their_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 50)

    async def work(bench: Bench) -> None:
        bench.lead()
        bench.applied_index = 3
        for _ in range(4):
            batch = [bench.ask(0.01) for _ in range(50)]
            with pytest.raises(ReadRefused, match="50 reads are already waiting"):
                bench.ask(0.01)
            await turn()
            bench.answer("n1", bench.elector.round)
            await turn(0.03)
            assert batch == [[None]] * 50
        assert len(bench.points._applying) <= 100

    scenario(work)

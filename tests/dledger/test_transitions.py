"""The table of states: what the code uses is what the documentation shows, and nothing else is possible."""

from __future__ import annotations

import random
from itertools import product

import pytest

from dledger.election.elector import ElectionSettings, Elector
from dledger.election.transitions import TRANSITIONS, Cause, State, Transition, check
from dledger.errors import InvariantBroken
from dledger.formats.store_files import HardState
from dledger.messages import (
    Code,
    Heartbeat,
    HeartbeatResponse,
    Message,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
    VoteResult,
)

SETTINGS = ElectionSettings(heartbeat_interval_s=0.1, timeout_min_s=0.4, timeout_max_s=0.8, retry_min_s=0.02)
VOTERS = ("n0", "n1", "n2")


class Tip:
    last_index = 10
    last_term = 3


def test_every_step_that_is_not_in_the_table_raises() -> None:
    for before, cause, after in product(State, Cause, State):
        if Transition(before, cause, after) in TRANSITIONS:
            assert check(before, cause, after) is after
        else:
            with pytest.raises(InvariantBroken, match=before.value):
                check(before, cause, after)


def test_nobody_leads_without_votes_and_nobody_votes_for_itself_without_pre_votes_or_a_hand_over() -> None:
    into_leader = {(step.before, step.cause) for step in TRANSITIONS if step.after is State.LEADER}
    assert into_leader == {(State.CANDIDATE, Cause.QUORUM), (State.PRE_CANDIDATE, Cause.QUORUM)}
    into_candidate = {(step.before, step.cause) for step in TRANSITIONS if step.after is State.CANDIDATE}
    assert into_candidate == {
        (State.PRE_CANDIDATE, Cause.PRE_QUORUM),
        (State.FOLLOWER, Cause.TIMEOUT_NOW),
    }


class Recording(Elector):
    """Keeps the steps that it made."""

    steps: set[Transition]

    def _enter(self, cause: Cause, state: State) -> None:
        self.steps.add(Transition(self.state, cause, state))
        super()._enter(cause, state)


def some_message(node: Elector, rng: random.Random) -> tuple[str, Message]:
    peer = rng.choice(("n1", "n2"))
    term = max(0, node.term + rng.choice((-1, 0, 0, 0, 1, 1, 3)))
    result = rng.choice((VoteResult.ACCEPT, *VoteResult))
    pre = rng.random() < 0.5
    return peer, rng.choice(
        (
            VoteRequest(term, peer, rng.choice((9, 10, 11)), rng.choice((2, 3)), pre, rng.random() < 0.2),
            VoteResponse(term, node.term + (node.state is State.PRE_CANDIDATE), pre, result),
            VoteResponse(node.term, node.term + pre, pre, VoteResult.ACCEPT),
            HeartbeatResponse(term, rng.choice((Code.SUCCESS, Code.EXPIRED_TERM)), rng.randint(0, 5)),
            TimeoutNow(node.term, node.leader_id or peer),
        )
    )


def test_whatever_happens_only_steps_of_the_table_are_made_and_all_of_them_are() -> None:
    seen: set[Transition] = set()
    for seed in range(250):
        rng = random.Random(seed)
        node = Recording(SETTINGS, "n0", VOTERS, HardState(3, None), Tip(), rng, now=0.0)
        node.steps = seen
        node.set_members(VOTERS, VOTERS, 0.0)
        now = 0.0
        for _ in range(150):
            now += rng.choice((0.0, 0.01, 0.3, 1.0))
            chance = rng.random()
            if chance < 0.4:
                node.tick(now)
            elif chance < 0.8:
                node.receive(*some_message(node, rng), now)
            elif chance < 0.9:
                peer = rng.choice(("n1", "n2"))
                leads = node.state is State.LEADER
                if node.leader_id in (None, peer) and not leads:
                    node.receive(peer, Heartbeat(node.term, peer), now)
                else:
                    node.receive(peer, Heartbeat(node.term + 1, peer), now)
            elif chance < 0.95:
                node.set_members(rng.choice((VOTERS, VOTERS, ("n1", "n2"))), VOTERS, now)
            else:
                node.step_down(now)
    assert seen <= set(TRANSITIONS)
    missing = [step for step in TRANSITIONS if step not in seen]
    assert not missing, "steps that never happen do not belong into the table"

"""The states of a node in an election and every step between them, as one table. Pure.

The elector changes state only through `check`, so a step that is not in the table ends the node. The
diagram and the table in docs/reference/protocol.md are made from `diagram()` and `table()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dledger.errors import InvariantBroken
from dledger.host import Role


class State(Enum):
    """The state of a node: Raft's roles, but a candidate has two states, one for each phase."""

    LEARNER = "LEARNER"
    FOLLOWER = "FOLLOWER"
    PRE_CANDIDATE = "PRE_CANDIDATE"
    """The node asks for pre-votes; its term is unchanged."""
    CANDIDATE = "CANDIDATE"
    """The node asks for votes in a term of its own."""
    LEADER = "LEADER"


class Cause(Enum):
    """Why a node changes state. The value is the text in the diagram."""

    TIMEOUT = "election time-out, or the host of the leader refused the connection"
    PRE_QUORUM = "quorum of pre-votes (term + 1)"
    QUORUM = "quorum of votes"
    TIMEOUT_NOW = "the leader transfers leadership (term + 1)"
    LEADER_HEARD = "message from the leader of the term"
    HIGHER_TERM = "higher term"
    NO_QUORUM = "no contact to a quorum"
    STEP_DOWN = "this node cannot serve"
    PROMOTED = "the configuration makes this node a voter"
    REMOVED = "this node is not a voter in the current configuration"


ROLES = {
    State.LEARNER: Role.LEARNER,
    State.FOLLOWER: Role.FOLLOWER,
    State.PRE_CANDIDATE: Role.CANDIDATE,
    State.CANDIDATE: Role.CANDIDATE,
    State.LEADER: Role.LEADER,
}
"""Maps each state to the role that is shown to others (MemberState.Role)."""


@dataclass(frozen=True)
class Transition:
    """One step that is allowed: a state, a cause and the next state."""

    before: State
    cause: Cause
    after: State


def _steps(before: State, after: State, *causes: Cause) -> tuple[Transition, ...]:
    return tuple(Transition(before, cause, after) for cause in causes)


TRANSITIONS: tuple[Transition, ...] = (
    *_steps(State.LEARNER, State.FOLLOWER, Cause.PROMOTED),
    *_steps(State.LEARNER, State.LEARNER, Cause.LEADER_HEARD, Cause.HIGHER_TERM),
    *_steps(State.FOLLOWER, State.PRE_CANDIDATE, Cause.TIMEOUT),
    *_steps(State.FOLLOWER, State.CANDIDATE, Cause.TIMEOUT_NOW),
    *_steps(State.FOLLOWER, State.FOLLOWER, Cause.LEADER_HEARD, Cause.HIGHER_TERM),
    *_steps(State.FOLLOWER, State.LEARNER, Cause.REMOVED),
    *_steps(State.PRE_CANDIDATE, State.PRE_CANDIDATE, Cause.TIMEOUT),
    *_steps(State.PRE_CANDIDATE, State.CANDIDATE, Cause.PRE_QUORUM),
    # The votes of its last round were late.
    *_steps(State.PRE_CANDIDATE, State.LEADER, Cause.QUORUM),
    *_steps(State.PRE_CANDIDATE, State.FOLLOWER, Cause.LEADER_HEARD, Cause.HIGHER_TERM),
    *_steps(State.PRE_CANDIDATE, State.LEARNER, Cause.REMOVED),
    *_steps(State.CANDIDATE, State.LEADER, Cause.QUORUM),
    *_steps(State.CANDIDATE, State.PRE_CANDIDATE, Cause.TIMEOUT),
    *_steps(State.CANDIDATE, State.FOLLOWER, Cause.LEADER_HEARD, Cause.HIGHER_TERM),
    *_steps(State.CANDIDATE, State.LEARNER, Cause.REMOVED),
    *_steps(State.LEADER, State.FOLLOWER, Cause.HIGHER_TERM, Cause.NO_QUORUM, Cause.STEP_DOWN),
    # A removed leader goes on leading until the entry that removes it is committed; then it is a learner.
    *_steps(State.LEADER, State.LEARNER, Cause.HIGHER_TERM, Cause.NO_QUORUM, Cause.STEP_DOWN),
)

_ALLOWED = frozenset(TRANSITIONS)


def check(before: State, cause: Cause, after: State) -> State:
    """Return `after` if the table has this step. Raises InvariantBroken if it does not."""
    if Transition(before, cause, after) not in _ALLOWED:
        raise InvariantBroken(f"no step from {before.value} to {after.value} on: {cause.value}")
    return after


def _by_ends() -> dict[tuple[State, State], list[str]]:
    edges: dict[tuple[State, State], list[str]] = {}
    for step in TRANSITIONS:
        edges.setdefault((step.before, step.after), []).append(step.cause.value)
    return edges


def diagram() -> str:
    """Return the table as a Mermaid state diagram, without the steps that stay in their state (`table` has
    them)."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.LEARNER.value}", f"    [*] --> {State.FOLLOWER.value}"]
    for (before, after), causes in _by_ends().items():
        if before is not after:
            lines.append(f"    {before.value} --> {after.value}: {' / '.join(causes)}")
    return "\n".join(lines)


def table() -> str:
    """Return the table in Markdown."""
    lines = ["| from | to | when |", "|---|---|---|"]
    for (before, after), causes in _by_ends().items():
        lines.append(f"| {before.value} | {after.value} | {'; '.join(causes)} |")
    return "\n".join(lines)

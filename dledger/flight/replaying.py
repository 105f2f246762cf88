"""Steps the core through a recording, and compares each step with its recorded digest.

The core runs without a node: its log, its random numbers and the offered snapshots are replaced by the values
that were read when the recording was made. A step differs if its digest differs, if it raises another error,
or if it reads more or fewer values. After the first such step the rest of the file is not replayed, because
it would differ as well; the next file begins with a recorded state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dledger.errors import InvariantBroken
from dledger.flight.blocks import Begin, Block, Kind, decode_calls
from dledger.flight.calls import BY_NUMBER, ELECTOR, FOLLOW, FOLLOWER, LEAD, LEADER, BodyNote, Call
from dledger.flight.cores import DIGESTS, failure_of
from dledger.flight.reading import FlightFile, follows
from dledger.flight.states import differences, dump, restore_elector, restore_follower, restore_leader
from dledger.flight.steps import Replay, Step, Stretch
from dledger.flight.tape import digest_of, effects_of
from dledger.host import Role
from dledger.replication.follower import FollowerReplication
from dledger.replication.install import Offer
from dledger.replication.leader import LeaderReplication

KEPT_STEPS = 1000
"""How many of the last steps a replay keeps by default."""
MAX_TEXT = 400
"""Largest length, in characters, of the text of a call or an effect."""
_CORE_ERRORS = (InvariantBroken, TypeError, ValueError, KeyError, IndexError, AttributeError)
"""What a call of the core may raise when its recorded inputs are wrong."""


class Differs(Exception):
    """Raised when a step of the replay does not agree with the recording."""


@dataclass(frozen=True)
class CoreAfterStep:
    """What the core of a node knows after a step, for checks of invariants. `run` is the number of the file
    with which the run of the node began."""

    name: str
    run: int
    role: Role
    term: int
    vote: str | None
    commit_index: int


Check = Callable[[CoreAfterStep | None, CoreAfterStep], str]
"""Checks the state before a step (None at the first one) and after it. Returns which invariant is broken, or
the empty text."""


def no_check(before: CoreAfterStep | None, after: CoreAfterStep) -> str:
    """Check nothing."""
    return ""


class _RecordedInputs:
    """Stands for the log, the random numbers and the offers: returns what was read when the recording was
    made, in the same order."""

    def __init__(self) -> None:
        self._values: deque[Any] = deque()

    def load(self, values: Sequence[Any]) -> None:
        """Take the values of the next call."""
        self._values = deque(values)

    @property
    def left(self) -> int:
        """Number of values that the call did not read."""
        return len(self._values)

    def _next(self, type_: Any, what: str) -> Any:
        if not self._values:
            raise Differs(f"reads {what}, which the recorded step did not read")
        value = self._values.popleft()
        try:
            return msgspec.convert(value, type_)
        except msgspec.ValidationError as error:
            raise Differs(f"reads {what}; the recorded step read {value!r}") from error

    @property
    def first_index(self) -> int:
        return int(self._next(int, "first_index"))

    @property
    def last_index(self) -> int:
        return int(self._next(int, "last_index"))

    @property
    def last_term(self) -> int:
        return int(self._next(int, "last_term"))

    @property
    def durable_index(self) -> int:
        return int(self._next(int, "durable_index"))

    @property
    def durable_mark(self) -> int:
        return int(self._next(int, "durable_mark"))

    def term_of(self, index: int) -> int | None:
        value: int | None = self._next(int | None, f"the term of entry {index}")
        return value

    def last_of_term_at_most(self, term: int, index: int) -> int:
        return int(self._next(int, f"the last entry of term {term}"))

    def range_end(self, first: int, max_bytes: int) -> tuple[int, int | None]:
        value: tuple[int, int | None] = self._next(tuple[int, int | None], f"the end of a range from {first}")
        return value

    def uniform(self, a: float, b: float) -> float:
        return float(self._next(float, "a random number"))

    def offer(self) -> Offer | None:
        value: Offer | None = self._next(Offer | None, "the offered snapshot")
        return value


class _Core:
    """The core objects of a replay."""

    def __init__(self, begin: Begin) -> None:
        self.inputs = _RecordedInputs()
        state = begin.state
        self.elector = restore_elector(state, self.inputs, self.inputs)
        self.leader = restore_leader(state, self.inputs, self.inputs.offer)
        self.follower = restore_follower(state, self.inputs)
        self.name = begin.node
        self.run = begin.run
        self.time_s = begin.time_s
        self.commit_index = -1
        if self.leader is not None and self.elector.role is Role.LEADER:
            self.commit_index = self.leader.commit_index

    def after(self) -> CoreAfterStep:
        """What the core knows now."""
        elector = self.elector
        return CoreAfterStep(self.name, self.run, elector.role, elector.term, elector.vote, self.commit_index)

    def step(self, note: Sequence[Any]) -> tuple[str, tuple[str, ...], str]:
        """Make one call. Returns the call and its effects as texts, and why it differs from the
        recording (the empty text if it does not)."""
        try:
            call, args, named, body, reads, digest = _decode(note)
        except msgspec.MsgspecError as error:
            raise Differs(f"the note of a call cannot be decoded: {error}") from error
        text = _call_text(call, args, named, body)
        self._note_time(call, args)
        self.inputs.load(reads)
        problem = ""
        result: object
        try:
            result = self._make(call, args, named)
        except Differs as differs:
            return text, (), str(differs)
        except _CORE_ERRORS as error:
            result = failure_of(error)
        core = self._object(call.core)
        if digest_of(result, DIGESTS[call.core](core)) != digest:
            problem = "the digest of effects and state differs"
        elif self.inputs.left:
            problem = f"the recorded step read {self.inputs.left} more values"
        if call.core == LEADER and isinstance(core, LeaderReplication) and self.elector.role is Role.LEADER:
            self.commit_index = core.commit_index
        return text, tuple(_cut(str(effect)) for effect in effects_of(result)), problem

    def _note_time(self, call: Call, args: Sequence[Any]) -> None:
        if call.core == ELECTOR and args and isinstance(args[-1], float) and call.name != "saved":
            self.time_s = args[-1]
        elif call.core == ELECTOR and call.name == "step_down":
            self.time_s = args[0]
        if call.core == FOLLOWER and call.name in ("receive", "overlap"):
            self.commit_index = args[-1]

    def _object(self, core: str) -> Any:
        found = {ELECTOR: self.elector, LEADER: self.leader, FOLLOWER: self.follower}[core]
        if found is None:
            raise Differs(f"there is no {core} for this call")
        return found

    def _make(self, call: Call, args: Sequence[Any], named: dict[str, Any]) -> object:
        if call.number == LEAD:
            term, self_id, voters, peers, commit_index, opening = args
            self.leader = LeaderReplication(
                term,
                self_id,
                voters,
                peers,
                self.inputs,
                commit_index,
                opening,
                offer=self.inputs.offer,
                **named,
            )
            return None
        if call.number == FOLLOW:
            term, leader = args
            self.follower = FollowerReplication(term, leader, self.inputs)
            return None
        return getattr(self._object(call.core), call.name)(*args, **named)


def replay(
    files: Sequence[FlightFile],
    missing: Sequence[str] = (),
    *,
    check: Check = no_check,
    keep: int = KEPT_STEPS,
) -> Replay:
    """Replay a recording (see `read_recording`). `check` is called after each step. `keep` is the number of
    last steps that are returned; steps with a problem are returned as well.

    Never raises for the content of the recording: what does not fit is a problem of the result."""
    run = _Run(check, keep)
    for at, file in enumerate(files):
        before = files[at - 1] if at else None
        run.play(file, continues=before is not None and follows(before, file))
    run.end_stretch()
    return Replay(
        files[-1].begin.node if files else "",
        files[-1].begin.version if files else "",
        tuple(run.stretches),
        tuple(run.kept()),
        run.total,
        tuple(run.problems),
        tuple(missing),
    )


class _Run:
    """The work of `replay`."""

    def __init__(self, check: Check, keep: int) -> None:
        self._check = check
        self.steps: deque[Step] = deque(maxlen=keep)
        self.bad_steps: list[Step] = []
        self.stretches: list[Stretch] = []
        self.problems: list[str] = []
        self.total = 0
        self._core: _Core | None = None
        self._begin: Begin | None = None
        self._names: list[str] = []
        self._first = 0
        self._clean = False
        self._before: CoreAfterStep | None = None

    def kept(self) -> list[Step]:
        """The steps to return, in order."""
        first = self.steps[0].number if self.steps else self.total
        return [*(step for step in self.bad_steps if step.number < first), *self.steps]

    def play(self, file: FlightFile, *, continues: bool) -> None:
        """Replay one file."""
        core = self._core
        if continues and core is not None:
            now = dump(core.elector, core.leader, core.follower)
            different = differences(now, file.begin.state)
            if different:
                self._problem(f"at the beginning of {file.name} the state differs: {', '.join(different)}")
                continues = False
        if not continues or core is None:
            self.end_stretch()
            try:
                core = _Core(file.begin)
            except msgspec.ValidationError as error:
                self._problem(f"{file.name}: {error}")
                return
            self._core, self._begin, self._first, self._before = core, file.begin, self.total, None
        self._names.append(file.name)
        for block in file.blocks:
            self._clean = block.kind is Kind.END
            if block.kind is Kind.CALLS and not self._play_block(core, file.name, block):
                self.end_stretch()
                return
        if file.gap:
            self.end_stretch()

    def _play_block(self, core: _Core, file: str, block: Block) -> bool:
        """Replay a block. Returns False if the file cannot be replayed any further."""
        try:
            notes = decode_calls(block.content)
        except (msgspec.MsgspecError, ValueError) as error:
            self._problem(f"{file}: block {block.number} cannot be decoded: {error}")
            return False
        if len(notes) != block.events:
            found = f"{len(notes)} calls instead of {block.events}"
            self._problem(f"{file}: block {block.number} holds {found}")
            return False
        return all(self._play_step(core, note) for note in notes)

    def _play_step(self, core: _Core, note: Sequence[Any]) -> bool:
        try:
            event, effects, problem = core.step(note)
        except Differs as differs:
            event, effects, problem = "?", (), str(differs)
        after = core.after()
        broken = "" if problem else self._check(self._before, after)
        self._before = after
        step = Step(
            self.total,
            core.time_s,
            core.name,
            event,
            effects,
            after.role.value,
            after.term,
            after.commit_index,
            problem or broken,
        )
        self.total += 1
        self.steps.append(step)
        if step.problem:
            self.bad_steps.append(step)
            self._problem(f"step {step.number} ({step.event}): {step.problem}")
        return not problem

    def _problem(self, text: str) -> None:
        self.problems.append(text)

    def end_stretch(self) -> None:
        """Note the end of steps that follow each other."""
        core, begin = self._core, self._begin
        if core is not None and begin is not None:
            self.stretches.append(
                Stretch(
                    begin.node,
                    begin.run,
                    tuple(self._names),
                    self._first,
                    self.total - self._first,
                    begin.wall_ms,
                    begin.time_s,
                    core.time_s,
                    self._clean,
                )
            )
        self._core = self._begin = self._before = None
        self._names = []
        self._clean = False


def _decode(
    note: Sequence[Any],
) -> tuple[Call, Sequence[Any], dict[str, Any], BodyNote | None, list[Any], int]:
    if len(note) not in (4, 5):
        raise msgspec.ValidationError(f"a note has {len(note)} parts")
    number = msgspec.convert(note[0], int)
    call = BY_NUMBER.get(number)
    if call is None:
        raise msgspec.ValidationError(f"call {number} is not known")
    args, named, body = call.arguments(note[1], note[4] if len(note) == 5 else {})
    return call, args, named, body, msgspec.convert(note[2], list[Any]), msgspec.convert(note[3], int)


def _call_text(call: Call, args: Sequence[Any], named: dict[str, Any], body: BodyNote | None) -> str:
    parts = [f"{value:.6f}" if isinstance(value, float) else str(value) for value in args]
    parts += [f"{name}={value}" for name, value in named.items()]
    if body is not None:
        parts.append(f"{body.size} bytes with CRC {body.crc:08x}")
    return _cut(f"{call.core} {call.name}({', '.join(parts)})")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."

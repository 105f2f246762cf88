"""The result of a replay as plain data, for tables and pages."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Step:
    """One call of the core of a node, and the state of the core after it."""

    number: int
    """Number of the step in its recording, from 0."""
    time_s: float
    """Last time, in seconds of the node's monotonic clock, that a call has named."""
    node: str
    event: str
    """The call with its arguments, such as `receive(n1, Heartbeat(...))`."""
    effects: tuple[str, ...]
    """What the core returned, one text for each effect."""
    role: str
    term: int
    commit_index: int
    """Commit index as far as the core knows it; -1 before it knows any."""
    problem: str = ""
    """Why the replay does not agree with the recording at this step, or which invariant is broken. Empty if
    all is well."""


@dataclass(frozen=True)
class Stretch:
    """Consecutive steps that were replayed from one beginning: the calls of one file, or of several files
    that follow each other without a gap."""

    node: str
    run: int
    """Number of the file with which this run of the node began."""
    files: tuple[str, ...]
    first_step: int
    steps: int
    begin_wall_ms: int
    """Time of day, in milliseconds, at which the first state was taken."""
    begin_s: float
    """Time of the node's monotonic clock then."""
    end_s: float
    """Last time, in seconds of that clock, that a call has named."""
    clean_end: bool
    """Whether the node stopped in good order after these steps."""


@dataclass(frozen=True)
class Replay:
    """The result of a replay. `problems` is empty if every step gave the recorded digest and no invariant was
    broken; then the replay agrees. `missing` says what the files do not hold, which is not a problem."""

    node: str
    version: str
    stretches: tuple[Stretch, ...]
    steps: tuple[Step, ...]
    """The steps that were kept (see `replay`)."""
    total_steps: int
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = field(default=())

    @property
    def agrees(self) -> bool:
        """Whether the replay agrees with the recording."""
        return not self.problems

"""Retention: which part of the log is removed (RocketMQ's CleanCommitLogService; DLedger's
CleanSpaceService). Pure.

Whole segments are removed, the oldest first, and only up to a boundary whose snapshot is durable (safety.md
S20). Entries that are uncommitted, unapplied or covered by no snapshot stay, because there is no such
boundary behind them. The same holds for the last segment.

The age of a segment is that of its last record by store time, so that replicas agree on it. A store time in
the future cannot be right. It means that a leader's clock was ahead, and all records since then have that
time (S15). In that case the age counts from when this node wrote the snapshot at the segment's end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from dledger.runtime.settings import Setting, whole_number

HOUR_MS = 3_600_000
DAY_HOURS = 24
CREDIBLE_AHEAD_MS = 60_000
"""Limit, in ms, for how far a store time may be ahead of the clock. A time that is further ahead cannot be
right."""


def _age(text: str) -> float:
    return whole_number(text, 0, 24 * 366) if text else math.inf


def _age_text(hours: float) -> str:
    return "" if hours == math.inf else f"{hours:g}"


def _hours(text: str) -> tuple[int, ...]:
    return tuple(whole_number(part.strip(), 0, DAY_HOURS - 1) for part in text.split(";"))


def _hours_text(hours: tuple[int, ...]) -> str:
    return ";".join(f"{hour:02}" for hour in hours)


@dataclass(frozen=True)
class RetentionSettings:
    """How long entries are kept. That is for ever, unless these settings limit it (a broker's default is
    RocketMQ's, 72 hours).

    Ratios are shares of the file system in use, 0.0 to 1.0.
    """

    reserved_hours: Annotated[
        float,
        Setting("fileReservedTime", unit="hours", parse=_age, format=_age_text, hot=True, important=True),
    ] = math.inf
    """Age at which a segment expires, whether its messages were consumed or not. If it is empty, segments
    never expire."""
    delete_hours: Annotated[
        tuple[int, ...], Setting("deleteWhen", parse=_hours, format=_hours_text, hot=True, important=True)
    ] = (4,)
    """Hours of the (local) day in which expired segments are deleted, as `04` or `04;16`."""
    utc_offset_s: int = 0
    """Offset in seconds of the local time that `delete_hours` refers to; set by the outer shell."""
    clean_ratio: Annotated[float, Setting("diskMaxUsedSpaceRatio", 10, 95, "percent", hot=True)] = 0.75
    """Share of the file system in use above which expired segments are deleted at any hour. If only this
    ratio or only `diskSpaceCleanForciblyRatio` is set, the other one is adjusted, so that this one is never
    the larger one."""
    force_ratio: Annotated[float, Setting("diskSpaceCleanForciblyRatio", 10, 100, "percent", hot=True)] = 0.85
    """Share of the file system in use above which segments are deleted at any age: the oldest first, one each
    round."""
    clean_forcibly: Annotated[bool, Setting("cleanFileForciblyEnable", hot=True)] = False
    """Whether segments may be deleted before they expire. With `false` they never are."""
    interval_s: Annotated[float, Setting("cleanResourceInterval", 10, 3_600_000, "ms", hot=True)] = 10.0
    """Time between two checks of clock and disk."""
    snapshots_kept: Annotated[int, Setting("boundarySnapshotsKept", 3, 10_000)] = 64
    """Largest number of snapshots kept at boundaries of segments. If there are more, some between the first
    and the newest are removed; retention then moves in larger steps."""

    def moved_defaults(self, given: Mapping[str, object]) -> dict[str, object]:
        """Defaults for both ratios when exactly one of them is given, such that `clean_ratio` is never above
        `force_ratio`."""
        said = [
            value for name in ("clean_ratio", "force_ratio") if isinstance(value := given.get(name), float)
        ]
        if len(said) != 1:
            return {}
        return {
            "clean_ratio": min(self.clean_ratio, said[0]),
            "force_ratio": max(self.force_ratio, said[0]),
        }

    def __post_init__(self) -> None:
        if self.reserved_hours < 0 or self.interval_s <= 0:
            raise ValueError("fileReservedTime must not be negative, cleanResourceInterval must be positive")
        if not all(0 <= hour < DAY_HOURS for hour in self.delete_hours):
            raise ValueError(f"deleteWhen {self.delete_hours}: expected hours from 0 to 23")
        # Where nothing expires, the lower one of the two ratios means nothing.
        lowest = self.clean_ratio if self.reserved_hours < math.inf else self.force_ratio
        if not 0 < lowest <= self.force_ratio <= 1:
            raise ValueError("diskSpaceCleanForciblyRatio must not be below diskMaxUsedSpaceRatio")


class Boundary(Protocol):
    """A position where the log may begin, because a durable snapshot exists there."""

    @property
    def index(self) -> int:
        """Index of the last entry before the boundary."""

    @property
    def pos(self) -> int:
        """Log offset of the boundary, where a segment begins."""

    @property
    def store_time_ms(self) -> int:
        """Store time of the last record before the boundary, -1 if it is not known."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Facts that a decision depends on.

    * `needed_from`: the first entry that a connected peer still has to get.
    * `kept_from`: log offset of the first entry that the state machine needs, None if it needs none.
    * `written_ms`: when this node wrote the snapshots at these log offsets, as far as it knows.
    """

    now_ms: int
    used_ratio: float
    begin_pos: int
    last_segment: int
    applied_index: int
    needed_from: int
    kept_from: int | None = None
    written_ms: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Removal:
    """Decision that the log should begin at `boundary`. `why` is for the log file. `again` asks for another
    check at once."""

    boundary: Boundary
    why: str
    again: bool = False


def is_delete_hour(settings: RetentionSettings, now_ms: int) -> bool:
    """Whether the local hour is one of `deleteWhen`."""
    hour = (now_ms + settings.utc_offset_s * 1000) // HOUR_MS % DAY_HOURS
    return hour in settings.delete_hours


def decide(
    settings: RetentionSettings,
    situation: Situation,
    boundaries: Sequence[Boundary],
    delete_before: int | None = None,
    *,
    any_hour: bool = False,
) -> Removal | None:
    """Decide where the log should begin; None to leave it unchanged.

    * `boundaries`: in ascending order.
    * `delete_before`: an operator wants entries below this index removed at any age.
    * `any_hour`: expired segments are deleted now, at any hour.
    """
    allowed = [
        boundary
        for boundary in boundaries
        if situation.begin_pos < boundary.pos <= situation.last_segment
        and boundary.index <= situation.applied_index
    ]
    if not allowed:
        return None
    if settings.clean_forcibly and situation.used_ratio > settings.force_ratio:
        # Also removes entries that a lagging peer needs (it gets a snapshot), and messages that wait.
        return Removal(allowed[0], f"disk {situation.used_ratio:.0%} full", again=True)
    kept = math.inf if situation.kept_from is None else situation.kept_from
    unneeded = [
        boundary for boundary in allowed if boundary.index < situation.needed_from and boundary.pos <= kept
    ]
    chosen: Removal | None = None
    if delete_before is not None:
        chosen = _last(unneeded, lambda boundary: boundary.index < delete_before, "asked for")
    if any_hour or is_delete_hour(settings, situation.now_ms) or situation.used_ratio > settings.clean_ratio:
        limit = situation.now_ms - settings.reserved_hours * HOUR_MS
        # A log that another program wrote may hold times that went back: a segment before a boundary may
        # then be younger than the boundary says.
        stored_ms = _credible(situation, boundaries)
        newest = max((stored_ms[b.pos] for b in boundaries if b.pos <= situation.begin_pos), default=-1)
        expired: Removal | None = None
        for boundary in unneeded:
            newest = max(newest, stored_ms[boundary.pos])
            if newest > limit:
                break
            if boundary.store_time_ms >= 0:
                expired = Removal(boundary, "expired")
        if expired is not None and (chosen is None or expired.boundary.pos > chosen.boundary.pos):
            chosen = expired
    return chosen


def _credible(situation: Situation, boundaries: Sequence[Boundary]) -> dict[int, float]:
    """Map the log offset of each boundary to the latest time at which the last record before it can have been
    stored.

    This is the record's store time, unless that is in the future. Then it is the time when this node wrote
    the snapshot at this boundary or at a later one, and infinite if no such time is known.
    """
    latest = situation.now_ms + CREDIBLE_AHEAD_MS
    found: dict[int, float] = {}
    behind = math.inf
    for boundary in reversed(boundaries):
        stored: float = boundary.store_time_ms
        if stored > latest:
            written = situation.written_ms.get(boundary.pos, math.inf)
            stored = behind = min(written if written <= latest else math.inf, behind)
        found[boundary.pos] = stored
    return found


def _last(boundaries: Sequence[Boundary], fits: Callable[[Boundary], bool], why: str) -> Removal | None:
    found = [boundary for boundary in boundaries if fits(boundary)]
    return Removal(found[-1], why) if found else None

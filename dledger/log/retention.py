"""What retention removes (RocketMQ's CleanCommitLogService; DLedger's CleanSpaceService). Pure.

Whole segments go, the oldest first, and only up to a boundary whose snapshot is durable (safety.md S20): what
is uncommitted, unapplied or covered by no snapshot has no such boundary behind it, nor has the last segment.
The age of a segment is that of its last record by store time, so that replicas agree on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

HOUR_MS = 3_600_000
DAY_HOURS = 24


@dataclass(frozen=True)
class RetentionSettings:
    """How long entries are kept: for ever, unless these say otherwise (a broker's are RocketMQ's: 72 hours).

    Ratios are shares of the file system in use, 0.0 to 1.0.
    """

    reserved_hours: float = math.inf
    """fileReservedTime: age at which a segment expires, consumed or not; infinite: none ever does."""
    delete_hours: tuple[int, ...] = (4,)
    """deleteWhen: hours of the day in which what expired is removed."""
    utc_offset_s: int = 0
    """Of the local time that `delete_hours` means."""
    clean_ratio: float = 0.75
    """diskMaxUsedSpaceRatio: above it, what expired is removed at any hour."""
    force_ratio: float = 0.85
    """diskSpaceCleanForciblyRatio: above it, segments go whatever their age, one a round."""
    clean_forcibly: bool = False
    """cleanFileForciblyEnable: False leaves `force_ratio` without effect."""
    interval_s: float = 10.0
    """cleanResourceInterval: pause between two rounds."""
    snapshots_kept: int = 64
    """Boundary snapshots to keep at most (never fewer than three): those between the first and the newest are
    thinned out, and retention moves from one to the next."""

    def __post_init__(self) -> None:
        if self.reserved_hours < 0 or self.interval_s <= 0:
            raise ValueError("fileReservedTime must not be negative, cleanResourceInterval must be positive")
        if not all(0 <= hour < DAY_HOURS for hour in self.delete_hours):
            raise ValueError(f"deleteWhen {self.delete_hours}: hours are 0 to 23")
        if not 0 < self.clean_ratio <= self.force_ratio <= 1:
            raise ValueError("diskSpaceCleanForciblyRatio must not be below diskMaxUsedSpaceRatio")


class Boundary(Protocol):
    """A place where the log may begin: a durable snapshot."""

    @property
    def index(self) -> int:
        """Last entry before it."""

    @property
    def pos(self) -> int:
        """Where its segment begins."""

    @property
    def store_time_ms(self) -> int:
        """Of the last record before it, -1 when it is not known."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a decision depends on. `needed_from`: the first entry that a connected peer still has to get."""

    now_ms: int
    used_ratio: float
    begin_pos: int
    last_segment: int
    applied_index: int
    needed_from: int


@dataclass(frozen=True, slots=True)
class Removal:
    """The log is to begin at `boundary`; `why` for the log. `again`: look again at once."""

    boundary: Boundary
    why: str
    again: bool = False


def is_delete_hour(settings: RetentionSettings, now_ms: int) -> bool:
    """Whether the local hour is one of deleteWhen's."""
    hour = (now_ms + settings.utc_offset_s * 1000) // HOUR_MS % DAY_HOURS
    return hour in settings.delete_hours


def decide(
    settings: RetentionSettings,
    situation: Situation,
    boundaries: Sequence[Boundary],
    delete_before: int | None = None,
) -> Removal | None:
    """Where the log should begin, None to leave it.

    `boundaries` ascending. `delete_before`: an operator wants entries below this index gone at any age.
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
        # Also what a lagging peer needs: it is installed anew.
        return Removal(allowed[0], f"disk {situation.used_ratio:.0%} full", again=True)
    unneeded = [boundary for boundary in allowed if boundary.index < situation.needed_from]
    chosen: Removal | None = None
    if delete_before is not None:
        chosen = _last(unneeded, lambda boundary: boundary.index < delete_before, "asked for")
    if is_delete_hour(settings, situation.now_ms) or situation.used_ratio > settings.clean_ratio:
        limit = situation.now_ms - settings.reserved_hours * HOUR_MS
        # A log that another program wrote may hold times that went back: a segment before a boundary may
        # then be younger than the boundary says.
        newest = max((b.store_time_ms for b in boundaries if b.pos <= situation.begin_pos), default=-1)
        expired: Removal | None = None
        for boundary in unneeded:
            newest = max(newest, boundary.store_time_ms)
            if newest > limit:
                break
            if boundary.store_time_ms >= 0:
                expired = Removal(boundary, "expired")
        if expired is not None and (chosen is None or expired.boundary.pos > chosen.boundary.pos):
            chosen = expired
    return chosen


def _last(boundaries: Sequence[Boundary], fits: Callable[[Boundary], bool], why: str) -> Removal | None:
    found = [boundary for boundary in boundaries if fits(boundary)]
    return Removal(found[-1], why) if found else None

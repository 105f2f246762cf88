"""What surrounds a broker of a trial and can be broken: its disk, its clock, its power.

Each broker has a directory for this, beside its store and outside of it. The trial and the program
`faulty_broker` share it: `switches` (faults that can be switched on and off), `boot` (how often the power was
lost), and `journal` if the trial has losses of power. Whoever uses the store, the broker or a loss of power,
holds the lock `used`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dledger.chaos.trials.faulty_files import FaultyFiles
from dledger.chaos.trials.switches import Switches
from dledger.chaos.trials.undo_journal import Journal
from dledger.runtime.env import Env, SystemWallClock

BOOTS = "boot"
JOURNAL = "journal"
SWITCHES = "switches"
USED = "used"


class Surroundings:
    """The surroundings of one broker."""

    def __init__(self, directory: Path) -> None:
        self.directory: Path = directory
        self.switches: Switches = Switches(directory / SWITCHES)
        self.journal: Path = directory / JOURNAL

    @classmethod
    def create(cls, directory: Path, journal: bool) -> Surroundings:
        """Make the surroundings of a broker. Its operations are recorded in a journal only if asked: this
        costs time."""
        directory.mkdir(parents=True)
        if journal:
            (directory / JOURNAL).mkdir()
        (directory / BOOTS).write_text("0", encoding="ascii")
        return cls(directory)

    @contextmanager
    def used(self, *, wait: bool = True) -> Iterator[None]:
        """A context manager: no other process uses the store meanwhile. Raises BlockingIOError if one does,
        and `wait` is False."""
        descriptor = os.open(self.directory / USED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield
        finally:
            os.close(descriptor)

    @property
    def loses_power(self) -> bool:
        """Whether there is a journal, so that a loss of power can be reproduced."""
        return self.journal.is_dir()

    def boots(self) -> int:
        """How often the power was lost."""
        return int((self.directory / BOOTS).read_text(encoding="ascii"))

    def boot_again(self) -> None:
        """Note that the machine starts again after a loss of power."""
        number = self.boots() + 1
        (self.directory / BOOTS).write_text(str(number), encoding="ascii")

    def env(self, real: Env) -> Env:
        """The access of the broker to the outside world. To be called once, in the broker's process."""
        journal = Journal(self.journal) if self.loses_power else None
        return replace(
            real,
            files=FaultyFiles(self.switches, journal),
            wall=FaultyClock(self.switches),
            boot_id=f"{real.boot_id}/{self.boots()}",
        )


class FaultyClock(SystemWallClock):
    """The clock of the machine, ahead or behind by as much as the switches say."""

    def __init__(self, switches: Switches) -> None:
        self._switches = switches

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, as this clock shows them."""
        return super().now_ms() + self._switches.clock_ms

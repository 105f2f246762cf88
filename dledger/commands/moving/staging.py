"""Stores that an import or export is still writing: where they are written, what is recorded so that an
interrupted run can resume, and how they get their final names. Blocking."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dledger.formats.store_files import IMPORTING_DIR, CorruptFile, decode_json, encode_json
from dledger.runtime import File, Files
from dledger.runtime.atomic_file import read_file, replace_file

PLAN_FILE, PROGRESS_FILE, LOCK_FILE = "moving-plan", "moving-progress", "moving-lock"


class MovingFailed(Exception):
    """Raised if the import or export failed, or is not finished; the text says why and what to do."""


@dataclass(frozen=True)
class Target:
    """A store that is to be made. `root` is its storePathRootDir."""

    node: str
    root: str

    @property
    def staging(self) -> str:
        """The directory in which the store is written."""
        return f"{self.root}/{IMPORTING_DIR}"

    @property
    def final(self) -> str:
        """The directory that the store has when it is finished."""
        return f"{self.root}/dledger-{self.node}"


class Staging:
    """The stores of one run. The plan, the progress and the lock of the run are in the first store. The
    first store gets its final name last."""

    def __init__(self, files: Files, targets: Sequence[Target], asked: Mapping[str, object]) -> None:
        """`asked` identifies the request. A later run with the same request continues this one."""
        self._files = files
        self._targets = tuple(targets)
        self._first = targets[0]
        self._asked = dict(asked) | {
            "targets": [[target.node, os.path.abspath(target.root)] for target in targets]
        }
        self._lock: File | None = None

    @property
    def directories(self) -> str:
        """The directories that a user must remove to start again, as text for a message."""
        return " ".join(target.staging for target in self._targets)

    def finished(self) -> dict[str, Any] | None:
        """Return the plan of a run whose stores are finished and which only has to be cleaned up; None if
        there is none."""
        return self._read(f"{self._first.final}/{PLAN_FILE}")

    def under_way(self) -> dict[str, Any] | None:
        """Return the plan of an interrupted run; None if there is none. If there is one, the lock is
        taken. Raises MovingFailed if the run was for another request."""
        plan = self._read(f"{self._first.staging}/{PLAN_FILE}")
        if plan is not None:
            self._take_lock()
        return plan

    def _read(self, path: str) -> dict[str, Any] | None:
        data = read_file(self._files, path)
        if data is None:
            return None
        try:
            plan = decode_json(data)
        except CorruptFile as error:
            raise MovingFailed(f"{path}: {error}: remove {self.directories} and start again") from error
        if plan["asked"] != self._asked:
            raise MovingFailed(
                f"{self._first.root}: a run with other arguments is unfinished there: "
                f"{plan['asked']}. Finish it with the same arguments, or remove {self.directories}"
            )
        return plan

    def check_empty(self) -> None:
        """Raise MovingFailed if a directory is not empty."""
        for target in self._targets:
            there = [name for name in self._files.listdir(target.root) if name != IMPORTING_DIR]
            if there:
                raise MovingFailed(
                    f"{target.root} is not empty ({', '.join(sorted(there)[:3])}): each new store "
                    "needs its own directory"
                )

    def check_room(self, wanted: int) -> None:
        """Raise MovingFailed if a file system has too little space: `wanted` bytes are needed for each
        store on it."""
        shares: dict[int, list[str]] = {}
        for target in self._targets:
            self._files.mkdir(target.root)
            shares.setdefault(os.stat(target.root).st_dev, []).append(target.root)
        for there in shares.values():
            free, needed = self._files.usage(there[0]).free, wanted * len(there)
            if free < needed:
                raise MovingFailed(
                    f"{there[0]}: {needed} bytes are needed for {len(there)} stores, and {free} are "
                    "free. Nothing was written"
                )

    def begin(self, plan: dict[str, Any]) -> None:
        """Record the plan before anything is written."""
        for target in self._targets:
            self._files.rmtree(target.staging)
            self._files.mkdir(target.staging)
        self._take_lock()
        self.note_plan(plan)

    def note_plan(self, plan: dict[str, Any]) -> None:
        """Replace the plan, durably."""
        plan["asked"] = self._asked
        replace_file(self._files, f"{self._first.staging}/{PLAN_FILE}", encode_json(plan))

    def _take_lock(self) -> None:
        try:
            self._lock = self._files.lock(f"{self._first.staging}/{LOCK_FILE}")
        except BlockingIOError as error:
            raise MovingFailed(f"{self._first.root}: another process writes there") from error

    def progress(self) -> dict[str, Any] | None:
        """Return the progress that was recorded last; None if none was recorded yet."""
        data = read_file(self._files, f"{self._first.staging}/{PROGRESS_FILE}")
        return None if data is None else decode_json(data)

    def note_progress(self, value: dict[str, object]) -> None:
        """Record that everything up to this progress is durable."""
        replace_file(self._files, f"{self._first.staging}/{PROGRESS_FILE}", encode_json(value))

    def to_write(self) -> list[Target]:
        """Return the stores that do not have their final names yet."""
        return [target for target in self._targets if not self._files.exists(target.final)]

    def publish(self) -> None:
        """Rename the stores to their final names, the first one last."""
        for target in reversed(self.to_write()):
            self._files.rename(target.staging, target.final)
            self._files.sync_dir(target.root)
        self.tidy()

    def tidy(self) -> None:
        """Remove the files that record the run; the plan is removed last."""
        final = self._first.final
        for name in (PROGRESS_FILE, LOCK_FILE, PLAN_FILE):
            if self._files.exists(f"{final}/{name}"):
                self._files.unlink(f"{final}/{name}")
                self._files.sync_dir(final)

    def close(self) -> None:
        """Release the lock, so that other commands may run."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

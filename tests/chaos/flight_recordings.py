"""Recordings of simulated nodes, copied to real directories and replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dledger.chaos.flight_replay import check_invariants
from dledger.chaos.machine import World
from dledger.flight.reading import read_recording
from dledger.flight.replaying import replay
from dledger.flight.steps import Replay
from dledger.formats.store_files import FLIGHT_DIR
from dledger.runtime.files import OsFiles


def copy(world: World, name: str, target: Path) -> Path:
    """Copy the recording of a node, as its disk shows it now, to a new real directory."""
    disk = world.nodes[name].disk
    where = f"/store/dledger-{name}/{FLIGHT_DIR}"
    target.mkdir()
    for path in disk.files(where) if disk.find(where) is not None else ():
        (target / path.rpartition("/")[2]).write_bytes(bytes(disk.inode(path).content))
    return target


def replayed(path: Path, **options: Any) -> Replay:
    """Replay a recording, with all checks. Raises UnusableRecording."""
    files, missing = read_recording(OsFiles(), str(path))
    return replay(files, missing, check=check_invariants, **options)

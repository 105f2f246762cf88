"""Damage where a log ends, before the index units of its last group are written: never a silent cut (S4).

Entries that were fsynced, and perhaps acknowledged, are there when the log is opened, or the node is in doubt
and is refilled before it votes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from errno import EIO
from pathlib import Path

import pytest
from test_log_store import SEGMENT, Session, fill, forget_units, new_store, overwrite, use

from dledger.formats.entry import HEADER_SIZE
from dledger.log.base import LogBase
from dledger.log.recovery import StoreDamaged
from dledger.runtime import Env
from dledger.runtime.files import OsFile

pytestmark = pytest.mark.usefixtures("index_in_memory")


@dataclass
class Unreadable:
    """Bytes of a file that cannot be read so many times."""

    name: str
    begin: int
    end: int
    times: int = 1 << 30


@dataclass
class Opened:
    """What a start believed."""

    last: int
    doubts: list[str]
    segments: int


def opened(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    bad: Unreadable | None = None,
    *,
    power_lost: bool = False,
    env: Env | None = None,
    bases: dict[int, LogBase] | None = None,
) -> Opened:
    whole = OsFile.pread
    doubts: list[str] = []

    def pread(self: OsFile, length: int, offset: int) -> bytes:
        wanted = bad is not None and bad.begin < offset + length and offset < bad.end
        if bad is not None and wanted and self.path.endswith(bad.name) and bad.times:
            bad.times -= 1
            raise OSError(EIO, "Input/output error", self.path)
        return whole(self, length, offset)

    async def doubt(text: str) -> None:
        doubts.append(text)

    async def run() -> int:
        log = new_store(directory, env)
        monkeypatch.setattr(OsFile, "pread", pread)
        try:
            await log.open(power_lost=power_lost, discard_above_mark=False, on_doubt=doubt, bases=bases)
        except StoreDamaged as error:  # it does not start, and says why
            doubts.append(str(error))
        finally:
            monkeypatch.undo()
        await log.close()
        return log.last_index

    last = asyncio.run(run())
    return Opened(last, doubts, len(list((directory / "data").iterdir())))


def rolled(directory: Path, blank: int) -> tuple[Path, int]:
    """Two segments, the first with a blank tail of so many bytes; no units of the second one's two entries.

    The first one's file, and the last entry.
    """
    size = 1000
    count = (SEGMENT - blank) // (size + HEADER_SIZE) - 1
    rest = SEGMENT - blank - count * (size + HEADER_SIZE) - HEADER_SIZE

    async def work(session: Session) -> None:
        session.append([b"a" * size] * count)
        session.append([b"b" * rest])
        await session.durable()
        for _ in range(2):
            session.append([b"c" * 900])
            await session.durable()

    use(directory, work)
    first, _ = sorted((directory / "data").iterdir())
    forget_units(directory, count + 1)
    return first, count + 2


@pytest.mark.parametrize("power_lost", [False, True])
@pytest.mark.parametrize("blank", [20, 60, 300])
@pytest.mark.parametrize("how", ["rotten", "unreadable"])
def test_a_damaged_blank_tail_cuts_no_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, blank: int, power_lost: bool
) -> None:
    first, last = rolled(tmp_path, blank)
    bad = Unreadable(first.name, SEGMENT - blank, SEGMENT) if how == "unreadable" else None
    if how == "rotten":
        overwrite(first, SEGMENT - blank, b"\x7f" * 8)
    found = opened(tmp_path, monkeypatch, bad, power_lost=power_lost)
    assert found == Opened(last, [], 2), "the entry behind it proves that the log went on there"


@pytest.mark.parametrize("blank", [20, 300])
def test_an_old_segment_behind_is_no_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blank: int
) -> None:
    first, last = rolled(tmp_path, blank)
    second = sorted((tmp_path / "data").iterdir())[1]
    overwrite(first, SEGMENT - blank, b"\x7f" * 8)
    overwrite(second, 8, (last + 7).to_bytes(8, "big"))
    assert opened(tmp_path, monkeypatch).last == last - 2


@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("times", [*range(1, 9), 1 << 30])
def test_a_log_whose_first_entry_cannot_be_read_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, base: bool
) -> None:
    bases = None
    last = 4
    if base:
        behind = LogBase(1000, 1, 100 * SEGMENT, 77)
        bases = {behind.pos: behind}
        last = 1003

        async def work(session: Session) -> None:
            await session.log.reset(behind)
            session.append([b"x" * 100] * 3)
            await session.durable()

        use(tmp_path, work)
        forget_units(tmp_path, 1001)
    else:
        fill(tmp_path, 5)
        forget_units(tmp_path, 0)
    (first,) = (tmp_path / "data").iterdir()
    found = opened(tmp_path, monkeypatch, Unreadable(first.name, 0, 4096, times), bases=bases)
    assert found.last == last or found.doubts
    if times == 1 << 30:
        assert found.doubts and "cannot be read" in found.doubts[0]


@pytest.mark.parametrize("power_lost", [False, True])
@pytest.mark.parametrize("times", range(1, 9))
def test_what_is_whole_at_a_later_try_is_not_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, power_lost: bool
) -> None:
    fill(tmp_path, 5, 3000)
    forget_units(tmp_path, 4)
    (first,) = (tmp_path / "data").iterdir()
    begin = 4 * (HEADER_SIZE + 3000) + 1000
    found = opened(
        tmp_path, monkeypatch, Unreadable(first.name, begin, begin + 1, times), power_lost=power_lost
    )
    assert found.last == 4 or found.doubts


def test_what_is_torn_by_a_loss_of_power_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 5, 3000)
    forget_units(tmp_path, 4)
    (first,) = (tmp_path / "data").iterdir()
    overwrite(first, 4 * (HEADER_SIZE + 3000) + 1000, bytes(2000))
    assert opened(tmp_path, monkeypatch, power_lost=True) == Opened(3, [], 1)

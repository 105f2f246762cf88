"""The files of an archive without Spark: a batch counts once, wherever the job dies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dledger.runtime.files import OsFile, OsFiles
from dledger.spark.jobs.archive_files import ArchiveFiles, Batch
from dledger.spark.jobs.errors import JobError


class Crash(BaseException):
    """The process is gone."""


class MortalFiles(OsFiles):
    """Dies before the operation number `at` that changes something; a removal of a tree dies half way."""

    def __init__(self, at: int | None = None) -> None:
        self.left = at

    def _step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crash

    def open(self, path: str, create: bool = False) -> OsFile:
        self._step()
        return super().open(path, create)

    def mkdir(self, path: str, *, sync: bool = True) -> None:
        self._step()
        super().mkdir(path, sync=sync)

    def rename(self, old: str, new: str) -> None:
        self._step()
        super().rename(old, new)

    def rmtree(self, path: str) -> None:
        for file in sorted(path_ for path_ in Path(path).rglob("*") if path_.is_file()):
            self._step()
            file.unlink()
        self._step()
        super().rmtree(path)

    def sync_dir(self, path: str) -> None:
        self._step()
        super().sync_dir(path)


def batch_of(archive: ArchiveFiles) -> Batch:
    number = archive.next_number
    return Batch(number, "g", "c", {}, {"g": {"log": 10 * (number + 1)}}, {})


def write(archive: ArchiveFiles, number: int, parts: int) -> None:
    """What Spark would leave: two topics of six rows each, in so many files, and some noise."""
    staging = Path(archive.staging(number))
    for topic in ("a", "b"):
        directory = staging / f"topic={topic}" / "day=2026-11-21"
        directory.mkdir(parents=True)
        for part in range(parts):
            rows = "".join(f"{number} {topic} {row}\n" for row in range(6) if row % parts == part)
            (directory / f"part-{part:05d}-x.c000.parquet").write_text(rows)
    (staging / "_SUCCESS").write_text("")


def run(root: Path, files: OsFiles, until: int, parts: int = 2) -> None:
    """The job: batches until `until` are in the archive. Another run may divide the rows in another way."""
    archive = ArchiveFiles(files, str(root))
    archive.open()
    try:
        while archive.next_number < until:
            write(archive, archive.next_number, parts)
            archive.commit(batch_of(archive), lambda path: 1)
    finally:
        archive.close()


def visible(root: Path) -> list[str]:
    """Rows that readers see, sorted: what `spark.read.parquet` would read."""
    return sorted(
        row
        for path in root.rglob("*.parquet")
        if not any(part.startswith(("_", ".")) for part in path.relative_to(root).parts)
        for row in path.read_text().splitlines()
    )


EXPECTED = sorted(f"{number} {topic} {row}" for number in range(2) for topic in "ab" for row in range(6))


def test_two_batches_are_in_place(tmp_path: Path) -> None:
    run(tmp_path, OsFiles(), 2)
    assert visible(tmp_path) == EXPECTED
    archive = ArchiveFiles(OsFiles(), str(tmp_path))
    assert archive.numbers() == [0, 1]
    assert archive.read(1).positions == {"g": {"log": 20}} and archive.read(1).rows == 4
    assert list((tmp_path / "_archive" / "staging").iterdir()) == []


def operations(tmp_path: Path) -> int:
    files = MortalFiles(10_000)
    run(tmp_path, files, 2)
    assert files.left is not None
    return 10_000 - files.left


def test_it_may_die_before_every_operation(tmp_path: Path) -> None:
    count = operations(tmp_path / "whole")
    assert count > 40
    for at in range(count):
        root = tmp_path / str(at)
        with pytest.raises(Crash):
            run(root, MortalFiles(at), 2)
        seen = visible(root)
        assert sorted(set(seen)) == seen and set(seen) <= set(EXPECTED), "never twice, never half"
        run(root, OsFiles(), 2, parts=3)
        assert visible(root) == EXPECTED, at


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", [0, 3, 6, 9])
def test_it_may_die_again_while_it_recovers(tmp_path: Path, first: int) -> None:
    count = operations(tmp_path / "whole")
    for at in range(first, count, 12):
        for second in range(0, 30, 2):
            root = tmp_path / f"{at}-{second}"
            for files, parts in ((MortalFiles(at), 2), (MortalFiles(second), 3)):
                try:
                    run(root, files, 2, parts)
                except Crash:
                    continue
            run(root, OsFiles(), 2, parts=1)
            assert visible(root) == EXPECTED, (at, second)


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.parquet").write_bytes(b"")
    with pytest.raises(
        JobError, match=r"is not an archive, and holds thesis.parquet: give a new or an empty"
    ):
        ArchiveFiles(OsFiles(), str(tmp_path)).open()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.parquet"]


def test_two_jobs_do_not_write_at_once(tmp_path: Path) -> None:
    first = ArchiveFiles(OsFiles(), str(tmp_path))
    first.open()
    with pytest.raises(JobError, match="another job is archiving there"):
        ArchiveFiles(OsFiles(), str(tmp_path)).open()
    first.close()
    ArchiveFiles(OsFiles(), str(tmp_path)).open()


def change(field: str, value: object) -> Callable[[Path], None]:
    def apply(record: Path) -> None:
        record.write_text(json.dumps(json.loads(record.read_text()) | {field: value}))

    return apply


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda record: record.write_text("{"), "not a record of an archive"),
        (lambda record: record.write_text("{}"), "not a record of an archive"),
        (change("version", 3), "version 3 is newer"),
        (change("surprise", 1), "not a record of an archive"),
    ],
)
def test_a_damaged_record_is_told(damage: Callable[[Path], object], text: str, tmp_path: Path) -> None:
    run(tmp_path, OsFiles(), 1)
    damage(tmp_path / "_archive" / f"{0:020d}.json")
    with pytest.raises(JobError, match=text):
        ArchiveFiles(OsFiles(), str(tmp_path)).open()


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    class NoRename(MortalFiles):
        def rename(self, old: str, new: str) -> None:
            super().rename(old, new)
            if old.endswith(".json.tmp"):
                raise Crash

    with pytest.raises(Crash):
        run(tmp_path, NoRename(), 1)
    next((tmp_path / "_archive" / "staging").rglob("*.parquet")).unlink()
    with pytest.raises(JobError, match="is missing"):
        ArchiveFiles(OsFiles(), str(tmp_path)).open()


def test_a_gap_excuses_a_queue_until_its_next_message(tmp_path: Path) -> None:
    archive = ArchiveFiles(OsFiles(), str(tmp_path))
    archive.open()
    assert not archive.gap_since("g", "t/0")

    def commit(queues: dict[str, int], *skipped: tuple[str, int, int], group: str = "g") -> None:
        known = archive.last.queues if archive.last else {}
        batch = Batch(archive.next_number, group, "c", {}, {}, {**known, group: queues}, (), skipped)
        archive.files.mkdir(archive.staging(batch.number))
        archive.commit(batch, lambda path: 0)

    commit({"t/0": 5, "t/1": 5})
    commit({"t/0": 5, "t/1": 5}, ("log", 9, 20), group="h")
    assert not archive.gap_since("g", "t/0"), "of another group"
    commit({"t/0": 7, "t/1": 5}, ("log", 9, 20))
    commit({"t/0": 7, "t/1": 5}, group="h")
    assert archive.gap_since("g", "t/1") and not archive.gap_since("g", "t/0"), "its gap lies before offset 6"
    commit({"t/0": 7, "t/1": 9})
    commit({"t/0": 7, "t/1": 9}, ("t/0", 7, 8))
    assert archive.gap_since("g", "t/0") and not archive.gap_since("g", "t/1")
    archive.close()


def test_a_record_of_the_first_version_is_read(tmp_path: Path) -> None:
    """It has no lives."""
    run(tmp_path, OsFiles(), 1)
    path = tmp_path / "_archive" / f"{0:020d}.json"
    record = json.loads(path.read_text())
    assert record["version"] == 2 and record.pop("lives") == {}
    path.write_text(json.dumps({**record, "version": 1}))
    archive = ArchiveFiles(OsFiles(), str(tmp_path))
    archive.open()
    assert archive.last is not None and archive.last.lives == {} and archive.last.files
    archive.close()
    run(tmp_path, OsFiles(), 2)

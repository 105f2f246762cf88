"""The undo journal of trials, and what a loss of power leaves of a store on a real disk."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.chaos.machine.disk import Directory, Disk
from dledger.chaos.trials import undo_journal
from dledger.chaos.trials.faulty_files import FaultyFile, FaultyFiles
from dledger.chaos.trials.power_loss import SECTOR, Loss, forget, lose_power
from dledger.chaos.trials.switches import Switches
from dledger.chaos.trials.undo_journal import Journal, read_journal
from dledger.runtime.files import OsFile


class Opened(FaultyFiles):
    """Files of one life of a process, which closes all of them at its end."""

    def __init__(self, switches: Switches, journal: Journal) -> None:
        super().__init__(switches, journal)
        self._journal = journal
        self._opened: list[FaultyFile] = []

    def open(self, path: str, create: bool = False) -> FaultyFile:
        self._opened.append(super().open(path, create))
        return self._opened[-1]

    def close(self) -> None:
        for file in self._opened:
            file.close()
        self._journal.close()


class Bed:
    """A store with a journal. `power` undoes what is not synced, and begins a new life of the process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = directory / "store"
        self.store.mkdir(parents=True)
        self.journal = directory / "journal"
        self.files = self._opened()

    def start(self) -> None:
        """A new process after a kill."""
        self.files.close()
        self.files = self._opened()

    def _opened(self) -> Opened:
        return Opened(Switches(self.directory / "switches"), Journal(self.journal))

    def close(self) -> None:
        self.files.close()

    def power(self, loss: Loss = Loss.ALL, seed: int = 0) -> None:
        lose_power(self.journal, self.store, loss, random.Random(seed))
        self.start()

    def path(self, name: str) -> str:
        return str(self.store / name)

    def made(self, name: str, content: bytes = b"") -> FaultyFile:
        """A file whose content and name are durable."""
        file = self.files.open(self.path(name), create=True)
        file.pwritev([content], 0)
        file.fdatasync()
        self.files.sync_dir(str(self.store))
        return file

    def content(self, name: str) -> bytes:
        return (self.store / name).read_bytes()

    def tree(self) -> dict[str, bytes | None]:
        return {
            str(path.relative_to(self.store)): None if path.is_dir() else path.read_bytes()
            for path in sorted(self.store.rglob("*"))
        }


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    yield made
    made.close()


# Content


def test_a_write_without_a_sync_is_lost(bed: Bed) -> None:
    file = bed.made("a", b"old old")
    file.pwritev([b"new"], 2)
    bed.power()
    assert bed.content("a") == b"old old"


def test_a_synced_write_stays(bed: Bed) -> None:
    file = bed.made("a", b"old old")
    file.pwritev([b"n", b"ew"], 2)
    file.fdatasync()
    file.pwritev([b"later"], 7)
    bed.power()
    assert bed.content("a") == b"olnewld"


def test_what_an_earlier_life_wrote_is_still_pending(bed: Bed) -> None:
    bed.made("a", b"old").pwritev([b"new"], 0)
    bed.start()
    assert bed.files.open(bed.path("a")).pread(3, 0) == b"new"
    bed.power()
    assert bed.content("a") == b"old"


def test_a_sync_by_a_later_life_covers_what_an_earlier_one_wrote(bed: Bed) -> None:
    bed.made("a", b"old").pwritev([b"new"], 0)
    bed.start()
    bed.files.open(bed.path("a")).fdatasync()
    bed.power()
    assert bed.content("a") == b"new"


def test_a_write_that_syncs_itself_makes_no_earlier_write_durable(bed: Bed) -> None:
    file = bed.made("a", bytes(2 * SECTOR))
    file.pwritev([b"early"], 0)
    file.pwritev_synced([b"synced"], SECTOR)
    file.pwritev([b"late"], SECTOR)
    bed.power()
    assert bed.content("a") == bytes(SECTOR) + b"synced".ljust(SECTOR, b"\0")


def test_a_write_that_syncs_itself_makes_what_is_in_its_sectors_durable(bed: Bed) -> None:
    file = bed.made("a", bytes(SECTOR))
    file.pwritev([b"early"], 0)
    file.pwritev_synced([b"synced"], 100)
    bed.power()
    assert bed.content("a").startswith(b"early")


def test_a_new_length_without_a_sync_is_lost(bed: Bed) -> None:
    file = bed.made("a", b"123")
    file.allocate(5000)
    file.pwritev([b"x"], 6000)
    bed.power()
    assert bed.content("a") == b"123"


def test_what_was_cut_off_comes_back(bed: Bed) -> None:
    file = bed.made("a", b"1234567")
    file.truncate(2)
    file.pwritev([b"x"], 4)
    bed.power()
    assert bed.content("a") == b"1234567"


def test_a_sync_covers_only_what_was_written_before_it_began(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = bed.made("a", bytes(2 * SECTOR))
    file.pwritev([b"before"], 0)

    def sync(self: OsFile) -> None:
        file.pwritev([b"meanwhile"], SECTOR)  # as another thread would

    monkeypatch.setattr(OsFile, "fdatasync", sync)
    file.fdatasync()
    bed.power()
    assert bed.content("a") == b"before".ljust(2 * SECTOR, b"\0")


def test_a_sync_does_not_cover_a_write_that_has_not_ended(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    file = bed.made("a", bytes(2 * SECTOR))
    begun, go_on = threading.Event(), threading.Event()
    real = OsFile.pwritev

    def slow(self: OsFile, parts: list[bytes], offset: int) -> None:
        if parts == [b"slow"]:
            begun.set()
            assert go_on.wait(20)
        real(self, parts, offset)

    monkeypatch.setattr(OsFile, "pwritev", slow)
    writer = threading.Thread(target=file.pwritev, args=([b"slow"], 0))
    writer.start()
    assert begun.wait(20)
    file.pwritev([b"quick"], SECTOR)
    file.fdatasync()
    go_on.set()
    writer.join(20)
    bed.power()
    assert bed.content("a") == bytes(SECTOR) + b"quick".ljust(SECTOR, b"\0")


def test_a_torn_write_is_cut_at_sectors(bed: Bed) -> None:
    old, new = b"o" * (8 * SECTOR), b"n" * (8 * SECTOR)
    bed.made("a", old)
    found = set()
    for seed in range(40):
        bed.files.open(bed.path("a")).pwritev([new], 0)
        bed.power(Loss.TORN, seed)
        content = bed.content("a")
        pieces = [content[at : at + SECTOR] for at in range(0, len(content), SECTOR)]
        assert all(piece in (old[:SECTOR], new[:SECTOR]) for piece in pieces)
        found.add("".join(chr(piece[0]) for piece in pieces))
        (bed.store / "a").write_bytes(old)
    assert "o" * 8 in found
    assert "n" * 8 in found
    assert len(found) > 5


# Names


def test_a_new_file_is_lost_without_a_sync_of_its_directory(bed: Bed) -> None:
    file = bed.files.open(bed.path("a"), create=True)
    file.pwritev([b"x"], 0)
    file.fdatasync()
    bed.power()
    assert bed.tree() == {}


def test_a_removed_file_comes_back_with_its_synced_content(bed: Bed) -> None:
    bed.made("a", b"old").pwritev([b"new"], 0)
    bed.files.unlink(bed.path("a"))
    assert bed.tree() == {}
    bed.power()
    assert bed.tree() == {"a": b"old"}


def test_a_replaced_file_comes_back(bed: Bed) -> None:
    bed.made("a", b"old")
    bed.made("a.tmp", b"new")
    bed.files.rename(bed.path("a.tmp"), bed.path("a"))
    assert bed.tree() == {"a": b"new"}
    bed.power()
    assert bed.tree() == {"a": b"old", "a.tmp": b"new"}


def test_a_synced_rename_stays(bed: Bed) -> None:
    bed.made("a", b"old")
    bed.made("a.tmp", b"new")
    bed.files.rename(bed.path("a.tmp"), bed.path("a"))
    bed.files.sync_dir(str(bed.store))
    assert list((bed.journal / "removed").iterdir()) == []
    bed.power()
    assert bed.tree() == {"a": b"new"}


def test_a_removed_tree_comes_back(bed: Bed) -> None:
    bed.files.mkdir(bed.path("d/e"))
    bed.files.open(bed.path("d/e/f"), create=True)
    bed.files.sync_dir(bed.path("d/e"))
    bed.files.rmtree(bed.path("d"))
    assert bed.tree() == {}
    bed.power()
    assert bed.tree() == {"d": None, "d/e": None, "d/e/f": b""}


def test_a_synced_removal_of_a_tree_leaves_nothing_behind(bed: Bed) -> None:
    bed.files.mkdir(bed.path("d/e"))
    bed.files.open(bed.path("d/e/f"), create=True)
    bed.files.sync_dir(bed.path("d/e"))
    bed.files.rmtree(bed.path("d"))
    bed.files.sync_dir(str(bed.store))
    assert list((bed.journal / "removed").iterdir()) == []
    assert read_journal(bed.journal).names == []
    bed.power()
    assert bed.tree() == {}


def test_a_kill_between_record_and_action_changes_nothing(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.made("a", b"old")
    bed.made("b", b"new")

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    for action in (
        lambda: bed.files.rename(bed.path("b"), bed.path("a")),
        lambda: bed.files.unlink(bed.path("a")),
        lambda: bed.files.open(bed.path("c"), create=True),
    ):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("os.rename", killed)
            patch.setattr("os.replace", killed)
            action()
        bed.power()
        assert bed.tree() == {"a": b"old", "b": b"new"}


def test_a_torn_record_at_the_end_of_the_journal_is_ignored(bed: Bed) -> None:
    bed.made("a", b"old").pwritev([b"new"], 0)
    with (bed.journal / "journal").open("ab") as file:
        file.write(b"\0\0\0\x20torn")
    bed.power()
    assert bed.content("a") == b"old"


def test_a_damaged_journal_is_refused(bed: Bed) -> None:
    bed.made("a", b"old")
    data = bytearray((bed.journal / "journal").read_bytes())
    data[9] ^= 1
    (bed.journal / "journal").write_bytes(data)
    with pytest.raises(ValueError, match="wrong CRC"):
        read_journal(bed.journal)


def test_after_forget_everything_counts_as_durable(bed: Bed) -> None:
    bed.made("a", b"old").pwritev([b"new"], 0)
    forget(bed.journal)
    bed.power()
    assert bed.content("a") == b"new"


def test_a_compacted_journal_says_the_same(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo_journal, "COMPACT_BYTES", 4000)
    file = bed.made("a", b"old" * 100)
    for number in range(200):
        file.pwritev([b"%03d" % number], number)
        file.fdatasync()
    assert (bed.journal / "journal").stat().st_size < 5000
    durable = bed.content("a")
    file.pwritev([b"lost"], 0)
    bed.files.unlink(bed.path("a"))
    other = bed.files.open(bed.path("b"), create=True)
    for number in range(200):
        other.pwritev([b"%03d" % number], number)
        other.fdatasync()
    assert (bed.journal / "journal").stat().st_size < 5000
    bed.power()
    assert bed.tree() == {"a": durable}


# Against the disk of the simulator

NAMES = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a")
DIRECTORIES = ("", "d", "d/e")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(NAMES), st.integers(0, 1500), st.binary(max_size=700)),
        st.tuples(st.just("truncate"), st.sampled_from(NAMES), st.integers(0, 1500)),
        st.tuples(st.just("fsync"), st.sampled_from(NAMES)),
        st.tuples(st.just("create"), st.sampled_from(NAMES)),
        st.tuples(st.just("mkdir"), st.sampled_from(("d", "d/e"))),
        st.tuples(st.just("rename"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
        st.tuples(st.just("remove"), st.sampled_from(NAMES)),
        st.tuples(st.just("rmtree"), st.sampled_from(("d", "d/e"))),
        st.tuples(st.just("sync_dir"), st.sampled_from(DIRECTORIES)),
        st.tuples(st.just("kill")),
    ),
    max_size=40,
)


class Model:
    """The simulator's disk, with the same operations."""

    def __init__(self) -> None:
        world: Any = SimpleNamespace(stream=random.Random, note=None, fault=None)
        self.disk = Disk(world, "disk")

    def fits(self, step: tuple[Any, ...]) -> bool:
        """Whether a file system allows this step."""
        kind, *rest = step
        if kind == "kill":
            return True
        found = self.disk.find(rest[0])
        parent = self.disk.find(rest[0].rpartition("/")[0])
        if kind in ("write", "truncate", "fsync", "remove"):
            return found is not None and not isinstance(found, Directory)
        if kind == "create":
            return found is None and isinstance(parent, Directory)
        if kind == "mkdir":
            return found is None and isinstance(parent, Directory)
        if kind in ("rmtree", "sync_dir"):
            return isinstance(found, Directory)
        target = self.disk.find(rest[1])
        above = self.disk.find(rest[1].rpartition("/")[0])
        if found is None or not isinstance(above, Directory) or rest[1].startswith(rest[0] + "/"):
            return False
        if isinstance(found, Directory):
            return target is None or (isinstance(target, Directory) and not target.names)
        return not isinstance(target, Directory)

    def apply(self, step: tuple[Any, ...]) -> None:
        kind, *rest = step
        if kind == "write":
            if rest[2]:
                self.disk.inode(rest[0]).write((rest[1], rest[2]))
        elif kind == "truncate":
            self.disk.inode(rest[0]).write((rest[1], None))
        elif kind == "fsync":
            inode = self.disk.inode(rest[0])
            inode.commit(inode.written)
        elif kind == "create":
            self.disk.create(rest[0])
        elif kind == "mkdir":
            self.disk.make_directory(rest[0])
        elif kind == "rename":
            self.disk.rename(rest[0], rest[1])
        elif kind == "remove":
            self.disk.remove(rest[0])
        elif kind == "rmtree":
            self._remove_tree(rest[0])
        elif kind == "sync_dir":
            self.disk.sync_names(self.disk.directory(rest[0]), self.disk.name_mark)

    def _remove_tree(self, path: str) -> None:
        place = self.disk.directory(path)
        for name, below in sorted(place.names.items()):
            if isinstance(below, Directory):
                self._remove_tree(f"{path}/{name}")
            else:
                self.disk.remove(f"{path}/{name}")
        self.disk.remove(path)

    def tree(self) -> dict[str, bytes | None]:
        return dict(_walk(self.disk.root, ""))


def _walk(place: Directory, prefix: str) -> Iterator[tuple[str, bytes | None]]:
    for name, thing in sorted(place.names.items()):
        if isinstance(thing, Directory):
            yield prefix + name, None
            yield from _walk(thing, f"{prefix}{name}/")
        else:
            yield prefix + name, bytes(thing.content)


def play(bed: Bed, step: tuple[Any, ...]) -> None:
    kind, *rest = step
    if kind == "kill":
        bed.start()
        return
    path = bed.path(rest[0])
    if kind == "write":
        bed.files.open(path).pwritev([rest[2]], rest[1])
    elif kind == "truncate":
        bed.files.open(path).truncate(rest[1])
    elif kind == "fsync":
        bed.files.open(path).fdatasync()
    elif kind == "create":
        bed.files.open(path, create=True)
    elif kind == "mkdir":
        bed.files.mkdir(path, sync=False)
    elif kind == "rename":
        bed.files.rename(path, bed.path(rest[1]))
    elif kind == "remove":
        bed.files.unlink(path)
    elif kind == "rmtree":
        bed.files.rmtree(path)
    elif kind == "sync_dir":
        bed.files.sync_dir(path)


@settings(max_examples=300, deadline=None)
@given(steps=steps)
def test_a_loss_of_power_leaves_what_it_leaves_on_the_simulated_disk(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    bed, model = Bed(tmp_path_factory.mktemp("bed")), Model()
    for step in steps:
        if model.fits(step):
            play(bed, step)
            model.apply(step)
    assert bed.tree() == model.tree()
    bed.power()
    model.disk.power_cut("none")
    assert bed.tree() == model.tree()
    bed.close()


writes = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3000), st.integers(1, 1500)),
        st.tuples(st.just("synced"), st.integers(0, 3000), st.integers(1, 1500)),
        st.tuples(st.just("allocate"), st.integers(1, 5000), st.just(0)),
        st.tuples(st.just("fsync"), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(steps=writes, seed=st.integers(0, 1 << 16))
def test_each_sector_holds_a_state_that_it_had_since_its_last_sync(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], seed: int
) -> None:
    bed = Bed(tmp_path_factory.mktemp("bed"))
    file = bed.made("a", b"0" * 1000)
    states = [bed.content("a")]
    since: dict[int, int] = {}
    """Maps a sector to the first state that it may hold."""
    all_since = 0
    for number, (kind, offset, length) in enumerate(steps):
        if kind in ("write", "synced"):
            data = bytes([number + 1]) * length
            if kind == "write":
                file.pwritev([data], offset)
            else:
                file.pwritev_synced([data], offset)
        elif kind == "allocate":
            file.allocate(offset)
        else:
            file.fdatasync()
            all_since = len(states)
        states.append(bed.content("a"))
        if kind == "synced":
            for sector in range(offset // SECTOR, (offset + length - 1) // SECTOR + 1):
                since[sector] = len(states) - 1
    bed.power(Loss.TORN, seed)
    result = bed.content("a")
    assert len(result) in [len(state) for state in states[all_since:]]
    for sector in range(-(-len(result) // SECTOR)):
        begin, end = sector * SECTOR, min((sector + 1) * SECTOR, len(result))
        first = max(all_since, since.get(sector, 0))
        allowed = [state[begin:end].ljust(end - begin, b"\0") for state in states[first:]]
        assert result[begin:end] in allowed
    bed.close()

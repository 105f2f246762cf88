"""Planted faults in large stores: each found, classified right, and nothing else, by both engines."""

from __future__ import annotations

import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dledger.audit.findings import CODES, Finding
from dledger.audit.report import Report
from dledger.audit.scan import scan_segment
from dledger.audit.store_directory import open_stores, segment_tasks
from dledger.bench.big_store import MIB, add_key_file, write_big_group
from dledger.formats.snapshot import BEGINS_FILE
from dledger.formats.store_files import encode_json
from dledger.runtime.env import production_env
from dledger.runtime.files import OsFiles
from tests.audit.big_faults import BigGroup, Said, said
from tests.audit.engine import audit

SIZES = [
    pytest.param(300, marks=pytest.mark.slow, id="0.3GB"),
    pytest.param(1000, marks=pytest.mark.soak, id="1GB"),
    pytest.param(2000, marks=pytest.mark.soak, id="2GB"),
]


@pytest.fixture(scope="module", params=SIZES)
def big(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BigGroup]:
    megabytes: int = request.param
    root = tmp_path_factory.mktemp("matrix")
    stores, log = write_big_group(root, megabytes * 1_000_000, segment_size=max(megabytes // 40, 1) * MIB)
    yield BigGroup(root, stores, log, add_key_file(stores[1], log))
    shutil.rmtree(root)


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def group(big: BigGroup, request: pytest.FixtureRequest) -> Iterator[BigGroup]:
    if request.param == "local":
        big.engine = audit
    else:
        session = request.getfixturevalue("spark")
        from dledger.spark.audit_job import audit_stores

        big.engine = lambda stores: audit_stores(session, OsFiles(), [str(store) for store in stores])
    yield big
    big.undo()


def expect(report: Report, found: list[Said], exit_code: int) -> None:
    assert said(report) == sorted(found)
    for each in report.findings:
        assert each.severity == CODES[each.code].severity
    assert report.exit_code == exit_code


def test_whole_stores_are_clean(group: BigGroup, capsys: pytest.CaptureFixture[str]) -> None:
    env = production_env("test")
    (plain,), (with_keys,) = (open_stores(env.files, [str(store)]) for store in group.stores[:2])
    lines = []
    for what, replica in (("scan of one replica", plain), ("the same with its IndexFile", with_keys)):
        with _timed(what, group.log.end, lines):
            for task in segment_tasks(replica):
                assert not [row for row in scan_segment(env.files, task) if isinstance(row, Finding)]
    env.workers.close()
    with _timed("audit of three replicas", 3 * group.log.end, lines):
        expect(group.audit(), [], 0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(lines))
        sys.stdout.write(
            f"\nentries in each: {len(group.log.headers)}; process peak, test data included: {peak} MB\n"
        )


@contextmanager
def _timed(what: str, size: int, lines: list[str]) -> Iterator[None]:
    begun, cpu_begun = time.perf_counter(), time.process_time()
    yield
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu_begun
    lines.append(
        f"{what}, {size / 1e9:.2f} GB: {seconds:.2f} s, {size / seconds / 1e6:.0f} MB/s; "
        f"{cpu:.2f} s of CPU, {size / cpu / 1e6:.0f} MB/s per core"
    )


HEADER_FIELDS = {
    "magic": (3, ["BIT_ROT"]),
    "size": (6, ["BIT_ROT"]),
    "index": (15, ["BIT_ROT"]),
    "term": (23, ["BIT_ROT", "CHAIN_BREAK"]),
    "pos": (30, ["BIT_ROT"]),
    "kind": (32, ["BIT_ROT"]),
    "chain": (38, ["BIT_ROT"]),
    "body crc": (42, ["BIT_ROT"]),
    "body size": (46, ["BIT_ROT"]),
    "body": (160, ["BIT_ROT"]),
}


def test_flipped_bits(group: BigGroup) -> None:
    """Flip bits of headers and bodies on two replicas and of derived files on the third, and rewrite one
    entry."""
    found: list[Said] = []
    for number, (offset, codes) in enumerate(HEADER_FIELDS.values()):
        replica = number % 2
        entry = group.lone(1 + number, 0.3)
        group.flip_entry(replica, entry, offset)
        found += [(code, f"n{replica}", entry.index, entry.index) for code in codes]
    entry = group.lone(1, 0.7)
    group.flip(*_plus(group.index_unit(2, entry.index), 11))
    found.append(("INDEX_FILE", "n2", entry.index, entry.index))
    entry = group.lone(2, 0.7)
    group.flip(*_plus(group.queue_unit(2, entry), 7))
    found.append(("QUEUE_MISMATCH", "n2", entry.index, entry.index))
    entry = group.lone(group.segments - 2, 0.7)
    group.rewrite(2, entry)
    found.append(("DIVERGENT_COMMITTED", "n2", entry.index, entry.index))
    found.append(("CHAIN_BREAK", "n2", entry.index + 1, entry.index + 1))
    expect(group.audit(), found, 3)


def _plus(place: tuple[Path, int], offset: int) -> tuple[Path, int]:
    return place[0], place[1] + offset


def test_flipped_bits_of_the_index_file(group: BigGroup) -> None:
    times, keys = group.lone(3), group.lone(5)
    group.flip(group.keys, group.key_unit(times) + 14, 1)
    group.flip(group.keys, group.key_unit(keys) + 2, 1)
    expect(
        group.audit(),
        [
            ("KEY_MISMATCH", "n1", times.index, times.index),
            ("KEY_MISSING", "n1", keys.index, keys.index),
            ("KEY_DANGLING", "n1", keys.index, keys.index),
            ("KEY_INDEX", "n1", -1, -1),
        ],
        1,
    )


def test_deleted_segments(group: BigGroup) -> None:
    """Head, middle and tail, and a flipped index unit of an entry that is no more."""
    middle, last = group.segments // 2, group.segments - 1
    group.hide(group.segment(0, 0))
    group.hide(group.segment(1, middle))
    group.hide(group.segment(2, last))
    inside = group.lone(middle, 0.4)
    group.flip(*_plus(group.index_unit(1, inside.index), 15))
    found = [
        ("MISSING_SEGMENT", "n0", *group.span(0)),
        ("MISSING_SEGMENT", "n1", *group.span(middle)),
        ("MISSING_ENTRIES", "n2", *group.span(last)),
        ("INDEX_FILE", "n1", inside.index, inside.index),
    ]
    expect(group.audit(), found, 2)


def test_a_head_that_is_gone_was_retired_only_if_the_node_said_so(group: BigGroup) -> None:
    """A snapshot stands at the end of every segment; only retention notes that the log begins there."""
    group.hide(group.segment(0, 0))
    expect(group.audit(), [("MISSING_SEGMENT", "n0", *group.span(0))], 2)
    note = group.node(0) / BEGINS_FILE
    note.write_bytes(encode_json({"pos": group.log.segment_size, "replace": False}))
    group.later(note.unlink)
    expect(group.audit(), [("RETENTION", "n0", *group.span(0))], 0)


def test_tails(group: BigGroup) -> None:
    """Torn on one, far behind on another, of another term on the third."""
    last = group.log.last
    committed, cut = last - 60, last - 3000
    group.hide(group.keys)
    for replica in (0, 2):
        group.commit(replica, last, committed)
    group.cut_derived(0, committed)
    group.cut_index(0, last - 1)
    torn = group.log.headers[last]
    path, offset = group.place(0, torn.pos)
    group.write(path, offset + torn.size // 2, bytes(torn.size - torn.size // 2))
    group.cut(1, cut)
    group.commit(1, cut, cut)
    group.cut(2, committed)
    group.append(2, group.log.headers[committed], term=3, count=20)
    found = [
        ("TORN_TAIL", "n0", last, last),
        ("LAGGING", "n1", cut + 1, committed),
        ("DIVERGENT_UNCOMMITTED", "n2", committed + 1, committed + 20),
    ]
    expect(group.audit(), found, 1)


def test_a_falling_term(group: BigGroup) -> None:
    last = group.log.headers[-1]
    for replica in range(3):
        group.append(replica, last, term=1)
        group.commit(replica, last.index + 1, last.index + 1)
    at = last.index + 1
    expect(group.audit(), [("TERM_REGRESSION", f"n{number}", at, at) for number in range(3)], 3)


def _exchange_directories(group: BigGroup) -> list[Path]:
    """Whole stores under each other's name: every store still says who it is."""
    first, second, _ = group.stores
    aside = first.with_name("aside")
    group.move(first, aside)
    group.move(second, first)
    group.move(aside, second)
    return group.stores


def _exchange_names(group: BigGroup) -> list[Path]:
    first, second = group.node(0), group.node(1)
    group.move(first, first.with_name(second.name))
    group.move(second, second.with_name(first.name))
    return group.stores


def _copy(group: BigGroup) -> list[Path]:
    """Give the first store once more under another path."""
    link = group.stores[0].with_name("copy")
    link.symlink_to(group.stores[0])
    group.later(link.unlink)
    return [*group.stores[:2], link]


def _other_group(group: BigGroup) -> list[Path]:
    group.regroup(2, "elsewhere")
    return group.stores


SWAPS: list[tuple[Callable[[BigGroup], list[Path]], list[Said], int]] = [
    (_exchange_directories, [], 0),
    (_exchange_names, [("MISPLACED", "n0", -1, -1), ("MISPLACED", "n1", -1, -1)], 2),
    (_copy, [("NOT_REPLICAS", "", -1, -1)], 4),
    (_other_group, [("NOT_REPLICAS", "", -1, -1)], 4),
]


@pytest.mark.parametrize(("swap", "found", "exit_code"), SWAPS, ids=[each[0].__name__ for each in SWAPS])
def test_swapped_replicas(
    swap: Callable[[BigGroup], list[Path]], found: list[Said], exit_code: int, group: BigGroup
) -> None:
    expect(group.audit(swap(group)), found, exit_code)


def test_unreadable_segments_are_not_lost(group: BigGroup) -> None:
    """Two copies of three cannot be read: unknown."""
    middle = group.segments // 2
    for replica in (0, 1):
        group.unreadable(group.segment(replica, middle))
    found: list[Said] = [("UNREADABLE", "n0", -1, -1), ("UNREADABLE", "n1", -1, -1)]
    expect(group.audit(), found, 4)

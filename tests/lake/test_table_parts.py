"""A table that is filled in parts, as by a Spark job, is the same as one that a single writer fills."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from dledger.lake.log_reading import LogDamaged, LogPlace, LogState
from dledger.lake.parts import Part, PartsWriter, Task, births_in
from dledger.lake.table_audit import audit_table
from dledger.lake.tables import About, TableError, TopicTable
from dledger.lake.typed import schema_of
from dledger.lake.writer import TableWriter
from tests.audit.store_builder import Log
from tests.lake.lake_kit import Group, counts, delete_topic, make_topic, rows_of, sent

PART_BYTES = 4000


def run(task: Task, parts: Sequence[Part]) -> list[Any]:
    """Run the tasks at the same time; what they are given and return goes through pickle, as with Spark."""
    with ThreadPoolExecutor(4) as pool:
        found = [
            pool.submit(pickle.loads(pickle.dumps(task)), pickle.loads(pickle.dumps(part))) for part in parts
        ]
        return [pickle.loads(pickle.dumps(one.result())) for one in found]


def fill(
    group: Group, run: Callable[[Task, Sequence[Part]], list[Any]] = run, part_bytes: int = PART_BYTES
) -> TopicTable:
    table = group.table()
    PartsWriter(table, group.write(), lambda first: {}, run, part_bytes=part_bytes).catch_up()
    table.refresh()
    return table


def is_proven(group: Group, table: TopicTable) -> None:
    assert not audit_table(table, [group.write()]).findings
    assert not audit_table(table).findings


def test_rows_are_those_of_the_log(tmp_path: Path, format: str) -> None:
    group = Group(tmp_path, format=format)
    parts: list[int] = []

    def counted(task: Task, given: Sequence[Part]) -> list[Any]:
        parts.append(len(given))
        return run(task, given)

    table = fill(group, counted)
    assert parts[0] > 5
    assert counts(rows_of(table)) == {(topic, queue): list(range(n)) for topic, queue, n in sent(group.log)}
    assert table.count() == len(rows_of(table))
    is_proven(group, table)


def test_it_goes_on_where_another_kind_of_writer_ended(tmp_path: Path, format: str) -> None:
    group = Group(tmp_path, format=format)
    group.fill()
    for number in range(200):
        group.log.message("orders", b"more %d" % number, queue_id=number % 2)
    fill(group)
    for number in range(50):
        group.log.message("orders", b"at last %d" % number, queue_id=number % 2)
    table = group.fill()
    assert counts(rows_of(table)) == {(topic, queue): list(range(n)) for topic, queue, n in sent(group.log)}
    is_proven(group, table)


def test_each_row_has_the_life_of_its_topic(tmp_path: Path, format: str) -> None:
    log = Log()
    log.open_term(1)
    for count in (40, 50, 60):
        make_topic(log)
        for number in range(count):
            log.message("orders", b"%d " % number * 40, queue_id=number % 2)
        if count != 60:
            delete_topic(log)
    (whole, parted) = (tmp_path / "whole", tmp_path / "parted")
    first, second = Group(whole, log, format=format), Group(parted, log, format=format)
    rows = rows_of(first.fill())
    table = fill(second, part_bytes=1500)
    assert rows_of(table) == rows and len({row["life"] for row in rows}) == 3
    is_proven(second, table)


@pytest.mark.parametrize("topic", ["orders", "%RETRY%group", "a-b_c|d"])
def test_topics_of_one_table_and_typed_bodies(tmp_path: Path, format: str, topic: str) -> None:
    log = Log()
    log.open_term(1)
    for number in range(200):
        log.message((topic, "payments")[number % 2], b'{"n": %d}' % number if number % 5 else b"none")
    schema = tmp_path / "n.json"
    schema.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}}')
    about = About((topic, "payments"), schema_of(str(schema)))
    group = Group(tmp_path, log, about, format)
    table = fill(group, part_bytes=1500)
    assert table.count() == 200
    values = [row["value"] for batch in table.scan(["value"]) for row in batch.to_pylist()]
    assert sorted(one["n"] for one in values if one) == [n for n in range(200) if n % 5]
    is_proven(group, table)


def test_files_of_tasks_that_ran_twice_are_in_no_version(tmp_path: Path, format: str) -> None:
    group = Group(tmp_path, format=format)

    def twice(task: Task, parts: Sequence[Part]) -> list[Any]:
        run(task, parts)
        return run(task, parts)

    table = fill(group, twice)
    assert counts(rows_of(table)) == {(topic, queue): list(range(n)) for topic, queue, n in sent(group.log)}
    is_proven(group, table)


def test_another_writer_that_is_faster_costs_nothing(tmp_path: Path, format: str) -> None:
    """It adds the same entries while the tasks write their files."""
    group = Group(tmp_path, format=format)
    others = iter([True])

    def overtaken(task: Task, parts: Sequence[Part]) -> list[Any]:
        found = run(task, parts)
        if task is not births_in and next(others, False):
            group.writer().catch_up()
        return found

    table = fill(group, overtaken)
    assert not next(others, False)
    assert counts(rows_of(table)) == {(topic, queue): list(range(n)) for topic, queue, n in sent(group.log)}
    is_proven(group, table)


def test_another_writer_that_gets_further_is_no_fault_of_the_log(tmp_path: Path, format: str) -> None:
    """It adds entries that were committed after the tasks were planned."""
    group = Group(tmp_path, format=format)
    log = _Growing(group)

    def overtaken(task: Task, parts: Sequence[Part]) -> list[Any]:
        found = run(task, parts)
        if task is not births_in and log.grow():
            group.writer().catch_up()
        return found

    table = group.table()
    assert PartsWriter(table, log, lambda first: {}, overtaken, part_bytes=PART_BYTES).catch_up() == 0
    is_proven(group, group.table())


@pytest.mark.parametrize("parted", [False, True])
def test_a_log_that_always_grows_is_read_to_where_it_ended_at_first(
    tmp_path: Path, format: str, parted: bool
) -> None:
    """Seen before: under load it never ended."""
    group = Group(tmp_path, format=format)
    log = _Busy(group)
    end = len(group.log.entries)
    if parted:
        PartsWriter(group.table(), log, lambda first: {}, run).catch_up()
    else:
        TableWriter(group.table(), log, lambda first: {}).catch_up()
    assert end <= (group.table().position("c0") or 0) <= end + 1
    is_proven(group, group.table())


class _Growing:
    """The log of a group, which is read again after it has grown."""

    copies = 1

    def __init__(self, group: Group) -> None:
        self._group, self._log, self._grown = group, group.write(), False

    def grow(self) -> bool:
        """Let the log grow, once."""
        if self._grown:
            return False
        self._grown = True
        for number in range(50):
            self._group.log.message("orders", b"later %d" % number)
        self._log = self._group.write()
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class _Busy(_Growing):
    """A log that gets another message whenever it is asked how far it is."""

    asked = 0

    def state(self) -> LogState:
        self.asked += 1
        assert self.asked < 10, "it goes on for ever"
        self._group.log.message("orders", b"one more")
        self._log = self._group.write()
        return self._log.state()


def test_tasks_that_find_another_log_are_refused(tmp_path: Path, format: str) -> None:
    group, other = Group(tmp_path, format=format), Group(tmp_path / "other", Log(), format=format)
    other.log.open_term(1)
    for number in range(400):
        other.log.message("orders", b"of another log %d" % number)
    other.write()
    log = group.write()

    def elsewhere(task: Task, parts: Sequence[Part]) -> list[Any]:
        return run(task, [replace(part, place=LogPlace(str(other.store))) for part in parts])

    with pytest.raises(TableError, match=r"the tasks read another log|do not continue"):
        PartsWriter(group.table(), log, lambda first: {}, elsewhere, part_bytes=PART_BYTES).catch_up()
    assert group.table().count() == 0


def test_each_part_has_its_certificate(tmp_path: Path, format: str) -> None:
    group = Group(tmp_path, format=format)
    report = audit_table(fill(group), [group.write()])
    assert len(report.ranges) > 5


def test_damage_in_the_log_stops_it_before_anything_is_added(tmp_path: Path, format: str) -> None:
    group = Group(tmp_path, format=format)
    group.write()
    segment = next((group.store).rglob("00000000000000000000"))
    content = bytearray(segment.read_bytes())
    entry = group.log.entries[100]
    content[entry.pos + 60] ^= 1
    segment.write_bytes(content)
    with pytest.raises(LogDamaged):
        fill(group)
    assert group.table().count() == 0


def test_a_log_without_messages_of_the_topic_moves_the_position(tmp_path: Path, format: str) -> None:
    group = Group(tmp_path, about=About(("nothing",)), format=format)
    table = fill(group)
    assert table.count() == 0 and table.position("c0") == len(group.log.entries)
    assert PartsWriter(table, group.write(), lambda first: {}, run).catch_up() == 0
    is_proven(group, table)

"""A table is filled with each message of its topics exactly once, whatever happens to its writers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import pyarrow as pa

from dledger.client.errors import NoBroker
from dledger.formats.life import Life
from dledger.lake.certificates import Certificate
from dledger.lake.delta import DeltaTopicTable
from dledger.lake.log_reading import Chunk, GroupLog, LogDamaged, LogGone, LogState, StoreLog
from dledger.lake.table_audit import audit_table
from dledger.lake.tables import About, TableChanged, TableError, TopicTable
from dledger.lake.writer import TableWriter
from dledger.spark.stores import open_replicas
from tests.audit.store_builder import Log, flip
from tests.lake.lake_kit import Group, counts, delete_topic, make_topic, rows_of, sent


@pytest.fixture
def group(tmp_path: Path, format: str) -> Group:
    return Group(tmp_path, format=format)


class Killed(Exception):
    """Stands for SIGKILL: nothing after it runs."""


def test_each_message_is_one_row_with_its_place_in_the_log(group: Group) -> None:
    table = group.fill()
    rows = rows_of(table)
    assert counts(rows) == {(topic, queue): list(range(count)) for topic, queue, count in sent(group.log)}
    first = next(row for row in rows if row["tags"])
    assert first["life"] == str(Life("c0", 0))
    entry = group.log.entries[first["log_index"]]
    assert (entry.term, first["broker_group"]) == (first["log_term"], "g0")
    assert first["body"].startswith(b"order ")
    assert first["keys"].startswith("k") and dict(first["properties"])["KEYS"] == first["keys"]
    assert (first["store_time"] - first["born_time"]).total_seconds() == 0.005
    assert first["day"] == first["store_time"].date()


def test_a_writer_goes_on_where_the_table_ends(group: Group) -> None:
    group.fill()
    assert group.writer().catch_up() == 0
    for number in range(20):
        group.log.message("orders", b"later %d" % number, queue_id=1)
    assert group.writer().catch_up() == 20
    assert_exact(group, group.table())


class Hooked:
    """A table that calls functions around each batch."""

    def __init__(
        self,
        table: TopicTable,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self._table, self._before, self._after = table, before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def add(self, rows: pa.Table, certificate: Certificate) -> None:
        self._before()
        self._table.add(rows, certificate)
        self._after()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_writer_that_is_killed_leaves_nothing_twice_and_nothing_out(group: Group, when: str) -> None:
    def die() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Killed

    for _ in range(4):
        left = 3
        with pytest.raises(Killed):
            group.writer(Hooked(group.table(), **{when: die})).catch_up()
    assert_exact(group, group.fill())


@pytest.mark.parametrize("when", ["before", "after"])
def test_two_writers_at_once_add_nothing_twice(group: Group, when: str) -> None:
    """One is stopped just before or just after it adds a batch. Meanwhile the other adds all, and more
    comes."""
    stops = 0

    def overtaken() -> None:
        nonlocal stops
        stops += 1
        if stops % 2 and stops < 6:
            group.writer(batch_bytes=3_000 * stops).catch_up()
            for number in range(30):
                group.log.message("orders", b"more %d" % number)

    hooked = Hooked(group.table(), **{when: overtaken})
    for _ in range(4):
        group.writer(hooked).catch_up()
    assert stops > 3
    assert_exact(group, group.fill())


def test_a_batch_without_rows_is_not_added_by_two(tmp_path: Path, format: str) -> None:
    log = Log()
    log.open_term(1)
    for number in range(300):
        log.message("payments", b"%d" % number)
    group = Group(tmp_path, log, format=format)
    other = group.table()
    (stale,) = group.batches(1 << 20)
    for number in range(20):
        log.message("orders", b"%d" % number)
    group.fill()
    for _ in range(2):
        with pytest.raises(TableChanged):
            other.add(stale.rows, stale.certificate)
    assert group.writer().catch_up() == 0
    assert_exact(group, group.table())


def assert_exact(group: Group, table: TopicTable) -> None:
    assert counts(rows_of(table)) == {
        (topic, queue): list(range(count)) for topic, queue, count in sent(group.log, group.about.topics)
    }
    assert not audit_table(table, [group.write()]).findings


def test_lives_of_a_topic_are_told_apart(tmp_path: Path) -> None:
    log = Log()
    log.open_term(1)
    lives = []
    for count in (7, 12, 3):
        lives.append(str(Life("c0", make_topic(log))))
        for number in range(count):
            log.message("orders", b"%d" % number, queue_id=0)
        if count != 3:
            delete_topic(log)
    group = Group(tmp_path, log)
    table = group.writer(batch_bytes=300)
    table.catch_up()
    rows = rows_of(group.table())
    assert [(row["life"], row["offset"]) for row in rows] == [
        (life, offset) for life, count in zip(lives, (7, 12, 3), strict=True) for offset in range(count)
    ]
    assert not audit_table(group.table(), [group.write()]).findings


def test_births_before_the_beginning_of_the_log_are_kept(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.births = {"orders": 17}
    group.fill()
    group.births = {"orders": 1 << 40}  # asked only once
    group.log.message("orders", b"later")
    rows = rows_of(group.fill())
    assert {row["life"] for row in rows} == {str(Life("c0", 17))}


def test_several_topics_are_in_one_table(tmp_path: Path) -> None:
    group = Group(tmp_path, about=About(("orders", "payments")))
    rows = rows_of(group.fill())
    assert counts(rows) == {
        (topic, queue): list(range(count)) for topic, queue, count in sent(group.log, group.about.topics)
    }


def test_a_damaged_entry_stops_the_writer_before_it(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.write()
    flip(group.store, group.log.entries[200], 60)
    with pytest.raises(LogDamaged, match=r"entry 200 is damaged: body CRC differs.*audit"):
        group.writer().catch_up()
    assert all(row["log_index"] < 200 for row in rows_of(group.table()))


def test_a_gap_that_retention_made_is_refused(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.fill()
    filled = len(group.log.entries)
    for number in range(1500):
        group.log.message("orders", b"x" * 100, queue_id=number % 4)
    group.write()
    *gone, last = sorted(next(group.store.glob("dledger-*/data")).iterdir())
    for path in gone:
        path.unlink()
    begin = next(one.index for one in group.log.entries if one.pos == int(last.name))
    text = f"needs entry {filled}, and the log of g0 begins with entry {begin}, as retention deleted"
    with pytest.raises(LogGone, match=text):
        group.writer().catch_up()


def test_a_table_of_others_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "t"), pa.table({"a": [1]}))
    with pytest.raises(TableError, match="did not make"):
        DeltaTopicTable.make(str(tmp_path / "t"), About(("orders",)))
    with pytest.raises(TableError, match="did not make"):
        DeltaTopicTable.open(str(tmp_path / "t"))
    with pytest.raises(TableError, match="no Delta table"):
        DeltaTopicTable.open(str(tmp_path / "none"))
    DeltaTopicTable.make(str(tmp_path / "ours"), About(("orders",)))
    with pytest.raises(TableError, match="is a table of the topics orders, not payments"):
        DeltaTopicTable.make(str(tmp_path / "ours"), About(("payments",)))


def test_a_log_that_does_not_continue_the_table_is_refused(group: Group) -> None:
    """It was restored from a backup, and has gone on with other messages."""
    backup = group.log.copy()
    for number in range(40):
        group.log.message("orders", b"lost %d" % number)
    group.fill()
    rows = rows_of(group.table())
    group.log = backup
    with pytest.raises(TableError, match="is older than the table, or was restored"):
        group.writer().catch_up()
    for number in range(60):
        group.log.message("orders", b"other %d" % number)
    with pytest.raises(LogDamaged, match="does not continue the chain"):
        group.writer().catch_up()
    assert rows_of(group.table()) == rows


def test_a_log_that_begins_where_the_table_ends_goes_on(group: Group) -> None:
    for number in range(700):
        group.log.message("orders", b"x" * 100, queue_id=number % 4)
    segment = max(group.log.segments)
    first = next(one.index for one in group.log.entries if one.pos >= segment)
    log = group.write()
    state = log.state()._replace(committed=first - 1)

    class Shorter(type(log)):  # type: ignore[misc]
        def state(self) -> LogState:
            return state

    log.__class__ = Shorter
    TableWriter(group.table(), log, lambda entry: {}, batch_bytes=2000).catch_up()
    for path in sorted(next(group.store.glob("dledger-*/data")).iterdir()):
        if int(path.name) < segment:
            path.unlink()
    (replica,) = open_replicas([str(group.store)])
    cut = StoreLog(replica, read_bytes=4096)
    assert cut.state().begin == first
    TableWriter(group.table(), cut, lambda entry: {}, batch_bytes=2000).catch_up()
    rows = rows_of(group.table())
    assert counts(rows) == {(topic, queue): list(range(count)) for topic, queue, count in sent(group.log)}
    assert not audit_table(group.table(), [cut]).findings


class Copy:
    """A broker of a group: it has entries from `begin` on, and has applied those up to `applied`."""

    def __init__(self, log: StoreLog, name: str, begin: int, applied: int) -> None:
        self.name, self._log, self._begin, self._applied = name, log, begin, applied

    def state(self) -> LogState:
        return self._log.state()._replace(begin=self._begin, committed=self._applied)

    def chunk(self, first: int) -> Chunk:
        if first < self._begin:
            raise LogGone(self.name)
        if first > self._applied:
            raise NoBroker(self.name)
        return self._log.chunk(first)


def test_what_any_broker_has_is_read(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention is up to each broker, and a follower may be behind."""
    log = group.write()
    end = log.state().committed
    copies = [Copy(log, "behind", 0, end // 2), Copy(log, "late", end // 3, end), Copy(log, "gone", end, end)]
    whole = GroupLog("nowhere:1", "g0")
    monkeypatch.setattr(whole, "_brokers", deque(copies))
    assert whole.state() == log.state()
    TableWriter(group.table(), whole, lambda entry: {}, batch_bytes=2000).catch_up()
    assert_exact(group, group.table())
    monkeypatch.setattr(whole, "_brokers", deque(copies[1:]))
    with pytest.raises(LogGone):
        whole.chunk(0)

"""Dispatch, ConsumeQueue files, snapshots and reading, over a log in memory."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.broker.filter.message_filter import ALL, LOOK, NO, YES, TagFilter
from dledger.broker.store import message_store
from dledger.broker.store.consume_queue import ConsumeQueue, QueueTable, free_units
from dledger.broker.store.message_store import MessageStore, StoreLimits
from dledger.broker.store.reader import GetStatus, Reader
from dledger.errors import InvariantBroken, NodeFailed
from dledger.formats.consume_queue import FILE_SIZE, UNIT, UNITS_PER_FILE
from dledger.formats.entry import HEADER_SIZE, Kind
from dledger.formats.message_ids import java_hash
from dledger.formats.properties import encode_properties
from dledger.formats.record import decode_records, encode_record, system_record
from dledger.formats.state import TopicConfig, offsets_op, pack_op, pack_parts
from dledger.formats.state_file import pack_snapshot, unpack_snapshot
from dledger.host import Chunk
from dledger.runtime.files import OsFiles
from tests.broker.fake_node import FakeLog
from tests.broker.harness import make_env, run


class Store:
    """A store and its log; what is appended is applied."""

    def __init__(self, root: Path, log: FakeLog | None = None, **limits: int) -> None:
        self.log = log or FakeLog()
        self.root = root
        self.env = make_env()
        self.store = MessageStore(self.env, str(root), StoreLimits(**limits))
        self.reader = Reader(self.env, self.store, self.log)
        self.offsets: dict[tuple[str, int], int] = {}
        self.time = 1000

    async def open(self) -> int:
        applied = await self.store.open(self.log)
        self.apply(applied + 1)
        return applied

    def message(
        self, topic: str = "T", queue: int = 0, tags: str = "", offset: int = -1, **more: object
    ) -> int:
        key = (topic, queue)
        if offset < 0:
            offset = self.offsets.get(key, self.store.state.next_offset(topic, queue))
        self.offsets[key] = offset + 1
        self.time += 10
        body = encode_record(
            topic=topic,
            body=f"{topic}{queue}-{offset}".encode(),
            properties=encode_properties({"K": "v", "TAGS": tags} if tags else {}),
            queue_id=queue,
            queue_offset=offset,
            physical_offset=self.log.end_pos + HEADER_SIZE,
            store_timestamp=self.time,
            **more,  # type: ignore[arg-type]
        )
        return self.log.append(body, 1)

    def system(self, body: bytes) -> int:
        return self.log.append(system_record(body, self.log.end_pos + HEADER_SIZE, 0), 1, Kind.SYSTEM)

    def apply(self, first: int | None = None) -> None:
        first = self.store.applied_index + 1 if first is None else first
        if first <= self.log.last_index:
            pos, _ = self.log.entries[first]
            data = memoryview(bytes(self.log.data[pos:]))
            self.store.apply(Chunk(first, self.log.last_index - first + 1, pos, data))

    def bodies(self, topic: str = "T", queue: int = 0, offset: int = 0, count: int = 100) -> list[str]:
        result = self.reader.get(topic, queue, offset, count, 1 << 20, ALL)
        assert result is not None
        return [record.body.decode() for record in decode_records(b"".join(result.parts))]

    async def cold(self, topic: str = "T", queue: int = 0, offset: int = 0, count: int = 100) -> list[str]:
        result = await self.reader.get_cold(topic, queue, offset, count, 1 << 20, ALL)
        return [record.body.decode() for record in decode_records(b"".join(result.parts))]

    def queue_bytes(self, topic: str = "T", queue: int = 0, file: int = 0) -> bytes:
        return (self.root / "consumequeue" / topic / str(queue) / f"{file:020d}").read_bytes()


def test_messages_reach_their_queues_and_operations_the_state(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        arrivals: list[list[str]] = []
        store.store.on_arrival = lambda queues: arrivals.append([f"{q.topic}{q.queue_id}" for q in queues])
        store.system(pack_op(TopicConfig("T", 2, 2, 6).op()))
        for _ in range(3):
            store.message("T", 0, "A")
            store.message("T", 1)
        store.message("U", 0, "B")
        store.log.append(b"raw", 1, Kind.RAW)
        store.apply()
        assert arrivals == [["T0", "T1", "U0"]]
        assert store.store.state.topics["T"].read_queues == 2
        assert store.bodies("T", 1) == ["T1-0", "T1-1", "T1-2"]
        queue = store.store.queues.get("T", 0)
        assert queue is not None
        units = list(UNIT.iter_unpack(queue.read_hot(0, 10) or b""))
        assert [code for _, _, code in units] == [java_hash("A")] * 3
        assert units[0][0] == queue.bounds.first_position
        assert store.store.state.last_store_time_ms == store.time
        assert store.store.applied_index == store.log.last_index

    run(test)


def test_a_message_out_of_order_stops_the_node(tmp_path: Path) -> None:
    async def test() -> None:
        for offset in (0, 2):
            store = Store(tmp_path / str(offset))
            await store.open()
            store.message()
            store.message(offset=offset)
            with pytest.raises(InvariantBroken, match="expected 1"):
                store.apply()

    run(test)


def test_entries_are_not_applied_twice(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        store.message()
        store.apply()
        with pytest.raises(InvariantBroken):
            store.apply(0)

    run(test)


def test_prepared_and_rolled_back_messages_take_no_place(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        store.message(sys_flag=4, offset=0)
        store.message(sys_flag=12, offset=0)
        store.message(sys_flag=8, offset=0)
        store.apply()
        assert store.bodies() == ["T0-0"]

    run(test)


def test_records_of_other_writers_are_dispatched_too(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        wide = "w" * 130
        store.message(wide, tags="A")
        store.message()
        store.apply()
        assert store.bodies(wide) == [f"{wide}0-0"] and len(store.bodies()) == 1

    run(test)


@pytest.mark.parametrize("body", [b"", b"x" * 91, b"\xff" * 200])
def test_what_is_no_record_is_skipped_and_counted(tmp_path: Path, body: bytes) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        store.log.append(body, 1)
        store.log.append(body, 1, Kind.SYSTEM)
        store.message()
        store.apply()
        assert store.bodies() == ["T0-0"]
        assert store.store.dispatcher.malformed + store.store.state.skipped >= 1

    run(test)


def test_entries_of_an_unknown_kind_are_skipped(tmp_path: Path) -> None:
    """A newer program may have written them (safety.md S13): the log holds them, nothing else does."""

    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        store.message()
        store.log.append(b"from the future", 1, 200)
        store.message()
        store.apply()
        assert store.bodies() == ["T0-0", "T0-1"]
        assert store.store.applied_index == store.log.last_index

    run(test)


def test_a_restart_from_a_snapshot_replays_only_the_rest(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        for number in range(10):
            store.message(queue=number % 2, tags="A")
        store.apply()
        await store.store.save_snapshot()
        snapshot_index = store.log.last_index
        store.message()
        store.apply()
        await store.store.flush()  # units beyond the snapshot are in the file

        again = Store(tmp_path, store.log)
        assert await again.open() == snapshot_index
        assert again.store.state == store.store.state
        assert await again.cold() == [f"T0-{n}" for n in range(6)]
        await again.store.save_snapshot()
        assert len(again.queue_bytes()) == 6 * 20
        assert again.queue_bytes() == store.queue_bytes()

    run(test)


class Recorded(OsFiles):
    """Tells in which order names were made durable, and replaced."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def sync_dir(self, path: str) -> None:
        self.done.append(path)
        super().sync_dir(path)

    def rename(self, old: str, new: str) -> None:
        self.done.append(f"-> {new}")
        super().rename(old, new)


def test_names_of_new_queues_are_durable_before_a_snapshot_counts_on_them(tmp_path: Path) -> None:
    async def test() -> None:
        files = Recorded()
        store = Store(tmp_path)
        store.store._env = replace(store.env, files=files)
        await store.open()

        async def saved() -> set[str]:
            files.done.clear()
            store.apply()
            await store.store.flush()
            flushed = list(files.done)
            await store.store.save_snapshot()
            assert not flushed, "ten thousand queues would take 40 s"
            published = files.done.index(f"-> {tmp_path}/state/snapshot")
            queues = f"{tmp_path}/consumequeue"
            before = [name for name in files.done[:published] if name.startswith(queues)]
            assert len(before) == len(set(before))
            return {name.removeprefix(queues) for name in before}

        store.message("T", 0)
        store.message("T", 1)
        store.message("U", 0)
        assert await saved() == {"", "/T", "/T/0", "/T/1", "/U", "/U/0"}
        store.message("T", 0)
        assert await saved() == set()
        store.message("T", 2)
        assert await saved() == {"", "/T", "/T/2"}

    run(test)


def test_queues_that_do_not_count_are_out_of_the_way_at_once_and_removed_later(tmp_path: Path) -> None:
    def there() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("consumequeue"))

    async def test() -> None:
        log = None
        for life in (1, 2):
            store = Store(tmp_path, log)
            await store.open()
            log = store.log
            for topic in range(message_store.MOVED_TOGETHER + 1):
                store.message(f"T{topic}")
            store.apply()
            await store.store.flush()
            (tmp_path / "consumequeue" / f"stray{life}").write_text("no topic")
            assert there() == ["consumequeue", "consumequeue.old-1"][:life], (
                "no snapshot: the log is replayed"
            )
        store = Store(tmp_path, log)
        await store.open()
        assert there() == ["consumequeue", "consumequeue.old-1", "consumequeue.old-2"]
        assert store.bodies("T0") == ["T00-0", "T00-1"]
        parts = 0
        while len(there()) > 1:
            await store.store._remove_moved()
            parts += 1
        assert parts == 4
        await store.store.flush()
        assert store.queue_bytes("T0")

    run(test)


@pytest.mark.parametrize("damage", ["snapshot", "no snapshot", "queue", "ahead"])
def test_what_is_damaged_is_rebuilt_from_the_log(tmp_path: Path, damage: str) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        for _ in range(5):
            store.message()
        store.apply()
        await store.store.save_snapshot()
        snapshot = tmp_path / "state" / "snapshot"
        if damage == "snapshot":
            snapshot.write_bytes(snapshot.read_bytes()[:-1])
        elif damage == "no snapshot":
            snapshot.unlink()
        elif damage == "queue":
            (tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}").write_bytes(bytes(40))
        else:
            del store.log.entries[-1]
        again = Store(tmp_path, store.log)
        assert await again.open() == -1
        assert len(again.bodies()) == len(store.log.entries)

    run(test)


@pytest.mark.parametrize("older", [False, True])
def test_a_snapshot_with_an_entry_that_the_log_replaced_is_refused(tmp_path: Path, older: bool) -> None:
    """`recover --cut-damage` gives the last entry up, and its own takes the place (found by review)."""

    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        for _ in range(5):
            store.message()
        store.apply()
        await store.store.save_snapshot()
        path = tmp_path / "state" / "snapshot"
        saved = unpack_snapshot(path.read_bytes())
        assert (saved.applied, saved.term) == (4, 1)
        if older:
            path.write_bytes(pack_snapshot(saved.applied, saved.end_pos, saved.state))
        again = Store(tmp_path, store.log)
        assert await again.open() == 4, "a state of this log, with and without the term"
        pos, _ = store.log.entries.pop()
        del store.log.data[pos:]
        assert store.log.append(b"the configuration", 1001, Kind.CONFIG) == 4
        again = Store(tmp_path, store.log)
        assert await again.open() == -1
        again.message(offset=4)
        again.apply()
        assert again.bodies() == [f"T0-{number}" for number in range(5)]
        await again.store.save_snapshot()
        assert unpack_snapshot(path.read_bytes()).term == 1
        replica = Store(tmp_path / "replica", store.log)
        assert await replica.open() == -1
        assert pack_parts(replica.store.state) == pack_parts(again.store.state)

    run(test)


def test_a_snapshot_behind_the_log_is_of_no_use(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        for _ in range(9):
            store.message()
        store.apply()
        await store.store.save_snapshot()
        for first, expected in ((9, 8), (10, -1)):
            again = Store(tmp_path, store.log)
            again.log.first_index = first
            again.log.begin_pos = again.log.end_pos
            assert await again.store.open(again.log) == expected

    run(test)


def test_replicas_that_applied_the_same_have_equal_parts(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path / "a")
        await store.open()
        store.system(pack_op(TopicConfig("T", 2, 2, 6).op()))
        for number in range(20):
            store.message("T", number % 2, "A")
        store.system(pack_op(offsets_op("G", [("T", 0, 5), ("T", 1, 3)])))
        store.apply()
        other = Store(tmp_path / "b", store.log)
        await other.open()
        other.store.queues.create(b"read", 0)  # a reader made it: no part of the state
        assert pack_parts(other.store.state) == pack_parts(store.store.state)
        await other.store.log_begins(pack_parts(store.store.state))
        assert pack_parts(other.store.state) == pack_parts(store.store.state), (
            "where a log begins is a replica's own"
        )

    run(test)


def test_a_restored_store_goes_on_where_the_snapshot_ended(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path / "a")
        await store.open()
        store.system(pack_op(TopicConfig("T", 2, 2, 6).op()))
        for _ in range(10):
            store.message()
        store.system(pack_op(offsets_op("G", [("T", 0, 5)])))
        store.apply()
        parts, index, pos = pack_parts(store.store.state), store.log.last_index, store.log.end_pos
        other = Store(tmp_path / "b", store.log)
        await other.open()
        await other.store.save_snapshot()  # what it held before goes
        other.store._messages_flushed = 5  # as many as it had flushed, and as will come
        await other.store.restore(parts, index, pos)
        assert other.store.applied_index == index and pack_parts(other.store.state) == parts
        assert other.store.state.consumer_offset("G", "T", 0) == 5
        result = other.reader.get("T", 0, 3, 10, 1 << 20, ALL)
        assert result is not None
        assert (result.status, result.next_offset, result.min_offset) == (GetStatus.OFFSET_TOO_SMALL, 10, 10)
        for _ in range(5):
            store.message()
        other.apply()
        assert other.bodies(offset=10) == [f"T0-{number}" for number in range(10, 15)]
        await other.store.save_snapshot()
        again = Store(tmp_path / "b", store.log)
        again.log.first_index = index + 1
        assert await again.open() == store.log.last_index
        assert await again.cold(offset=10) == [f"T0-{number}" for number in range(10, 15)]
        queue = again.store.queues.get("T", 0)
        assert queue is not None and queue.bounds.min == 10

    run(test)


def test_what_retention_took_is_below_the_queues(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        for _ in range(6):
            store.message("T", 0)
        store.apply()
        parts = pack_parts(store.store.state)
        for _ in range(4):
            store.message("T", 0)
            store.message("U", 0)
        store.apply()
        await store.store.log_begins(parts)
        for topic, low in (("T", 6), ("U", 0)):
            queue = store.store.queues.get(topic, 0)
            assert queue is not None and queue.bounds.min == low
        result = store.reader.get("T", 0, 5, 10, 1 << 20, ALL)
        assert result is not None and result.status is GetStatus.OFFSET_TOO_SMALL
        assert store.bodies(offset=6) == ["T0-6", "T0-7", "T0-8", "T0-9"]

    run(test)


def test_queue_files_below_the_log_are_freed(tmp_path: Path) -> None:
    directory = tmp_path / "q"
    directory.mkdir()
    for number in range(3):
        (directory / f"{number * FILE_SIZE:020d}").write_bytes(b"x")
    free_units(OsFiles(), [(str(directory), 2 * UNITS_PER_FILE - 1)])
    assert len(list(directory.iterdir())) == 2
    free_units(OsFiles(), [(str(directory), 2 * UNITS_PER_FILE)])
    assert [path.name for path in directory.iterdir()] == [f"{2 * FILE_SIZE:020d}"]


def test_queues_unknown_to_the_snapshot_are_removed(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        store.message()
        store.apply()
        await store.store.save_snapshot()
        stray = tmp_path / "consumequeue" / "Gone" / "0"
        stray.mkdir(parents=True)
        (stray / f"{0:020d}").write_bytes(bytes(20))
        await Store(tmp_path, store.log).open()
        assert not stray.exists()

    run(test)


def test_memory_of_a_queue_is_bounded_and_the_rest_is_read_from_files(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path, hot_units_queue=4)
        await store.open()
        for _ in range(20):
            store.message()
        store.apply()
        await store.store.flush()
        queue = store.store.queues.get("T", 0)
        assert queue is not None and len(queue.tail) == 4 * 20
        assert store.bodies(offset=16) == [f"T0-{n}" for n in range(16, 20)]
        assert store.reader.get("T", 0, 15, 10, 1000, ALL) is None
        assert await store.cold(offset=0) == [f"T0-{n}" for n in range(20)]
        assert await store.cold(offset=14, count=3) == ["T0-14", "T0-15", "T0-16"]

    run(test)


def test_a_read_that_spans_segments_skips_nothing(tmp_path: Path) -> None:
    """Found by the bench: one range over a segment boundary was taken for messages that are gone."""

    async def test() -> None:
        store = Store(tmp_path)
        store.log.segment_size = 1000
        await store.open()
        for number in range(20):
            if number % 4 == 0:
                store.log.roll()
            store.message()
            store.apply()
        store.log.cold_below = store.log.end_pos
        assert await store.cold() == [f"T0-{n}" for n in range(20)]
        store.log.begin_pos = store.log.end_pos
        store.log.data.clear()
        gone = await store.reader.get_cold("T", 0, 5, 4, 1 << 20, ALL)
        assert (gone.status, gone.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 6)

    run(test)


def test_messages_behind_one_that_goes_while_it_is_read_are_not_passed_over(tmp_path: Path) -> None:
    """With a filter others lie between those that are wanted; it was counted as if none did."""

    async def test() -> None:
        store = Store(tmp_path)
        store.log.segment_size = 1000
        await store.open()
        for number in range(20):
            if number == 4:
                store.log.roll()
                behind = store.log.end_pos
            store.message(tags="A" if number in (0, 4) else "B")
            store.apply()
        store.log.cold_below = store.log.end_pos
        store.log.begin_pos = behind
        wanted = TagFilter({java_hash("A")})
        gone = await store.reader.get_cold("T", 0, 0, 32, 1 << 20, wanted)
        assert (gone.status, gone.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 1)
        found = await store.reader.get_cold("T", 0, gone.next_offset, 32, 1 << 20, wanted)
        assert [record.body for record in decode_records(b"".join(found.parts))] == [b"T0-4"]

    run(test)


def test_a_flush_without_news_looks_at_no_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        looked: list[int] = []
        every = QueueTable.all

        def counted(table: QueueTable) -> list[ConsumeQueue]:
            looked.append(table.count)
            return every(table)

        monkeypatch.setattr(QueueTable, "all", counted)
        for _ in range(3):
            store.message()
            store.apply()
            await store.store.flush()
            await store.store.flush()
        assert looked == [1, 1, 1] and len(store.queue_bytes()) == 3 * 20

    run(test)


def test_queue_files_roll(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path, hot_units_queue=4)
        await store.open()
        store.store.state.bounds("T", 0).next = UNITS_PER_FILE - 2
        for _ in range(4):
            store.message()
        store.apply()
        await store.store.save_snapshot()
        queue = store.store.queues.get("T", 0)
        assert queue is not None
        assert len(store.queue_bytes(file=FILE_SIZE)) == 2 * 20
        queue.tail_start = queue.bounds.next
        queue.tail.clear()
        first = await store.cold(offset=UNITS_PER_FILE - 2)
        assert first == [f"T0-{UNITS_PER_FILE - 2 + n}" for n in range(2)]  # not across a file's end
        assert await store.cold(offset=UNITS_PER_FILE) == [f"T0-{UNITS_PER_FILE + n}" for n in range(2)]

    run(test)


def test_reading_outside_the_queue(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        cases = {("T", 0): (GetStatus.NO_MESSAGE_IN_QUEUE, 0), ("T", 5): (GetStatus.NO_MESSAGE_IN_QUEUE, 0)}
        for (topic, offset), expected in cases.items():
            result = store.reader.get(topic, 0, offset, 1, 1, ALL)
            assert result is not None and (result.status, result.next_offset) == expected
        for _ in range(5):
            store.message()
        store.apply()
        bounds = store.store.state.bounds("T", 0)
        for minimum, offset, status, following in [
            (0, 5, GetStatus.OFFSET_OVERFLOW_ONE, 5),
            (0, 6, GetStatus.OFFSET_OVERFLOW_BADLY, 0),
            (2, 6, GetStatus.OFFSET_OVERFLOW_BADLY, 5),
            (2, 1, GetStatus.OFFSET_TOO_SMALL, 2),
            (0, -1, GetStatus.OFFSET_TOO_SMALL, 0),
        ]:
            bounds.min = minimum
            result = store.reader.get("T", 0, offset, 1, 1, ALL)
            cold = await store.reader.get_cold("T", 0, offset, 1, 1, ALL)
            assert result is not None and result == cold
            assert (result.status, result.next_offset) == (status, following)
            assert (result.min_offset, result.max_offset) == (minimum, 5)

    run(test)


class Odd:
    """Wants messages of tag B by their code, and looks into those of tag A for a property."""

    def __init__(self) -> None:
        self.looked = 0

    def by_code(self, code: int) -> int:
        return YES if code == java_hash("B") else LOOK if code == java_hash("A") else NO

    def by_properties(self, properties: bytes) -> bool:
        self.looked += 1
        return b"TAGS\x01A" in properties and self.looked % 2 == 1

    def cost(self, properties: bytes) -> int:
        return len(properties)


def test_a_filter_that_looks_into_messages_sees_what_it_asks_for(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        for number in range(12):
            store.message(tags="ABC"[number % 3])
        store.apply()
        expected = [0, 1, 4, 6, 7, 10]
        for count, taken, following in ((32, 6, 12), (3, 3, 6), (1, 1, 1)):
            hot = store.reader.get("T", 0, 0, count, 1 << 20, Odd())
            store.log.cold_below = store.log.end_pos
            assert store.reader.get("T", 0, 0, count, 1 << 20, Odd()) is None
            cold = await store.reader.get_cold("T", 0, 0, count, 1 << 20, Odd())
            store.log.cold_below = 0
            assert hot is not None
            for result in (hot, cold):
                records = decode_records(b"".join(result.parts))
                assert [record.queue_offset for record in records] == expected[:taken]
                assert result.next_offset == following

    run(test)


def test_limits_and_filters_of_a_read_hot_and_cold(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        for number in range(10):
            store.message(tags="AB"[number % 2])
            store.message("Other", tags="C")
        store.apply()
        size = len(store.reader.get("T", 0, 0, 1, 1, ALL).parts[0])  # type: ignore[union-attr]
        wanted = TagFilter({java_hash("B")})
        for count, limit, filter_, expected, following in [
            (3, 1 << 20, ALL, [0, 1, 2], 3),
            (10, 2 * size, ALL, [0, 1], 2),
            (10, 1, ALL, [0], 1),
            (2, 1 << 20, wanted, [1, 3], 5),
            (10, 1 << 20, wanted, [1, 3, 5, 7, 9], 10),
        ]:
            hot = store.reader.get("T", 0, 0, count, limit, filter_)
            store.log.cold_below = store.log.end_pos
            assert store.reader.get("T", 0, 0, count, limit, filter_) is None
            cold = await store.reader.get_cold("T", 0, 0, count, limit, filter_)
            store.log.cold_below = 0
            assert hot is not None
            for result in (hot, cold):
                records = decode_records(b"".join(result.parts))
                assert [record.queue_offset for record in records] == expected
                assert (result.status, result.next_offset) == (GetStatus.FOUND, following)
                assert result.size == sum(len(part) for part in result.parts)
        nothing = store.reader.get("T", 0, 0, 10, 1000, TagFilter({1}))
        assert nothing is not None and nothing.status is GetStatus.NO_MATCHED_MESSAGE
        assert nothing.next_offset == 10

    run(test)


def test_offsets_by_time(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        assert await store.reader.offset_by_time("T", 0, 5, upper=False) == 0
        assert await store.reader.earliest_time("T", 0) == -1
        for _ in range(6):
            store.message()
        store.apply()
        first = 1010
        assert await store.reader.earliest_time("T", 0) == first
        for timestamp, lower, upper in [
            (0, 0, 0),
            (first, 0, 0),
            (first + 1, 1, 0),
            (first + 10, 1, 1),
            (first + 50, 5, 5),
            (first + 51, 6, 5),
        ]:
            for cold_below in (0, store.log.end_pos):
                store.log.cold_below = cold_below
                assert await store.reader.offset_by_time("T", 0, timestamp, upper=False) == lower
                assert await store.reader.offset_by_time("T", 0, timestamp, upper=True) == upper

    run(test)


def test_messages_by_position(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        store.message()
        store.system(pack_op(TopicConfig("T", 2, 2, 6).op()))
        store.apply()
        store.message()  # not applied: not to be seen
        places = [pos + HEADER_SIZE for pos, _ in store.log.entries]
        found = await store.reader.message_at(places[0])
        assert found is not None and found[1].body == b"T0-0"
        for place in (places[1], places[2], places[0] + 1, -1, 1 << 50):
            assert await store.reader.message_at(place) is None

    run(test)


def test_the_background_flushes_and_takes_snapshots(tmp_path: Path) -> None:
    async def test() -> None:
        store = Store(tmp_path, snapshot_entries=3)
        object.__setattr__(store.store.limits, "flush_interval_s", 0.01)
        task = asyncio.ensure_future(store.store.run())
        await asyncio.sleep(0.02)
        await store.open()
        store.message()
        store.apply()
        async with asyncio.timeout(20):
            while not store.store.queues.all()[0].flushed:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert len(store.queue_bytes()) == 20 and store.store.snapshot_index == -1
        for _ in range(3):
            store.message()
        store.apply()
        async with asyncio.timeout(20):
            while store.store.snapshot_index != 3:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        task.cancel()

    run(test)


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("write_units", errno.EMFILE),
        ("sync_file", errno.EMFILE),
        ("publish", errno.EMFILE),
        ("write_units", errno.ENOSPC),
        ("publish", errno.EDQUOT),
    ],
)
def test_full_disks_and_too_many_open_files_are_waited_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, number: int
) -> None:
    """The broker goes on, and writes what it could not."""
    real = getattr(message_store, where)
    failures = [3]

    def failing(*arguments: object) -> object:
        if failures[0]:
            failures[0] -= 1
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    async def test() -> None:
        store = Store(tmp_path, snapshot_entries=3)
        object.__setattr__(store.store.limits, "flush_interval_s", 0.01)
        await store.open()
        monkeypatch.setattr(message_store, where, failing)
        for _ in range(4):
            store.message()
        store.apply()
        task = asyncio.ensure_future(store.store.run())
        async with asyncio.timeout(20):
            while store.store.snapshot_index != 3 or failures[0]:
                assert not task.done(), task.exception()
                await asyncio.sleep(0.005)
        task.cancel()
        again = Store(tmp_path, store.log)
        assert await again.open() == 3 and len(again.queue_bytes()) == 4 * 20

    run(test)


def test_what_one_flush_could_not_write_the_next_one_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked for it: retention flushes, too, and no message need come in between."""

    def failing(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        store.message()
        store.apply()
        with monkeypatch.context() as patch:
            patch.setattr(message_store, "write_units", failing)
            with pytest.raises(OSError, match="Too many"):
                await store.store.flush()
        await store.store.save_snapshot()
        assert len(store.queue_bytes()) == 20

    run(test)


def test_too_many_open_files_at_a_flush_leave_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [2]
    real = message_store.write_units

    def failing(*arguments: object) -> None:
        if failures[0]:
            failures[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        real(*arguments)  # type: ignore[arg-type]

    async def test() -> None:
        store = Store(tmp_path)
        object.__setattr__(store.store.limits, "flush_interval_s", 0.01)
        await store.open()
        monkeypatch.setattr(message_store, "write_units", failing)
        store.message()
        store.apply()
        task = asyncio.ensure_future(store.store.run())
        async with asyncio.timeout(20):
            queue = store.store.queues.get("T", 0)
            while queue is None or queue.flushed != 1:
                assert not task.done(), task.exception()
                await asyncio.sleep(0.005)
        task.cancel()
        assert len(store.queue_bytes()) == 20

    run(test)


def test_others_run_while_a_large_snapshot_is_packed_and_what_they_change_is_not_in_it(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        for number in range(1000):
            store.store.state.apply(pack_op(TopicConfig(f"topic-{number}", 8, 8, 6).op()))
        before, pieces = pack_parts(store.store.state), len(list(store.store.snapshot()))
        saving = asyncio.ensure_future(store.store.save_snapshot())
        await asyncio.sleep(0)
        turns = 0
        while not saving.done():
            turns += 1
            store.store.state.apply(pack_op(TopicConfig(f"later-{turns}", 8, 8, 6).op()))
            await asyncio.sleep(0.0005)
        assert turns > pieces / 2 > 4
        saved = unpack_snapshot((tmp_path / "state" / "snapshot").read_bytes())
        assert pack_parts(saved.state) == before

    run(test)


def test_snapshots_by_entries_take_a_share_of_the_time(tmp_path: Path) -> None:
    """A slow one (many queues to fsync) is followed by a long rest, however many entries come."""

    async def test() -> None:
        store = Store(tmp_path, snapshot_entries=1, snapshot_share=0.001)
        object.__setattr__(store.store.limits, "flush_interval_s", 0.005)
        await store.open()
        task = asyncio.ensure_future(store.store.run())
        store.message()
        store.apply()
        for _ in range(10_000):
            await asyncio.sleep(0.001)
            if store.store.snapshot_index == 0:
                break
        store.message()
        store.apply()
        await asyncio.sleep(0.03)
        assert store.store.snapshot_index == 0, "a save takes at least 0.1 ms, its rest 100 ms"
        task.cancel()

    run(test)


@pytest.mark.parametrize("flushed", [True, False])
def test_retention_takes_no_file_from_under_the_next_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushed: bool
) -> None:
    """A queue went on in another file since its last snapshot, and the log begins behind the old one now."""
    monkeypatch.setattr("dledger.broker.store.consume_queue.FILE_SIZE", 100 * UNIT.size)
    monkeypatch.setattr("dledger.broker.store.message_store.UNITS_PER_FILE", 100)

    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        store.system(pack_op(TopicConfig("T", 2, 2, 6).op()))
        for _ in range(95):
            store.message()
        store.apply()
        await store.store.save_snapshot()
        for _ in range(15):
            store.message()
        store.apply()
        if flushed:
            await store.store.flush()
        parts = pack_parts(store.store.state)
        store.message()
        store.apply()
        await store.store.log_begins(parts)
        directory = tmp_path / "consumequeue" / "T" / "0"
        assert [path.name for path in directory.iterdir()] == [f"{100 * UNIT.size:020d}"]
        await store.store.save_snapshot()
        store.message()
        store.apply()
        await store.store.save_snapshot()
        assert [path.name for path in directory.iterdir()] == [f"{100 * UNIT.size:020d}"]

    run(test)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM])
def test_a_failed_fsync_of_units_is_final_whatever_the_error(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written may be gone, and the next fsync would not say so: a snapshot must not count on it."""

    def failing(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    async def test() -> None:
        store = Store(tmp_path, snapshot_entries=1)
        object.__setattr__(store.store.limits, "flush_interval_s", 0.01)
        await store.open()
        monkeypatch.setattr(message_store, "sync_file", failing)
        store.message()
        store.apply()
        async with asyncio.timeout(20):
            with pytest.raises(NodeFailed, match=os.strerror(number)):
                await store.store.run()
        assert store.store.snapshot_index == -1

    run(test)


def test_a_full_disk_is_tried_at_intervals_however_much_is_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try copies all that is pending, on the event loop."""
    tries = 0

    def failing(*arguments: object) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def test() -> None:
        store = Store(tmp_path, snapshot_entries=10**9)
        object.__setattr__(store.store.limits, "flush_interval_s", 0.1)
        object.__setattr__(store.store.limits, "flush_units", 1)
        await store.open()
        monkeypatch.setattr(message_store, "write_units", failing)
        loop = asyncio.get_running_loop()
        began = loop.time()
        task = asyncio.create_task(store.store.run())
        for _ in range(100):
            store.message()
            store.apply()
            await asyncio.sleep(0.005)
        task.cancel()
        assert 1 < tries <= (loop.time() - began) / 0.1 + 2

    run(test)


def test_retention_frees_units_without_room_for_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what makes room."""
    monkeypatch.setattr("dledger.broker.store.consume_queue.FILE_SIZE", 100 * UNIT.size)
    monkeypatch.setattr("dledger.broker.store.message_store.UNITS_PER_FILE", 100)
    real = message_store.write_units

    def failing(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def test() -> None:
        store = Store(tmp_path)
        await store.open()
        for _ in range(150):
            store.message()
        store.apply()
        await store.store.flush()
        for _ in range(200):
            store.message()
        store.apply()
        monkeypatch.setattr(message_store, "write_units", failing)
        await store.store.log_begins(pack_parts(store.store.state))
        names = sorted(path.name for path in (tmp_path / "consumequeue" / "T" / "0").iterdir())
        assert names == [f"{100 * UNIT.size:020d}"], "the next flush goes on in that file"
        with pytest.raises(OSError, match="No space left"):
            await store.store.save_snapshot()
        monkeypatch.setattr(message_store, "write_units", real)
        await store.store.save_snapshot()
        again = Store(tmp_path, store.log)
        assert await again.open() == 349
        assert again.store.state.bounds("T", 0).min == 350

    run(test)

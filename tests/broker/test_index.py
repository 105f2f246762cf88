"""Messages by key: IndexFiles that follow the log, searches in them, and what is built anew."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.audit.key_index import KeyFile as AuditedFile
from dledger.audit.key_index import check_file, open_key_files
from dledger.audit.message_keys import MessageKeys
from dledger.broker.store import index_service, key_files
from dledger.broker.store.index_service import IndexBehind
from dledger.broker.store.message_store import StoreLimits
from dledger.formats.entry import BLANK, HEADER_SIZE
from dledger.formats.index_file import (
    HEADER,
    UNIT,
    IndexFileWriter,
    file_size,
    key_hash,
    unit_offset,
    unpack_index_header,
)
from dledger.formats.record import encode_record
from dledger.remoting.bodies import loads
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import QueryConsumeQueueHeader, QueryMessageHeader
from dledger.runtime.files import OsFiles
from tests.broker.fake_node import FakeLog
from tests.broker.harness import Reply, World, run

SLOTS, UNITS = 7, 20
LIMITS = StoreLimits(index_slots=SLOTS, index_units=UNITS)
EVER = 1 << 62


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is late is the machine's."""
    monkeypatch.setattr(index_service, "CATCH_UP_S", 20.0)


@contextlib.asynccontextmanager
async def indexing(root: Path, log: FakeLog | None = None, **changes: Any) -> AsyncIterator[World]:
    """A broker with its index at work; a clean stop at the end."""
    world = await World(str(root), log, **({"store": LIMITS} | changes)).open()
    tasks = [asyncio.ensure_future(world.broker.index.run())]
    tasks.append(asyncio.ensure_future(world.broker.core.background.run()))
    await asyncio.sleep(0)
    try:
        yield world
        await world.broker.index.close()
        for task in tasks:
            assert not task.done() or task.exception() is None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def killed(root: Path, log: FakeLog) -> None:
    """Index all of a log, and end without writing what memory holds."""
    world = await World(str(root), log, store=LIMITS).open()
    task = asyncio.ensure_future(world.broker.index.run())
    await world.broker.index.search("T", "", 0, EVER, 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def keyed(*keys: str, unique: str = "") -> str:
    text = f"UNIQ_KEY\x01{unique}\x02" if unique else ""
    return text + (f"KEYS\x01{' '.join(keys)}\x02" if keys else "")


async def query(world: World, key: str, topic: str = "T", **more: Any) -> Reply:
    fields = {"maxNum": 64, "beginTimestamp": 0, "endTimestamp": EVER, **more}
    return await world.call(RequestCode.QUERY_MESSAGE, QueryMessageHeader(topic, key, **fields))


def bodies(reply: Reply) -> list[bytes]:
    return [record.body for record in reply.records]


def images(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


def sound(root: Path) -> list[AuditedFile]:
    """The audit's check of each file by itself."""
    found, problems = open_key_files(OsFiles(), str(root / "index"))
    assert not problems
    for file in found:
        assert list(check_file(OsFiles(), "here", AuditedFile(file.path, file.header, SLOTS))) == []
    return found


def test_a_message_is_found_by_each_of_its_keys(tmp_path: Path) -> None:
    async def test() -> None:
        async with indexing(tmp_path) as world:
            await world.send(body=b"0", properties=keyed("a", "b", unique="U0"))
            await world.send(body=b"1", properties=keyed("b", "b", unique="U1"))
            await world.send("Other", body=b"2", properties=keyed("a"))
            await world.send(body=b"3")
            assert bodies(await query(world, "a")) == [b"0"]
            found = await query(world, "b")
            assert bodies(found) == [b"0", b"1"]
            last = await query(world, "U1", uniqueKeyQuery=True, maxNum=0)
            assert bodies(last) == [b"1"]
            assert int(last.ext["indexLastUpdatePhyoffset"]) > found.records[1].physical_offset
            assert last.ext["indexLastUpdateTimestamp"] == str(world.clock.now_ms())
            none = await query(world, "c")
            assert none.code == ResponseCode.QUERY_NOT_FOUND
            assert none.remark == "can not find message, maybe time range not correct"

    run(test)


def test_a_query_has_a_time_and_a_limit(tmp_path: Path) -> None:
    async def test() -> None:
        async with indexing(tmp_path) as world:
            start = world.clock.now_ms()
            for number in range(10):
                await world.send(body=b"%d" % number, properties=keyed("k"))
                world.clock.value += 700
            assert bodies(await query(world, "k", maxNum=3)) == [b"7", b"8", b"9"]
            for first, last in [(0, 9), (3, 5), (4, 4), (9, 9)]:
                wanted = {"beginTimestamp": start + 700 * first, "endTimestamp": start + 700 * last}
                expected = [b"%d" % number for number in range(first, last + 1)]
                assert bodies(await query(world, "k", **wanted)) == expected
            assert (await query(world, "k", beginTimestamp=start + 9000)).code == 22
            assert (await query(world, "k", maxNum=-1)).code == 22

    run(test)


def test_hashes_that_collide_are_told_apart(tmp_path: Path) -> None:
    assert key_hash("T", "Aa") == key_hash("T", "BB")

    async def test() -> None:
        async with indexing(tmp_path) as world:
            await world.send(body=b"0", properties=keyed("Aa"))
            await world.send(body=b"1", properties=keyed("BB"))
            assert bodies(await query(world, "Aa")) == [b"0"]

    run(test)


def test_without_an_index_a_query_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with indexing(tmp_path, store=StoreLimits(index_enable=False)) as world:
            await world.send(properties=keyed("a"))
            reply = await query(world, "a")
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert (reply.remark or "").startswith("this broker keeps no index of message keys")
            assert not (tmp_path / "index").exists()

    run(test)


def test_an_index_that_is_behind_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_service, "CATCH_UP_S", 0.01)

    async def test() -> None:
        world = await World(str(tmp_path), store=LIMITS).open()
        task = asyncio.ensure_future(world.broker.core.background.run())
        await asyncio.sleep(0)
        await world.send(properties=keyed("a"))
        reply = await query(world, "a")
        assert reply.code == ResponseCode.SYSTEM_BUSY and "bytes of log behind" in (reply.remark or "")
        monkeypatch.setattr(index_service, "MAX_WAITING", 0)
        with pytest.raises(IndexBehind):
            await world.broker.index.search("T", "a", 0, EVER, 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(test)


def test_files_are_rolled_and_are_what_rocketmqs_writer_makes(tmp_path: Path) -> None:
    """But that a message's keys are not divided between two files."""

    async def test() -> None:
        async with indexing(tmp_path) as world:
            for number in range(20):
                await world.send(properties=keyed(f"k{number}", f"l{number % 3}", unique=f"U{number}"))
                world.clock.value += 400
            await query(world, "k1")
        log = world.node.log
        files = sound(tmp_path)
        assert len(files) == 4 and all(file.units <= 18 for file in files)
        expected: list[bytearray] = []
        writer: IndexFileWriter | None = None
        for number, (pos, _) in enumerate(message_entries(log)):
            if writer is None or writer.header.count + 3 > UNITS:
                image = bytearray(file_size(SLOTS, UNITS))
                expected.append(image)
                before = writer.header if writer is not None else None
                writer = IndexFileWriter(into(image), SLOTS, UNITS, before)
            stored = world.clock.value - 400 * (20 - number)
            for key in (f"U{number}", f"k{number}", f"l{number % 3}"):
                writer.put(key_hash("T", key), pos + HEADER_SIZE, stored)
        assert images(tmp_path) == [bytes(image) for image in expected]

    run(test)


def test_a_repeated_send_is_looked_for_in_every_file(tmp_path: Path) -> None:
    """Also in the newest one, which is where a repetition mostly finds the first send."""

    async def test() -> None:
        async with indexing(tmp_path) as world:
            for number in range(20):
                await world.send(properties=keyed("k", unique=f"U{number}"))
            await query(world, "k")
            assert len(world.broker.index.files) > 2
            places = [pos + HEADER_SIZE for pos, _ in message_entries(world.node.log)]
            wanted = [("T", f"U{number}") for number in range(20)]
            found = await world.broker.index.find(wanted, 4, 20.0)
            assert [place in positions for place, positions in zip(places, found, strict=True)] == [True] * 20

    run(test)


def into(image: bytearray) -> Callable[[int, bytes], None]:
    def write(offset: int, data: bytes) -> None:
        image[offset : offset + len(data)] = data

    return write


def message_entries(log: FakeLog) -> Iterable[tuple[int, int]]:
    return [entry for entry in log.entries if log.data[entry[0] + 32] == 0]


def test_a_message_with_more_keys_than_a_file_has_room_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with indexing(tmp_path) as world:
            await world.send(body=b"0", properties=keyed("first"))
            await world.send(body=b"1", properties=keyed(*(f"k{number}" for number in range(50))))
            await world.send(body=b"2", properties=keyed("last"))
            for key, body in (("first", b"0"), ("k3", b"1"), ("last", b"2")):
                assert bodies(await query(world, key)) == [body]
            assert (await query(world, "k40")).code == ResponseCode.QUERY_NOT_FOUND
        assert len(sound(tmp_path)) == 3

    run(test)


async def filled(root: Path, count: int = 30) -> FakeLog:
    async with indexing(root) as world:
        for number in range(count):
            await world.send(body=b"%d" % number, properties=keyed(f"k{number}", "all"))
        await query(world, "k0")
        return world.node.log


async def finds_all(root: Path, log: FakeLog, count: int = 30) -> list[str]:
    """All is found after a start; warnings of the index."""
    warned: list[str] = []
    async with indexing(root, log) as world:
        world.env.log.warning = lambda text, **fields: warned.append(f"{text}: {fields}")  # type: ignore[method-assign]
        for number in range(count):
            assert bodies(await query(world, f"k{number}")) == [b"%d" % number], number
        assert len(bodies(await query(world, "all"))) == count
    sound(root)
    return warned


def test_a_clean_stop_leaves_nothing_to_go_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        log = await filled(tmp_path)
        end = log.end_pos
        read: list[int] = []

        def keys_in(data: bytes, base: int) -> key_files.LogKeys:
            read.append(base)
            return original(data, base)

        original = key_files.keys_in
        monkeypatch.setattr(key_files, "keys_in", keys_in)
        assert await finds_all(tmp_path, log) == []
        assert set(read) - {pos for pos, _ in log.entries} == set()
        assert [base for base in read if base >= end]  # the term's own entry; before it the ends of files
        assert len(read) < 10

    run(test)


def test_a_killed_broker_goes_on_behind_what_its_files_hold(tmp_path: Path) -> None:
    async def test() -> None:
        log = await filled(tmp_path, 20)
        world = await World(str(tmp_path), log, store=LIMITS).open()
        for number in range(20, 30):
            await world.send(body=b"%d" % number, properties=keyed(f"k{number}", "all"))
        await killed(tmp_path, log)
        assert await finds_all(tmp_path, log) == []

    run(test)


DAMAGES: dict[str, Callable[[bytearray], None]] = {
    "header of zeros": lambda image: image.__setitem__(slice(0, 40), bytes(40)),
    "header of ones": lambda image: image.__setitem__(slice(0, 40), b"\xff" * 40),
    "more units than there are": lambda image: image.__setitem__(slice(36, 40), (19).to_bytes(4, "big")),
    "a unit of zeros": lambda image: image.__setitem__(
        slice(unit_offset(SLOTS, 3), unit_offset(SLOTS, 4)), bytes(20)
    ),
    "a link that leads elsewhere": lambda image: image.__setitem__(
        slice(unit_offset(SLOTS, 4) - 4, unit_offset(SLOTS, 4)), (5).to_bytes(4, "big")
    ),
    "half a file": lambda image: image.__delitem__(slice(len(image) // 2, None)),
    "nothing": lambda image: image.clear(),
}
"""To the files of 14 messages, of which each has three units (the broker gives them unique keys): 18, 18 and
6."""


LOOKED_AT = ("header of zeros", "header of ones", "half a file", "nothing")
"""Damages of a full file that are seen: it was made durable, so its size, header and both ends are looked
at."""


@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_a_damaged_file_is_built_anew(tmp_path: Path, damage: str, which: int) -> None:
    if which == 0 and damage not in LOOKED_AT:
        pytest.skip("is not looked at")

    async def test() -> None:
        log = await filled(tmp_path, 14)
        before = images(tmp_path)
        assert len(before) == 3
        path = sorted((tmp_path / "index").iterdir())[which]
        image = bytearray(path.read_bytes())
        DAMAGES[damage](image)
        path.write_bytes(image)
        warned = await finds_all(tmp_path, log, 14)
        assert len(warned) == 1 and "rebuilt" in warned[0]
        assert images(tmp_path) == before

    run(test)


def test_files_that_hold_less_than_when_their_place_was_noted(tmp_path: Path) -> None:
    """After a loss of power: `state/index` was fsynced, they were not."""

    async def test() -> None:
        log = await filled(tmp_path, 14)
        path = sorted((tmp_path / "index").iterdir())[2]
        image = bytearray(path.read_bytes())
        header = unpack_index_header(image)
        third = UNIT.unpack_from(image, unit_offset(SLOTS, 3))
        lost = header._replace(count=4, end_position=third[1])
        HEADER.pack_into(image, 0, *lost)
        path.write_bytes(image)
        assert await finds_all(tmp_path, log, 14) == []

    run(test)


def test_the_name_of_a_file_is_durable_before_the_next_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Power takes the newest alone, whose keys are missed: the log is longer than the index."""
    done: list[str] = []
    create, sync_dir = key_files.create, OsFiles.sync_dir

    def noted_create(*arguments: Any) -> key_files.KeyFile:
        done.append("made")
        return create(*arguments)

    def noted_sync(files: OsFiles, path: str) -> None:
        if path == str(tmp_path / "index"):
            done.append("durable")
        sync_dir(files, path)

    monkeypatch.setattr(key_files, "create", noted_create)
    monkeypatch.setattr(OsFiles, "sync_dir", noted_sync)

    async def test() -> None:
        await filled(tmp_path, 14)
        assert done == 3 * ["made", "durable"]

    run(test)


@pytest.mark.parametrize("lost", [[0], [1], [2], [0, 1, 2]])
def test_a_file_that_is_gone_is_built_anew(tmp_path: Path, lost: list[int]) -> None:
    async def test() -> None:
        log = await filled(tmp_path)
        paths = sorted((tmp_path / "index").iterdir())
        for number in lost:
            paths[number].unlink()
        await finds_all(tmp_path, log)
        assert len(images(tmp_path)) == len(paths)

    run(test)


def test_an_index_of_another_log_is_not_believed(tmp_path: Path) -> None:
    async def test() -> None:
        await filled(tmp_path, 12)
        async with indexing(tmp_path / "other") as world:
            for number in range(14):
                await world.send(body=b"%d" % number, properties=keyed(f"n{number}", "every"))
            other = world.node.log
        async with indexing(tmp_path, other) as world:
            assert (await query(world, "k3")).code == ResponseCode.QUERY_NOT_FOUND
            assert bodies(await query(world, "n13")) == [b"13"]
            assert bodies(await query(world, "n3")) == [b"3"]

    run(test)


def test_other_settings_build_the_index_anew(tmp_path: Path) -> None:
    async def test() -> None:
        log = await filled(tmp_path, 12)
        more = StoreLimits(index_slots=11, index_units=40)
        async with indexing(tmp_path, log, store=more) as world:
            assert bodies(await query(world, "k3")) == [b"3"]
        assert [len(image) for image in images(tmp_path)] == [file_size(11, 40)]

    run(test)


def test_retention_takes_the_files_whose_messages_are_gone(tmp_path: Path) -> None:
    async def test() -> None:
        log = await filled(tmp_path)
        count = len(images(tmp_path))
        async with indexing(tmp_path, log) as world:
            await query(world, "k29")
            end = unpack_index_header(images(tmp_path)[1]).end_position
            log.begin_pos = end + 1
            await world.broker.index.log_begins()
            assert len(images(tmp_path)) == count - 2
            assert bodies(await query(world, "k29")) == [b"29"]
            assert (await query(world, "k0")).code == ResponseCode.QUERY_NOT_FOUND
        async with indexing(tmp_path, log) as world:
            assert bodies(await query(world, "k29")) == [b"29"]

    run(test)


def test_many_links_are_not_followed_to_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_files, "MAX_LINKS", 10)

    async def test() -> None:
        log = await filled(tmp_path)
        async with indexing(tmp_path, log) as world:
            reply = await query(world, "all", maxNum=64)
            assert (reply.remark or "").startswith("more messages match than one query may look at")
            assert 0 < len(reply.records) < 30

    run(test)


def test_the_units_of_a_consume_queue(tmp_path: Path) -> None:
    async def test() -> None:
        async with indexing(tmp_path) as world:
            for _ in range(5):
                await world.send(properties="TAGS\x01TagA\x02")
            header = QueryConsumeQueueHeader("T", 0, 1, 2, "CG")
            body = loads((await world.call(RequestCode.QUERY_CONSUME_QUEUE, header)).body)
            positions = [pos + HEADER_SIZE for pos, _ in message_entries(world.node.log)]
            assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 5)
            assert body["filterData"] == "CG@T is not online!"
            assert [unit["physicOffset"] for unit in body["queueData"]] == positions[1:3]
            assert {unit["tagsCode"] for unit in body["queueData"]} == {2598919}
            wanted = {"topic": "T", "subString": "a > 3", "expressionType": "SQL92", "subVersion": 7}
            beat = {
                "clientID": "c",
                "consumerDataSet": [{"groupName": "CG", "subscriptionDataSet": [wanted]}],
            }
            await world.call(RequestCode.HEART_BEAT, None, json.dumps(beat).encode())
            body = loads((await world.call(RequestCode.QUERY_CONSUME_QUEUE, header)).body)
            assert body["subscriptionData"]["subString"] == "a > 3"
            beyond = await world.call(RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueueHeader("T", 0, 5, 2))
            assert beyond.code == 0 and beyond.remark == "Index 5 of 0@T is not exist!"
            unknown = await world.call(RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueueHeader("U", 3, 0, 2))
            assert unknown.code == ResponseCode.SYSTEM_ERROR and unknown.remark == "3@U is not exist!"

    run(test)


def test_slots_are_written_by_pages_or_all(tmp_path: Path) -> None:
    files = OsFiles()
    slots = 600 * 1024 + 5
    for count in (3, 5000):
        target = key_files.create(files, str(tmp_path / f"f{count}"), slots, 10_000, None)
        numbers = np.arange(count)
        keys = MessageKeys(numbers + 1, numbers * 7919 % (1 << 31), numbers + 1, numbers, numbers < 0)
        key_files.append(files, target, keys)
        assert len(target.dirty) == (3 if count == 3 else 600)
        key_files.flush(files, target)
        assert not target.dirty and target.heads is not None
        stored = np.fromfile(target.path, ">i4", slots, offset=40)
        assert (stored == target.heads).all() and stored[-1:] == target.heads[-1:]


# -- windows of the log -----------------------------------------------------------------------------------


def log_of(records: list[bytes]) -> FakeLog:
    log = FakeLog()
    for record in records:
        at = len(log.data) + HEADER_SIZE
        log.append(record[:28] + at.to_bytes(8, "big") + record[36:], 1)
    return log


RECORDS = st.builds(
    lambda topic, keys, unique, body, flag: encode_record(
        topic=topic,
        body=body,
        properties=keyed(*keys, unique=unique),
        sys_flag=flag,
        store_timestamp=1,
    ),
    st.sampled_from(["T", "für", "x" * 130]),
    st.lists(st.sampled_from(["a", "b b", "ü", "𝄞", "", "k" * 300]), max_size=3),
    st.sampled_from(["", "U1", "𝄞"]),
    st.binary(max_size=20),
    st.sampled_from([0, 0, 4, 8, 12]),
)


@settings(deadline=None, max_examples=100)
@given(st.lists(RECORDS, max_size=6))
def test_keys_of_a_window_are_those_of_its_messages_one_by_one(records: list[bytes]) -> None:
    from dledger.formats.index_file import is_indexed, message_keys
    from dledger.formats.record import decode_record

    log = log_of(records)
    found = key_files.keys_in(bytes(log.data), 0)
    expected = [
        (pos + HEADER_SIZE, key_hash(record.topic, key))
        for pos, size in log.entries
        for record in [decode_record(log.data[pos + HEADER_SIZE : pos + size])]
        if is_indexed(record.sys_flag)
        for key in message_keys(record.properties.encode())
    ]
    keys = found.keys
    pairs = [] if keys is None else list(zip(keys.position.tolist(), keys.hashed.tolist(), strict=True))
    assert pairs == expected and found.end == len(log.data)


def test_windows_end_with_whole_entries_and_segments() -> None:
    record = encode_record(topic="T", body=b"x" * 100, properties=keyed("a"), store_timestamp=1)
    data = bytes(log_of([record, record]).data)
    half = len(data) // 2
    places = [HEADER_SIZE, half + HEADER_SIZE]
    for cut in range(len(data) + 1):
        found = key_files.keys_in(data[:cut], 0)
        assert found.end == cut // half * half
        assert found.wanted == (half if 8 <= cut < half else 0)
        assert found.keys is None or found.keys.position.tolist() == places[: cut // half]
    assert key_files.keys_in(data + BLANK.pack(-1, 100), 0).blank
    with pytest.raises(ValueError, match="no entry at 7"):
        key_files.keys_in(bytes(100), 7)

"""`dledger import` and `dledger export`: stores of Apache's become ours, and ours become theirs."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from dledger.audit.store_directory import open_stores
from dledger.broker.timer.timer_wheel import Progress as TimerJudge
from dledger.client.compression import decompress
from dledger.commands.moving.apache_views import ApacheSizes, read_sizes
from dledger.commands.moving.exporting import ExportRequest, _Content, export_store
from dledger.commands.moving.exporting import _read as read_ours
from dledger.commands.moving.importing import Imported, Request, import_stores
from dledger.commands.moving.progress import Progress
from dledger.commands.moving.source_log import LogReader, SourceUnusable, open_source
from dledger.commands.moving.staging import MovingFailed, Target
from dledger.commands.moving.survey import BOOKKEEPING, DELETED, NO_PLACE, REPEATED, TIMER_DONE
from dledger.errors import EXIT_CONFIG
from dledger.files.foreign import foreign_store
from dledger.files.offline import Found, Walk, walk
from dledger.formats.entry import HEADER_SIZE
from dledger.formats.properties import KEYS, TAGS, decode_properties
from dledger.formats.record import SYSTEM_TOPIC, Record, decode_record
from dledger.formats.state import DELAYS, DELETIONS, TIMERS, TRANSACTIONS, ReplicatedState, TimerProgress
from dledger.formats.store_files import segment_name
from dledger.formats.timers import TIMER_TOPIC
from dledger.local.cluster import find_base_port
from dledger.runtime import Ids
from dledger.runtime.files import OsFiles
from tests.audit.apache_store import apache_log, write_apache_store
from tests.audit.engine import audit
from tests.audit.recorded import VERSIONS, Sent, restore
from tests.audit.store_builder import SEGMENT_SIZE as LOG_SEGMENT
from tests.dledger.apache_commit_log import CommitLog, topics_json

SEGMENT_SIZE = 128 * 1024
QUIET = Progress("test", quiet=True)
FILES = OsFiles()
SIZES = ApacheSizes(6000, 500, 2000)


def request(source: Path, to: Path, count: int = 3, **more: Any) -> Request:
    targets = tuple(Target(f"n{number}", str(to / f"n{number}")) for number in range(count))
    return Request(str(source), targets, "G", SEGMENT_SIZE, **more)


def take_over(asked: Request, files: OsFiles = FILES, seed: int = 1) -> Imported:
    return import_stores(files, Ids(random.Random(seed)), asked, QUIET)


def state_of(to: Path, node: str = "n0") -> ReplicatedState:
    return read_ours(FILES, str(to / node / f"dledger-{node}"), SEGMENT_SIZE, QUIET).state


def restored(version: str, root: Path) -> Any:
    recorded = restore(version, root)
    for store in recorded.stores:
        (store / "config").mkdir()
        (store / "config" / "delayOffset.json").write_text('{"offsetTable":{1:3}}')
    return recorded


def messages(store: Path) -> Sent:
    """Every message of a store, ours or Apache's."""
    found: Sent = {}

    def add(record: Record) -> None:
        if record.topic == SYSTEM_TOPIC:
            return
        named = decode_properties(record.properties)
        body = decompress(record.body, record.sys_flag) if record.sys_flag & 1 else record.body
        place = (record.topic, record.queue_id, record.queue_offset)
        assert place not in found
        found[place] = (crc32(body), named.get(TAGS), named.get(KEYS))

    def take(piece: Found) -> None:
        for header in piece.headers:
            add(decode_record(piece.data, header.pos - piece.start - piece.offset + HEADER_SIZE))

    (directory,) = store.glob("dledger-*")
    if (directory / "identity").exists():
        walk(FILES, str(directory), SEGMENT_SIZE, None, take)
    else:
        for message in LogReader(FILES, open_source(FILES, str(store))).messages():
            add(decode_record(message.raw))
    return found


def content(root: Path) -> dict[str, bytes]:
    """Log and index of a store; of an index file, which has 160 MB of zeros, the beginning."""
    return {
        str(path.relative_to(next(root.glob("dledger-*")))): path.open("rb").read(1 << 20)
        for kind in ("data", "index", "snapshots")
        for path in sorted(root.glob(f"dledger-*/{kind}/**/*"))
        if path.is_file() and path.name != "manifest"  # which names the incarnations
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_dledger_store_becomes_a_group(version: str, tmp_path: Path) -> None:
    stores, _, sent = restored(version, tmp_path / "old")
    replicas = tuple(map(str, stores[1:]))
    done = take_over(request(stores[0], tmp_path, replicas=replicas))
    ours = [tmp_path / f"n{number}" for number in range(3)]
    report = audit(ours)
    assert (report.findings, report.entries) == ([], 3 * (done.last_index - done.first_index + 1))
    assert content(ours[0]) == content(ours[1])
    found = messages(ours[2])
    assert {place: found[place] for place in sent} == sent
    assert found == messages(stores[0])
    assert done.messages == len(found)
    state = state_of(tmp_path)
    assert {name: one.read_queues for name, one in state.topics.items()} == {"orders": 4, "payments": 4}
    assert state[DELAYS].rows[1].next == 3


def test_a_commit_log_with_its_tables(tmp_path: Path) -> None:
    log = CommitLog(begin=1 << 20)
    log.next["orders", 0] = 7  # retention took what was before
    log.units["gone", 1], log.next["gone", 1] = [], 5  # and all that this one had
    log.next["deleted", 0] = 0
    for number in range(2000):
        log.put("orders", b"%d" % number, number % 2, {"KEYS": f"k{number}"})
        if number % 100 == 0:
            log.put("%RETRY%cg", b"again %d" % number)
    log.put("SCHEDULE_TOPIC_XXXX", b"later", 2, {"REAL_TOPIC": "orders", "REAL_QID": "0", "DELAY": "3"})
    log.put("orders", b"rolled back", sys_flag=0xC)
    log.put("orders", b"committed", sys_flag=8)
    log.units["lost", 0] = []
    log.put("lost", b"of a topic that was deleted")
    del log.units["lost", 0]
    log.put("rmq_sys_REVIVE_LOG_C", b"{}", 0, {"TAGS": "ack"})
    log.config = {
        "topics.json": topics_json(
            "orders", "%RETRY%cg", "gone", "quiet", "TBW102", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
        ),
        "subscriptionGroup.json": {
            "subscriptionGroupTable": {
                "cg": {"groupName": "cg", "retryMaxTimes": 3, "consumeEnable": True},
                "TOOLS_CONSUMER": {"groupName": "TOOLS_CONSUMER"},
            }
        },
        "consumerOffset.json": b'{"offsetTable":{"orders@cg":{0:500,1:99999},"lost@cg":{0:1},'
        b'"gone@cg":{1:5},"quiet@cg":{2:40}}}',
        "delayOffset.json": b'{"offsetTable":{3:0}}',
    }
    done = take_over(request(log.write(tmp_path / "old"), tmp_path))
    assert done.left_out == {NO_PLACE: 1, BOOKKEEPING: 1, DELETED: 1}
    assert (done.messages, done.topics, done.groups) == (2022, 4, 1)
    state = state_of(tmp_path)
    assert sorted(state.topics) == ["%RETRY%cg", "gone", "orders", "quiet"]
    assert {key: state.offsets["cg"][key] for key in state.offsets["cg"]} == {
        ("orders", 0): 500,
        ("orders", 1): 1000,
        ("gone", 1): 5,
        ("quiet", 2): 40,
    }
    assert state.groups["cg"].retry_max == 3
    assert state.next_offset("orders", 0) == 7 + 1000 + 1
    assert state.next_offset("gone", 1) == 5
    assert state[DELAYS].rows[3].next == 0
    found = messages(tmp_path / "n1")
    assert min(place[2] for place in found if place[:2] == ("orders", 0)) == 7
    assert found["orders", 1, 999] == (crc32(b"1999"), None, "k1999")
    assert audit([tmp_path / f"n{number}" for number in range(3)]).findings == []


def test_a_dledger_log_behind_a_commit_log(tmp_path: Path) -> None:
    old = CommitLog(segment_size=LOG_SEGMENT)
    while len(old.data) < 2.5 * LOG_SEGMENT:
        old.put("old", b"y" * 500)
    log = apache_log(600, begin=3 * LOG_SEGMENT)
    root = write_apache_store(log, tmp_path / "old")
    shutil.rmtree(root / "config")
    (root / "abort").rmdir()
    last = -len(old.data) % LOG_SEGMENT
    old.data += last.to_bytes(4, "big") + (0xCBD43194).to_bytes(4, "big")
    old.config = {"delayOffset.json": {"offsetTable": {}}}
    old.units = {}
    old.write(root)
    done = take_over(request(root, tmp_path))
    assert done.divided_at == 3 * LOG_SEGMENT
    assert len(messages(tmp_path / "n0")) == done.messages > old.count
    assert audit([tmp_path / f"n{number}" for number in range(3)]).findings == []
    reader = LogReader(FILES, open_source(FILES, str(root)))
    found = list(reader.messages())
    assert found[0].topic == b"old"
    assert len(found) == old.count + sum(entry.body_size > 0 for entry in log.entries)
    assert [one.position for one in found] == sorted(one.position for one in found)


def test_a_topic_that_was_made_again_begins_at_0(tmp_path: Path) -> None:
    log = CommitLog()
    for number in range(30):
        log.put("orders", b"first %d" % number, number % 2)
        log.put("other", b"%d" % number)
    log.next["orders", 0] = log.next["orders", 1] = 0
    log.units["orders", 0], log.units["orders", 1] = [], []
    for number in range(10):
        log.put("orders", b"second %d" % number, 1)
    log.put("other", b"repeated", offset=3)
    log.next["other", 0] = 30
    log.units["other", 0].pop()
    log.config = {"topics.json": topics_json("orders", "other")}
    done = take_over(request(log.write(tmp_path / "old"), tmp_path))
    assert done.left_out == {REPEATED: 1}
    state = state_of(tmp_path)
    assert (state.next_offset("orders", 0), state.next_offset("orders", 1)) == (0, 10)
    assert "orders" in state[DELETIONS].rows
    assert audit([tmp_path / f"n{number}" for number in range(3)]).findings == []
    asked = ExportRequest(
        str(tmp_path / "n0"), (Target("n0", str(tmp_path / "back")),), frozenset(), 1 << 20, SIZES
    )
    assert export_store(FILES, asked, QUIET).hidden == 30
    shown = [
        one
        for one in LogReader(FILES, open_source(FILES, str(tmp_path / "back"))).messages()
        if not one.sys_flag & 4
    ]
    assert [one.raw[88:94] for one in shown if one.topic == b"orders"] == [b"second"] * 10


def test_what_is_under_way_goes_on(tmp_path: Path) -> None:
    log = CommitLog()
    half, op = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
    for key in "abcde":
        log.put(half, b"half", 0, {"UNIQ_KEY": key, "PGROUP": "pg", "REAL_TOPIC": "orders", "REAL_QID": "0"})
    log.put(half, b"half", 0, {"UNIQ_KEY": "b", "PGROUP": "pg"})  # put again by a check
    log.put(op, b"1", 0, {"TAGS": "d"})
    log.put(op, b"2,3,", 0, {"TAGS": "d"})
    due = 1_800_000_000_000
    for number in range(10):
        log.put(
            TIMER_TOPIC, b"t%d" % number, 0, {"TIMER_OUT_MS": str(due + number), "UNIQ_KEY": f"t{number}"}
        )
    log.put(TIMER_TOPIC, b"t7", 0, {"TIMER_OUT_MS": str(due + 7), "UNIQ_KEY": "t7", "TIMER_ROLL_TIMES": "1"})
    log.config = {
        "topics.json": topics_json("orders"),
        "consumerOffset.json": {"offsetTable": {f"{half}@CID_RMQ_SYS_TRANS": {"0": 1}}},
        "timercheck": (due + 4).to_bytes(8, "big") + bytes(48),
    }
    root = log.write(tmp_path / "old")
    done = take_over(request(root, tmp_path))
    assert (done.transactions, done.timers, done.left_out[TIMER_DONE]) == (1, 6, 5)
    assert list(state_of(tmp_path)[TRANSACTIONS].rows) == [4]
    assert state_of(tmp_path).next_offset(TIMER_TOPIC, 0) == 6
    assert audit([tmp_path / f"n{number}" for number in range(3)]).findings == []
    asked = ExportRequest(
        str(tmp_path / "n0"), (Target("n0", str(tmp_path / "back")),), frozenset(), 1 << 20, SIZES
    )
    with pytest.raises(MovingFailed, match="6 timers, 1 transactions"):
        export_store(FILES, asked, QUIET)
    left = export_store(FILES, replace(asked, leave=frozenset({"timers", "transactions"})), QUIET)
    assert left.left == {"timers": 6, "transactions": 1}


@pytest.mark.parametrize(
    ("rows", "waiting"),
    [
        ([], [0, 1, 2, 3]),  # none was ever delivered: an imported store that did not run yet
        ([(0, 0, 0)], [0, 1, 2, 3]),
        ([(0, 250, 0)], [2, 3]),
        ([(0, 300, 3)], [3]),
        ([(4, 300, 3)], []),  # all have come, and the table begins behind them
        ([(2, 0, 0)], [2, 3]),
        ([(0, 400, 4), (2, 200, 0)], [2, 3]),  # a clock that went back
    ],
)
def test_an_export_counts_the_timers_that_the_broker_would_deliver(
    rows: list[tuple[int, int, int]], waiting: list[int]
) -> None:
    content = _Content(ReplicatedState(), Walk())
    content.due = {0: 100, 1: 200, 2: 300, 3: 300}
    progress = [TimerProgress(*row) for row in rows]
    for one in progress:
        content.state[TIMERS].put(one)
    assert content.timers == len(waiting)
    judged = [offset for offset, due in content.due.items() if TimerJudge(progress).waits(due, offset)]
    assert judged == waiting or not rows


def popped(log: CommitLog) -> None:
    log.put("rmq_sys_REVIVE_LOG_C", b"{}", 0, {"TAGS": "ck"})


def gap(log: CommitLog) -> None:
    log.put("orders", offset=12)


def batch(log: CommitLog) -> None:
    log.put("orders", sys_flag=0x80)


def delayed(log: CommitLog) -> None:
    log.put("SCHEDULE_TOPIC_XXXX", properties={"DELAY": "1"})


def timer(log: CommitLog) -> None:
    log.put(TIMER_TOPIC, properties={"TIMER_OUT_MS": "5"})


def killed(root: Path, log: CommitLog) -> None:
    (root / "abort").touch()


def rot(root: Path, log: CommitLog) -> None:
    path = sorted((root / "commitlog").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)


def rot_at_the_end(root: Path, log: CommitLog) -> None:
    path = sorted((root / "commitlog").iterdir())[-1]
    data = bytearray(path.read_bytes())
    data[len(log.data) % log.segment_size - 300] ^= 1
    path.write_bytes(data)


def missing(root: Path, log: CommitLog) -> None:
    sorted((root / "commitlog").iterdir())[1].unlink()


def cut(root: Path, log: CommitLog) -> None:
    path = sorted((root / "commitlog").iterdir())[0]
    path.write_bytes(path.read_bytes()[:-4096])


def bad_config(root: Path, log: CommitLog) -> None:
    (root / "config" / "topics.json").write_text('{"topicConfigTable":')


def out_of_range(root: Path, log: CommitLog) -> None:
    (root / "config" / "topics.json").write_text(json.dumps(topics_json("orders") | {}).replace("4", "99999"))


def rocksdb(root: Path, log: CommitLog) -> None:
    (root / "config" / "topics.json").unlink()
    (root / "config" / "topics").mkdir()
    (root / "config" / "topics" / "CURRENT").touch()


def batch_queues(root: Path, log: CommitLog) -> None:
    (root / "batchconsumequeue" / "orders").mkdir(parents=True)


MESSAGES: dict[Callable[[CommitLog], object], str] = {
    popped: "--leave pop",
    gap: "queue offset 12 instead of 10",
    batch: "BatchCQ",
    delayed: "config/delayOffset.json is missing",
    timer: "config/timercheck is missing",
}
STORES: dict[Callable[[Path, CommitLog], object], str] = {
    killed: "abort exists",
    rot: "is damaged at",
    rot_at_the_end: "continue after the end of the log",
    missing: "a file is missing",
    cut: "a file is missing or truncated",
    bad_config: "topics.json",
    out_of_range: "out of range",
    batch_queues: "BatchCQ",
    rocksdb: "in RocksDB",
}


@pytest.mark.parametrize("fault", [*MESSAGES, *STORES], ids=lambda fault: fault.__name__)
def test_what_cannot_be_right_is_refused(fault: Any, tmp_path: Path) -> None:
    log = CommitLog()
    for number in range(10):
        for queue in range(4):
            log.put("orders", b"z" * 6000 + b"%d" % number, queue)
    log.config = {"topics.json": topics_json("orders")}
    if fault in MESSAGES:
        fault(log)
    root = log.write(tmp_path / "old")
    if fault in STORES:
        fault(root, log)
    with pytest.raises((SourceUnusable, MovingFailed), match=(MESSAGES | STORES)[fault]):
        take_over(request(root, tmp_path))
    assert not list(tmp_path.glob("n?/dledger-*"))


@pytest.mark.parametrize("prepared", [0, 1, 2])
@pytest.mark.parametrize("count", [0, 10, 200])
def test_files_that_a_killed_broker_had_prepared_are_the_end_of_the_log(
    count: int, prepared: int, tmp_path: Path
) -> None:
    """RocketMQ makes the next CommitLog file before it needs it, and fills it with zeros."""
    log = CommitLog()
    for number in range(count):
        log.put("orders", b"z" * 1000 + b"%d" % number)
    log.config = {"topics.json": topics_json("orders")}
    root = log.write(tmp_path / "old")
    files = (len(log.data) + log.segment_size - 1) // log.segment_size
    for number in range(files, max(files, 1) + prepared):
        (root / "commitlog" / segment_name(number * log.segment_size)).write_bytes(bytes(log.segment_size))
    killed(root, log)
    assert take_over(request(root, tmp_path, unclean=True)).messages == count
    assert len(messages(tmp_path / "n0")) == count


@pytest.mark.parametrize("prepared", [b"\0" * 4096 + b"x", b"\0" * 65_000 + b"x"])
def test_a_next_file_that_is_not_empty_is_no_end_of_the_log(prepared: bytes, tmp_path: Path) -> None:
    log = CommitLog()
    log.put("orders", b"z" * 1000)
    log.config = {"topics.json": topics_json("orders")}
    root = log.write(tmp_path / "old")
    (root / "commitlog" / segment_name(log.segment_size)).write_bytes(prepared.ljust(log.segment_size, b"\0"))
    killed(root, log)
    with pytest.raises(SourceUnusable, match="is damaged at 1"):
        take_over(request(root, tmp_path, unclean=True))


def test_the_size_that_is_told_is_what_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bytes that were written are shown, not the size of the files, which are prepared as a whole."""
    log = CommitLog(segment_size=32 << 20)
    for _ in range(300):
        log.put("orders", b"z" * 10_000)
    log.config = {"topics.json": topics_json("orders")}
    asked = replace(request(log.write(tmp_path / "old"), tmp_path, count=1), segment_size=32 << 20)
    import_stores(FILES, Ids(random.Random(1)), asked, Progress("import"))
    said = capsys.readouterr().err
    for step in ("reading the source", "writing", "reading it again"):
        assert f"import: {step}: 3 MB\n" in said
    targets = (Target("n0", str(tmp_path / "back")),)
    export_store(
        FILES, ExportRequest(str(tmp_path / "n0"), targets, frozenset(), 1 << 20, SIZES), Progress("export")
    )
    said = capsys.readouterr().err
    for step in ("reading the store", "writing"):
        assert f"export: {step}: 3 MB\n" in said


def test_a_store_that_is_behind_is_refused(tmp_path: Path) -> None:
    log = apache_log(300)
    behind = write_apache_store(log, tmp_path / "n1", "n1")
    log.entries.pop()
    ahead = write_apache_store(log, tmp_path / "n0", "n0", committed=10)
    last = sorted((ahead / "dledger-n0" / "data").iterdir())[-1]
    whole = last.read_bytes()
    last.write_bytes(whole.rstrip(b"\0")[:-200].ljust(len(whole), b"\0"))
    for root in (ahead, behind):
        shutil.rmtree(root / "config")
        shutil.rmtree(root / "consumequeue")
        (root / "abort").rmdir()
        (root / "config").mkdir()
        (root / "config" / "delayOffset.json").write_text('{"offsetTable":{}}')
    with pytest.raises(SourceUnusable, match=r"import from .*/n1"):
        take_over(request(ahead, tmp_path / "to", replicas=(str(behind),)))


class Cut(BaseException):
    """The process is gone."""


class CutFiles(OsFiles):
    """Ends with the nth change of a directory or small file."""

    def __init__(self, left: int) -> None:
        self._left = left

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Cut

    def rename(self, old: str, new: str) -> None:
        self._step()
        super().rename(old, new)

    def sync_dir(self, path: str) -> None:
        self._step()
        super().sync_dir(path)

    def unlink(self, path: str) -> None:
        self._step()
        super().unlink(path)

    @property
    def cut(self) -> bool:
        return self._left < 0


def restart_log() -> CommitLog:
    """With all that a run that goes on must remember: a topic made again, tables, several segments."""
    log = CommitLog()
    for number in range(900):
        log.put("orders", b"%d" % number * 50, number % 3)
        if number == 300:
            for queue in range(3):
                log.next["orders", queue] = 0
                log.units["orders", queue] = []
    log.config = {
        "topics.json": topics_json("orders"),
        "consumerOffset.json": {"offsetTable": {"orders@cg": {"0": 17}}},
    }
    return log


def test_a_run_that_is_cut_short_goes_on(tmp_path: Path) -> None:
    root = restart_log().write(tmp_path / "old")
    whole = take_over(request(root, tmp_path / "whole", count=2, checkpoint_bytes=60_000))
    wanted = content(tmp_path / "whole" / "n0")
    cuts = 0
    for left in [*range(1, 120, 8), 10_000]:
        to = tmp_path / f"cut{left}"
        asked = request(root, to, count=2, checkpoint_bytes=60_000)
        files = CutFiles(left)
        try:
            take_over(asked, files)
        except Cut:
            cuts += 1
            done = take_over(asked, seed=left)
            assert replace(done, resumed=False, cluster="", stores=[]) == replace(
                whole, resumed=False, cluster="", stores=[]
            ), left
        assert content(to / "n0") == wanted, left
        assert not list(to.glob("n?/importing")), left
        assert not list(to.glob("n?/dledger-*/moving-*")), left
        shutil.rmtree(to)
        if not files.cut:
            break
    assert cuts >= 5


def test_another_import_does_not_go_on_with_it(tmp_path: Path) -> None:
    log = restart_log()
    root = log.write(tmp_path / "old")
    asked = request(root, tmp_path, checkpoint_bytes=20_000)
    with pytest.raises(Cut):
        take_over(asked, CutFiles(30))
    with pytest.raises(MovingFailed, match="a run with other arguments is unfinished"):
        take_over(replace(asked, group="H"))
    last = sorted((root / "commitlog").iterdir())[-1]
    last.write_bytes(last.read_bytes())
    with pytest.raises(MovingFailed, match="has changed since the import began"):
        take_over(asked)
    assert "an import into this directory is not finished" in foreign_store(
        FILES, str(tmp_path / "n1"), str(tmp_path / "n1" / "dledger-n1")
    )


def test_no_room_is_said_before_anything_is_written(tmp_path: Path) -> None:
    root = restart_log().write(tmp_path / "old")
    with pytest.raises(MovingFailed, match=r"bytes are needed for 3 stores"):
        take_over(replace(request(root, tmp_path), segment_size=1 << 50))
    assert not list(tmp_path.glob("n?/*"))


@pytest.mark.parametrize("version", VERSIONS)
def test_there_and_back(version: str, tmp_path: Path) -> None:
    """An export keeps places, and leaves zeros where Apache has zeros."""
    stores, _, _ = restored(version, tmp_path / "old")
    take_over(request(stores[0], tmp_path))
    targets = tuple(Target(f"n{number}", str(tmp_path / "back" / f"n{number}")) for number in range(3))
    asked = ExportRequest(str(tmp_path / "n1"), targets, frozenset(), 4096, SIZES)
    done = export_store(FILES, asked, QUIET)
    back = [tmp_path / "back" / f"n{number}" for number in range(3)]
    report = audit(back)
    assert report.findings == []
    replicas = open_stores(FILES, [str(store) for store in back])
    assert all(replica.key_root and replica.queue_root for replica in replicas)
    assert report.entries == 3 * done.entries
    assert messages(back[0]) == messages(stores[0])
    found = list(LogReader(FILES, open_source(FILES, str(back[2]))).messages())
    assert {one.position for one in found} == {
        record.physical_offset for one in found for record in [decode_record(one.raw)]
    }
    assert json.loads((back[1] / "config" / "delayOffset.json").read_text())["offsetTable"] == {"1": 3}
    again = take_over(request(back[1], tmp_path / "again"))
    assert again.messages == done.messages
    assert messages(tmp_path / "again" / "n0") == messages(stores[0])


def test_an_export_that_is_cut_short_goes_on(tmp_path: Path) -> None:
    take_over(request(restart_log().write(tmp_path / "old"), tmp_path))
    found: list[dict[str, bytes]] = []
    for left in (10_000, 5, 20, 40):
        to = tmp_path / f"to{left}"
        targets = (Target("n0", str(to / "a")), Target("n1", str(to / "b")))
        asked = ExportRequest(str(tmp_path / "n0"), targets, frozenset(), 10_000, SIZES)
        try:
            export_store(CutFiles(left), asked, QUIET)
        except Cut:
            export_store(FILES, asked, QUIET)
        assert not list(to.glob("*/importing"))
        found.append(content(to / "a") | {"config": (to / "b" / "config" / "topics.json").read_bytes()})
    assert all(one == found[0] for one in found)


def test_a_node_does_not_begin_beside_a_store_of_apache_s(tmp_path: Path) -> None:
    for version in VERSIONS:
        stores, _, _ = restore(version, tmp_path / version)
        for node in ("n0", "other"):
            told = foreign_store(FILES, str(stores[0]), f"{stores[0]}/dledger-{node}")
            assert "dledger import" in told
            assert "DLedger mode" in told
        (stores[0] / "dledger-n0" / "currterm").unlink()
        assert "DLedger mode" in foreign_store(FILES, str(stores[0]), f"{stores[0]}/dledger-n0")
    root = CommitLog()
    root.put("orders")
    assert "CommitLog" in foreign_store(
        FILES, str(root.write(tmp_path / "plain")), str(tmp_path / "plain/dledger-n0")
    )
    assert foreign_store(FILES, str(tmp_path / "fresh"), str(tmp_path / "fresh" / "dledger-n0")) == ""


@pytest.mark.parametrize(
    ("text", "segment", "queue_file"),
    [
        ("mappedFileSizeCommitLog=16777216\nmappedFileSizeConsumeQueue=30\n", 16 << 20, 40),
        ("mapedFileSizeCommitLog=16777216\nmapedFileSizeConsumeQueue=30\n", 1 << 30, 6_000_000),
        ("mapedFileSizeCommitLog=1\nmappedFileSizeCommitLog = 16777216", 16 << 20, 6_000_000),
        ("mappedFileSizeConsumeQueue: 20\n#mappedFileSizeConsumeQueue=40\nnonsense\n", 1 << 30, 20),
        ("", 1 << 30, 6_000_000),
    ],
)
def test_of_a_broker_conf_of_apache_s_counts_what_apache_s_broker_reads(
    text: str, segment: int, queue_file: int, tmp_path: Path
) -> None:
    """It knows the names with two p since 4.5; files of another size keep it from starting."""
    path = tmp_path / "broker.conf"
    path.write_text(text)
    sizes = read_sizes(str(path))
    assert (sizes.segment, sizes.queue_file) == (segment, queue_file)


@pytest.mark.parametrize("text", ["mappedFileSizeConsumeQueue=large", None])
def test_a_broker_conf_of_apache_s_that_cannot_be_used(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    if text is not None:
        path.write_text(text)
    with pytest.raises(MovingFailed, match=r"broker\.conf"):
        read_sizes(str(path))


def test_a_broker_does_not_start_on_a_store_of_apache_s(tmp_path: Path) -> None:
    store = restore(VERSIONS[0], tmp_path / "old").stores[0]
    base = find_base_port(start=26000)
    settings = {
        "brokerName": "G",
        "brokerIP1": "127.0.0.1",
        "listenPort": base,
        "namesrvAddr": f"127.0.0.1:{base + 1}",
        "storePathRootDir": store,
        "dLegerGroup": "G",
        "dLegerSelfId": "n0",
        "dLegerPeers": f"n0-127.0.0.1:{base + 2}",
        "mapedFileSizeCommitLog": 16 << 20,
    }
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    before = sorted((store / "dledger-n0" / "data").iterdir())
    command = [sys.executable, "-m", "dledger", "broker", "-c", str(conf)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == EXIT_CONFIG
    assert f"dledger import {store}" in done.stdout + done.stderr
    assert sorted((store / "dledger-n0" / "data").iterdir()) == before


@pytest.mark.slow
def test_a_killed_process_goes_on(tmp_path: Path) -> None:
    """SIGKILL at any time, until one gets through."""
    log = CommitLog(segment_size=1 << 20)
    for number in range(40_000):
        log.put("orders", b"%d" % number * 20, number % 4, {"KEYS": f"k{number}"})
    log.config = {"topics.json": topics_json("orders")}
    root = log.write(tmp_path / "old")
    began = time.monotonic()
    take_over(request(root, tmp_path / "whole"))
    whole_s = time.monotonic() - began
    chance = random.Random(5)
    stores = [tmp_path / f"n{number}" for number in range(3)]
    kills = 0
    while True:
        command = [sys.executable, "-m", "dledger", "import", root, *(tmp_path / f"n{n}" for n in range(3))]
        options = ["--group", "G", "--segment-size", str(SEGMENT_SIZE), "--checkpoint", "200000", "--json"]
        process = subprocess.Popen(
            [*map(str, command), *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        if kills < 6:
            while not (tmp_path / "n0" / "importing").exists() and process.poll() is None:
                time.sleep(0.01)
            time.sleep(chance.random() * min(whole_s / 2, 0.8))
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate(timeout=120)
        named = all((one / f"dledger-{one.name}").exists() for one in stores)
        left = [path for one in stores for path in (*one.glob("importing"), *one.glob("*/moving-*"))]
        if process.returncode == 0 or (named and not left):
            break  # also where it was killed as it read again what it had written, which is whole
        assert process.returncode == -signal.SIGKILL, "it goes on, or says that it is done"
    assert audit(stores).findings == []
    assert kills > 1
    assert content(tmp_path / "n0") == content(tmp_path / "whole" / "n0")

"""A table filled from a running group, through kills of leaders and writers, holds what the log holds."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import dledger
from dledger import Producer
from dledger.chaos.workload import Load, check_log
from dledger.lake.certificates import TopicLife
from dledger.lake.log_reading import GroupLog
from dledger.lake.opening import Place, open_table
from dledger.lake.roots import EVERY_H, write_roots, written_roots
from dledger.local.cluster import LocalCluster, wait_for
from tests.cluster.conftest import new_group  # noqa: F401

pytestmark = pytest.mark.slow
TOPIC, QUEUES = "Load", 4
STOPPING = Path(__file__).with_name("stopping_writer.py")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dledger", *arguments]


class Trial:
    """A group, a table, and the writers of the table."""

    def __init__(self, group: LocalCluster, kind: str, directory: Path) -> None:
        self.group, self.kind = group, kind
        self.place = str(directory / "table")
        self.writer: subprocess.Popen[bytes] | None = None

    def lake(self, *more: str) -> list[str]:
        return command(
            "lake",
            TOPIC,
            "--to",
            self.place,
            "--format",
            self.kind,
            "--namesrv",
            self.group.namesrv_addr,
            *more,
        )

    def follow(self) -> None:
        """Start a writer that follows the log."""
        self.writer = subprocess.Popen(self.lake("--follow", "--every", "0.3"), stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill the writer."""
        assert self.writer is not None and self.writer.poll() is None
        self.writer.kill()
        self.writer.wait()

    def once(self, *more: str) -> dict[str, object]:
        """Fill the table to the end of the log."""
        done = subprocess.run(self.lake("--json", *more), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        shown: dict[str, object] = json.loads(done.stdout)
        return shown

    def position(self) -> int:
        try:
            table = open_table(Place(self.kind, self.place, {}))
        except Exception:
            return 0
        return max((table.position(log) or 0 for log in table.logs()), default=0)

    def moved(self, least: int) -> None:
        """Wait until the table has grown."""
        before = self.position()
        wait_for(lambda: self.position() >= before + least, 120, "the table grows")

    def stopped_between_reading_and_adding(self) -> None:
        """A writer stands still before it adds its rows, while another adds them."""
        stale = subprocess.Popen(
            [sys.executable, str(STOPPING), self.group.namesrv_addr, self.kind, self.place],
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
        )
        wait_for(lambda: _state(stale.pid) == "T", 120, "the writer stands still")
        self.once()
        stale.send_signal(signal.SIGCONT)
        assert stale.wait(120) == 0

    def audit(self) -> dict[str, object]:
        """Audit the table."""
        done = subprocess.run(
            command("audit", "table", self.place, "--namesrv", self.group.namesrv_addr, "--json"),
            capture_output=True,
            text=True,
            check=False,
        )
        shown: dict[str, object] = json.loads(done.stdout or "{}") | {
            "exit": done.returncode,
            "err": done.stderr,
        }
        return shown


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize(
    "messages", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak, id="a million")], ids=str
)
def test_a_table_holds_each_message_once_whatever_is_killed(
    new_group: Callable[..., LocalCluster],  # noqa: F811
    tmp_path: Path,
    kind: str,
    messages: int,
) -> None:
    group = new_group()
    group.create_topic(TOPIC, QUEUES)
    trial = Trial(group, kind, tmp_path)
    load = Load(group.namesrv_addr, TOPIC, window=64, steady=False)
    step = messages // 12

    async def session() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run(), name="load")
            try:
                await load.wait_acked(step)
                for number in range(3):
                    await asyncio.to_thread(trial.follow)
                    await asyncio.to_thread(trial.moved, step)
                    if number < 2:
                        killed = await asyncio.to_thread(group.kill_leader)
                        await load.wait_failover(killed.at)
                        await asyncio.to_thread(group.start_node, killed.node)
                        await asyncio.to_thread(group.wait_caught_up)
                        await asyncio.to_thread(trial.moved, step)
                    await asyncio.to_thread(trial.kill)
                await load.wait_acked(step)
                await asyncio.to_thread(trial.stopped_between_reading_and_adding)
                await asyncio.to_thread(trial.once, "--compact")
                while load.acked < messages:
                    await load.wait_acked(min(step, messages - load.acked))
            finally:
                load.stop()

    asyncio.run(session())
    report = check_log(load.history, group.addr(group.wait_leader()), TOPIC, QUEUES)
    assert report.clean, report
    shown = trial.once()
    audited = trial.audit()
    assert audited["exit"] == 0 and audited["findings"] == [], audited
    table = open_table(Place(kind, trial.place, {}))
    places = [
        place for batch in table.scan(("queue", "offset")) for place in zip(*_columns(batch), strict=True)
    ]
    ends = dict(_ends(group))
    assert sorted(places) == [(queue, offset) for queue in range(QUEUES) for offset in range(ends[queue])]
    assert shown["rows"] == len(places) >= messages
    assert {str(one["compared_with"]) for one in audited["ranges"]} == {"log"}  # type: ignore[attr-defined]
    print(f"\n{kind}: {len(places)} rows, {len(audited['ranges'])} ranges")  # type: ignore[arg-type]


def _columns(batch: object) -> Iterator[list[int]]:
    return (column.to_pylist() for column in batch.columns)  # type: ignore[attr-defined]


def _ends(group: LocalCluster) -> Iterator[tuple[int, int]]:
    queues = dledger.read(servers=group.namesrv_addr, view="queues", subscribe=TOPIC).read_all().to_pylist()
    return ((row["partition"], row["maxOffset"]) for row in queues)


def test_table_and_brokers_are_one_history(new_group: Callable[..., LocalCluster], tmp_path: Path) -> None:  # noqa: F811
    """While a producer sends and a writer fills the table, a read has every message up to some point once."""
    group = new_group()
    group.create_topic(TOPIC, QUEUES)
    trial = Trial(group, "delta", tmp_path)
    ended = threading.Event()

    def send() -> None:
        with Producer("p", group.namesrv_addr) as producer:
            number = 0
            while not ended.is_set():
                producer.send_batch([dledger.Message(TOPIC, b"%d" % (number + n)) for n in range(20)])
                number += 20
                time.sleep(0.002)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        wait_for(lambda: sum(end for _, end in _ends(group)) > 200, 60, "messages come")
        trial.once()
        trial.follow()
        for _ in range(6):
            trial.moved(50)
            rows = dledger.read(servers=group.namesrv_addr, table=trial.place).read_all()
            places = set(
                zip(rows.column("partition").to_pylist(), rows.column("offset").to_pylist(), strict=True)
            )
            assert len(places) == rows.num_rows
            for queue in range(QUEUES):
                offsets = sorted(offset for at, offset in places if at == queue)
                assert offsets == list(range(len(offsets)))
            from_table = rows.num_rows - rows.column("logIndex").null_count
            assert 0 < from_table <= rows.num_rows
    finally:
        ended.set()
        sender.join()
        trial.kill()
    rows = dledger.read(servers=group.namesrv_addr, table=trial.place).read_all()
    total = sum(end for _, end in _ends(group))
    assert rows.num_rows == total
    times = sorted(rows.column("storeTimestamp").to_pylist())
    middle = times[total // 2]
    after = dledger.read(
        servers=group.namesrv_addr, table=trial.place, startingTimestamp=middle, columns=["offset"]
    ).read_all()
    assert after.schema.names == ["offset"] and after.num_rows == sum(time >= middle for time in times)
    # A topic that is gone stops neither the table nor its audit.
    subprocess.run(
        command("topic", "delete", TOPIC, "--namesrv", group.namesrv_addr, "--yes"),
        check=True,
        capture_output=True,
    )
    assert trial.once("--drop-deleted")["rows"] == 0
    assert trial.audit()["findings"] == []


def test_a_root_is_written_once_a_day(new_group: Callable[..., LocalCluster], tmp_path: Path) -> None:  # noqa: F811
    group = new_group()
    group.create_topic(TOPIC, QUEUES)
    trial = Trial(group, "delta", tmp_path)
    with Producer("p", group.namesrv_addr) as producer:
        producer.send_batch([dledger.Message(TOPIC, b"%d" % number) for number in range(50)])
    trial.once("--no-roots")
    table = open_table(Place("delta", trial.place, {}))
    assert written_roots(table.uuid, group.namesrv_addr) == []
    trial.once()
    trial.once()
    (root,) = written_roots(table.uuid, group.namesrv_addr)
    for name in ("life", "Value"):
        with pytest.raises(ValueError, match=f"cannot give the column '{name}'"):
            dledger.read(servers=group.namesrv_addr, table=trial.place, columns=[name])
    assert set(dledger.read(servers=group.namesrv_addr).read_all()["topic"].to_pylist()) == {TOPIC}
    assert (root.without(()).rows, root.table, root.first) == (50, table.uuid, 0)
    day_ms = EVERY_H * 3600 * 1000
    with GroupLog(group.namesrv_addr, root.group) as log:
        assert write_roots(table, [log], group.namesrv_addr, root.written_ms + day_ms - 1) == []
        (said,) = write_roots(table, [log], group.namesrv_addr, root.written_ms + day_ms)
    assert "was written to the topic" in said
    assert len(written_roots(table.uuid, group.namesrv_addr)) == 2
    assert trial.audit()["findings"] == []
    table.delete_lives([TopicLife(TOPIC, next(iter(table.scan(["life"]))).column("life")[0].as_py())])
    codes = {found["code"] for found in trial.audit()["findings"]}  # type: ignore[index,attr-defined]
    assert "TABLE_ROOT" in codes

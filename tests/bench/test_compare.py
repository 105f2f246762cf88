"""The comparison with other systems: what is counted, how it is shown, and the protocols that are spoken by
hand."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from dledger.bench.compare import run
from dledger.bench.compare.etcd import _Sender as EtcdSender
from dledger.bench.compare.http2 import Flow
from dledger.bench.compare.load import LOADS, Cell, Figures, cells, measure
from dledger.bench.compare.nats import _Sender as NatsSender
from dledger.bench.compare.rabbitmq import _Sender as RabbitSender
from dledger.bench.compare.streams import StreamSender
from dledger.bench.compare.system import BATCH, FSYNC, CompareError, Done, Nodes, one_by_one, with_children
from dledger.chaos.machine import World
from dledger.runtime.env import Env
from tests.command_line import bench as main


class Fake:
    """Stores each message after `delay_s`; every tenth not at all with `fails`."""

    def __init__(self, delay_s: float = 0.002, fails: bool = False) -> None:
        self.delay_s = delay_s
        self.fails = fails
        self.sent = self.under_way = self.most = 0

    def send(self, done: Done) -> None:
        self.sent += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        number = self.sent

        def stored() -> None:
            self.under_way -= 1
            done(not self.fails or number % 10 != 0)

        asyncio.get_running_loop().call_later(self.delay_s, stored)

    def send_batch(self, done: Done) -> None:
        one_by_one(self.send, done)

    async def close(self) -> None:
        pass


def measured(sender: Fake, cell: Cell, seconds: float, warmup_s: float) -> Figures:
    """Measure it in virtual time, in which nothing takes longer than the sender says."""
    found: list[Figures] = []

    async def main(env: Env) -> None:
        found.append(await measure(sender, cell, [], seconds, warmup_s))

    with World(1) as world:
        process = world.spawn(world.node("n0"), main)
        world.run_until(lambda: process.exit, 60)
    return found[0]


def test_a_window_is_kept_full_and_ends_empty() -> None:
    sender = Fake()
    found = measured(sender, Cell("", window=8), 0.4, 0.1)
    assert sender.most == 8 and sender.under_way == 0
    assert 2.0 <= found.p50_ms <= found.max_ms < 3.0 and found.failed == 0
    assert 8 * 0.4 / 0.003 < found.messages <= 8 * 0.4 / 0.002
    assert found.messages < sender.sent, "the warm-up does not count"


def test_a_rate_does_not_wait_for_answers() -> None:
    sender = Fake(delay_s=0.1, fails=True)
    found = measured(sender, Cell("", rate=500), 0.4, 0.1)
    assert 49 <= sender.most <= 51, "0.1 s each"
    assert 100 <= found.p50_ms < 101 and found.failed == 20


def test_what_is_not_answered_when_the_time_is_over_counts_with_all_that_it_took() -> None:
    class Stalls(Fake):
        """Answers nothing from some time on, for half a second."""

        def send(self, done: Done) -> None:
            self.delay_s = 0.002 if self.sent < 100 else 0.5
            super().send(done)

    found = measured(Stalls(), Cell("", rate=500), 0.4, 0.1)
    assert 500 <= found.p99_ms <= found.max_ms < 503 and found.failed == 0


def test_a_batch_counts_its_messages() -> None:
    sender = Fake(fails=True)
    found = measured(sender, Cell("", window=2, batch=BATCH), 0.3, 0.05)
    assert sender.most == 2 * BATCH and sender.under_way == 0
    assert found.messages == 0 and found.failed > 0, "each batch has one that fails, and so fails"
    found = measured(Fake(), Cell("", window=2, batch=BATCH), 0.3, 0.05)
    assert found.messages > 0 and found.messages % BATCH == 0 and found.failed == 0


@pytest.mark.parametrize(
    ("size", "names"),
    [
        (100, ["one at a time", "1,000 a second", "256 under way", "1024 under way",
               "1,000 a second, right after 1024 under way", "batches of 32, 64 under way"]),
        (1 << 15, ["one at a time", "512 a second", "256 under way", "1024 under way",
                   "512 a second, right after 1024 under way", "batches of 32, 32 under way"]),
        (1 << 20, ["one at a time", "16 a second", "32 under way", "16 a second, right after 32 under way"]),
        (1 << 30, ["one at a time", "1 a second", "1 under way", "1 a second, right after 1 under way"]),
    ],
)  # fmt: skip
def test_large_bodies_have_loads_of_their_own(size: int, names: list[str]) -> None:
    found = cells(size)
    assert [cell.name for cell in found.values()] == names
    assert set(found) <= set(LOADS)


class FakeSystem:
    name, durability, version, batch = "Fake", FSYNC, "1.2", "one by one"

    def __init__(self) -> None:
        self.running = False

    def start(self, directory: Path) -> None:
        assert not list(directory.iterdir())
        self.running = True

    def stop(self) -> None:
        self.running = False

    def pids(self) -> list[int]:
        return [os.getpid()]

    async def connect(self, size: int) -> Fake:
        return Fake()


def test_the_table_has_each_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    system = FakeSystem()
    monkeypatch.setattr(run, "SYSTEMS", {"fake": lambda setting: system})
    monkeypatch.setattr(run, "WARMUP_S", 0.0)
    monkeypatch.setattr(run, "BURST_S", 0.05)
    told: list[str] = []
    setting = run.Setting(size=10, seconds=0.05, turns=2, directory=tmp_path)
    found = run.compare(["fake"], setting, told.append)
    assert not system.running and not list(tmp_path.iterdir())
    table = run.markdown(found)
    assert table.startswith("| fsync of a majority | Fake 1.2 |")
    assert all(f"| {cell.name} | " in table for cell in cells(10).values())
    assert "| what a batch is | one by one |" in table
    assert len(told) == 1 + 2 * (1 + len(LOADS))
    turns = found["systems"]["fake"]["turns"]["one at a time"]
    assert found["systems"]["fake"]["cells"]["one at a time"]["rate"] == sum(one["rate"] for one in turns) / 2


def test_loads_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "SYSTEMS", {"fake": lambda setting: FakeSystem()})
    monkeypatch.setattr(run, "WARMUP_S", 0.0)
    setting = run.Setting(seconds=0.02, loads=("one",), directory=tmp_path)
    table = run.markdown(run.compare(["fake"], setting, lambda text: None))
    assert "one at a time" in table and "under way" not in table and "batch" not in table
    with pytest.raises(CompareError, match="no load of batches is for bodies of 1048576 bytes"):
        run.compare(["fake"], run.Setting(size=1 << 20, loads=("batches",)), lambda text: None)


def test_what_cannot_be_compared_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--systems", "dledger,kafka"]) == 2
    assert "kafka: there are dledger, " in capsys.readouterr().err
    assert main(["compare", "--systems", "dledger", "--loads", "one,two"]) == 2
    assert "two: there are one, steady" in capsys.readouterr().err
    assert main(["compare", "--systems", "rocketmq"]) == 1
    assert "--rocketmq" in capsys.readouterr().err
    with pytest.raises(CompareError):
        run.SYSTEMS["rocketmq"](run.Setting())


class Wire(asyncio.Transport):
    """In place of a connection: what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)

    def close(self) -> None:
        pass


AnySender = NatsSender | EtcdSender | RabbitSender | StreamSender


async def sent(sender: AnySender, count: int) -> tuple[Wire, list[bool]]:
    wire, told = Wire(), list[bool]()
    sender.connection_made(wire)
    for _ in range(count):
        sender.send(told.append)
    await asyncio.sleep(0)
    return wire, told


def in_pieces(sender: AnySender, data: bytes) -> None:
    for at in range(0, len(data), 5):
        sender.data_received(data[at : at + 5])


def test_nats() -> None:
    async def test() -> None:
        sender = NatsSender(b"hello")
        wire, told = await sent(sender, 2)
        assert wire.data.count(b"PUB bench.m _INBOX.bench.2 5\r\nhello\r\n") == 1
        in_pieces(sender, b'INFO {}\r\nPING\r\nMSG _INBOX.bench.2 1 12\r\n{"seq":"\r\n"}\r\n')
        assert told == [True] and wire.data.endswith(b"PONG\r\n")
        in_pieces(sender, b'MSG _INBOX.bench.1 1 12\r\n{"error":{}}\r\n')
        assert told == [True, False]

    asyncio.run(test())


def test_rabbitmq() -> None:
    async def test() -> None:
        sender = RabbitSender(b"x" * 200_000)
        wire, told = await sent(sender, 4)
        assert wire.data.count(b"\x03\x00\x01\x00\x01\xff\xf8x") == 4, (
            "bodies in frames that are not too large"
        )
        ack = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50" + (3).to_bytes(8) + b"\x01\xce"
        nack = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x78" + (4).to_bytes(8) + b"\x00\xce"
        in_pieces(sender, ack + nack)
        assert told == [True, True, True, False]

    asyncio.run(test())


def test_etcd() -> None:
    async def test() -> None:
        sender = EtcdSender("h", 1, b"x" * 40_000)
        wire, told = await sent(sender, 2)
        assert b"m0000000000000001" in wire.data and b"m0000000000000002" in wire.data
        assert wire.data.count(b"x") < 65_535, "the window of the connection has no room for both"
        in_pieces(sender, b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x01\x00\x00")
        await asyncio.sleep(0)
        assert wire.data.count(b"x") == 80_000
        in_pieces(sender, b"\x00\x00\x05\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00")  # a body
        in_pieces(sender, b"\x00\x00\x00\x01\x05\x00\x00\x00\x01")  # the end of stream 1
        in_pieces(sender, b"\x00\x00\x00\x01\x05\x00\x00\x00\x03")  # that of stream 3, which had none
        assert told == [True, False]

    asyncio.run(test())


def test_a_batch_of_etcd_is_one_transaction() -> None:
    async def test() -> None:
        sender = EtcdSender("h", 1, b"hello")
        wire, told = await sent(sender, 0)
        sender.send_batch(told.append)
        await asyncio.sleep(0)
        assert wire.data.count(b"/etcdserverpb.KV/Txn") == 1
        put = b"\x0a\x11m%016d\x12\x05hello"
        success = b"".join(b"\x12\x1c\x12\x1a" + put % number for number in range(1, BATCH + 1))
        assert success in wire.data, "TxnRequest.success of RequestOp.request_put of PutRequest"
        in_pieces(sender, b"\x00\x00\x05\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00")
        in_pieces(sender, b"\x00\x00\x00\x01\x05\x00\x00\x00\x01")
        assert told == [True]

    asyncio.run(test())


def test_data_is_sent_as_windows_have_room() -> None:
    out: list[tuple[int, int, bool]] = []
    flow = Flow(lambda data: out.append((data[8], len(data) - 9, bool(data[4] & 1))))

    def new() -> list[tuple[int, int, bool]]:
        found = out.copy()
        out.clear()
        return found

    flow.send(1, b"x" * 20_000)
    assert new() == [(1, 16_384, False), (1, 3616, True)]
    flow.more(0, 200_000)
    flow.send(3, b"x" * 70_000)
    assert [size for _, size, _ in new()] == [16_384, 16_384, 16_384, 16_383], "the window of the stream"
    flow.send(5, b"x" * 10)
    assert new() == [(5, 10, True)], "another stream goes on"
    flow.more(3, 100)
    assert new() == [(3, 100, False)]
    flow.begin_with(65_535 + 1000)
    assert new() == [(3, 1000, False)], "streams that are open get the difference"
    flow.more(3, 10_000)
    assert new() == [(3, 3365, True)]
    flow.more(7, 10)
    flow.begin_with(1 << 20)
    flow.send(9, b"x" * 200_000)
    assert sum(size for _, size, _ in new()) == 65_535 + 200_000 - 20_000 - 70_000 - 10
    flow.forget(9)
    flow.more(0, 1 << 20)
    assert new() == [], "nobody waits any more"


def stream_frame(key: int, content: bytes) -> bytes:
    return (len(content) + 4).to_bytes(4) + key.to_bytes(2) + b"\x00\x01" + content


def test_rabbitmq_streams() -> None:
    async def test() -> None:
        sender = StreamSender(b"hello")
        wire, told = await sent(sender, 2)
        assert wire.data == b"".join(
            stream_frame(2, b"\x01" + (1).to_bytes(4) + number.to_bytes(8) + b"\x00\x00\x00\x05hello")
            for number in range(2)
        )
        wire.data = b""
        batches: list[bool] = []
        sender.send_batch(batches.append)
        sender.send_batch(batches.append)
        await asyncio.sleep(0)
        messages = b"".join(number.to_bytes(8) + b"\x00\x00\x00\x05hello" for number in range(2, 34))
        assert wire.data.startswith(stream_frame(2, b"\x01" + (BATCH).to_bytes(4) + messages))
        confirmed = [0, *range(2, 33)]
        listed = b"".join(number.to_bytes(8) for number in confirmed)
        in_pieces(sender, stream_frame(3, b"\x01" + len(confirmed).to_bytes(4) + listed))
        assert told == [True] and batches == [], "the last one of the batch is missing"
        in_pieces(sender, stream_frame(3, b"\x01" + (1).to_bytes(4) + (33).to_bytes(8)))
        assert batches == [True]
        failed = b"".join(number.to_bytes(8) + b"\x00\x12" for number in (1, 40))
        in_pieces(sender, stream_frame(4, b"\x01" + (2).to_bytes(4) + failed))
        in_pieces(sender, stream_frame(3, b"\x01" + (1).to_bytes(4) + (65).to_bytes(8)))
        assert told == [True, False] and batches == [True, False], "one that fails fails the batch, once"

    asyncio.run(test())


def test_a_stream_that_is_refused_is_an_error() -> None:
    async def test() -> None:
        sender = StreamSender(b"")
        sender.connection_made(Wire())
        opening = asyncio.create_task(sender.open(3))
        await asyncio.sleep(0)
        in_pieces(sender, stream_frame(0x8011, b"\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00"))
        for _ in range(5):
            await asyncio.sleep(0)
        in_pieces(sender, stream_frame(0x8012, b"\x00\x00\x00\x02\x00\x11"))
        with pytest.raises(CompareError, match="refuses 0x12: code 17"):
            await opening

    asyncio.run(test())


def test_children_count(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.start("a", ["sh", "-c", "sleep 100 & wait"])
    try:
        pids = nodes.pids()
        deadline = time.monotonic() + 60
        while len(pids) != 2:  # the shell has to start, and its child
            assert time.monotonic() < deadline, pids
            time.sleep(0.01)
            pids = nodes.pids()
    finally:
        for pid in reversed(with_children(pids)):
            os.kill(pid, 9)
        nodes.stop()


@pytest.mark.slow
def test_our_own_group_is_measured(tmp_path: Path) -> None:
    code = main(["compare", "--systems", "dledger", "--seconds", "0.5", "--directory", str(tmp_path)])
    assert code == 0

"""The comparison with other systems: what is counted, how it is shown, and the protocols that are spoken by
hand."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dledger.bench.__main__ import main
from dledger.bench.compare import run
from dledger.bench.compare.etcd import _Sender as EtcdSender
from dledger.bench.compare.load import CELLS, Cell, measure
from dledger.bench.compare.nats import _Sender as NatsSender
from dledger.bench.compare.rabbitmq import _Sender as RabbitSender
from dledger.bench.compare.system import FSYNC, CompareError, Done, Nodes, with_children


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

    async def close(self) -> None:
        pass


def test_a_window_is_kept_full_and_ends_empty() -> None:
    sender = Fake()
    found = asyncio.run(measure(sender, Cell("", window=8), [os.getpid()], 0.4, 0.1))
    assert sender.most == 8 and sender.under_way == 0
    assert 2.0 <= found.p50_ms < 100 and found.failed == 0
    assert 0 < found.messages < sender.sent, "the warm-up does not count"


def test_a_rate_does_not_wait_for_answers() -> None:
    sender = Fake(delay_s=0.1, fails=True)
    found = asyncio.run(measure(sender, Cell("", rate=500), [os.getpid()], 0.4, 0.1))
    assert sender.most > 20, "they wait for 0.1 s each"
    assert 100 <= found.p50_ms < 300 and 0 < found.failed < found.messages


class FakeSystem:
    name, durability, version = "Fake", FSYNC, "1.2"

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
    monkeypatch.setattr(run, "SYSTEMS", {"fake": lambda jars: system})
    monkeypatch.setattr(run, "WARMUP_S", 0.0)
    monkeypatch.setattr(run, "BURST_S", 0.05)
    told: list[str] = []
    found = run.compare(
        ["fake"], jars=None, size=10, seconds=0.05, turns=2, directory=tmp_path, tell=told.append
    )
    assert not system.running and not list(tmp_path.iterdir())
    table = run.markdown(found)
    assert table.startswith("| fsync of a majority | Fake 1.2 |")
    assert all(f"| {cell.name} | " in table for cell in CELLS)
    assert len(told) == 2 * (1 + len(CELLS))
    turns = found["systems"]["fake"]["turns"][CELLS[0].name]
    assert found["systems"]["fake"]["cells"][CELLS[0].name]["rate"] == sum(one["rate"] for one in turns) / 2


def test_what_cannot_be_compared_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as wrong:
        main(["compare", "--systems", "dledger,kafka"])
    assert wrong.value.code == 2 and "kafka: there are dledger, " in capsys.readouterr().err
    assert main(["compare", "--systems", "rocketmq"]) == 1
    assert "--rocketmq" in capsys.readouterr().err
    with pytest.raises(CompareError):
        run.SYSTEMS["rocketmq"](None)


class Wire(asyncio.Transport):
    """In place of a connection: what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)

    def close(self) -> None:
        pass


async def sent(sender: NatsSender | EtcdSender | RabbitSender, count: int) -> tuple[Wire, list[bool]]:
    wire, told = Wire(), list[bool]()
    sender.connection_made(wire)
    for _ in range(count):
        sender.send(told.append)
    await asyncio.sleep(0)
    return wire, told


def in_pieces(sender: NatsSender | EtcdSender | RabbitSender, data: bytes) -> None:
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
        puts = wire.data.count(b"m0000000000000001") + wire.data.count(b"m0000000000000003")
        assert puts == 1, "the window of the connection has room for one"
        in_pieces(sender, b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x01\x00\x00")
        await asyncio.sleep(0)
        assert wire.data.count(b"m0000000000000003") == 1
        in_pieces(sender, b"\x00\x00\x05\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00")  # a body
        in_pieces(sender, b"\x00\x00\x00\x01\x05\x00\x00\x00\x01")  # the end of stream 1
        in_pieces(sender, b"\x00\x00\x00\x01\x05\x00\x00\x00\x03")  # that of stream 3, which had none
        assert told == [True, False]

    asyncio.run(test())


def test_children_count(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.start("a", ["sh", "-c", "sleep 100 & wait"])
    try:
        pids: list[int] = []
        for _ in range(500):
            pids = nodes.pids()
            if len(pids) == 2:
                break
        assert len(pids) == 2
    finally:
        for pid in reversed(with_children(pids)):
            os.kill(pid, 9)
        nodes.stop()


@pytest.mark.slow
def test_our_own_group_is_measured(tmp_path: Path) -> None:
    code = main(["compare", "--systems", "dledger", "--seconds", "0.5", "--directory", str(tmp_path)])
    assert code == 0

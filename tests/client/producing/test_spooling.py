"""What cannot be sent is kept on this machine, survives the program, and is sent in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dledger.client import (
    AsyncSpoolingProducer,
    ClientClosed,
    ClientError,
    InvalidMessage,
    Message,
    Overflow,
    ProducerOptions,
    SendResult,
    Spooled,
    SpoolFailed,
    SpoolingProducer,
    SpoolOptions,
    TopicNotFound,
)
from dledger.client.producing.spool_file import Kept, Spool
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.connection import Connection
from dledger.runtime.env import SystemWallClock
from tests.client.fake_cluster import FakeBroker, FakeCluster, eventually, send_limit

OPTIONS = ProducerOptions(timeout_s=0.3, attempt_timeout_s=0.1)
"""For messages that are kept. What must be stored is sent with `send_limit(producer, LONG_S)`."""
LONG_S = 60.0
Scenario = Callable[[FakeCluster, AsyncSpoolingProducer], Awaitable[None]]


def run(path: Path, scenario: Scenario, options: ProducerOptions = OPTIONS, **limits: object) -> None:
    async def main() -> None:
        spool = SpoolOptions(str(path / "s.spool"), retry_s=0.02, **limits)  # type: ignore[arg-type]
        async with FakeCluster(topics={"orders": 4}) as fake, asyncio.timeout(120):
            fake.default_queues = 0
            async with AsyncSpoolingProducer("p", fake.namesrv, options, spool=spool) as producer:
                await scenario(fake, producer)

    asyncio.run(main())


def body(number: int) -> bytes:
    return b"%d" % number


def test_a_message_that_can_be_sent_is_not_kept(tmp_path: Path) -> None:
    async def scenario(fake: FakeCluster, producer: AsyncSpoolingProducer) -> None:
        with send_limit(producer, LONG_S):
            result = await producer.deliver(Message("orders", b"1"))
        assert isinstance(result, SendResult) and producer.spooled == 0
        assert await producer.delivered(0)
        (stored,) = fake.stored("orders")
        assert stored.properties["UNIQ_KEY"] == result.message_id and "__RESEND" not in stored.properties

    run(tmp_path, scenario)


def test_an_outage_loses_nothing_and_keeps_the_order_of_each_key(tmp_path: Path) -> None:
    async def scenario(fake: FakeCluster, producer: AsyncSpoolingProducer) -> None:
        with send_limit(producer, LONG_S):
            await producer.deliver(Message("orders", b"before"), "a")
        fake.lead(-1)
        sends = [
            asyncio.ensure_future(producer.deliver(Message("orders", body(number)), "ab"[number % 2]))
            for number in range(20)
        ]
        results = await asyncio.gather(*sends)
        assert all(isinstance(result, Spooled) for result in results) and producer.spooled == 20
        assert not await producer.delivered(0.05)
        late = await producer.deliver(Message("orders", b"20"), "a")
        assert isinstance(late, Spooled), "nothing overtakes"
        fake.lead(1)
        with send_limit(producer, LONG_S):
            assert await producer.delivered(LONG_S) and producer.spooled == 0 == producer.spooled_bytes
            assert isinstance(await producer.deliver(Message("orders", b"22"), "a"), SendResult)
        bodies = fake.bodies("orders")
        assert [one for one in bodies if one.isdigit() and int(one) % 2 == 0] == [
            body(number) for number in range(0, 23, 2)
        ]
        assert [one for one in bodies if one.isdigit() and int(one) % 2] == [
            body(number) for number in range(1, 20, 2)
        ]
        ids = {stored.properties["UNIQ_KEY"] for stored in fake.stored("orders")}
        assert {result.message_id for result in results if isinstance(result, Spooled)} < ids

    run(tmp_path, scenario)


def test_what_is_kept_survives_the_program_and_says_that_it_is_a_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_ms = 1_700_000_000_000
    now_ms = given_ms
    monkeypatch.setattr(SystemWallClock, "now_ms", lambda clock: now_ms)
    message = Message("orders", b"1", "paid", ["k1", "k2"], {"shop": "7"}, flag=3)

    async def away(fake: FakeCluster, producer: AsyncSpoolingProducer) -> None:
        fake.lead(-1)
        assert isinstance(await producer.deliver(message, "a"), Spooled)
        assert isinstance(
            await producer.deliver(Message("orders", b"2", delay=timedelta(hours=1)), "a"), Spooled
        )

    async def back(fake: FakeCluster, producer: AsyncSpoolingProducer) -> None:
        assert await producer.delivered(LONG_S)
        first, second = fake.stored("orders")
        assert (first.body, second.body) == (b"1", b"2")
        expected = {"TAGS": "paid", "KEYS": "k1 k2", "shop": "7", "__RESEND": "1"}
        assert first.properties.items() >= expected.items()
        due_ms = int(second.properties["TIMER_DELIVER_MS"])
        assert due_ms == given_ms + 3_600_000, "its delay counts from when it was given"

    run(tmp_path, away)
    now_ms += 60_000
    run(tmp_path, back, ProducerOptions())


def test_what_the_cluster_refuses_is_put_aside_and_holds_up_nobody(tmp_path: Path) -> None:
    def refusing(broker: FakeBroker, connection: Connection, request: Request) -> bool:
        if request.body != b"bad":
            return False
        connection.respond(request, ResponseCode.MESSAGE_ILLEGAL, remark="no")
        return True

    async def scenario(fake: FakeCluster, producer: AsyncSpoolingProducer) -> None:
        fake.lead(-1)
        for one in (b"1", b"bad", b"3"):
            assert isinstance(await producer.deliver(Message("orders", one), "a"), Spooled)
        fake.script = refusing
        fake.lead(0)
        with send_limit(producer, LONG_S):
            assert await producer.delivered(LONG_S)
        assert fake.bodies("orders") == [b"1", b"3"] and producer.refused == 1

    run(tmp_path, scenario)
    spool = Spool(str(tmp_path / "s.spool"))
    assert spool.open() == (0, 0, 1)
    ((row, reason),) = spool.refused()
    assert row.message.body == b"bad" and "13" in reason
    spool.close()


def test_a_topic_that_is_gone_holds_up_no_other(tmp_path: Path) -> None:
    async def scenario(fake: FakeCluster, producer: AsyncSpoolingProducer) -> None:
        with pytest.raises(TopicNotFound):
            await producer.deliver(Message("misspelt", b"1"))

    async def keeping(fake: FakeCluster, producer: AsyncSpoolingProducer) -> None:
        assert isinstance(await producer.deliver(Message("later", b"1")), Spooled)
        assert isinstance(await producer.deliver(Message("orders", b"1")), Spooled)
        await eventually(lambda: fake.bodies("orders") == [b"1"])
        await eventually(lambda: producer.spooled == 1)
        fake.topics["later"] = 1
        assert await producer.delivered(LONG_S) and fake.bodies("later") == [b"1"]

    run(tmp_path, scenario)
    run(tmp_path, keeping, ProducerOptions(), keep_unknown_topics=True)


def test_what_is_under_way_at_the_end_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        spool = str(tmp_path / "s.spool")
        async with FakeCluster(topics={"orders": 4}) as fake, asyncio.timeout(120):
            async with AsyncSpoolingProducer("p", fake.namesrv, OPTIONS, spool=spool) as producer:
                with send_limit(producer, LONG_S):
                    await producer.deliver(Message("orders", b"before"))
                fake.lead(-1)
                sends = [
                    asyncio.create_task(producer.deliver(Message("orders", body(number)), "ab"[number % 2]))
                    for number in range(8)
                ]
            assert all(isinstance(send.result(), Spooled) for send in sends)
            fake.lead(0)
            async with AsyncSpoolingProducer("p", fake.namesrv, spool=spool) as producer:
                assert await producer.delivered(LONG_S)
            assert sorted(fake.bodies("orders"))[:-1] == [body(number) for number in range(8)]

    asyncio.run(main())


def test_a_spool_that_cannot_be_read_is_said_and_ends_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "s.spool")
    spool = Spool(path)
    spool.open()
    spool.put([Kept("u", "orders", b"1")])
    spool._change("UPDATE waiting SET message = ?", [(b"\xc1",)])
    with pytest.raises(SpoolFailed, match="row 1 is not a message"):
        spool.next(0, 9)
    spool.close()

    async def scenario(fake: FakeCluster, producer: AsyncSpoolingProducer) -> None:
        await asyncio.sleep(0.05)
        assert isinstance(await producer.deliver(Message("orders", b"2")), Spooled)
        assert producer.spooled == 2

    run(tmp_path, scenario)


def test_limits_and_bad_input(tmp_path: Path) -> None:
    async def scenario(fake: FakeCluster, producer: AsyncSpoolingProducer) -> None:
        fake.lead(-1)
        with pytest.raises(InvalidMessage):
            await producer.deliver(Message("orders", b"1", properties={"KEYS": "x"}))
        for number in range(2):
            assert isinstance(await producer.deliver(Message("orders", body(number))), Spooled)
        with pytest.raises(Overflow, match="is full; it holds 2 messages"):
            await producer.deliver(Message("orders", b"3"))
        with pytest.raises(SpoolFailed, match="another process uses it"):
            Spool(str(tmp_path / "s.spool")).open()

    run(tmp_path, scenario, max_messages=2)
    with pytest.raises(ValueError, match="needs a path"):
        SpoolOptions("")
    with pytest.raises(SpoolFailed, match="cannot be opened"):
        Spool(str(tmp_path / "missing" / "s.spool")).open()


def test_a_key_that_cannot_be_kept_is_refused_and_holds_up_nobody(tmp_path: Path) -> None:
    """An int as a key was written, could not be read again, and everything behind it waited for ever."""

    async def scenario(fake: FakeCluster, producer: AsyncSpoolingProducer) -> None:
        with send_limit(producer, LONG_S):
            await producer.deliver(Message("orders", b"before"))
        fake.lead(-1)
        await producer.deliver(Message("orders", b"1"))
        for key in (17, "\ud800"):
            with pytest.raises(InvalidMessage, match="ordering_key"):
                await producer.deliver(Message("orders", b"x"), key)  # type: ignore[arg-type]
        flag: Any = True
        copied = Message("orders", b"2", flag=flag)
        copied.tags = ""
        assert isinstance(await producer.deliver(copied), Spooled)
        fake.lead(0)
        with send_limit(producer, LONG_S):
            assert await producer.delivered(LONG_S)
        assert sorted(fake.bodies("orders")) == [b"1", b"2", b"before"]

    run(tmp_path, scenario)


def test_a_spool_that_cannot_be_opened_is_an_error_of_the_start_and_close_returns(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "missing" / "s.spool")

    async def main() -> None:
        async with FakeCluster(topics={"orders": 4}) as fake, asyncio.timeout(60):
            with pytest.raises(SpoolFailed, match="cannot be opened"):
                async with AsyncSpoolingProducer("p", fake.namesrv, spool=nowhere):
                    pass
            producer = AsyncSpoolingProducer("p", fake.namesrv, spool=nowhere)
            with pytest.raises(SpoolFailed, match="cannot be opened"):
                await producer.start()
            await producer.close()
            await producer._wait_until_over()

    asyncio.run(main())
    with pytest.raises(SpoolFailed, match="cannot be opened"):
        SpoolingProducer("p", "127.0.0.1:1", spool=nowhere).start()


@pytest.mark.parametrize("face", [SpoolingProducer, AsyncSpoolingProducer])
def test_a_spool_that_is_no_text_is_refused(face: Any, tmp_path: Path) -> None:
    path: Any = tmp_path / "s.spool"
    for spool in (path, SpoolOptions(path), None):
        with pytest.raises(ClientError, match="give a path as text"):
            face("p", "127.0.0.1:1", spool=spool)


def test_a_disk_that_takes_nothing_is_said_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(fake: FakeCluster, producer: AsyncSpoolingProducer) -> None:
        def broken(messages: object) -> list[int]:
            raise SpoolFailed("disk full")

        fake.lead(-1)
        with monkeypatch.context() as patched:
            patched.setattr(producer._spool, "put", broken)
            with pytest.raises(SpoolFailed, match="disk full"):
                await producer.deliver(Message("orders", b"1"))
        assert producer.spooled == 0 and await producer.delivered(0)
        assert isinstance(await producer.deliver(Message("orders", b"2")), Spooled)

    run(tmp_path, scenario)


def test_a_spool_keeps_all_fields_and_the_order(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "s.spool"))
    assert spool.open() == (0, 0, 0)
    one = Kept("u1", "t", b"b", "tag", "k", {"p": "v"}, 1, 2, 3, "key", 4)
    two = Kept("u2", "t", b"")
    sizes = spool.put([one, two])
    assert sizes == [spool.size_of(one), spool.size_of(two)]
    rows = spool.next(0, 9)
    assert [row.message for row in rows] == [one, two] and spool.next(rows[0].number, 9) == rows[1:]
    spool.remove([rows[0].number])
    spool.close()
    assert spool.open() == (1, sizes[1], 0)
    spool.close()


def test_the_same_without_an_event_loop(tmp_path: Path) -> None:
    with SpoolingProducer("p", "127.0.0.1:1", OPTIONS, spool=str(tmp_path / "s.spool")) as producer:
        with pytest.raises(Exception, match="NameServer"):
            producer.send(Message("orders", b"0"))
        assert isinstance(producer.deliver(Message("orders", b"1"), "a"), Spooled)
        assert producer.spooled == 1 and producer.refused == 0 and not producer.delivered(0.01)


def test_nothing_is_taken_before_the_spool_is_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake:
            producer = AsyncSpoolingProducer("P", fake.namesrv, spool=str(tmp_path / "s"))
            starting = asyncio.ensure_future(producer.start())
            while producer._core._tasks is None:  # noqa: ASYNC110  # a few turns: its connections are there
                await asyncio.sleep(0)
            with pytest.raises(ClientClosed):
                await producer.deliver(Message("orders", b"x"))
            await starting
            assert isinstance(await producer.deliver(Message("orders", b"x")), SendResult)
            await producer.close()

    asyncio.run(main())


class SlowDatabase:
    """Answers when it may."""

    def __init__(self) -> None:
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self.done: list[str] = []

    def execute(self, statement: str, values: tuple[int, ...]) -> SlowDatabase:
        self.asked.set()
        assert self.may_answer.wait(60)
        self.done.append("answered")
        return self

    def fetchall(self) -> list[tuple[int, bytes]]:
        return []

    def close(self) -> None:
        self.done.append("closed")


def test_a_spool_is_not_closed_while_a_job_of_it_runs(tmp_path: Path) -> None:
    """A send that was cancelled leaves its job to a thread: closing the connection then ended the process."""
    spool, database = Spool(str(tmp_path / "spool")), SlowDatabase()
    spool._database = database  # type: ignore[assignment]
    reading = threading.Thread(target=spool.next, args=(0, 1))
    closing = threading.Thread(target=spool.close)
    reading.start()
    assert database.asked.wait(60)
    closing.start()
    closing.join(0.2)
    database.may_answer.set()
    for thread in (reading, closing):
        thread.join(60)
    assert database.done == ["answered", "closed"]

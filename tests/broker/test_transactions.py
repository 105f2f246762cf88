"""Transactions: what a half message is, how it ends, who is asked; no switch repeats or loses one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.broker.member_requests import MEMBER_PROOF
from dledger.broker.topic.topic_names import DISCARD_TOPIC, HALF_TOPIC
from dledger.broker.transaction.half_messages import first_wait_ms
from dledger.formats.message_ids import decode_message_id
from dledger.formats.properties import decode_properties
from dledger.formats.record import TRANSACTION_COMMIT, decode_record
from dledger.formats.state import MAX_WAIT_MS, TRANSACTIONS, VERSIONS, Transaction
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import EndTransactionHeader, RelayedCheckHeader
from tests.broker.fake_node import FakeLog, batches
from tests.broker.harness import FakeConnection, Member, Reply, World, run, skip_s
from tests.broker.test_delays import came, leading, now

COMMIT, ROLL_BACK, UNKNOWN = 8, 12, 0
HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01KEY\x02TAGS\x01a\x02"
"""As Java's client sends it, with the flag 4."""
QUICK: dict[str, Any] = {"transaction_timeout_ms": 60, "transaction_check_interval_ms": 100}
CHECK_S = 60.0
IN_TIME: dict[str, Any] = {"transaction_timeout_ms": 60_000, "transaction_check_interval_ms": 60_000}
"""A check comes when the test lets `CHECK_S` pass, and no pause of the machine brings another one."""


async def half(world: World, body: bytes = b"half", queue: int = 2, properties: str = HALF) -> Reply:
    return await world.send("T", body, queue, properties, sysFlag=4)


async def end(world: World, sent: Reply, how: int = COMMIT, **more: Any) -> Reply:
    position = decode_message_id(sent.ext["msgId"]).physical_offset
    values: dict[str, Any] = {
        "producerGroup": "PG",
        "tranStateTableOffset": int(sent.ext["queueOffset"]),
        "commitLogOffset": position,
        "commitOrRollback": how,
        "msgId": "KEY",
        "transactionId": "KEY",
    }
    return await world.call(RequestCode.END_TRANSACTION, EndTransactionHeader(**(values | more)))


def is_open(world: World) -> dict[int, Transaction]:
    return dict(world.broker.store.state[TRANSACTIONS].rows)


async def until(true: Any) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.002)


def a_producer(world: World, group: str = "PG", serial: int = 7) -> FakeConnection:
    """A producer with heartbeat."""
    connection = FakeConnection(serial, f"10.0.0.9:{serial}")
    body = b'{"clientID":"p%d","producerDataSet":[{"groupName":"%b"}],"consumerDataSet":[]}'
    world.ask(RequestCode.HEART_BEAT, None, body % (serial, group.encode()), connection=connection)
    return connection


def test_a_half_message_waits_and_is_committed_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            await world.send("T", b"plain", 2)
            sent = await half(world)
            assert (sent.code, sent.ext["queueId"], sent.ext["queueOffset"]) == (0, "2", "0")
            assert sent.ext["transactionId"] == "KEY"
            (waiting,) = await now(world, HALF_TOPIC)
            told = decode_properties(waiting.properties)
            assert (told["REAL_TOPIC"], told["REAL_QID"], told["__transactionId__"]) == ("T", "2", "KEY")
            assert (told["TRAN_MSG"], told["PGROUP"], waiting.sys_flag) == ("true", "PG", 0)
            assert decode_message_id(sent.ext["msgId"]).physical_offset == waiting.physical_offset
            assert [record.body for record in await now(world, queue=2)] == [b"plain"]
            assert list(is_open(world)) == [0]

            assert (await end(world, sent)).code == 0
            _, found = await came(world, queue=2, count=2)
            told = decode_properties(found.properties)
            assert (found.body, found.topic, found.queue_offset) == (b"half", "T", 1)
            assert found.sys_flag == TRANSACTION_COMMIT
            assert found.prepared_transaction_offset == waiting.physical_offset
            assert (found.born_timestamp, found.born_host) == (waiting.born_timestamp, waiting.born_host)
            assert not {"TRAN_MSG", "REAL_TOPIC", "REAL_QID"} & told.keys() and told["TAGS"] == "a"
            assert is_open(world) == {}

            again = await end(world, sent)
            assert again.code == ResponseCode.SYSTEM_ERROR and "the transaction is not open" in str(
                again.remark
            )
            assert len(await now(world, queue=2)) == 2

    run(test)


def test_a_transaction_ends_in_one_batch_with_its_message(tmp_path: Path) -> None:
    """In two batches a crash between them would have it committed twice, or ended without its message."""

    async def test() -> None:
        log = FakeLog()
        async with leading(tmp_path, log) as world:
            sent = await half(world)
            assert (await end(world, sent)).code == 0
        (batch,) = (batch for batch in batches(log) if any(getattr(one, "topic", "") == "T" for one in batch))
        assert isinstance(batch[-1], dict) and batch[-1]["op"] == TRANSACTIONS.remove, batch

    run(test)


def test_what_is_rolled_back_comes_never_and_what_is_not_known_stays_open(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            sent = await half(world)
            assert (await end(world, sent, UNKNOWN)).code == 0
            assert list(is_open(world)) == [0]
            assert (await end(world, sent, ROLL_BACK)).code == 0
            assert is_open(world) == {} and await now(world, queue=2) == []
            assert (await end(world, sent, COMMIT)).code == ResponseCode.SYSTEM_ERROR
            assert await now(world, queue=2) == []

    run(test)


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"producerGroup": "other"}, 1, "producer group wrong"),
    ({"commitLogOffset": 17}, 1, "commit log offset wrong"),
    ({"tranStateTableOffset": 1}, 1, "the transaction is not open"),
    ({"tranStateTableOffset": -1}, 1, "the transaction is not open"),
    ({"commitOrRollback": 4}, 29, "commitOrRollback=4"),
]


@pytest.mark.parametrize(("changes", "code", "text"), WRONG)
def test_an_end_that_does_not_fit_ends_nothing(
    changes: dict[str, Any], code: int, text: str, tmp_path: Path
) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            sent = await half(world)
            refused = await end(world, sent, **changes)
            assert refused.code == code and text in str(refused.remark)
            assert list(is_open(world)) == [0] and await now(world, queue=2) == []
            assert (await end(world, sent)).code == 0

    run(test)


def test_half_messages_that_nobody_could_end_are_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, max_open_transactions=2) as world:
            refused = await half(world, properties="TRAN_MSG\x01true\x02")
            assert refused.code == ResponseCode.MESSAGE_ILLEGAL and "PGROUP" in str(refused.remark)
            refused = await half(world, properties=HALF + "CHECK_IMMUNITY_TIME_IN_SECONDS\x01999999999\x02")
            assert refused.code == ResponseCode.MESSAGE_ILLEGAL
            first = await half(world)
            await half(world)
            full = await half(world)
            assert full.code == ResponseCode.SYSTEM_BUSY and "maxOpenTransactions" in str(full.remark)
            await end(world, first)
            assert (await half(world)).code == 0, "there is room again"
        async with leading(tmp_path / "b", reject_transactions=True) as world:
            assert (await half(world)).code == ResponseCode.NO_PERMISSION
            assert is_open(world) == {}

    run(test)


def test_before_all_voters_know_them_none_is_taken_and_the_first_one_is_noted(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            assert world.node.appender is not None
            world.node.appender.state_version = 4
            refused = await half(world)
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE and "upgrade" in str(refused.remark)
            world.node.appender.state_version = 5
            sent = await half(world)
            assert 5 in world.broker.store.state[VERSIONS].rows
            assert (await end(world, sent)).code == 0
            world.node.appender.state_version = 4  # a voter is not heard: it knows them, or could not follow
            assert (await half(world)).code == 0

    run(test)


def test_a_producer_at_another_member_is_asked_by_that(tmp_path: Path) -> None:
    """The leader has no connection of the group: it asks the other members, until one has."""

    async def test() -> None:
        async with leading(tmp_path, **IN_TIME) as world:
            passed_on: list[tuple[str, dict[str, str], bytes]] = []

            def invoke(
                address: str, code: int, fields: dict[str, str], body: bytes, limit_s: float, done: Any
            ) -> None:
                assert code == RequestCode.CHECK_TRANSACTION_STATE
                passed_on.append((address, fields, body))
                refusal = RemotingError(ResponseCode.SYSTEM_ERROR, "none here")
                answer = Response(0) if address == "b:1" else refusal
                asyncio.get_running_loop().call_soon(done, answer)

            elsewhere = world.features.transaction.checks._elsewhere
            elsewhere._members = lambda: {"n0": "", "n1": "a:1", "n2": "b:1", "n3": "c:1"}
            elsewhere._client = SimpleNamespace(invoke_nowait=invoke)  # type: ignore[assignment]
            await half(world)
            await skip_s(CHECK_S)
            await until(lambda: world.features.transaction.checks.asked)
            assert [address for address, _, _ in passed_on][:2] == ["a:1", "b:1"]
            _, fields, body = passed_on[0]
            assert fields["producerGroup"] == "PG" and decode_record(body).body == b"half"
            assert not any(address == "c:1" for address, _, _ in passed_on)

            producer = a_producer(world)
            check = RelayedCheckHeader("PG", 7, 8)
            member = Member(world)
            answer = await member.call(RequestCode.CHECK_TRANSACTION_STATE, check, body)
            assert answer.code == 0
            code, told = producer.notices[-1]
            assert (code, told["tranStateTableOffset"], told["commitLogOffset"]) == (39, "7", "8")
            assert not {"producerGroup", MEMBER_PROOF} & told.keys() and producer.bodies[-1] == body
            nobody = RelayedCheckHeader("q", 7, 8)
            refused = await member.call(RequestCode.CHECK_TRANSACTION_STATE, nobody, body)
            assert refused.code == ResponseCode.SYSTEM_ERROR

    run(test)


def test_a_producer_is_asked_and_says_how_it_ends(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, **IN_TIME) as world:
            producer, other = a_producer(world), a_producer(world, "other", 8)
            sent = await half(world)
            await skip_s(CHECK_S)
            await until(lambda: producer.notices)
            code, fields = producer.notices[0]
            position = decode_message_id(sent.ext["msgId"]).physical_offset
            assert code == RequestCode.CHECK_TRANSACTION_STATE and other.notices == []
            assert fields["tranStateTableOffset"] == "0" and fields["commitLogOffset"] == str(position)
            assert (fields["msgId"], fields["transactionId"]) == ("KEY", "KEY")
            assert fields["offsetMsgId"] == sent.ext["msgId"]
            record = decode_record(producer.bodies[0])
            assert (record.topic, record.queue_id, record.body) == ("T", 2, b"half")
            assert (record.queue_offset, record.physical_offset) == (0, position)

            _, copy = await came(world, HALF_TOPIC, count=2)
            assert decode_properties(copy.properties)["TRANSACTION_CHECK_TIMES"] == "1"
            assert copy.prepared_transaction_offset == position
            assert is_open(world)[0].at == 1 and is_open(world)[0].checks == 1
            assert (await end(world, sent, fromTransactionCheck=True)).code == 0
            (found,) = await came(world, queue=2)
            assert (found.body, found.prepared_transaction_offset) == (b"half", position)
            asked = len(producer.notices)
            for _ in range(3):
                await skip_s(CHECK_S)
                await asyncio.sleep(0.005)
            assert len(producer.notices) == asked, "nobody is asked for what is over"

    run(test)


def test_who_says_nothing_is_asked_so_often_and_then_given_up(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, transaction_check_max=2, **IN_TIME) as world:
            producers = [a_producer(world, serial=serial) for serial in (7, 8)]
            sent = await half(world)
            for count in (1, 2):
                await skip_s(CHECK_S)
                await until(lambda count=count: sum(len(one.notices) for one in producers) == count)
                await until(lambda count=count: is_open(world)[0].checks == count)
            await skip_s(CHECK_S)
            (given_up,) = await came(world, DISCARD_TOPIC)
            assert given_up.body == b"half" and is_open(world) == {}
            assert decode_properties(given_up.properties)["REAL_TOPIC"] == "T"
            assert [len(producer.notices) for producer in producers] == [1, 1], "they take turns"
            assert world.broker.runtime_info()["discardedTransactions"] == "1"
            assert (await end(world, sent)).code == ResponseCode.SYSTEM_ERROR
            assert await now(world, queue=2) == []

    run(test)


def test_a_message_says_itself_when_its_producer_may_be_asked(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, **QUICK) as world:
            producer = a_producer(world)
            sent = await half(world, properties=HALF + "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02")
            await skip_s(30)
            await asyncio.sleep(0.05)
            assert producer.notices == []
            await skip_s(30)
            await until(lambda: producer.notices)
            late = await end(world, sent)
            assert late.code == ResponseCode.ILLEGAL_OPERATION
            assert (await end(world, sent, fromTransactionCheck=True)).code == 0

    run(test)


@pytest.mark.parametrize(
    ("text", "wait"),
    [("", 6000), ("x", 6000), ("-1", 6000), ("-5", 0), ("0", 0), ("10", 10_000), ("\u0661", 6000)],
)
def test_immunity_is_read_as_rocketmq_reads_it(text: str, wait: int) -> None:
    assert first_wait_ms({"CHECK_IMMUNITY_TIME_IN_SECONDS": text}, 6000) == wait


def test_immunity_has_a_limit() -> None:
    for text in (str(MAX_WAIT_MS // 1000 + 1), "9" * 300):
        with pytest.raises(RemotingError):
            first_wait_ms({"CHECK_IMMUNITY_TIME_IN_SECONDS": text}, 6000)


def test_the_next_leader_goes_on_with_open_transactions_and_their_counts(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, **IN_TIME) as world:
            sent = await half(world)
            for checks in (1, 2):
                await skip_s(CHECK_S)
                await until(lambda checks=checks: is_open(world)[0].checks == checks)
            world.node.follow("n1")
            await skip_s(CHECK_S)
            await asyncio.sleep(0.005)
            assert is_open(world)[0].checks == 2, "who does not lead asks nobody"
            world.node.lead()
            await until(lambda: is_open(world)[0].checks > 2)
            assert is_open(world)[0].checks == 3
            assert (await end(world, sent)).code == 0
            assert [record.body for record in await came(world, queue=2)] == [b"half"]

    run(test)


def test_an_end_that_a_deposed_leader_did_not_commit_is_none(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            sent = await half(world)
            world.node.auto = False
            ending = asyncio.ensure_future(end(world, sent))
            await until(lambda: world.node.log.last_index > world.node.commit_index)
            world.node.follow("n1")  # message and removal go, together
            assert "outcome unknown" in str((await ending).remark)
            world.node.auto = True
            world.node.lead()
            assert list(is_open(world)) == [0] and await now(world, queue=2) == []
            assert (await end(world, sent)).code == 0
            assert [record.body for record in await came(world, queue=2)] == [b"half"]

    run(test)


def test_two_ends_at_once_are_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            sent = await half(world)
            both = await asyncio.gather(end(world, sent, COMMIT), end(world, sent, ROLL_BACK))
            assert [reply.code for reply in both] == [0, ResponseCode.SYSTEM_ERROR]
            assert len(await came(world, queue=2)) == 1

    run(test)


def test_an_end_while_a_check_waits_for_its_commit(tmp_path: Path) -> None:
    """The row says where the copy will be, which cannot be read yet."""

    async def test() -> None:
        async with leading(tmp_path, **IN_TIME) as world:
            producer = a_producer(world)
            sent = await half(world)
            world.node.auto = False
            await skip_s(CHECK_S)
            await until(lambda: producer.notices)
            ending = asyncio.ensure_future(end(world, sent, fromTransactionCheck=True))
            await asyncio.sleep(0.01)
            world.node.auto = True
            world.node.commit()
            assert (await ending).code == 0
            assert [record.body for record in await came(world, queue=2)] == [b"half"]
            assert is_open(world) == {}

    run(test)


def test_a_clock_that_was_ahead_delays_no_check_for_long(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, **QUICK) as world:
            await half(world)
            row = is_open(world)[0]
            # As another leader, whose clock is an hour ahead, would have put it.
            assert world.broker.gate.writer is not None
            ahead = Transaction(0, row.at, row.time + 3_600_000, row.wait)
            world.broker.gate.writer.append_op(ahead.op())
            await until(lambda: is_open(world)[0].checks >= 1)
            assert is_open(world)[0].time < ahead.time

    run(test)


def test_half_messages_that_are_not_in_memory_are_asked_for_and_ended_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, **IN_TIME) as world:
            producer = a_producer(world)
            sent = await half(world)
            world.node.log.cold_below = 1 << 40
            await skip_s(CHECK_S)
            await until(lambda: producer.notices)
            both = await asyncio.gather(end(world, sent), end(world, sent))
            assert sorted(reply.code for reply in both) == [0, ResponseCode.SYSTEM_ERROR]
            assert [record.body for record in await came(world, queue=2)] == [b"half"]

    run(test)


def test_many_are_asked_for_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger.broker.transaction.check_service.LOOKED_AT", 3)
    monkeypatch.setattr("dledger.broker.transaction.check_service.ASKED", 2)

    async def test() -> None:
        async with leading(tmp_path, transaction_timeout_ms=60) as world:
            producer = a_producer(world)
            sent = [(await half(world)).ext["queueOffset"] for _ in range(20)]
            await until(lambda: len(producer.notices) == 20)
            asked = [fields["tranStateTableOffset"] for _, fields in producer.notices]
            assert sorted(asked) == sorted(sent), "a copy of one that was asked for may come between them"
            await until(lambda: {row.checks for row in is_open(world).values()} == {1})  # applied

    run(test)


def test_what_retention_took_is_open_no_more(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, **IN_TIME) as world:
            sent = await half(world)
            queue = world.broker.store.queues.get(HALF_TOPIC, 0)
            assert queue is not None
            queue.bounds.min = queue.bounds.next
            gone = await end(world, sent)
            assert gone.code == ResponseCode.SYSTEM_ERROR and "Find prepared" in str(gone.remark)
            await skip_s(CHECK_S)
            await until(lambda: not is_open(world))
            assert world.features.transaction.checks.lost == 1

    run(test)


def test_busy_producers_are_not_asked(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path, **QUICK) as world:
            slow, gone, free = (a_producer(world, serial=serial) for serial in (7, 8, 9))
            slow.slow, gone.closed = True, True
            await half(world)
            await until(lambda: len(free.notices) >= 2)
            assert slow.notices == gone.notices == []

    run(test)

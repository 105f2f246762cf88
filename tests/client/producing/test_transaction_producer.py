"""Transactions of our producer: what travels, what a block does, and what brokers that ask are told."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dledger.client import (
    AsyncTransactionProducer,
    BrokerRefused,
    ClientError,
    InvalidMessage,
    LocalTransactionState,
    Message,
    OutcomeUnknown,
    ProducerOptions,
    ReceivedMessage,
    SendFailed,
    TransactionListener,
    TransactionProducer,
)
from dledger.client.producing.producer import COMPRESS_IN_WORKER_OVER
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.headers import EndTransactionHeader
from dledger.remoting.server import Connection
from tests.client.fake_cluster import FakeBroker, FakeCluster, eventually
from tests.client.test_sync import running

State = LocalTransactionState
COMMIT, ROLL_BACK, UNKNOWN = 8, 12, 0
Scenario = Callable[[FakeCluster, AsyncTransactionProducer], Awaitable[None]]


def run(scenario: Scenario, **how: Any) -> None:
    async def main() -> None:
        async with (
            FakeCluster(nodes=1, topics={"orders": 1}) as fake,
            AsyncTransactionProducer("PG", fake.namesrv, **how) as producer,
            asyncio.timeout(60),
        ):
            await scenario(fake, producer)

    asyncio.run(main())


async def asked(fake: FakeCluster, place: int = 0) -> EndTransactionHeader:
    """What the broker is told when it asks for a message of its queue."""
    told = len(fake.ends)
    fake.brokers[0].ask_for(fake.stored("orders")[place])
    await eventually(lambda: len(fake.ends) > told)
    return fake.ends[-1]


def answers(code: int, remark: str, of: int = RequestCode.END_TRANSACTION, times: int = 1) -> Any:
    left = [remark] * times

    def script(broker: FakeBroker, connection: Connection, request: Request) -> bool:
        if request.code != of or not left:
            return False
        connection.respond(request, code, remark=left.pop())
        return True

    return script


def test_half_messages_go_in_no_batch() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncTransactionProducer) -> None:
        async with producer.transaction(Message("orders", b"half")):
            (half,) = fake.stored("orders")
            assert half.header.sysFlag == 4, "in a batch everybody would see it at once"

    run(scenario, options=ProducerOptions(auto_batch=True))


def test_a_block_sends_a_half_message_and_its_end() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncTransactionProducer) -> None:
        async with producer.transaction(Message("orders", b"x", properties={"a": "1"})) as transaction:
            (half,) = fake.stored("orders")
            assert half.header.sysFlag == 4 and fake.ends == []
            assert (half.properties["TRAN_MSG"], half.properties["PGROUP"]) == ("true", "PG")
            assert half.properties["a"] == "1"
            assert (await asked(fake)).commitOrRollback == UNKNOWN, "it is open"
        end = fake.ends[-1]
        assert (end.commitOrRollback, end.producerGroup, end.fromTransactionCheck) == (COMMIT, "PG", False)
        assert (end.tranStateTableOffset, end.msgId) == (0, transaction.transaction_id)
        again = await asked(fake)
        assert (again.commitOrRollback, again.fromTransactionCheck) == (COMMIT, True)
        await producer.send(Message("orders", b"plain"))
        assert fake.stored("orders")[1].header.sysFlag == 0

    run(scenario)


def test_a_call_that_is_cancelled_while_its_listener_works_leaves_the_end_to_the_check() -> None:
    working, ended = threading.Event(), threading.Event()

    class Listener(TransactionListener):
        def execute_local_transaction(self, message: Message, arg: Any) -> State:
            working.set()
            ended.wait(60)
            return State.COMMIT_MESSAGE

        def check_local_transaction(self, message: ReceivedMessage) -> State:
            return State.COMMIT_MESSAGE

    async def scenario(fake: FakeCluster, producer: AsyncTransactionProducer) -> None:
        call = asyncio.ensure_future(producer.send_in_transaction(Message("orders", b"x")))
        await eventually(working.is_set)
        assert (await asked(fake)).commitOrRollback == UNKNOWN, "its listener works"
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        ended.set()
        assert (await asked(fake)).commitOrRollback == COMMIT

    run(scenario, listener=Listener())


def test_listeners_work_side_by_side_and_may_send_large_messages() -> None:
    """Two at a time, and two that sent what is compressed by a worker waited for each other for ever."""
    all_here = threading.Barrier(6)

    class Listener(TransactionListener):
        def execute_local_transaction(self, message: Message, arg: Any) -> State:
            all_here.wait(60)
            large = producer.send(Message("orders", random.Random(1).randbytes(COMPRESS_IN_WORKER_OVER + 1)))
            return State.COMMIT_MESSAGE if large.message_id else State.UNKNOWN

    options = ProducerOptions(listener_threads=6)
    with (
        running(FakeCluster(topics={"orders": 1})) as fake,
        TransactionProducer("PG", fake.namesrv, Listener(), options=options) as producer,
        ThreadPoolExecutor(6) as threads,
    ):
        calls = [threads.submit(producer.send_in_transaction, Message("orders", b"x")) for _ in range(6)]
        assert {call.result(100).state for call in calls} == {State.COMMIT_MESSAGE}


def test_an_exception_rolls_back_and_goes_on() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncTransactionProducer) -> None:
        with pytest.raises(KeyError):
            async with producer.transaction(Message("orders", b"x")):
                raise KeyError
        assert fake.ends[-1].commitOrRollback == ROLL_BACK
        fake.script = answers(1, "the transaction is not open")
        with pytest.raises(KeyError):
            async with producer.transaction(Message("orders", b"y")):
                raise KeyError
        assert (await asked(fake, 1)).commitOrRollback == ROLL_BACK

    run(scenario)


def test_what_a_repeated_send_left_behind_is_rolled_back() -> None:
    """Its unique id is that of the message which counts, its place is not."""

    async def scenario(fake: FakeCluster, producer: AsyncTransactionProducer) -> None:
        def lost(broker: FakeBroker, connection: Connection, request: Request) -> bool:
            if request.code != RequestCode.SEND_MESSAGE_V2:
                return False
            fake.script = None
            broker._send(FakeAnswer(), request)  # type: ignore[arg-type]
            fake.places.clear()  # that of a broker of another make is stored again
            connection.respond(request, 1, remark="outcome unknown: leadership was lost")
            return True

        fake.script = lost
        async with producer.transaction(Message("orders", b"x")):
            first, second = fake.stored("orders")
            assert first.properties["UNIQ_KEY"] == second.properties["UNIQ_KEY"]
        assert fake.ends[-1].tranStateTableOffset == 1
        assert (await asked(fake, 0)).commitOrRollback == ROLL_BACK
        assert (await asked(fake, 1)).commitOrRollback == COMMIT

    run(scenario)


class FakeAnswer:
    """A connection whose answers are lost."""

    def respond(self, *_: Any, **__: Any) -> None:
        pass


def test_a_half_message_that_was_not_acknowledged_is_rolled_back() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncTransactionProducer) -> None:
        async with producer.transaction(Message("orders", b"x")):
            pass
        (half,) = fake.stored("orders")
        fake.script = answers(13, "no", RequestCode.SEND_MESSAGE_V2)
        broken = producer.transaction(Message("orders", b"y"))
        with pytest.raises(SendFailed):
            await broken.begin()
        half.text = half.text.replace(half.properties["UNIQ_KEY"], broken.transaction_id)
        assert (await asked(fake)).commitOrRollback == ROLL_BACK

    run(scenario)


class Listener(TransactionListener):
    def __init__(self) -> None:
        self.said: Any = State.UNKNOWN
        self.checked: list[bytes] = []

    async def execute_local_transaction(self, message: Message, arg: Any) -> State:
        if isinstance(arg, Exception):
            raise arg
        return State(arg)

    def check_local_transaction(self, message: ReceivedMessage) -> State:
        self.checked.append(message.body)
        assert isinstance(self.said, State), "the test wants an error"
        return self.said


def test_a_listener_is_asked_for_what_it_did_not_know() -> None:
    listener = Listener()

    async def scenario(fake: FakeCluster, producer: AsyncTransactionProducer) -> None:
        for arg in (State.COMMIT_MESSAGE.value, State.ROLLBACK_MESSAGE.value):
            result = await producer.send_in_transaction(Message("orders", b"x"), arg)
            assert result.state.value == fake.ends[-1].commitOrRollback == arg
        ends = len(fake.ends)
        for arg in (0, ValueError("no")):
            assert (await producer.send_in_transaction(Message("orders", b"y"), arg)).state is State.UNKNOWN
        assert len(fake.ends) == ends, "what is not known is not said"
        assert (await asked(fake, 2)).commitOrRollback == UNKNOWN
        listener.said = State.COMMIT_MESSAGE
        assert (await asked(fake, 2)).commitOrRollback == COMMIT
        listener.said = None
        assert (await asked(fake, 3)).commitOrRollback == UNKNOWN, "what raises knows nothing"
        assert listener.checked == [b"y"] * 3
        assert (await asked(fake, 1)).commitOrRollback == ROLL_BACK, "that is known without it"

    run(scenario, listener=listener)


def test_a_producer_without_a_listener_says_so() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncTransactionProducer) -> None:
        with pytest.raises(ClientError, match="listener="):
            await producer.send_in_transaction(Message("orders", b"x"))
        with pytest.raises(InvalidMessage, match="delay"):
            await producer.transaction(Message("orders", b"x", delay_level=1)).begin()
        with pytest.raises(ClientError, match="not begun"):
            await producer.transaction(Message("orders", b"x")).commit()

    run(scenario)


ENDS: list[tuple[int, str, int, type[ClientError] | None]] = [
    (ResponseCode.SYSTEM_ERROR, "outcome unknown: leadership was lost", 1, None),
    (ResponseCode.SYSTEM_ERROR, "outcome unknown: leadership was lost", 9, OutcomeUnknown),
    (ResponseCode.SYSTEM_ERROR, "the transaction is not open", 1, BrokerRefused),
    (ResponseCode.ILLEGAL_OPERATION, "too late", 1, BrokerRefused),
]


@pytest.mark.parametrize(("code", "remark", "times", "error"), ENDS)
def test_an_end_without_a_good_answer(
    code: int, remark: str, times: int, error: type[ClientError] | None
) -> None:
    async def scenario(fake: FakeCluster, producer: AsyncTransactionProducer) -> None:
        transaction = await producer.transaction(Message("orders", b"x")).begin()
        fake.script = answers(code, remark, times=times)
        if error is None:
            await transaction.commit()
            assert len(fake.ends) == 1
        else:
            with pytest.raises(error):
                await transaction.commit()
        fake.script = None
        assert (await asked(fake)).commitOrRollback == COMMIT, "it stays what was decided"

    run(scenario, options=ProducerOptions(busy_pause_s=0.001))


def test_no_more_ended_transactions_are_remembered_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger.client.producing.transaction_producer.MAX_ENDED", 3)

    async def scenario(fake: FakeCluster, producer: AsyncTransactionProducer) -> None:
        for _ in range(5):
            async with producer.transaction(Message("orders", b"x")):
                pass
        assert len(producer._ended) == 3 and producer._open_ones == {}
        assert (await asked(fake, 0)).commitOrRollback == UNKNOWN
        assert (await asked(fake, 4)).commitOrRollback == COMMIT

    run(scenario)

"""Transactions of our own producer on a real group: how they end, also when a leader or a producer dies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dledger import (
    AsyncTransactionProducer,
    BrokerRefused,
    ClientError,
    FromWhere,
    InvalidMessage,
    LocalTransactionState,
    Message,
    PullConsumer,
    ReceivedMessage,
    TransactionListener,
    TransactionProducer,
)
from dledger.local.cluster import LocalCluster, wait_for

State = LocalTransactionState
SOON = {"transactionTimeOut": "500", "transactionCheckInterval": "1000", "transactionCheckMax": "100"}
"""On a busy machine, too, nothing is given up."""


class Listener(TransactionListener):
    """Does what the message says; of those that say nothing it knows when it is asked."""

    def __init__(self) -> None:
        self.executed: list[tuple[bytes, Any]] = []
        self.checked: list[bytes] = []

    def execute_local_transaction(self, message: Message, arg: Any) -> State:
        self.executed.append((message.body, arg))
        if message.body.startswith(b"raise"):
            raise ValueError("the database says no")
        return State.COMMIT_MESSAGE if message.body.startswith(b"commit") else State.UNKNOWN

    def check_local_transaction(self, message: ReceivedMessage) -> State:
        self.checked.append(message.body)
        assert message.topic == "Tx"
        return State.COMMIT_MESSAGE if b"later" in message.body else State.ROLLBACK_MESSAGE


@pytest.fixture
def impatient(new_group: Callable[..., LocalCluster]) -> LocalCluster:
    group = new_group(broker=SOON)
    group.create_topic("Tx")
    return group


def read(group: LocalCluster, count: int, name: str = "reader") -> list[bytes]:
    """What the topic has, once there is so much."""
    found: list[bytes] = []
    with PullConsumer(name, group.namesrv_addr) as consumer:
        consumer.assign(consumer.queues("Tx"), start=FromWhere.FIRST)

        def enough() -> bool:
            found.extend(message.body for message in consumer.poll(timeout_s=0.2))
            return len(found) >= count

        wait_for(enough, 20, "messages")
        found.extend(message.body for message in consumer.poll(timeout_s=1.0))
    return sorted(found)


def test_a_listener_decides_at_once_or_when_it_is_asked(impatient: LocalCluster) -> None:
    listener = Listener()
    with TransactionProducer("sync", impatient.namesrv_addr, listener) as producer:
        for number, body in enumerate((b"commit", b"unknown, later", b"raise", b"unknown")):
            sent = producer.send_in_transaction(Message("Tx", body, tags="t"), arg=number)
            assert sent.state is (State.COMMIT_MESSAGE if number == 0 else State.UNKNOWN)
        assert read(impatient, 2) == [b"commit", b"unknown, later"]
        wait_for(lambda: {b"raise", b"unknown"} <= set(listener.checked), 20, "checks")
        assert listener.executed[0] == (b"commit", 0)
        producer.send(Message("Tx", b"plain"))
    assert read(impatient, 3, "another") == [b"commit", b"plain", b"unknown, later"]


def test_a_block_commits_at_its_end_and_rolls_back_on_an_error(impatient: LocalCluster) -> None:
    with TransactionProducer("blocks", impatient.namesrv_addr) as producer:
        with producer.transaction(Message("Tx", b"good")) as good:
            assert good.result is not None and good.state is State.UNKNOWN
        with pytest.raises(KeyError), producer.transaction(Message("Tx", b"bad")):
            raise KeyError
        with producer.transaction(Message("Tx", b"withdrawn")) as withdrawn:
            withdrawn.rollback()
        with pytest.raises(ClientError, match="already decided"):
            withdrawn.commit()
        with pytest.raises(BrokerRefused, match="the transaction is not open"):
            good.commit()
        with (
            pytest.raises(InvalidMessage, match="delay"),
            producer.transaction(Message("Tx", b"x", delay_level=1)),
        ):
            pass
    assert read(impatient, 1) == [b"good"]


def test_open_transactions_outlive_a_leader(impatient: LocalCluster) -> None:
    async def main() -> None:
        async with AsyncTransactionProducer("async", impatient.namesrv_addr) as producer:
            node = ""
            for number in range(20):
                async with producer.transaction(Message("Tx", b"%02d" % number)):
                    if number == 10:
                        node = (await asyncio.to_thread(impatient.kill_leader)).node
                    await asyncio.sleep(0.01)
            async with producer.transaction(Message("Tx", b"long")):
                await asyncio.sleep(3)  # it is asked for meanwhile, and not known yet
            await asyncio.to_thread(impatient.restart_node, node)

    asyncio.run(main())
    assert read(impatient, 21) == [b"%02d" % number for number in range(20)] + [b"long"]


def test_the_transaction_of_a_producer_that_died_is_decided_by_another_one(impatient: LocalCluster) -> None:
    asked = threading.Event()

    def check(message: ReceivedMessage) -> State:
        asked.set()
        return State.COMMIT_MESSAGE

    with TransactionProducer("heirs", impatient.namesrv_addr) as first:
        orphan = first.transaction(Message("Tx", b"orphan")).begin()
        assert orphan.state is State.UNKNOWN
    with TransactionProducer("heirs", impatient.namesrv_addr, check=check):
        assert asked.wait(20)
        assert read(impatient, 1) == [b"orphan"]

"""What completion shows of each public class: the API, and nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest

import dledger.client
from dledger.client import (
    AsyncDualProducer,
    AsyncLitePullConsumer,
    AsyncPopConsumer,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncSpoolingProducer,
    AsyncTransactionProducer,
    Codec,
    LitePullConsumer,
    Message,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    SpoolingProducer,
    TransactionProducer,
)

NOWHERE = "127.0.0.1:9"
LIFE = "close failure start"
PRODUCER = (
    f"{LIFE} create_topic delete_topic flush group has_route options queues recall request send send_batch "
    "send_oneway"
)
ASYNC_PRODUCER = f"{PRODUCER} prepare send_batch_nowait send_nowait send_soon"
BLOCKING_PRODUCER = f"{PRODUCER} asend begin begin_batch send_async"
SPOOLING = "deliver delivered refused spool_options spooled"
PUSH = f"{LIFE} client_id group options queues subscribe wait"
PULL = (
    f"{LIFE} assign assignment commit committed group highest lowest offset_at options poll position "
    "query_by_key query_by_unique_key queues seek seek_to_begin seek_to_end seek_to_time subscribe"
)
LITE_PULL = (
    f"{LIFE} assign assignment client_id commit committed fetch_queues group offset_for_timestamp options "
    "pause poll position resume seek seek_to_begin seek_to_end subscribe"
)
POP = f"{LIFE} ack ack_all change_invisible group listen options pop topic"
TRANSACTION = "begin commit leave_open message result rollback state transaction_id"


def listen(message: object) -> None:
    """A listener that takes everything."""


CLIENTS: dict[str, tuple[Callable[[], Any], str]] = {
    "AsyncProducer": (lambda: AsyncProducer("g", NOWHERE), ASYNC_PRODUCER),
    "Producer": (lambda: Producer("g", NOWHERE), BLOCKING_PRODUCER),
    "AsyncTransactionProducer": (
        lambda: AsyncTransactionProducer("g", NOWHERE),
        f"{ASYNC_PRODUCER} send_in_transaction transaction",
    ),
    "TransactionProducer": (
        lambda: TransactionProducer("g", NOWHERE),
        f"{BLOCKING_PRODUCER} send_in_transaction transaction",
    ),
    "AsyncSpoolingProducer": (
        lambda: AsyncSpoolingProducer("g", NOWHERE, spool="orders.spool"),
        f"{ASYNC_PRODUCER} {SPOOLING} spooled_bytes",
    ),
    "SpoolingProducer": (
        lambda: SpoolingProducer("g", NOWHERE, spool="orders.spool"),
        f"{BLOCKING_PRODUCER} {SPOOLING}",
    ),
    "AsyncDualProducer": (
        lambda: AsyncDualProducer(AsyncProducer("g", NOWHERE), AsyncProducer("g", NOWHERE)),
        "counts send",
    ),
    "AsyncPushConsumer": (lambda: AsyncPushConsumer("g", NOWHERE, listen), PUSH),
    "PushConsumer": (lambda: PushConsumer("g", NOWHERE, listen), PUSH),
    "AsyncPullConsumer": (lambda: AsyncPullConsumer("g", NOWHERE), PULL),
    "PullConsumer": (lambda: PullConsumer("g", NOWHERE), PULL),
    "AsyncLitePullConsumer": (lambda: AsyncLitePullConsumer("g", NOWHERE), LITE_PULL),
    "LitePullConsumer": (lambda: LitePullConsumer("g", NOWHERE), LITE_PULL),
    "AsyncPopConsumer": (lambda: AsyncPopConsumer("g", NOWHERE, topic="t"), POP),
    "PopConsumer": (lambda: PopConsumer("g", NOWHERE, topic="t"), POP),
    "AsyncTransaction": (
        lambda: AsyncTransactionProducer("g", NOWHERE).transaction(Message("t", b"x")),
        TRANSACTION,
    ),
    "Codec": (lambda: Codec(int), "decode encode kind listener message read"),
}
"""How each class is made that has methods for users, and the public names of what is made.

A name that is missing here is either part of the API (then add it, and document it) or begins with `_`.
"""
VALUES = {
    "Credentials": "from_environment sign",
    "Delivery": "ack nack",
    "TlsOptions": "context from_environment",
    "Transaction": "begin commit leave_open rollback",
    "TransactionListener": "check_local_transaction execute_local_transaction",
    "SendHook": "after before",
    "ConsumeHook": "after before",
    "BodyFormat": "decode encode",
}
"""Methods of the other classes that have any."""


@pytest.mark.parametrize("name", CLIENTS)
def test_completion_shows_the_api_and_nothing_else(name: str) -> None:
    make, wanted = CLIENTS[name]
    made = make()
    assert type(made).__name__ == name
    found = {one for one in dir(made) if not one.startswith("_")}
    more, fewer = sorted(found - set(wanted.split())), sorted(set(wanted.split()) - found)
    assert not more, f"{name} shows {more}: list them in CLIENTS if users need them, or begin them with _"
    assert not fewer, f"{name} lacks {fewer}, which CLIENTS lists"


def own_methods(kind: type) -> set[str]:
    """Public functions of a class and of its bases that are ours."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("dledger.")]
    return {
        name
        for base in ours
        for name, value in vars(base).items()
        if not name.startswith("_") and isinstance(value, Callable | classmethod | staticmethod)  # type: ignore[arg-type]
    }


def test_other_public_classes_have_no_methods_but_these() -> None:
    looked_at = 0
    for name in dledger.client.__all__:
        kind = getattr(dledger.client, name)
        if not inspect.isclass(kind) or issubclass(kind, Enum | Exception) or name in CLIENTS:
            continue
        looked_at += 1
        assert own_methods(kind) == set(VALUES.get(name, "").split()), f"public methods of {name}"
    assert looked_at > 20


def test_every_class_has_its_twin_for_programs_without_an_event_loop() -> None:
    """But for producers, whose quickest ways differ, both have the same names."""
    for name, (_, wanted) in CLIENTS.items():
        twin = f"Async{name}"
        if twin in CLIENTS and "Producer" not in name:
            assert wanted == CLIENTS[twin][1], f"{name} and {twin}"

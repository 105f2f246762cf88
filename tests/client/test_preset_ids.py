"""Messages whose unique ids are given: what brokers get of them."""

from __future__ import annotations

import asyncio

import pytest

from dledger.client import AsyncProducer, Message
from dledger.client.producing.preset_ids import unique_id_of, with_unique_id
from dledger.formats.properties import RESEND, UNIQ_KEY
from tests.client.fake_cluster import FakeCluster


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_ids_and_marks_reach_the_broker_alone_and_in_a_batch(count: int, again: bool) -> None:
    async def test() -> None:
        async with FakeCluster(1, {"T": 1}) as cluster, AsyncProducer("PG", cluster.namesrv) as producer:
            ids = [unique_id_of(f"row {number}") for number in range(count)]
            messages = [with_unique_id(Message("T", b"x"), one, again) for one in ids]
            if count == 1:
                await producer.send(messages[0])
            else:
                await producer.send_batch(messages)
            found = [one.properties for one in cluster.stored("T")]
            assert [one[UNIQ_KEY] for one in found] == ids
            assert [RESEND in one for one in found] == [again] * count

    asyncio.run(test())


def test_an_id_follows_from_its_name_and_has_the_form_of_a_clients_own() -> None:
    assert unique_id_of("a") == unique_id_of("a") != unique_id_of("b")
    assert unique_id_of("a") == "CA978112CA1BBDCAFAC20000000031B3"

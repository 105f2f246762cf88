"""Two clusters get the same messages, under the same ids; the first one decides."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dledger.client import (
    AsyncDualProducer,
    AsyncProducer,
    AsyncSpoolingProducer,
    ClientOptions,
    DualCount,
    Message,
    NoBroker,
    ProducerOptions,
    SpoolOptions,
)
from dledger.remoting.codes import RequestCode
from dledger.runtime.env import SystemWallClock
from tests.client.fake_cluster import FakeCluster, eventually, send_limit, skip_now, waits_for_a_leader

NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def no_midnight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are counted by day: the wall clock stands still."""
    monkeypatch.setattr(SystemWallClock, "now_ms", lambda clock: NOW_MS)


def ids(fake: FakeCluster) -> list[tuple[bytes, str]]:
    return sorted((stored.body, stored.properties["UNIQ_KEY"]) for stored in fake.stored("orders"))


def test_both_get_the_same_under_the_same_ids_and_the_first_decides() -> None:
    async def main() -> None:
        topics = {"orders": 2}
        async with (
            FakeCluster(topics=topics) as old,
            FakeCluster(topics=topics) as new,
            AsyncProducer("p", old.namesrv) as first,
            AsyncProducer("p", new.namesrv, ProducerOptions(auto_batch=True)) as second,
        ):
            dual = AsyncDualProducer(first, second)
            for number in range(4):
                result = await dual.send(Message("orders", b"%d" % number), "a" if number % 2 else None)
                assert (b"%d" % number, result.message_id) in ids(old)
            assert ids(old) == ids(new) and len(ids(old)) == 4
            new.lead(-1)
            with send_limit(second, 0.1):
                await dual.send(Message("orders", b"4"))
            new.lead(0)
            old.lead(-1)
            with send_limit(first, 30.0):
                sending = asyncio.ensure_future(dual.send(Message("orders", b"5")))
                await eventually(lambda: waits_for_a_leader(first))
                skip_now(30.0)
                with pytest.raises(NoBroker):
                    await sending
            assert dual.counts == {("2023-11-14", "orders"): DualCount(sent=5, both=4, missed=1)}
            assert [body for body, _ in ids(new)] == [b"0", b"1", b"2", b"3"]

    asyncio.run(main())


@pytest.mark.parametrize("silent", ["first", "second"])
def test_a_call_that_is_cancelled_is_counted(silent: str) -> None:
    async def main() -> None:
        async with (
            FakeCluster(topics={"orders": 2}) as old,
            FakeCluster(topics={"orders": 2}) as new,
            AsyncProducer("p", old.namesrv, ProducerOptions(close_timeout_s=0.0)) as first,
            AsyncProducer("p", new.namesrv, ProducerOptions(close_timeout_s=0.0)) as second,
        ):
            dual = AsyncDualProducer(first, second)
            fake = old if silent == "first" else new
            fake.brokers[0].silent = True
            call = asyncio.ensure_future(dual.send(Message("orders", b"x")))
            await eventually(lambda: RequestCode.SEND_MESSAGE_V2 in fake.brokers[0].requests)
            call.cancel()
            await asyncio.wait([call])
            counted = DualCount(unknown=1) if silent == "first" else DualCount(sent=1, missed=1)
            assert call.cancelled() and list(dual.counts.values()) == [counted]

    asyncio.run(main())


def test_a_second_cluster_that_is_away_gets_its_messages_later(tmp_path: Path) -> None:
    async def main() -> None:
        spool = SpoolOptions(str(tmp_path / "new.spool"), retry_s=0.02)
        client = ClientOptions(namespace="ns")
        async with (
            FakeCluster(topics={"ns%orders": 2}) as old,
            FakeCluster(topics={"ns%orders": 2}) as new,
            AsyncProducer("p", old.namesrv, client=client) as first,
            AsyncSpoolingProducer("p", new.namesrv, client=client, spool=spool) as second,
        ):
            dual = AsyncDualProducer(first, second)
            new.lead(-1)
            with send_limit(second, 0.1):
                for number in range(3):
                    await dual.send(Message("orders", b"%d" % number), "a")
            new.lead(0)
            assert await second.delivered(60)
            for fake in (old, new):
                assert [stored.body for stored in fake.stored("ns%orders")] == [b"0", b"1", b"2"]
            keys = [
                [stored.properties["UNIQ_KEY"] for stored in fake.stored("ns%orders")] for fake in (old, new)
            ]
            assert keys[0] == keys[1]
            assert list(dual.counts.values()) == [DualCount(sent=3, kept=3)]

    asyncio.run(main())

"""A broker that is too busy says so, as RocketMQ's do; and topics and groups have rates."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.broker.config import SETTINGS
from dledger.broker.latency import slow_consumers
from dledger.broker.pending_responses import MARK_EVERY, PendingResponses
from dledger.broker.ratelimit import rate_limits, token_bucket
from dledger.broker.ratelimit.rate_limits import KNOWS_FLOW_CONTROL
from dledger.broker.ratelimit.token_bucket import Buckets, TokenBucket
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import FLAG_REDIRECT, Request
from dledger.remoting.frames import encode_request
from dledger.runtime.settings import ConfigError, Property
from tests.broker.harness import FakeConnection, Reply, World, decode, run, send_header, skip_s
from tests.broker.pop_calls import pop
from tests.broker.test_send import batch_body
from tests.client.fake_cluster import eventually

FLOW = "[FLOW]client has exhausted the {} quota for the current time slot, start flow control for a while."


async def figures(world: World) -> Mapping[str, str]:
    return world.broker.runtime_info()


# -- the log does not move


def test_while_the_log_does_not_move_sends_are_refused_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), page_cache_busy_s=0.05).open()
        services = asyncio.ensure_future(world.broker.leadership.services.run())
        await world.send()  # the first one of a topic waits for the NameServers as well
        world.node.auto = False
        first = world.send()
        assert (await figures(world))["sendThreadPoolQueueSize"] == "1"
        await asyncio.sleep(0.08)
        for reply in (await world.send(), await batch(world, 2)):
            assert reply.code == ResponseCode.SYSTEM_BUSY
            assert (reply.remark or "").startswith(
                "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
            ) and (reply.remark or "").endswith("ms, size of queue: 1")
        told = await figures(world)
        assert int(told["sendThreadPoolQueueHeadWaitTimeMills"]) >= 80 and told["sendsRefusedAsBusy"] == "2"
        world.node.auto = True
        world.node.commit()
        assert (await first).code == 0 and (await world.send()).code == 0
        assert (await figures(world))["sendThreadPoolQueueHeadWaitTimeMills"] == "0"
        services.cancel()

    run(test)


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), page_cache_busy_s=0.02, fast_failure=False).open()
        services = asyncio.ensure_future(world.broker.leadership.services.run())
        world.node.auto = False
        asked = [world.send()]
        await asyncio.sleep(0.04)
        asked.append(world.send())
        world.node.commit()
        assert [(await one).code for one in asked] == [0, 0]
        services.cancel()

    run(test)


def test_a_log_that_moves_slowly_is_told_by_its_oldest_answer() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        pending, connection = PendingResponses(), FakeConnection()
        [request] = decode(encode_request(RequestCode.SEND_MESSAGE_V2, 1, None, 0, 2))
        assert pending.oldest == 0
        began = loop.time()
        for index in range(3):
            add(pending, index, connection, request)
        await skip_s(60)
        middle = loop.time()
        for index in range(MARK_EVERY, MARK_EVERY + 3):
            add(pending, index, connection, request)
        ends = ((0, began), (1, began), (2, middle), (MARK_EVERY + 1, middle))
        for index, wanted in ((-1, began), *ends):
            pending.on_commit(index)
            assert abs(pending.oldest - wanted) < 20, index
        pending.on_commit(MARK_EVERY + 2)
        assert pending.oldest == 0
        add(pending, MARK_EVERY + 3, connection, request)
        pending.end("test")
        assert pending.oldest == 0

    run(test)


def add(pending: PendingResponses, index: int, connection: Any, request: Request) -> None:
    pending.add(index, connection, request, b"answer")


# -- rates


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What rates go by: `now` is in seconds, and stands until it is set."""
    found = SimpleNamespace(now=100.0)
    loop = SimpleNamespace(time=lambda: found.now)
    monkeypatch.setattr(rate_limits, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
    return found


async def batch(world: World, count: int, topic: str = "T") -> Reply:
    messages = [(b"x", b"UNIQ_KEY\x01ID\x02")] * count
    return await world.send(topic, batch_body(*messages), 0, "", batch=True)


@pytest.mark.parametrize("rates", [{"topic_send_rates": {"T": 3}}, {"group_send_rates": {"PG": 3}}])
def test_a_topic_or_a_producer_group_may_send_so_many_messages_a_second(
    tmp_path: Path, rates: dict[str, dict[str, int]], clock: SimpleNamespace
) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), **rates).open()
        assert (await world.send()).code == 0
        assert (await batch(world, 4)).code == 0  # the rest, and a debt of 2
        reply = await world.send()
        assert (reply.code, reply.remark) == (ResponseCode.FLOW_CONTROL, FLOW.format("send"))
        assert world.broker.runtime_info()["sendsRefusedByRate"] == "1"
        other = await world.send("U", producerGroup="PG2")
        assert other.code == 0

    run(test)


def test_clients_that_do_not_know_the_code_get_another(tmp_path: Path, clock: SimpleNamespace) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), topic_send_rates={"*": 1}).open()
        for topic in ("T", "U"):
            assert (await world.send(topic)).code == 0
        header = send_header("T", 0, "")
        codes = {KNOWS_FLOW_CONTROL - 1: ResponseCode.SYSTEM_BUSY, 479: ResponseCode.FLOW_CONTROL}
        for version, code in codes.items():
            frame = encode_request(RequestCode.SEND_MESSAGE_V2, version, header, 1, FLAG_REDIRECT) + b"x"
            [request] = decode(frame.replace(b'"version":479', b'"version":%d' % version))
            assert request.version == version
            connection = FakeConnection(serial=version)
            world.dispatch(connection, request)
            assert connection.replies[version].code == code

    run(test)


def test_tokens_come_back(tmp_path: Path, clock: SimpleNamespace) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), topic_send_rates={"T": 50}).open()
        codes = [(await world.send()).code for _ in range(60)]
        assert codes == [0] * 50 + [ResponseCode.FLOW_CONTROL] * 10
        clock.now += 0.05
        codes = [(await world.send()).code for _ in range(4)]
        assert codes == [0, 0, ResponseCode.FLOW_CONTROL, ResponseCode.FLOW_CONTROL]

    run(test)


def test_retries_and_dead_letters_are_not_counted(tmp_path: Path, clock: SimpleNamespace) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), topic_send_rates={"*": 1}, group_send_rates={"*": 1}).open()
        way = world.features.ratelimit.rates.sending
        for topic in ("%RETRY%CG", "%DLQ%CG"):
            way.count(topic, "PG", 100)
            way.check(topic, "PG", 479)
        way.check("T", "PG", 479)

    run(test)


@pytest.mark.parametrize("rates", [{"topic_pull_rates": {"T": 3}}, {"group_pull_rates": {"CG": 3}}])
def test_reading_is_limited_by_what_was_given_out(
    tmp_path: Path, rates: dict[str, dict[str, int]], clock: SimpleNamespace
) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), **rates).open()
        for _ in range(8):
            await world.send()
        assert (await world.pull(maxMsgNums=1)).code == 0
        assert len((await world.pull(offset=1, maxMsgNums=5)).records) == 5  # a debt of 3
        reply = await world.pull(offset=6)
        assert (reply.code, reply.remark) == (ResponseCode.FLOW_CONTROL, FLOW.format("pull"))
        popped = await pop(world)
        assert (popped.code, popped.remark) == (ResponseCode.FLOW_CONTROL, FLOW.format("pull"))
        assert world.broker.runtime_info()["pullsRefusedByRate"] == "2"

    run(test)


def test_rates_change_while_the_broker_runs(tmp_path: Path) -> None:
    rates = Buckets()
    rates.set_rates({"a": 2, "b": 2})
    for name in "ab":
        bucket = rates.of(name, 0.0)
        assert bucket is not None
        bucket.take(5)
    rates.set_rates({"a": 2, "b": 3, "*": 1})
    found = {name: rates.of(name, 0.0) for name in "abc"}
    assert {name: one and one.ready(0.0) for name, one in found.items()} == {"a": False, "b": True, "c": True}
    assert rates.used
    rates.set_rates({})
    assert rates.of("a", 0.0) is None and not rates.used


def test_a_bucket_holds_what_comes_in_a_second() -> None:
    bucket = TokenBucket(10, 0.0)
    assert bucket.ready(100.0)
    bucket.take(10)
    assert not bucket.ready(100.0) and not bucket.ready(100.05) and bucket.ready(100.125)
    bucket.take(20)
    assert not bucket.ready(102.0) and bucket.ready(102.25)


def test_there_are_so_many_buckets_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_bucket, "MAX_BUCKETS", 2)
    buckets = Buckets()
    buckets.set_rates({"*": 1})
    for name in "abc":
        buckets.of(name, 0.0)
    assert list(buckets._buckets) == ["b", "c"]


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("", {}),
        ("orders=5", {"orders": 5}),
        (" orders = 5 ; * = 1000000000;", {"orders": 5, "*": 1_000_000_000}),
        ("orders", None),
        ("orders=0", None),
        ("orders=-1", None),
        ("orders=1.5", None),
        ("orders=5;orders=6", None),
        ("=5", None),
        ("a b=5", None),
        (";".join(f"t{number}=1" for number in range(1001)), None),
    ],
)
def test_how_rates_are_written(text: str, rates: dict[str, int] | None) -> None:
    given = [Property("sendRatesOfTopics", text), Property("dLegerPeers", "n0-127.0.0.1:40911")]
    if rates is None:
        with pytest.raises(ConfigError, match="sendRatesOfTopics"):
            SETTINGS.load(given)
        return
    assert SETTINGS.load(given)[0].topic_send_rates == rates


# -- groups that read far behind


def test_a_group_that_reads_too_far_behind_is_disabled_until_somebody_enables_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_consumers, "LOOK_S", 0.02)
    limits = {"stop_slow_consumers": True, "slow_consumer_bytes": 7000}

    async def test() -> None:
        world = await World(str(tmp_path), **limits).open()
        services = asyncio.ensure_future(world.broker.leadership.services.run())
        for number in range(10):
            await world.send(body=b"x" * 1000, queue=number % 2)
        assert (await world.pull(offset=0, maxMsgNums=1, consumerGroup="far")).code == 0
        assert (await world.pull(offset=4, maxMsgNums=1, consumerGroup="near")).code == 0
        await eventually(lambda: world.features.latency.slow_consumers.stopped == 1)
        refused = await world.pull(offset=0, maxMsgNums=1, consumerGroup="far")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert refused.remark == "subscription group no permission, far"
        assert (await world.pull(offset=4, maxMsgNums=1, consumerGroup="near")).code == 0
        await asyncio.sleep(0.06)
        assert world.features.latency.slow_consumers.stopped == 1, "once, and nobody who does not pull"
        services.cancel()

    run(test)


def test_nobody_is_disabled_unless_a_setting_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), slow_consumer_bytes=1).open()
        await world.send()
        await world.send()
        assert (await world.pull(offset=0, maxMsgNums=1)).code == 0
        assert not world.features.latency.slow_consumers._behind
        world.features.latency.slow_consumers._look()
        assert world.features.latency.slow_consumers.stopped == 0

    run(test)

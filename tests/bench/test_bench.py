"""The load generators against the fake cluster: figures add up, order is checked, errors are counted."""

from __future__ import annotations

import asyncio
import gc
import json

import pytest

from dledger.bench.consume import OrderBroken, consume, count_records
from dledger.bench.histogram import BUCKET_S, BUCKETS, Histogram
from dledger.bench.idle import LIMIT_PERCENT
from dledger.bench.produce import produce
from dledger.bench.report import Load, Tally
from dledger.client.errors import ClientError
from dledger.formats.record import encode_record
from dledger.local.spec import ClusterError
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection
from dledger.runtime.env import production_env
from dledger.runtime.loops import LoopThread
from tests.client.fake_cluster import FakeBroker, FakeCluster
from tests.command_line import bench as main


def run(
    load: Load, mode: str, fake_topics: dict[str, int] | None = None
) -> tuple[dict[str, object], FakeCluster]:
    async def body() -> tuple[dict[str, object], FakeCluster]:
        async with FakeCluster(topics=fake_topics) as fake, asyncio.timeout(60):
            filled = Load(**{**{name: getattr(load, name) for name in Load.__dataclass_fields__},
                             "namesrv": fake.namesrv})  # fmt: skip
            seen: list[Tally] = []
            result = await produce(production_env(), filled, lambda: 0.5, seen.append, lambda: None)
            if mode == "consume":
                result = await consume(production_env(), filled, lambda: 0.5, seen.append, lambda: None)
            return result, fake

    return asyncio.run(body())


def test_produce_counts_messages_and_creates_the_topic() -> None:
    load = Load("", topic="fresh", size=100, window=8, messages=200, warmup_s=0.02, queues=3)
    result, fake = run(load, "produce")
    assert 200 <= int(str(result["messages"])) <= 208
    assert result["errors"] == 0
    assert fake.topics["fresh"] == 3
    assert len(fake.stored("fresh")) >= 200  # and those of the warm-up
    assert {len(body) for body in fake.bodies("fresh")} == {100}
    latency = result["latency_ms"]
    assert isinstance(latency, dict)
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]


def test_batches_count_their_messages() -> None:
    load = Load("", topic="orders", size=10, window=2, batch=16, messages=160, warmup_s=0.0)
    result, fake = run(load, "produce", {"orders": 2})
    assert int(str(result["messages"])) % 16 == 0
    assert len(fake.stored("orders")) % 16 == 0


def test_a_run_by_time_ends_in_time() -> None:
    load = Load("", topic="orders", size=10, window=2, seconds=0.05, warmup_s=0.0)
    result, _ = run(load, "produce", {"orders": 2})  # which does not wait for more than a minute
    assert float(str(result["seconds"])) >= 0.05


def test_consume_reads_everything_in_order() -> None:
    load = Load("", topic="orders", size=10, window=4, messages=300, warmup_s=0.0)
    result, _ = run(load, "consume", {"orders": 3})
    assert int(str(result["messages"])) >= 300
    assert result["errors"] == 0


def test_errors_are_counted_and_named() -> None:
    async def body() -> dict[str, object]:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            left = [3]

            def refuse(broker: FakeBroker, connection: Connection, request: Request) -> bool:
                if request.code != RequestCode.SEND_MESSAGE_V2 or not left[0]:
                    return False
                left[0] -= 1
                connection.respond(request, ResponseCode.MESSAGE_ILLEGAL, remark="not that")
                return True

            fake.script = refuse
            load = Load(fake.namesrv, topic="orders", window=4, messages=20, warmup_s=0.0)
            return await produce(production_env(), load, lambda: 0.0, lambda _: None, lambda: None)

    result = asyncio.run(body())
    assert "not that" in str(result["last_error"])


def records(offsets: list[int]) -> bytes:
    return b"".join(encode_record(topic="t", body=b"12345", queue_offset=offset) for offset in offsets)


def test_order_is_verified() -> None:
    assert count_records(records([7, 8, 9]), 7) == (3, 15)
    with pytest.raises(OrderBroken, match="8 where 7"):
        count_records(records([8]), 7)
    with pytest.raises(OrderBroken, match="9 where 8"):
        count_records(records([7, 9]), 7)
    with pytest.raises(OrderBroken):
        count_records(records([7])[:50], 7)


def test_percentiles() -> None:
    histogram = Histogram()
    for number in range(1, 1001):
        histogram.record(number * 1e-3)
    assert histogram.percentile_s(0.5) == pytest.approx(0.5, abs=2 * BUCKET_S)
    assert histogram.percentile_s(0.999) == pytest.approx(0.999, abs=2 * BUCKET_S)
    assert histogram.summary_ms()["max"] == 1000.0
    histogram.record(BUCKETS * BUCKET_S * 3)
    assert histogram.percentile_s(1.0) == BUCKETS * BUCKET_S * 3
    histogram.clear()
    assert histogram.summary_ms() == {"p50": 0.0, "p95": 0.0, "p99": 0.0, "p999": 0.0, "max": 0.0}


def test_the_command_prints_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    thresholds = gc.get_threshold()
    cluster = FakeCluster(topics={"orders": 2})
    thread = LoopThread("fake cluster")
    thread.run(cluster.__aenter__())
    try:
        arguments = ["--namesrv", cluster.namesrv, "--topic", "orders", "--json"]
        assert main(["produce", *arguments, "--warmup", "0", "--messages", "50", "--size", "10"]) == 0
        line = json.loads(capsys.readouterr().out)
        assert {"messages", "seconds", "rate", "latency_ms", "generator_cpu_s", "errors", "gc"} <= set(line)
        assert main(["consume", *arguments]) == 0
        line = json.loads(capsys.readouterr().out)
        assert line["messages"] == len(cluster.stored("orders"))
        assert line["left"] == 0
    finally:
        thread.run(cluster.__aexit__())
        thread.close()
        gc.unfreeze()
        gc.set_threshold(*thresholds)


def test_a_missing_nameserver_is_an_error_with_its_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "--namesrv", "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
    with pytest.raises(ClientError):
        asyncio.run(consume(production_env(), Load("127.0.0.1:1"), lambda: 0.0, lambda _: None, lambda: None))


@pytest.mark.parametrize("words", ["idle", "loaded", "scale", "clients", "timers"])
def test_a_group_that_does_not_start_is_told_in_one_line(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without the packages of brokers."""

    def fails(*_: object, **__: object) -> None:
        raise ClusterError("broker-n0 ended (exit code 2): dledger broker needs yaml")

    monkeypatch.setattr(f"dledger.bench.{words}.{words}", fails)
    assert main([words]) == 1
    assert capsys.readouterr().err == "bench: broker-n0 ended (exit code 2): dledger broker needs yaml\n"


@pytest.mark.parametrize(("worst", "options", "code"), [
    (2.0, ["--check"], 0),
    (2.05, ["--check"], 1),
    (2.05, [], 0),
])  # fmt: skip
def test_an_idle_group_that_takes_too_much_fails_the_check(
    worst: float,
    options: list[str],
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    percent = {"n0": 0.9, "leader (n1)": worst, "worst": worst, "limit": LIMIT_PERCENT}
    monkeypatch.setattr("dledger.bench.idle.idle", lambda nodes, seconds: percent)
    assert main(["idle", "--json", *options]) == code
    assert json.loads(capsys.readouterr().out) == percent

"""Consumer lag asked from brokers, without Spark; and what the arguments of the jobs refuse."""

from __future__ import annotations

import asyncio

import pytest

from dledger.client import Message
from dledger.client.producing.producer import AsyncProducer
from dledger.runtime.env import production_env
from dledger.spark.jobs.errors import JobError
from dledger.spark.jobs.lag_live import lag_live
from dledger.spark.jobs.lag_report import Lag
from tests.client.fake_cluster import GROUP, FakeCluster
from tests.command_line import spark as run


def ask(consumers: tuple[str, ...], topics: tuple[str, ...] = ("orders",)) -> Lag:
    """Ten messages into each of four queues; `billing` has consumed 0, 3, 6 of three of them."""

    async def main() -> Lag:
        async with FakeCluster(topics={"orders": 4, "clicks": 4}) as cluster:
            async with AsyncProducer("tests", cluster.namesrv) as producer:
                for queue in await producer.queues("orders"):
                    for _ in range(10):
                        await producer.send(Message("orders", b"x"), queue=queue)
            for number, offset in ((0, 0), (1, 3), (2, 6)):
                cluster.offsets["billing", "orders", number] = offset
            env = production_env("lag")
            try:
                return await lag_live(env, cluster.namesrv, consumers=consumers, topics=topics, warn_above=8)
            finally:
                env.workers.close()

    return asyncio.run(main())


def test_lag_is_asked_queue_by_queue() -> None:
    lag = ask(("billing",))
    assert [(one.queue, one.end, one.consumed, one.lag) for one in lag.now] == [
        (0, 10, 0, 10),
        (1, 10, 3, 7),
        (2, 10, 6, 4),
        (3, 10, 0, 10),
    ], "a queue without an offset counts as a whole"
    assert lag.exit_code == 1 and [one.queue for one in lag.late] == [0, 3]
    assert {one.broker for one in lag.now} == {GROUP}
    lines = list(lag.lines())
    assert lines[-1] == "lag: 31 messages, 2 queues more than 8 behind"
    assert len(lag.records().rows) == 4


@pytest.mark.parametrize(
    ("consumers", "topics", "text"),
    [
        (("billing", "nobody"), ("orders",), "consumer group nobody has no offset in orders"),
        ((), ("orders",), "name them with --consumer and --topics"),
        (("billing",), (), "name them with --consumer and --topics"),
        (("billing",), ("ordres",), "ordres"),
    ],
)
def test_what_cannot_be_asked_is_told(consumers: tuple[str, ...], topics: tuple[str, ...], text: str) -> None:
    with pytest.raises(JobError, match=text):
        ask(consumers, topics)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["archive", "/s"], "--to"),
        (["archive", "/s", "--to", "/t", "--batch-mb", "0"], "0 is not in the range x>=1"),
        (["stats", "/s", "--bucket", "x"], "'x' is not a valid integer"),
        (["stats", "/s", "--report", "x.pdf"], "does not end in one of"),
        (["lag", "/s", "--option", "view"], "'view' is not NAME=VALUE"),
        (["lag", "/s", "--namesrv", "h:1"], "STORE has no effect with --namesrv"),
        (["lag", "--namesrv", "h:1", "--option", "tags=A"], "--option has no effect with --namesrv"),
        (["lag", "--namesrv", "h:1", "--bucket", "9"], "--bucket has no effect with --namesrv"),
        (["lag", "--namesrv", "h:1", "--master", "local"], "--master has no effect with --namesrv"),
        (["replay", "/s"], "--to-namesrv"),
        (
            ["replay", "/s", "--to-namesrv", "a:1", "--stored-from", "noon"],
            "is not a time such as 2026-11-21",
        ),
        (["account", "/s"], "--acknowledged"),
        (["account", "/s", "--acknowleged", "x"], "Did you mean '--acknowledged'"),
        (["account", "/s", "--acknowledged", "x", "--consumed", "y"], "name them with --consumer"),
        (["statz"], "Did you mean 'stats'"),
    ],
)
def test_wrong_arguments_are_4_and_told(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 4
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["audit", "archive", "read", "replay", "stats", "lag", "account", "doctor"]
)
def test_every_command_helps(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert "Exit codes:" in capsys.readouterr().out

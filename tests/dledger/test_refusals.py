"""How often a refusal is logged: once per cause and sender, until the sender is well again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from test_peers import HELLO_OF_N0, HELLO_OF_N1, LIMIT_S, Bench, connections

from dledger.election.identity import Hello, encode_hello
from dledger.peers.refusals import MAX_SAID, Refusals
from dledger.peers.wire import HELLO, PROOF, encode_frame
from dledger.runtime.env import production_env
from tests.broker.harness import skip_s


@pytest.fixture
def ports(unused_tcp_ports: Callable[[int], list[int]]) -> list[int]:
    return unused_tcp_ports(2)


def frame_of(hello: Hello) -> bytes:
    return encode_frame(HELLO, encode_hello(hello))


REFUSED = {
    "flushDiskType": frame_of(replace(HELLO_OF_N1, sync_flush=False)),
    "unknown peer": frame_of(replace(HELLO_OF_N1, node="n7")),
    "same id": frame_of(HELLO_OF_N0),
    "replay": frame_of(HELLO_OF_N1) + encode_frame(PROOF, "of another connection"),
    "garbage": b"GET / HTTP/1.1\r\n\r\n",
    "silent": b"",
}


def told_of(cause: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Log lines about refusals for this cause."""
    return [record.message for record in caplog.records if re.search(f"cause='?{cause}'? ", record.message)]


async def refuse(bench: Bench, cause: str) -> None:
    """One connection from n1's host, refused for this cause."""
    before = bench.peers.refused().get(cause, 0)
    wire = await bench.dial()
    wire.send(REFUSED[cause])
    if cause == "silent":
        port = bench.peers._port
        assert port is not None
        await bench.until(lambda: bool(port._strangers))
        await skip_s(LIMIT_S)
    await bench.until(lambda: bench.peers.refused().get(cause, 0) == before + 1)
    wire.close()


@pytest.mark.parametrize("cause", REFUSED)
def test_an_accepted_refusal_is_news_after_a_good_connection(
    cause: str, ports: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Found by review: they are noted under the host, and what was forgotten was the node's id."""

    def lines() -> int:
        return len(told_of(cause, caplog))

    async def scenario() -> None:
        async with connections(ports) as bench:
            for life in (1, 2, 3):
                for _ in range(3):
                    await refuse(bench, cause)
                assert lines() == life
                client = await bench.dial()
                client.send(encode_frame(HELLO, {"client": True}))
                assert (await client.frame()).number == HELLO
                await refuse(bench, cause)
                assert lines() == life, "a client makes nothing news"
                (await bench.join()).close()
                client.close()

    asyncio.run(scenario())


def test_a_removed_member_is_told_by_its_name_and_again_when_it_was_back(
    ports: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            for life in (1, 2):
                await bench.join()
                bench.peers.prune(lambda hello: False)
                lines = told_of("removed", caplog)
                assert len(lines) == life and "peer=n1 " in lines[-1]

    asyncio.run(scenario())


def test_refusals_are_bounded_and_news_after_a_good_connection(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(production_env("n0").log)
    for number in range(2 * MAX_SAID):
        refusals.note("garbage", f"10.0.{number // 256}.{number % 256}", "text")
    assert refusals.counts == {"garbage": 2 * MAX_SAID}
    assert len(caplog.records) == MAX_SAID + 1
    caplog.clear()
    refusals.forget("10.0.0.7")
    refusals.note("garbage", "10.0.0.7", "text")
    assert len(caplog.records) == 2

"""The client of the DLedger protocol in simulated time: its behaviour when a leader falls silent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
import node_group
import pytest

from dledger.chaos.machine import World
from dledger.chaos.scenarios.clients import CERTAINLY_NOT
from dledger.messages import Code
from dledger.node import requests
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.peers.wire import (
    CLIENT_REQUEST,
    CLIENT_RESPONSE,
    ERROR,
    HELLO,
    MAX_BODY,
    PREFIX,
    Frame,
    decode_frame,
    encode_frame,
)
from dledger.runtime.env import Env


def test_a_silent_leader_costs_one_time_out_and_not_all_that_follow() -> None:
    with World(3, settings=node_group.SETTINGS) as world:
        world.node("client")
        group = node_group.Group(world)
        leader = group.await_leader()
        answers: list[str] = []

        async def main(env: Env) -> None:
            peers = {name: f"{name}:40911" for name in node_group.NAMES}
            async with DLedgerClient(env, peers, timeout_s=2.0) as client:
                answers.append(str(await client.append(b"before")))
                world.isolate(leader)  # nobody resets the connection
                for number in range(3):
                    try:
                        answers.append(str(await client.append(b"%d" % number)))
                    except RequestFailed:
                        answers.append("failed")

        world.spawn("client", main)
        world.run_until(lambda: world.nodes["client"].process is None, 20)
        assert answers[1] == "failed" and "failed" not in answers[2:], answers


def clients_of(group: node_group.Group, name: str) -> int:
    """How many connections of the machine `client` a node has."""
    process, client = group.world.nodes[name].process, group.world.nodes["client"]
    assert process is not None
    return sum(end.remote[0] == client.address for end in process.endpoints.values() if not end.gone)


def test_calls_at_once_share_a_connection_and_leave_none() -> None:
    """Regression: each call dialled a connection of its own, and all except the last stayed open for ever."""
    with World(4, settings=node_group.SETTINGS) as world:
        world.node("client")
        group = node_group.Group(world)
        leader = group.await_leader()
        seen: list[int] = []

        async def main(env: Env) -> None:
            async with DLedgerClient(env, {leader: f"{leader}:40911"}) as client:
                await asyncio.gather(*(client.append(b"%d" % number) for number in range(100)))
                seen.append(clients_of(group, leader))
                given_up = [
                    asyncio.create_task(client.metadata(f"{name}:40911")) for name in node_group.NAMES
                ]
                await asyncio.sleep(0)
                for task in given_up:
                    task.cancel()
                await asyncio.gather(*given_up, return_exceptions=True)
            await asyncio.sleep(0.1)
            seen.extend(clients_of(group, name) for name in node_group.NAMES)

        world.spawn("client", main)
        world.run_until(lambda: world.nodes["client"].process is None, 20)
        assert seen == [1, 0, 0, 0]


def test_a_request_of_a_thousand_lists_in_one_another_ends_its_connection() -> None:
    with World(5, settings=node_group.SETTINGS) as world:
        world.node("client")
        group = node_group.Group(world)
        leader = group.await_leader()
        packed = msgpack.packb([CLIENT_REQUEST, {"id": 1, "op": 7}])[:-1] + b"\x91" * 1000 + b"\x07"

        async def main(env: Env) -> None:
            reader, writer = await asyncio.open_connection(leader, 40911)
            writer.write(encode_frame(HELLO, {"client": True}))
            writer.write(PREFIX.pack(2 + len(packed), len(packed)) + packed)
            await reader.read()
            writer.close()

        world.spawn("client", main)
        world.run_until(lambda: world.nodes["client"].process is None, 5)
        world.run_for(1)
        assert group.leader() == leader


async def send_gets(
    address: str, index: int, count: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for one entry `count` times in one write."""
    reader, writer = await asyncio.open_connection(address, 40911, limit=1024)
    writer.write(encode_frame(HELLO, {"client": True}))
    asked = [{"id": number, "op": "get", "index": index} for number in range(count)]
    writer.write(b"".join(encode_frame(CLIENT_REQUEST, request) for request in asked))
    return reader, writer


def test_answers_that_clients_do_not_take_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is for all connections together. Beyond it further requests are refused, until unsent answers
    are taken."""
    size, limit = 1 << 20, 8 << 20
    monkeypatch.setattr(requests, "MAX_UNSENT", limit)
    with World(5, settings=node_group.SETTINGS) as world:
        world.node("client")
        group = node_group.Group(world)
        leader = group.await_leader()
        unsent = group.nodes[leader].peers.unsent
        most: list[int] = []
        said: list[str] = []

        async def main(env: Env) -> None:
            async with DLedgerClient(env, {leader: f"{leader}:40911"}, 2.0) as client:
                index = await client.append(b"x" * size)
                deaf = [await send_gets(leader, index, 20) for _ in range(24)]
                for _ in range(50):
                    await asyncio.sleep(0.02)
                    most.append(unsent.bytes)
                try:
                    await client.get(index)
                except RequestFailed as failed:
                    assert failed.code is Code.LEADER_PENDING_FULL
                    said.append(str(failed))
                for _, writer in deaf:
                    writer.transport.abort()
                await asyncio.sleep(1)
                assert len((await client.get(index)).body) == size

        world.spawn("client", main)
        world.run_until(lambda: world.nodes["client"].process is None, 20)
        assert limit - 2 * size < max(most) <= limit + size
        assert "have not read" in said[0] and unsent.bytes == 0
        assert group.leader() == leader


class Answering:
    """A machine that listens like a node, and answers as the test says."""

    def __init__(
        self, world: World, name: str, on_frame: Callable[[Frame, asyncio.StreamWriter], None]
    ) -> None:
        self.frames: list[int] = []
        self._on_frame = on_frame
        world.node(name)
        world.spawn(name, self._main)

    async def _main(self, env: Env) -> None:
        server = await asyncio.start_server(self._serve, "0.0.0.0", 40911)
        await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                prefix = await reader.readexactly(PREFIX.size)
                rest = await reader.readexactly(PREFIX.unpack(prefix)[0] - 2)
                frame = decode_frame(memoryview(prefix + rest))
                self.frames.append(frame.number)
                self._on_frame(frame, writer)
        except (EOFError, OSError):
            writer.close()


def silent(frame: Frame, writer: asyncio.StreamWriter) -> None:
    """A process that hangs: its kernel takes the connection, but nothing is answered."""


def refuses(frame: Frame, writer: asyncio.StreamWriter) -> None:
    writer.write(encode_frame(ERROR, "more than 64 client connections"))
    writer.close()


def closes(frame: Frame, writer: asyncio.StreamWriter) -> None:
    writer.close()


def dies_at_a_request(frame: Frame, writer: asyncio.StreamWriter) -> None:
    if frame.number == HELLO:
        writer.write(encode_frame(HELLO, {"addresses": {}}))
    else:
        writer.close()


def serves(frame: Frame, writer: asyncio.StreamWriter) -> None:
    if frame.number == HELLO:
        writer.write(encode_frame(HELLO, {"addresses": {}}))
    else:
        answer = {"id": frame.header()["id"], "code": int(Code.SUCCESS), "index": 7, "term": 1}
        writer.write(encode_frame(CLIENT_RESPONSE, answer))


def hangs_at_a_request(frame: Frame, writer: asyncio.StreamWriter) -> None:
    """A leader that is cut off from the majority, or whose disk hangs: it may commit the entry later."""
    if frame.number == HELLO:
        writer.write(encode_frame(HELLO, {"addresses": {}}))


def does_not_lead(frame: Frame, writer: asyncio.StreamWriter) -> None:
    if frame.number == HELLO:
        writer.write(encode_frame(HELLO, {"addresses": {}}))
    else:
        number = frame.header()["id"]
        writer.write(encode_frame(CLIENT_RESPONSE, {"id": number, "code": int(Code.NOT_LEADER)}))


def ask(world: World, call: Callable[[DLedgerClient], Awaitable[Any]], peers: tuple[str, ...]) -> str:
    """The text that a client gets when it asks these machines in this order."""
    told: list[str] = []

    async def main(env: Env) -> None:
        async with DLedgerClient(env, {name: f"{name}:40911" for name in peers}) as client:
            client._place = -1
            try:
                told.append(str(await call(client)))
            except (RequestFailed, OSError) as error:
                told.append(f"failed: {error}")

    world.node("client")
    world.spawn("client", main)
    world.run_until(lambda: bool(told), 10)
    return told[0]


@pytest.mark.parametrize("first", [silent, refuses, closes])
def test_who_says_no_hello_was_asked_nothing_and_the_next_one_is(
    first: Callable[[Frame, asyncio.StreamWriter], None],
) -> None:
    with World(6, settings=node_group.SETTINGS) as world:
        asked = Answering(world, "n0", first)
        other = Answering(world, "n1", serves)
        world.run_for(0.1)
        assert ask(world, lambda client: client.append(b"x"), ("n0", "n1")) == "7"
        assert asked.frames == [HELLO], "what was not sent cannot have been handled"
        assert other.frames == [HELLO, CLIENT_REQUEST]


def test_a_request_that_may_have_been_handled_is_not_repeated() -> None:
    with World(7, settings=node_group.SETTINGS) as world:
        asked = Answering(world, "n0", dies_at_a_request)
        other = Answering(world, "n1", serves)
        world.run_for(0.1)
        told = ask(world, lambda client: client.append(b"x"), ("n0", "n1"))
        assert told.startswith("failed: n0:40911: ") and told.endswith("the outcome is unknown")
        assert (asked.frames, other.frames) == ([HELLO, CLIENT_REQUEST], [])


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.append(b"x"),
        lambda client: client.add_member("n3", "n3:40911"),
        lambda client: client.prefer(["n1"]),
        lambda client: client.transfer("n1"),
    ],
    ids=["append", "add", "prefer", "transfer"],
)
def test_of_a_change_that_was_sent_and_not_answered_in_time_the_outcome_is_unknown(
    call: Callable[[DLedgerClient], Awaitable[Any]],
) -> None:
    """Regression: the error said that no node was asked, as if no request had been sent."""
    with World(10, settings=node_group.SETTINGS) as world:
        asked = Answering(world, "n0", hangs_at_a_request)
        world.run_for(0.1)
        told = ask(world, call, ("n0",))
        assert told.endswith("n0:40911 was asked and has not answered in time: the outcome is unknown"), told
        assert asked.frames == [HELLO, CLIENT_REQUEST]


def test_a_read_that_was_not_answered_in_time_says_who_was_asked() -> None:
    with World(11, settings=node_group.SETTINGS) as world:
        Answering(world, "n0", hangs_at_a_request)
        world.run_for(0.1)
        told = ask(world, lambda client: client.get(3), ("n0",))
        assert told.endswith("last: n0:40911 was asked and has not answered in time"), told


@pytest.mark.parametrize(
    ("on_frame", "last"),
    [(silent, "n0:40911: no hello within 1.0 s"), (does_not_lead, "n0:40911 does not lead")],
)
def test_without_a_request_that_waits_the_outcome_is_not_unknown(
    on_frame: Callable[[Frame, asyncio.StreamWriter], None], last: str
) -> None:
    with World(12, settings=node_group.SETTINGS) as world:
        Answering(world, "n0", on_frame)
        world.run_for(0.1)
        told = ask(world, lambda client: client.append(b"x"), ("n0",))
        assert told == f"failed: no answer from a leader within 3.0 s; last: {last}"


def test_an_append_that_ran_out_of_time_may_be_committed_later_and_is_never_taken_for_refused() -> None:
    """The judge of a simulated run takes these codes for *refused*: then the value must not be in the log."""
    with World(13, settings=node_group.SETTINGS) as world:
        world.node("client")
        group = node_group.Group(world)
        leader = group.await_leader()
        failures: list[RequestFailed] = []

        async def main(env: Env) -> None:
            async with DLedgerClient(env, {leader: f"{leader}:40911"}, timeout_s=0.2) as client:
                for other in node_group.NAMES:
                    if other != leader:
                        world.partition(leader, other)
                try:
                    await client.append(b"late")
                except RequestFailed as failed:
                    failures.append(failed)
                world.heal()

        world.spawn("client", main)
        world.run_until(lambda: bool(failures), 5)
        assert str(failures[0]).endswith("the outcome is unknown")
        assert failures[0].code is None and failures[0].code not in CERTAINLY_NOT
        world.run_for(2.0)
        assert any(b"late" in entry[3] for entry in group.hosts[leader].entries)


def test_why_a_hello_was_refused_is_told() -> None:
    with World(8, settings=node_group.SETTINGS) as world:
        Answering(world, "n0", refuses)
        world.run_for(0.1)
        told = ask(world, lambda client: client.remove_member("n1"), ("n0",))
        assert "last: n0:40911: more than 64 client connections" in told and "unknown" not in told


@pytest.mark.parametrize("size", [MAX_BODY + 1, 17 * 1024 * 1024])
def test_a_body_that_no_node_takes_is_not_sent(size: int) -> None:
    """Regression: a body larger than a frame ended the connection, so the outcome of the append seemed
    unknown."""
    with World(9, settings=node_group.SETTINGS) as world:
        asked = Answering(world, "n0", serves)
        world.run_for(0.1)
        told = ask(world, lambda client: client.append(bytes(size)), ("n0",))
        assert told == f"failed: the body has {size} bytes; the limit is {MAX_BODY}"
        assert CLIENT_REQUEST not in asked.frames

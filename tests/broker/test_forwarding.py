"""Requests that came to a broker that does not lead, from clients that do not follow hints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from dledger.broker import forwarding
from dledger.broker.forwarding import FORWARDED_FOR, Origins
from dledger.formats.message_ids import pack_ipv4_host
from dledger.formats.record import decode_records
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import FLAG_FORWARDED, FLAG_ONEWAY, FLAG_REDIRECT, Request, Response
from dledger.remoting.errors import ConnectFailed, ConnectionLost, Overloaded, RemotingError
from dledger.remoting.headers import GetMaxOffsetHeader
from dledger.remoting.link import OnDone
from dledger.remoting.server import Connection
from dledger.runtime.env import production_env
from tests.broker.harness import FakeConnection, World, pull_header, run, send_header
from tests.broker.test_app import PatientClient, Running, configs, running, steady_leader

LEADER = "10.0.0.2:10911"
LATER = "10.0.0.3:10911"


class Wire:
    """In place of the broker's connections to others: what it forwarded, and the callbacks of answers."""

    def __init__(self, world: World) -> None:
        self.sent: list[tuple[str, Request, dict[str, str]]] = []
        self.answer: list[OnDone] = []
        world.broker.client.forward = self.forward  # type: ignore[method-assign]

    def forward(
        self, addr: str, request: Request, fields: dict[str, str], timeout_s: float, on_done: OnDone
    ) -> None:
        self.sent.append((addr, request, fields))
        self.answer.append(on_done)


async def follower(tmp_path: Path, **changes: object) -> tuple[World, Wire]:
    """A broker that knows who leads."""
    world = await World(str(tmp_path), **{"hold_while_electing_s": 0.05, **changes}).open()
    world.node.meta |= {"n1": {"client_addr": LEADER, "store_ip": "10.0.0.2"}, "n2": {"client_addr": LATER}}
    world.node.follow("n1")
    return world, Wire(world)


def test_it_goes_to_the_leader_and_the_answer_says_who_led(tmp_path: Path) -> None:
    async def test() -> None:
        world, wire = await follower(tmp_path)
        pending = world.send(flag_bits=0)
        [(addr, request, fields)] = wire.sent
        assert (addr, request.body) == (LEADER, b"hello")
        assert fields[FORWARDED_FOR] == world.connection.peer and fields["b"] == "T"
        wire.answer[0](Response(0, ext={"queueOffset": "7"}, body=b"x", remark="fine"))
        assert pending.reply.ext == {"queueOffset": "7", "leaderAddr": LEADER}
        assert (pending.reply.code, pending.reply.body, pending.reply.remark) == (0, b"x", "fine")
        assert len(world.broker.forwarder) == 0

    run(test)


def test_who_asks_to_be_redirected_is(tmp_path: Path) -> None:
    async def test() -> None:
        world, wire = await follower(tmp_path)
        for flag in (FLAG_REDIRECT, FLAG_REDIRECT | FLAG_FORWARDED):
            assert world.send(flag_bits=flag).reply.ext == {"leaderAddr": LEADER}
        world, wire = await follower(tmp_path / "off", forward_to_leader=False)
        assert world.send(flag_bits=0).reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert not wire.sent

    run(test)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConnectFailed("no connection"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (Overloaded("too many"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (ConnectionLost("lost"), ResponseCode.SYSTEM_ERROR),
    ],
)
def test_the_answer_tells_what_is_known(tmp_path: Path, error: RemotingError, code: ResponseCode) -> None:
    """What did not leave waits for a leader, in vain here; what left may have been stored."""

    async def test() -> None:
        world, wire = await follower(tmp_path)
        pending = world.send(flag_bits=0)
        wire.answer[0](error)
        reply = await pending
        assert reply.code == code
        assert ("outcome unknown" in (reply.remark or "")) == (code == ResponseCode.SYSTEM_ERROR)

    run(test)


def test_what_the_lost_leader_did_not_do_goes_to_the_next(tmp_path: Path) -> None:
    async def test() -> None:
        world, wire = await follower(tmp_path)
        refused, pulled, unsent = world.send(flag_bits=0), pull(world), world.send(flag_bits=0)
        wire.answer[0](Response(ResponseCode.SERVICE_NOT_AVAILABLE, ext={"leaderAddr": "elsewhere"}))
        wire.answer[2](ConnectFailed("no connection"))
        assert len(wire.sent) == 3
        world.node.follow("n2")  # and nothing more is waited for from the one before: the pull goes on too
        assert [addr for addr, _, _ in wire.sent[3:]] == [LATER] * 3
        for done in wire.answer[3:]:
            done(Response(0))
        assert not any(one.reply.code for one in (refused, pulled, unsent))

    run(test)


def test_a_send_under_way_to_a_leader_that_leads_no_longer_is_of_unknown_outcome(tmp_path: Path) -> None:
    async def test() -> None:
        world, wire = await follower(tmp_path)
        pending = world.send(flag_bits=0)
        world.node.follow("n2")
        assert pending.reply.code == ResponseCode.SYSTEM_ERROR
        wire.answer[0](Response(0))  # later: nobody is told twice
        assert len(wire.sent) == 1

    run(test)


@pytest.mark.parametrize(
    ("successor", "told"),
    [(None, "does not know yet whether it still leads"), ("n2", f"another one leads now: {LATER}")],
)
def test_who_lost_contact_does_not_say_that_the_leader_stepped_down(
    successor: str | None, told: str, tmp_path: Path
) -> None:
    """A follower that stood still for seconds hears nobody when it goes on; the leader leads as before."""

    async def test() -> None:
        world, _ = await follower(tmp_path)
        pending = world.send(flag_bits=0)
        world.node.follow(successor)
        reply = await pending
        remark = reply.remark or ""
        assert reply.code == ResponseCode.SYSTEM_ERROR and "outcome unknown" in remark
        assert told in remark and LEADER in remark and "leads no longer" not in remark

    run(test)


def test_requests_wait_for_a_leader_to_be_known(tmp_path: Path) -> None:
    async def test() -> None:
        world, wire = await follower(tmp_path)
        world.node.follow(None)
        forwarded, late = world.send(flag_bits=0), world.send(flag_bits=0)
        assert not forwarded.done and not wire.sent
        world.node.follow("n1")
        assert [addr for addr, _, _ in wire.sent] == [LEADER] * 2
        wire.answer[0](Response(0))
        assert forwarded.reply.code == 0
        world.node.follow(None)
        assert late.reply.code == ResponseCode.SYSTEM_ERROR
        nobody = world.send(flag_bits=0)
        assert (await nobody).code == ResponseCode.SERVICE_NOT_AVAILABLE
        here = world.send(flag_bits=0)
        world.node.lead()
        assert (await here).code == 0

    run(test)


def test_no_more_are_under_way_than_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        world, wire = await follower(tmp_path)
        monkeypatch.setattr(forwarding, "MAX_FORWARDED", 2)
        asked = [world.send(flag_bits=0) for _ in range(3)]
        assert asked[2].reply.ext == {"leaderAddr": LEADER}
        wire.answer[0](Response(0))
        monkeypatch.setattr(forwarding, "MAX_FORWARDED_BYTES", 2000)
        assert world.send(flag_bits=0, body=b"x" * 2000).reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert not world.send(flag_bits=0).done
        assert len(world.broker.forwarder) == 2

    run(test)


def test_oneway_requests_are_not_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        world, wire = await follower(tmp_path)
        world.send(flag_bits=FLAG_ONEWAY)
        assert len(wire.sent) == 1 and len(world.broker.forwarder) == 0
        wire.answer[0](ConnectFailed("no connection"))

    run(test)


@pytest.mark.parametrize(
    ("peer", "told", "host"),
    [
        ("10.0.0.2:4000", "192.168.7.7:1234", pack_ipv4_host("192.168.7.7", 1234)),
        ("10.0.0.2:4000", "::ffff:192.168.7.7:1234", pack_ipv4_host("192.168.7.7", 1234)),
        ("::ffff:10.0.0.2:4000", "192.168.7.7:1234", pack_ipv4_host("192.168.7.7", 1234)),
        ("10.0.0.4:4000", "192.168.7.7:1234", b"own addr"),  # no member
        ("10.0.0.2:4000", "2001:db8::1:1234", b"own addr"),  # IPv6: no record holds it
        ("10.0.0.2:4000", "", b"own addr"),
    ],
)
def test_only_members_tell_where_a_request_came_from(peer: str, told: str, host: bytes) -> None:
    origins = Origins(lambda: {"10.0.0.2", ""})
    connection = cast(Connection, FakeConnection(peer=peer, peer_host=b"own addr"))
    request = Request(10, flag=FLAG_FORWARDED)
    request.ext_fields = type(request.ext_fields)(b'{"forwardedFor":"%b"}' % told.encode())
    assert origins.host(connection, request) == host
    request.flag = 0
    assert origins.host(connection, request) == b"own addr"


def test_three_nodes_serve_clients_of_any_of_them(tmp_path: Path) -> None:
    """Over real sockets: a send and a pull that waits, by a client that knows one follower only."""

    async def test() -> None:
        async with running(*configs(tmp_path, 3)) as (nodes, _), plain_client() as client:
            leader = await steady_leader(nodes)
            address = next(node.config.client_addr for node in nodes if node is not leader)
            ask = client.invoke
            sent = (await ask(address, RequestCode.SEND_MESSAGE_V2, send_header("T", 0, ""), b"1")).checked()
            assert (sent.ext["queueOffset"], sent.ext["leaderAddr"]) == ("0", leader.config.client_addr)
            await applied(leader, 1)
            header = pull_header("T", 0, 1, sysFlag=6, suspendTimeoutMillis=60_000)
            held = asyncio.ensure_future(ask(address, RequestCode.PULL_MESSAGE, header))
            await until(lambda: leader.broker is not None and leader.broker.pulls.held.count == 1)
            await ask(address, RequestCode.SEND_MESSAGE_V2, send_header("T", 0, ""), b"2")
            [record] = decode_records((await held).checked().body)
            assert record.body == b"2"
            assert record.born_host[:4] == pack_ipv4_host("127.0.0.1", 1)[:4]
            top = await ask(address, RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader("T", 0))
            assert top.ext["offset"] == "2"

    asyncio.run(test())


def test_a_broker_that_stops_answers_the_pulls_that_wait_through_it(tmp_path: Path) -> None:
    """There are clients that do not notice that their connection ended."""

    async def test() -> None:
        async with running(*configs(tmp_path, 3)) as (nodes, _), plain_client() as client:
            leader = await steady_leader(nodes)
            follower = next(node for node in nodes if node is not leader)
            ask, address = client.invoke, follower.config.client_addr
            (await ask(address, RequestCode.SEND_MESSAGE_V2, send_header("T", 0, ""), b"1")).checked()
            await applied(leader, 1)
            header = pull_header("T", 0, 1, sysFlag=6, suspendTimeoutMillis=60_000)
            held = asyncio.ensure_future(ask(address, RequestCode.PULL_MESSAGE, header))
            await until(lambda: leader.broker is not None and leader.broker.pulls.held.count == 1)
            follower.stop.set()
            answer = await held
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert answer.ext["nextBeginOffset"] == "1"
            assert answer.ext["suggestWhichBrokerId"] == str(leader.config.follower_id)

    asyncio.run(test())


class plain_client:
    """A client that does not ask to be redirected, for a `with`."""

    async def __aenter__(self) -> RemotingClient:
        self._client = PatientClient(production_env("test"), redirect=False)
        self._running = asyncio.ensure_future(self._client.run())
        return self._client

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()
        self._running.cancel()


async def applied(leader: Running, count: int) -> None:
    """Until the leader has applied so many messages of the queue, for which a send's answer does not wait."""
    broker = leader.broker
    assert broker is not None
    await until(lambda: broker.store.state.next_offset("T", 0) == count)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - a state of another part
            await asyncio.sleep(0.01)


def pull(world: World) -> object:
    return world.ask(RequestCode.PULL_MESSAGE, pull_header("T", 0, 0), flag=0)


def test_a_request_whose_fields_cannot_be_read_ends_with_itself(tmp_path: Path) -> None:
    """It waits unread for a leader: to learn of one must not fail for its sake (safety.md S29)."""

    async def test() -> None:
        world, wire = await follower(tmp_path)
        world.node.follow(None)
        request = Request(RequestCode.SEND_MESSAGE_V2, opaque=99)
        request.ext_fields = type(request.ext_fields)(b"[1]")
        world.dispatch(world.connection, request)
        good = world.send(flag_bits=0)
        world.node.follow("n1")
        assert world.connection.replies[99].code == ResponseCode.SYSTEM_ERROR
        assert len(wire.sent) == 1 and not good.done
        wire.answer[0](Response(0))
        assert good.reply.code == 0

    run(test)

"""Requests that came to a broker that does not lead, from clients that do not follow hints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from dledger.broker import forwarding
from dledger.broker.forwarding import FORWARDED_FOR, Origins
from dledger.election.identity import Hello, encode_hello
from dledger.formats.message_ids import host_text, pack_ipv4_host
from dledger.formats.record import decode_records
from dledger.node.node import Node
from dledger.peers import peers
from dledger.remoting.bodies import ClientConnection, ConsumersHere, told_body
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import FLAG_FORWARDED, FLAG_ONEWAY, FLAG_REDIRECT, Request, Response
from dledger.remoting.errors import ConnectFailed, ConnectionLost, Overloaded, RemotingError
from dledger.remoting.frames import fields_of
from dledger.remoting.headers import ConsumerGroupHeader, GetMaxOffsetHeader
from dledger.remoting.link import OnDone
from dledger.remoting.server import Connection
from dledger.runtime.env import production_env
from tests.broker.harness import FakeConnection, Member, World, pull_header, run, send_header
from tests.broker.test_app import PatientClient, Running, configs, running, steady_leader
from tests.broker.test_clients import heartbeat

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
    [(None, "does not know yet whether it still leads"), ("n2", f"another broker leads now: {LATER}")],
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
    ("told", "host"),
    [
        ("192.168.7.7:1234", pack_ipv4_host("192.168.7.7", 1234)),
        ("::ffff:192.168.7.7:1234", pack_ipv4_host("192.168.7.7", 1234)),
        ("2001:db8::1:1234", b"own addr"),  # IPv6: no record holds it
        ("", b"own addr"),
    ],
)
def test_only_members_tell_where_a_request_came_from(tmp_path: Path, told: str, host: bytes) -> None:
    world = World(str(tmp_path))
    member, origins = Member(world), Origins(world.node, world.broker.members.older_ips)
    connection = cast(Connection, FakeConnection(peer=member.connection.peer, peer_host=b"own addr"))

    def asked(flag: int, fields: dict[str, str]) -> Request:
        return Request(10, flag=flag, ext_fields=msgspec.Raw(msgspec.json.encode(fields)))

    fields = {FORWARDED_FOR: told}
    proven = member.proven(10, fields, flag=FLAG_FORWARDED)
    request = asked(FLAG_FORWARDED, proven)
    for _ in range(2):  # a request that waited is judged again
        assert origins.host(connection, request) == host
    for flag, unproven in ((FLAG_FORWARDED, fields), (FLAG_FORWARDED, proven), (0, proven)):
        assert origins.host(connection, asked(flag, unproven)) == b"own addr"


def test_an_older_member_is_believed_by_its_address(tmp_path: Path) -> None:
    """While what answers at its peer address is a program that makes no proofs."""
    world = World(str(tmp_path))
    member, origins = Member(world), Origins(world.node, world.broker.members.older_ips)
    fields = msgspec.Raw(msgspec.json.encode({FORWARDED_FOR: "192.168.7.7:1234"}))

    def host(peer: str) -> bytes:
        connection = cast(Connection, FakeConnection(peer=peer, peer_host=b"own addr"))
        return origins.host(connection, Request(10, flag=FLAG_FORWARDED, ext_fields=fields))

    client = pack_ipv4_host("192.168.7.7", 1234)
    assert host(member.connection.peer) == b"own addr"
    world.node.peers_without_proofs.append("n1")
    assert host(member.connection.peer) == host("::ffff:10.0.0.2:4000") == client
    assert host("10.0.0.4:4000") == b"own addr"
    world.node.peers_without_proofs.append("n7")  # nothing is known of it
    assert host(":4000") == b"own addr"


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
            await until(
                lambda: leader.broker is not None and leader.broker.features.longpolling.pulls.held.count == 1
            )
            await ask(address, RequestCode.SEND_MESSAGE_V2, send_header("T", 0, ""), b"2")
            [record] = decode_records((await held).checked().body)
            assert record.body == b"2"
            assert record.born_host[:4] == pack_ipv4_host("127.0.0.1", 1)[:4]
            top = await ask(address, RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader("T", 0))
            assert top.ext["offset"] == "2"

    asyncio.run(test())


def test_a_program_on_a_members_machine_is_no_member(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All run on this machine, so every client has the address of a member."""

    async def test() -> None:
        async with running(*configs(tmp_path, 3)) as (nodes, _), plain_client() as client:
            leader = await steady_leader(nodes)
            follower = next(node for node in nodes if node is not leader)
            ask, address = client.invoke, leader.config.client_addr
            here = ConsumersHere("CG", "", "", "", [], [ClientConnection("forged", "h:1", "JAVA", 400)])
            for broker in (leader, follower):  # that forwards it
                told = await ask(
                    broker.config.client_addr, RequestCode.TELL_CONSUMERS, None, told_body([here.encode()])
                )
                assert told.code == ResponseCode.NO_PERMISSION
            await ask(follower.config.client_addr, RequestCode.HEART_BEAT, None, heartbeat("c1"))
            assert leader.broker is not None and follower.broker is not None
            clients = leader.broker.core.clients
            await until(lambda: "CG" in clients.consumers)
            heard = await ask(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader("CG"))
            assert json.loads(heard.checked().body)["consumerIdList"] == ["c1"]

            send = RequestCode.SEND_MESSAGE_V2
            request = Request(send, flag=FLAG_FORWARDED, body=b"1")
            forged = fields_of(send_header("T", 0, "")) | {FORWARDED_FOR: "9.9.9.9:9"}
            answer = asyncio.get_running_loop().create_future()
            client.forward(address, request, forged, 20.0, answer.set_result)
            assert (await answer).code == 0
            await ask(follower.config.client_addr, send, send_header("T", 0, ""), b"2")
            await applied(leader, 2)
            pulled = await ask(address, RequestCode.PULL_MESSAGE, pull_header("T", 0, 0))
            hosts = [host_text(record.born_host) for record in decode_records(pulled.checked().body)]
            at_leader, at_follower = (
                {connection.peer for connection in broker.server.connections}
                for broker in (leader.broker, follower.broker)
            )
            assert hosts[0] in at_leader and hosts[1] in at_follower, "each has its client's address"
            node = leader.broker.node
            assert isinstance(node, Node)
            shown = json.dumps([node.status(), leader.broker.runtime_info()], default=str) + caplog.text
            secrets = [secret.hex() for _, secret in node.peers.proofs._heard.values()]
            assert len(secrets) == 2 and not any(secret in shown for secret in secrets)

    asyncio.run(test())


def test_a_follower_of_an_older_version_goes_on_forwarding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During an upgrade node by node: its hello has no secret, and its requests no proof."""
    older: list[str] = []

    def hello_of(hello: Hello) -> dict[str, Any]:
        told = encode_hello(hello)
        if hello.node in older:
            del told["secret"]
        return told

    monkeypatch.setattr(peers, "encode_hello", hello_of)

    async def test() -> None:
        async with running(*configs(tmp_path, 3)) as (nodes, _), plain_client() as client:
            leader = await steady_leader(nodes)
            follower = next(node for node in nodes if node is not leader)
            assert leader.broker is not None and follower.broker is not None
            node, upgraded = follower.broker.node, leader.broker.node
            assert isinstance(node, Node) and isinstance(upgraded, Node)
            ask, send, name = client.invoke, RequestCode.SEND_MESSAGE_V2, node.config.self_id
            older.append(name)
            node.peers.proofs.make = lambda peer, content: ""  # type: ignore[method-assign]
            node.peers.refresh()
            await until(
                lambda: upgraded.peers_without_proofs == [name] and name not in upgraded.proof_receivers
            )
            leader = await steady_leader(nodes)
            address = follower.config.client_addr
            (await ask(address, RequestCode.HEART_BEAT, None, heartbeat("c1"))).checked()
            assert leader.broker is not None
            await until(lambda: leader.broker is not None and "CG" in leader.broker.core.clients.consumers)
            (await ask(address, send, send_header("T", 0, ""), b"1")).checked()
            await applied(leader, 1)
            pulled = await ask(leader.config.client_addr, RequestCode.PULL_MESSAGE, pull_header("T", 0, 0))
            [record] = decode_records(pulled.checked().body)
            assert host_text(record.born_host) in {one.peer for one in follower.broker.server.connections}

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
            await until(
                lambda: leader.broker is not None and leader.broker.features.longpolling.pulls.held.count == 1
            )
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

"""Requests between the brokers of a group are executed for whoever proves to be one, and refused else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dledger.broker.clients.consumer_calls import ConsumerCalls
from dledger.broker.forwarding import FORWARDED_FOR
from dledger.broker.member_requests import MEMBER_PROOF, content_of
from dledger.peers.proofs import Proofs
from dledger.remoting.bodies import ClientConnection, ConsumersHere, PullsHeld, told_body
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import FLAG_FORWARDED, FLAG_REDIRECT
from dledger.remoting.errors import ConnectFailed
from dledger.remoting.frames import FrameReader, fields_of
from dledger.remoting.headers import RelayedCheckHeader
from dledger.remoting.operator_headers import RunningInfoHeader
from tests.broker.harness import Member, World, run
from tests.broker.test_forwarding import LEADER, Wire, follower
from tests.broker.test_transactions import a_producer

HERE = ConsumersHere("CG", "", "", "", [], [ClientConnection("c", "h:1", "JAVA", 400)])
REQUESTS: dict[RequestCode, tuple[dict[str, str], bytes]] = {
    RequestCode.TELL_CONSUMERS: ({}, told_body([HERE.encode()])),
    RequestCode.TELL_PULLS: ({}, PullsHeld(1, []).encode()),
    RequestCode.CHECK_TRANSACTION_STATE: (fields_of(RelayedCheckHeader("PG", 7, 8)), b"half"),
}
Fields = dict[str, str]
Forge = Callable[[World, Member, int, Fields, bytes], Fields]


def none(world: World, member: Member, code: int, fields: Fields, body: bytes) -> Fields:
    return fields


def no_proof(world: World, member: Member, code: int, fields: Fields, body: bytes) -> Fields:
    return {**fields, MEMBER_PROOF: "1.1.n1"}


def wrong(world: World, member: Member, code: int, fields: Fields, body: bytes) -> Fields:
    stranger = Proofs("n1", b"x")
    stranger.hear("n0", Proofs("n0", b"a guess").tell("n1"))
    return {**fields, MEMBER_PROOF: stranger.make("n0", content_of(code, 0, fields, body))}


def for_another(world: World, member: Member, code: int, fields: Fields, body: bytes) -> Fields:
    other = Proofs("n2", b"secret of n2")
    member.proofs.hear("n2", other.tell("n1"))
    return {**fields, MEMBER_PROOF: member.proofs.make("n2", content_of(code, 0, fields, body))}


def of_another_code(world: World, member: Member, code: int, fields: Fields, body: bytes) -> Fields:
    return {**fields, MEMBER_PROOF: member.proven(code + 1, fields, body)[MEMBER_PROOF]}


def of_another_body(world: World, member: Member, code: int, fields: Fields, body: bytes) -> Fields:
    return member.proven(code, fields, body + b" ")


def of_other_fields(world: World, member: Member, code: int, fields: Fields, body: bytes) -> Fields:
    return {**member.proven(code, fields, body), "more": "x"}


def of_a_forwarded_one(world: World, member: Member, code: int, fields: Fields, body: bytes) -> Fields:
    return member.proven(code, fields, body, FLAG_FORWARDED)


def to_the_process_before(world: World, member: Member, code: int, fields: Fields, body: bytes) -> Fields:
    proven = member.proven(code, fields, body)
    world.node.proofs = Proofs("n0", b"secret of the next process")
    member.meet()
    return proven


def of_no_member(world: World, member: Member, code: int, fields: Fields, body: bytes) -> Fields:
    """It was removed."""
    del world.node.meta["n1"]
    return member.proven(code, fields, body)


FORGED: tuple[Forge, ...] = (
    none,
    no_proof,
    wrong,
    for_another,
    of_another_code,
    of_another_body,
    of_other_fields,
    of_a_forwarded_one,
    to_the_process_before,
    of_no_member,
)


async def asked(
    world: World, member: Member, code: int, fields: dict[str, str], flag: int = FLAG_REDIRECT
) -> int:
    """The answer to a program at the member's address."""
    body = REQUESTS[RequestCode(code)][1]
    return (await world.call(code, fields, body, connection=member.connection, flag=flag)).code


def served(world: World, code: int) -> None:
    """Both roles answer to it."""
    if code == RequestCode.TELL_PULLS:
        world.node.follow("n1")


@pytest.mark.parametrize("code", REQUESTS)
@pytest.mark.parametrize("forge", FORGED)
def test_without_a_good_proof_they_are_refused(tmp_path: Path, code: RequestCode, forge: Forge) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        member, producer = Member(world), a_producer(world)
        served(world, code)
        fields, body = REQUESTS[code]
        assert await asked(world, member, code, forge(world, member, code, fields, body)) == (
            ResponseCode.NO_PERMISSION
        )
        assert world.broker.core.clients.consumers == {} and producer.notices == []

    run(test)


@pytest.mark.parametrize("code", REQUESTS)
def test_a_good_proof_is_taken_once(tmp_path: Path, code: RequestCode) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        member, _ = Member(world), a_producer(world)
        served(world, code)
        fields, body = REQUESTS[code]
        proven = member.proven(code, fields, body)
        assert await asked(world, member, code, proven) == 0
        assert await asked(world, member, code, proven) == ResponseCode.NO_PERMISSION
        assert await asked(world, member, code, member.proven(code, fields, body)) == 0

    run(test)


@pytest.mark.parametrize("code", REQUESTS)
def test_a_member_forwards_none_of_them_for_others(tmp_path: Path, code: RequestCode) -> None:
    """A broker that does not lead forwards what its clients ask, with a proof of its own."""

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        member, producer = Member(world), a_producer(world)
        served(world, code)
        fields, body = REQUESTS[code]
        proven = member.proven(code, {**fields, FORWARDED_FOR: "10.9.9.9:1"}, body, FLAG_FORWARDED)
        flag = FLAG_REDIRECT | FLAG_FORWARDED
        assert await asked(world, member, code, proven, flag) == ResponseCode.NO_PERMISSION
        assert world.broker.core.clients.consumers == {} and producer.notices == []

    run(test)


@pytest.mark.parametrize("code", REQUESTS)
def test_an_older_member_needs_none(tmp_path: Path, code: RequestCode) -> None:
    """As long as a program answers at its peer address that makes no proofs (an upgrade node by node)."""

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        member, _ = Member(world), a_producer(world)
        served(world, code)
        fields, _ = REQUESTS[code]
        world.node.peers_without_proofs = ["n1"]
        assert await asked(world, member, code, fields) == 0
        world.node.peers_without_proofs = []  # it was upgraded
        assert await asked(world, member, code, fields) == ResponseCode.NO_PERMISSION

    run(test)


def good(member: Member, code: int, fields: dict[str, str], body: bytes, flag: int) -> bool:
    """Whether a member that got this request would execute it."""
    rest = dict(fields)
    proof = rest.pop(MEMBER_PROOF, "")
    return member.proofs.check(proof, content_of(code, flag, rest, body)) == "n0"


def test_what_a_broker_forwards_carries_a_proof(tmp_path: Path) -> None:
    async def test() -> None:
        world, wire = await follower(tmp_path)
        world.send(flag_bits=0)
        assert MEMBER_PROOF not in wire.sent[0][2], "an older leader counts it as signed"
        member = Member(world)
        world.send(flag_bits=0)
        world.ask(RequestCode.HEART_BEAT, {MEMBER_PROOF: "of a client"}, b"{}", flag=0)
        world.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0", MEMBER_PROOF: "x"}, flag=0)
        for address, request, fields in wire.sent[1:]:
            assert address == LEADER and fields[FORWARDED_FOR] == world.connection.peer
            assert good(member, request.code, fields, request.body, FLAG_FORWARDED)
        assert len(wire.sent) >= 3

    run(test)


def test_what_is_asked_of_all_members_carries_a_proof_for_each(tmp_path: Path) -> None:
    """307 for a consumer that is not connected here."""

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        wire, first, second = Wire(world), Member(world), Member(world, "n2", "10.0.0.3")
        members = {"n1": "10.0.0.2:10911", "n2": "10.0.0.3:10911"}
        for processor in world.broker.processors:
            if isinstance(processor, ConsumerCalls):
                processor._reaching._members = lambda: members
        header = RunningInfoHeader("CG", "c1")
        world.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        wire.answer[0](ConnectFailed("no connection"))
        assert [address for address, _, _ in wire.sent] == list(members.values())
        for member, (_, request, fields) in zip((first, second), wire.sent, strict=True):
            assert good(member, request.code, fields, request.body, FLAG_FORWARDED)

    run(test)


def test_nobody_says_of_a_request_that_it_was_judged() -> None:
    """What the broker notes of a request is no field that a peer may set."""
    header = msgspec.json.encode({"code": 28101, "opaque": 1, "(by member)": True})
    frame = (4 + len(header)).to_bytes(4) + len(header).to_bytes(4) + header
    reader = FrameReader()
    reader.buffer()[: len(frame)] = frame
    [request] = reader.received(len(frame))
    assert request.code == 28101 and request.by_member is None

"""Signed sends that the compiled twin takes: told, stored, refused and counted is what the way of all
requests does."""

from __future__ import annotations

import asyncio
import struct
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dledger._fast import FAST
from dledger.remoting.codes import RequestCode
from dledger.remoting.frames import fields_of
from dledger.remoting.signing import Credentials
from tests.broker.harness import run, send_header
from tests.broker.test_plain_sends import KEY, Side, told
from tests.broker.test_user_access import ON, acl, ask, create

pytestmark = pytest.mark.skipif(FAST is None, reason="not built")

ACCOUNTS = """
accounts:
  - {accessKey: producer, secretKey: producer-secret, topicPerms: [T=PUB, ReadOnly=PUB]}
  - {accessKey: reader-1, secretKey: reader-1-secret, topicPerms: [T=SUB]}
  - {accessKey: default, secretKey: default-secret, defaultTopicPerm: PUB|SUB}
  - {accessKey: operator, secretKey: operator-secret, admin: true}
  - {accessKey: narrowed, secretKey: narrowed-secret, admin: true, topicPerms: [T=SUB]}
  - {accessKey: nearest, secretKey: nearest-secret, whiteRemoteAddress: 10.0.0.9, topicPerms: [T=PUB]}
  - {accessKey: further, secretKey: further-secret, whiteRemoteAddress: 10.0.0.8, topicPerms: [T=PUB]}
"""
LETTERS = "abcdefghijklmn"
NAMES = list(send_header("T", 0, "").__struct_fields__)


def frame(
    who: str = "producer",
    *,
    body: bytes = b"body",
    secret: str = "",
    added: dict[str, Any] | None = None,
    changed: dict[str, Any] | None = None,
    numbers: bool = False,
    backwards: bool = False,
    **fields: Any,
) -> bytes:
    """A send that is signed. `added`: to what is signed, `changed`: afterwards. `numbers`: as such, not as
    text."""
    values = msgspec.structs.asdict(send_header("T", 1, KEY.format(1)))
    values = {name: value for name, value in (values | fields).items() if value is not None}
    wire = {LETTERS[NAMES.index(name)]: value for name, value in values.items()}
    as_text = fields_of({name: _text(value) for name, value in wire.items()}) | (added or {})
    signed: dict[str, Any] = Credentials(who, secret or f"{who}-secret").sign(as_text, body)
    if numbers:
        signed |= {name: value for name, value in wire.items() if not isinstance(value, str)}
    signed |= changed or {}
    if backwards:
        signed = dict(reversed(signed.items()))
    fields_there = {name: value for name, value in signed.items() if value is not None}
    command = {
        "code": int(RequestCode.SEND_MESSAGE_V2),
        "extFields": fields_there,
        "flag": 4,
        "language": "JAVA",
        "opaque": 7,
        "version": 453,
    }
    raw = msgspec.json.encode(command)
    return struct.pack(">II", 4 + len(raw) + len(body), len(raw)) + raw + body


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


RIGHT = frame()
SIGNED_AT = RIGHT.index(b"Signature") + 12
TAKEN = {
    "plain": RIGHT,
    "another order": frame(backwards=True),
    "no body": frame(body=b""),
    "large body": frame(body=bytes(4096)),
    "all fields": frame(unitMode=True, brokerName="b", maxReconsumeTimes=5, reconsumeTimes=2),
    "without a separator": frame(properties=KEY.format(2)[:-1]),
    "by default": frame("default"),
    "administrator": frame("operator"),
}
LEFT = {
    "no signature": frame(changed={"Signature": None}),
    "no account": frame(changed={"AccessKey": None}),
    "neither": frame(changed={"AccessKey": None, "Signature": None}),
    "empty signature": frame(changed={"Signature": ""}),
    "a character more": frame(changed={"Signature": RIGHT[SIGNED_AT : SIGNED_AT + 28].decode() + "="}),
    "a character less": frame(changed={"Signature": RIGHT[SIGNED_AT : SIGNED_AT + 27].decode()}),
    "its last bits": RIGHT[: SIGNED_AT + 27] + b"A" + RIGHT[SIGNED_AT + 28 :],
    "another secret": frame(secret="consumer-secret"),
    "stranger": frame("stranger"),
    "may not": frame("reader-1"),
    "administrator of less": frame("narrowed"),
    "another topic": frame("default", topic="Unknown"),
    "topic for reading": frame(topic="ReadOnly"),
    "another topic than was signed": frame(changed={"b": "ReadOnly"}),
    "another body": RIGHT[:-1] + b"X",
    "a field that was not signed": frame(changed={"n": "broker-b"}),
    "a field that is not there": frame(unitMode=False, changed={"k": None}),
    "numbers": frame(numbers=True),
    "white": frame("nearest"),
    "white, wrong": frame("nearest", secret="wrong-secret"),
    "white elsewhere": frame("further"),
    "a security token": frame(added={"SecurityToken": "token"}),
    "forwarded": frame(changed={"forwardedFor": "10.0.0.8:1"}),
    "not ASCII": frame(properties=KEY.format("\xe9")),
    "escaped": frame(properties=KEY.format('"\\')),
    "delayed": frame(properties=KEY.format(1) + "DELAY\x013\x02"),
}


class Signed(Side):
    """A broker that asks for accounts."""

    def __init__(self, root: str, bulk: bool, fast: ModuleType | None, files: str = ACCOUNTS) -> None:
        Path(root).mkdir(parents=True)
        path = Path(root) / "acl.yml"
        path.write_text(files)
        super().__init__(root, bulk, fast, acl_enable=True, acl_file=str(path), max_message_size=5000)

    def state(self) -> dict[str, Any]:
        access = self.world.features.auth.access
        assert access is not None
        return super().state() | {"denied": access.denied}


async def ways(root: str, files: str = ACCOUNTS) -> list[Side]:
    sides: list[Side] = [
        Signed(f"{root}/{name}", bulk, fast, files)
        for name, bulk, fast in (("none", False, None), ("python", True, None), ("compiled", True, FAST))
    ]
    for side in sides:
        await side.open()
    return sides


async def compare(sides: list[Side], data: bytes) -> list[int]:
    """All receive these bytes as one read: how many each took at once."""
    before = [side.taken for side in sides]
    for side in sides:
        side.receive(data)
        await side.settle()
    first, *others = [told(side.state()) for side in sides]
    for other in others:
        assert other == first
    for side in sides:
        if side.wire.closing:
            side.connection.connection_lost(None)
            side.connect()
    return [side.taken - count for side, count in zip(sides, before, strict=True)]


def test_what_is_signed_rightly_is_taken_and_all_else_goes_the_way_of_all_requests(tmp_path: Path) -> None:
    async def test() -> None:
        sides = await ways(str(tmp_path))
        for kinds, number in ((TAKEN, 1), (LEFT, 0)):
            for name, odd in kinds.items():
                try:
                    assert await compare(sides, odd) == [0, 0, number]
                    assert (await compare(sides, RIGHT + odd + RIGHT))[2] >= 1 + 2 * number
                except AssertionError as error:
                    error.add_note(name)
                    raise
        assert sides[0].state()["denied"] > 10

    run(test)


def test_the_account_counts_for_its_own_message_only(tmp_path: Path) -> None:
    async def test() -> None:
        sides = await ways(str(tmp_path))
        # The same secret for another name, the same name for another topic, one after the other.
        odd = [frame("producer"), frame("default"), frame("default", topic="Unknown"), frame("reader-1")]
        for one in odd:
            for other in odd:
                await compare(sides, one + other + one)

    run(test)


def test_a_white_list_is_looked_at_for_each_connection(tmp_path: Path) -> None:
    async def test() -> None:
        listed = await ways(str(tmp_path / "listed"), "globalWhiteRemoteAddresses: [10.0.0.9]\n" + ACCOUNTS)
        assert await compare(listed, RIGHT + LEFT["another secret"] + LEFT["neither"]) == [0, 0, 0]
        assert listed[0].state()["denied"] == 0
        other = await ways(str(tmp_path / "other"), "globalWhiteRemoteAddresses: [10.0.0.8]\n" + ACCOUNTS)
        assert await compare(other, RIGHT + RIGHT + LEFT["another secret"]) == [0, 0, 2]
        assert other[2].state()["denied"] == 1

    run(test)


@st.composite
def reads(draw: st.DrawFn) -> bytes:
    """Frames, most of them right, of which one may have a wrong byte."""
    kinds = st.sampled_from(["plain"] * 30 + sorted(TAKEN) + sorted(LEFT))
    frames = [(TAKEN | LEFT)[name] for name in draw(st.lists(kinds, min_size=1, max_size=8))]
    if draw(st.booleans()):
        number = draw(st.integers(0, len(frames) - 1))
        one = bytearray(frames[number])
        one[draw(st.integers(0, min(len(one), 600) - 1))] = draw(st.integers(0, 255))
        frames[number] = bytes(one)
    return b"".join(frames)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(reads(), min_size=1, max_size=8))
def test_both_ways_tell_store_and_refuse_the_same(stream: list[bytes]) -> None:
    async def test() -> None:
        with tempfile.TemporaryDirectory() as root:
            sides = await ways(root)
            for data in stream:
                await compare(sides, data)

    run(test)


def test_users_are_judged_once_and_again_when_they_change(tmp_path: Path) -> None:
    async def test() -> None:
        side = Side(str(tmp_path), True, FAST, **ON)
        await side.open()
        world = side.world
        tasks = [
            asyncio.create_task(world.broker.leadership.services.run()),
            asyncio.create_task(world.broker.core.background.run()),
        ]
        await asyncio.sleep(0)
        await create(world, "other")  # now the first user is there as well

        async def sent(who: str, **how: Any) -> tuple[int, int]:
            """How many of three were taken at once, and how many refused."""
            access = world.features.auth.access
            assert access is not None
            before = side.taken, access.denied
            side.receive(frame(who, **how) * 3)
            await side.settle()
            return side.taken - before[0], access.denied - before[1]

        assert await sent("root") == (3, 0)
        assert await sent("root", secret="wrong") == (0, 3)
        assert await sent("producer") == (0, 3)
        await create(world, "producer")
        assert await sent("producer") == (0, 3)
        grant = acl("producer", [("Topic:T", "Pub", "Allow")])
        header = {"subject": "User:producer"}
        assert (await ask(world, RequestCode.AUTH_CREATE_ACL, header, grant)).code == 0
        assert await sent("producer") == (0, 0)  # the first read of it is judged by its policies
        assert await sent("producer") == (3, 0)
        assert await sent("producer", topic="Unknown") == (0, 3)
        deny = acl("producer", [("Topic:T", "Pub", "Deny")])
        assert (await ask(world, RequestCode.AUTH_UPDATE_ACL, header, deny)).code == 0
        assert await sent("producer") == (0, 3)
        assert (await ask(world, RequestCode.AUTH_DELETE_USER, {"username": "producer"})).code == 0
        assert await sent("producer") == (0, 3)
        for task in tasks:
            task.cancel()

    run(test)

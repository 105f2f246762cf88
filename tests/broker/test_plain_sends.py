"""Plain sends are taken a read at a time: told, stored and counted is what the way of all requests does.

By the compiled twin, where it is built, and by the Python one."""

from __future__ import annotations

import asyncio
import struct
import tempfile
from dataclasses import asdict, dataclass, field
from itertools import product
from types import ModuleType
from typing import Any, cast

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dledger._fast import FAST
from dledger.broker.intake import plain_sends
from dledger.broker.pending_responses import AnswerRun, PendingResponses
from dledger.formats.entry import HEADER_SIZE
from dledger.log.appender import Appender
from dledger.log.store import LogStore
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Request, SerializeType
from dledger.remoting.frames import FrameReader, encode_request
from dledger.remoting.headers import SendMessageHeader
from dledger.remoting.server import Connection, ServerLimits
from tests.broker.harness import World, run, send_header

KEY = "UNIQ_KEY\x01AC1400020000{}\x02"
V1, V2 = RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2


@dataclass
class Wire:
    """A transport that keeps what is written."""

    written: bytearray = field(default_factory=bytearray)
    closing: bool = False
    paused: bool = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closing = True

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> Any:
        return ("10.0.0.9", 5555) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Side:
    """A broker and one connection to it."""

    def __init__(self, root: str, bulk: bool, fast: ModuleType | None = None, **changes: Any) -> None:
        self.world = World(root, **changes)
        self.world.features.intake.plain_sends.fast = fast
        self.server = self.world.broker.server
        assert self.server.bulk is not None
        self.taken = 0
        take = self.server.bulk

        def counted(connection: Connection, buffer: bytearray, end: int) -> tuple[int, int, int]:
            told = take(connection, buffer, end)
            self.taken += told[1]
            return told

        self.server.bulk = counted if bulk else None
        self.wire = Wire()

    async def open(self) -> None:
        await self.world.open()
        self.server.loop = asyncio.get_running_loop()
        self.server.in_time = lambda: True  # type: ignore[method-assign]  # on a busy machine as well
        for topic, perm in (("T", 6), ("ReadOnly", 4)):
            fields = {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": "8",
                "writeQueueNums": "8",
                "perm": str(perm),
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            }
            assert (await self.world.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
        # From here on the topic has its slot. What has no key of its own is not looked for.
        assert (await self.world.send("T", properties="TAGS\x01a")).code == 0
        self.connect()

    def connect(self) -> None:
        self.wire = Wire()
        self.connection = Connection(self.server)
        self.connection.connection_made(cast(asyncio.BaseTransport, self.wire))

    def receive(self, data: bytes) -> None:
        while data and not self.wire.closing:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]

    async def settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    def state(self) -> dict[str, Any]:
        broker = self.world.broker
        writer = broker.gate.writer
        assert writer is not None
        return {
            "answers": bytes(self.wire.written),
            "closed": self.wire.closing,
            "paused": self.wire.paused,
            "log": bytes(self.world.node.log.data),
            "network": asdict(self.server.stats),
            "in flight": self.connection._inflight,
            "messages": (writer.messages, writer.last_index),
            "queues": {name: (slot.next, slot.puts) for name, slot in writer.slots.items()},
            "waiting": len(broker.core.committed),
        }


def told(state: dict[str, Any]) -> dict[str, Any]:
    queues = {
        name: (numbers, (puts.messages, puts.size, puts.batched))
        for name, (numbers, puts) in state["queues"].items()
    }
    return state | {"queues": queues}


# -- what is sent -----------------------------------------------------------------------------------------


def frame(
    fields: dict[str, Any] | None = None,
    envelope: dict[str, Any] | None = None,
    *,
    code: int = V2,
    as_text: bool = False,
    without: str = "",
    body: bytes = b"body",
    extra: dict[str, Any] | None = None,
) -> bytes:
    """A plain send, but for what is said. `as_text`: numbers as Java's clients write them."""
    names = SendMessageHeader.__struct_fields__
    plain = msgspec.structs.asdict(send_header("T", 1, KEY.format(1)))
    values = {name: value for name, value in plain.items() if value is not None} | (fields or {})
    if as_text:
        values = {name: _text(value) for name, value in values.items()}
    values.pop(without, None)
    wire = dict(zip(names, (*names[:-1], "bname") if code == V1 else "abcdefghijklmn", strict=True))
    command = {
        "code": int(code),
        "extFields": {wire[name]: value for name, value in values.items()} | (extra or {}),
        "flag": 4,
        "language": "JAVA",
        "opaque": 7,
        "serializeTypeCurrentRPC": "JSON",
        "version": 453,
    } | (envelope or {})
    command.pop(without, None)
    raw = msgspec.json.encode(command)
    return struct.pack(">II", 4 + len(raw) + len(body), len(raw)) + raw + body


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


VALUES = (0, 1, -1, 2**31, 2**63, 1.0, 1.5, "7", "", "x", "1.0", " 1", "1e1", "true", None, True, [], {})
PROPERTIES = (
    KEY.format("\xe9"),
    KEY.format('"\\'),
    KEY.format("1")[:-1],
    "UNIQ_KEY\x01\x02",
    "NOT_UNIQ_KEY\x01a\x02",
    "A\x01UNIQ_KEY\x01b\x02",
    "A\x01b\x02UNIQ_KEY\x01b",
    "",
    KEY.format(1) + "DELAY\x013\x02",
    KEY.format(1) + "DELAY\x01x\x02",
    KEY.format(1) + "TRAN_MSG\x01true\x02PGROUP\x01PG\x02",
    KEY.format(1) + "TIMER_DELAY_SEC\x015\x02",
    KEY.format(1) + "__STARTDELIVERTIME\x011700000009000\x02",
    KEY.format(1) + "CLUSTER\x01old\x02MSG_REGION\x01r\x02",
    KEY.format(1) + "POP_CK\x011 2 3\x02",
    KEY.format(1) + "A\x01" + "x" * 32_600 + "\x02",
    KEY.format(1) + "A\x01" + "x" * 32_700 + "\x02",
)
ODD: dict[str, bytes] = {
    "plain": frame(),
    "as text": frame(as_text=True),
    "old code": frame(code=V1),
    "old code as text": frame(code=V1, as_text=True),
    **{
        f"topic {topic}": frame({"topic": topic})
        for topic in ("New", "ReadOnly", "bad topic", "SCHEDULE_TOPIC_XXXX")
    },
    **{f"retry {times}": frame({"topic": "%RETRY%CG", "reconsumeTimes": times}) for times in (0, 3, 17)},
    **{f"properties {number}": frame({"properties": text}) for number, text in enumerate(PROPERTIES)},
    **{f"queue {queue}": frame({"queueId": queue}) for queue in (7, 8, -1)},
    **{f"sysFlag {flag:#x}": frame({"sysFlag": flag}) for flag in (1, 4, 8, 12, 16, 32, 0x301)},
    **{f"flag {flag}": frame({"flag": flag}) for flag in (1, -(2**31), 2**31 - 1)},
    **{f"born {time}": frame({"bornTimestamp": time}) for time in (0, -(2**63), 2**63 - 1)},
    "reconsumed": frame({"reconsumeTimes": 3}),
    "batch": frame({"batch": True}),
    "unit": frame({"unitMode": True, "brokerName": "b", "maxReconsumeTimes": 5}),
    **{f"flags {flag}": frame(envelope={"flag": flag}) for flag in (0, 1, 2, 3, 6, 8, 12, 16, -1)},
    **{f"code {code}": frame(code=code) for code in (30, 31, 320, 3100, 9999)},
    "code twice": frame().replace(b'"opaque":7', b'"code":31 '),
    "code later": frame().replace(b'{"code":310,', b'{ "code":310').replace(b'"flag":4', b',"flag":4'),
    **{
        f"{name} {value!r}": frame(envelope={name: value})
        for name in ("opaque", "flag", "version")
        for value in VALUES
    },
    **{
        f"{name} {value!r}": frame(envelope={name: value})
        for name in ("language", "remark", "extFields", "(body)", "(size)", "(serialize)")
        for value in (None, 1, "x", {})
    },
    **{
        f"field {name} {value!r}": frame({name: value})
        for name in ("queueId", "sysFlag", "bornTimestamp", "flag", "reconsumeTimes", "batch", "topic")
        for value in VALUES
        if name != "topic" or not isinstance(value, str)
    },
    **{
        f"without {name}": frame(without=name)
        for name in (*SendMessageHeader.__struct_fields__, "opaque", "flag", "version")
    },
    **{f"body {size}": frame(body=bytes(size)) for size in (0, 4999, 5000, 5001, 70_000, 300_000)},
    "half a surrogate": frame().replace(b"AC14", b"\\ud8"),
    "no UTF-8": frame().replace(b"AC14", b"AC\xff4"),
    "another field": frame(extra={"other": "x"}),
    "no UTF-8 in a field that is not read": frame(extra={"other": "x"}).replace(b'"x"', b'"\xff"'),
    "control character": frame().replace(b"JAVA", b"JA\nA"),
    "max offset": encode_request(RequestCode.GET_MAX_OFFSET, 5, {"topic": "T", "queueId": "0"}),
    "binary": encode_request(V2, 7, send_header("T", 0, KEY.format(7)), serialize=SerializeType.ROCKETMQ),
    "batch code": encode_request(RequestCode.SEND_BATCH_MESSAGE, 8, send_header("T", 0, "", batch=True), 22)
    + struct.pack(">iiiiih", 22, 0, 0, 0, 0, 0),
    "too short": struct.pack(">II", 3, 0),
    "too long": struct.pack(">II", 1 << 30, 1),
    "header longer than its frame": struct.pack(">II", 100, 200) + bytes(96),
    "unknown serialization": struct.pack(">II", 100, 2 << 24 | 10) + bytes(96),
    "large header": frame({"properties": KEY.format(1)}, {"remark": "x" * 400_000}),
}


async def ways(root: str) -> list[Side]:
    """Brokers that take none, many at once, and many at once by the compiled twin."""
    sides = [
        Side(f"{root}/{name}", bulk, fast, max_message_size=5000)
        for name, bulk, fast in (("none", False, None), ("python", True, None), ("compiled", True, FAST))
    ]
    for side in sides:
        await side.open()
    return sides


async def compare(sides: list[Side], data: bytes) -> None:
    """All receive these bytes as one read, or as few as they fit in."""
    for side in sides:
        side.receive(data)
    before = [told(side.state()) for side in sides]
    assert before[1] == before[0] and before[2] == before[0]
    for side in sides:
        await side.settle()
    after = [told(side.state()) for side in sides]
    assert after[1] == after[0] and after[2] == after[0]
    for side in sides:
        if side.wire.closing:
            side.connection.connection_lost(None)
            side.connect()


def test_whatever_is_not_plain_goes_the_way_of_all_requests(tmp_path: Any) -> None:
    async def test() -> None:
        sides = await ways(str(tmp_path))
        for name, odd in ODD.items():
            try:
                await compare(sides, odd)
                await compare(sides, frame() + odd + frame())
            except AssertionError as error:
                error.add_note(name)
                raise
        assert sides[0].taken == 0 and sides[1].taken == sides[2].taken > len(ODD)

    run(test)


@st.composite
def reads(draw: st.DrawFn) -> bytes:
    """Whole frames, most of them plain, of which some may have a wrong byte; or cut off."""
    kinds = st.sampled_from(["plain"] * 60 + sorted(ODD))
    frames = [ODD[name] for name in draw(st.lists(kinds, min_size=1, max_size=8))]
    if draw(st.booleans()):
        number = draw(st.integers(0, len(frames) - 1))
        one = bytearray(frames[number])
        one[draw(st.integers(0, min(len(one), 400) - 1))] = draw(st.integers(0, 255))
        frames[number] = bytes(one)
    data = b"".join(frames)
    return data[: draw(st.sampled_from([len(data)] * 3 + [len(data) // 2, len(data) - 1]))]


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(reads(), min_size=1, max_size=8))
def test_both_ways_tell_store_and_count_the_same(stream: list[bytes]) -> None:
    async def test() -> None:
        with tempfile.TemporaryDirectory() as root:
            sides = await ways(root)
            for data in stream:
                await compare(sides, data)

    run(test)


# -- that it is taken at all ------------------------------------------------------------------------------


def plain(count: int, size: int = 100, **more: Any) -> bytes:
    return b"".join(
        encode_request(V2, number, send_header("T", number % 8, KEY.format(number), **more), size, flag=4)
        + bytes(size)
        for number in range(1, count + 1)
    )


@pytest.mark.skipif(FAST is None, reason="not built")
@pytest.mark.parametrize("as_text", [False, True])
def test_the_compiled_twin_takes_all_that_clients_send(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, as_text: bool
) -> None:
    monkeypatch.setattr(plain_sends, "seal_sends", lambda buffer, at, *rest: at)

    async def test() -> None:
        side = Side(str(tmp_path), True, FAST)
        await side.open()
        side.receive(frame(as_text=as_text) * 3)
        assert side.taken == 3

    run(test)


@pytest.mark.parametrize("fast", [None, FAST])
def test_all_of_a_read_is_taken_and_answered_in_one_write(tmp_path: Any, fast: ModuleType | None) -> None:
    async def test() -> None:
        side = Side(str(tmp_path), True, fast)
        await side.open()
        side.receive(plain(50))
        assert side.taken == 50 and len(side.world.broker.core.committed) == 50
        await side.settle()
        reader = FrameReader()
        reader.buffer()[: len(side.wire.written)] = side.wire.written
        answers = reader.received(len(side.wire.written))
        assert [(answer.opaque, answer.code) for answer in answers] == [(n, 0) for n in range(1, 51)]
        assert side.connection._inflight == 0 and len(side.world.broker.core.committed) == 0

    run(test)


@pytest.mark.parametrize(
    "changes", [{"topic_send_rates": {"T": 1000}}, {"duplicate_check_topics": ("T",)}, {"acl_enable": True}]
)
def test_where_each_send_is_looked_at_none_is_taken(tmp_path: Any, changes: dict[str, Any]) -> None:
    if "acl_enable" in changes:  # those that are signed: test_signed_sends.py
        (tmp_path / "acl.yml").write_text("accounts: []\n")
        changes = changes | {"acl_file": str(tmp_path / "acl.yml")}

    async def test() -> None:
        side = Side(str(tmp_path), True, **changes)
        await side.open()
        side.receive(plain(3))
        assert side.taken == 0

    run(test)


@pytest.mark.parametrize("fast", [None, FAST])
@pytest.mark.parametrize("where", ["stored", "looking", "said"])
def test_one_that_is_to_be_looked_for_ends_a_run(tmp_path: Any, where: str, fast: ModuleType | None) -> None:
    async def test() -> None:
        side = Side(str(tmp_path), True, fast)
        await side.open()
        key = KEY.format(2)
        if where == "said":
            odd = frame({"properties": key + "__RESEND\x011\x02"})
        else:
            getattr(side.world.features.intake.resends, where)[key[9:-1].encode()] = 1
            odd = frame({"properties": key})
        side.receive(frame() + odd + frame())
        assert side.taken == 1

    run(test)


@pytest.mark.parametrize("fast", [None, FAST])
def test_a_frame_that_is_too_large_closes_the_connection(tmp_path: Any, fast: ModuleType | None) -> None:
    async def test() -> None:
        side = Side(str(tmp_path), True, fast, server=ServerLimits(max_frame_size=2000))
        await side.open()
        side.receive(plain(2) + plain(1, 2000))
        assert side.taken == 2 and side.wire.closing

    run(test)


def test_a_run_ends_where_there_is_no_room(tmp_path: Any) -> None:
    async def test() -> None:
        for limit, fast in product(("room_pos", "room_index", "stop_pos"), (None, FAST)):
            side = Side(str(tmp_path / f"{limit}{fast is None}"), True, fast)
            await side.open()
            appender, log = side.world.node.appender, side.world.node.log
            assert appender is not None
            side.receive(plain(1))
            size = log.entries[-1][1]
            now = len(log.entries) if limit == "room_index" else len(log.data)
            by = {"room_pos": size + 1, "room_index": 1, "stop_pos": 2 * size}[limit]
            setattr(appender, limit, now + by)
            side.receive(plain(9))
            assert side.taken == 1 + 2, limit

    run(test)


@pytest.mark.parametrize(("limit", "entries"), [(2000, 1000), (1 << 30, 4)])
def test_a_run_has_the_room_that_single_entries_have(limit: int, entries: int) -> None:
    """One by one until it is refused, and by the bounds of a run."""

    class Log:
        last_index, end_pos, last_chain, covered, short_of_space = 9, 5000, 1, True, False
        durable_pos, durable_mark, segment_size = 4000, 7, 10_000

        def store_time_now(self) -> int:
            return 1

    size = 300
    counts = []
    for by_run in (False, True):
        appender = Appender(
            cast(LogStore, Log()), 1, pending_bytes=limit, pending_entries=entries, schedule_pump=lambda: None
        )
        if by_run:
            opened = appender.open_run()
            assert opened is not None
            while (
                opened.pos < opened.room_pos
                and opened.index <= opened.room_index
                and opened.pos + size <= opened.stop_pos
            ):
                opened.index, opened.pos = opened.index + 1, opened.pos + size
            counts.append(len(opened))
        else:
            while appender.room:
                position = appender.reserve(size)
                if position % 10_000 == 0:
                    break  # it rolled: a run ends here
                appender.add((bytes(size - HEADER_SIZE),), size - HEADER_SIZE)
            counts.append(appender.next_index - 10)
    assert counts[0] == counts[1] > 0


# -- answers ----------------------------------------------------------------------------------------------


@dataclass
class Peer:
    """Keeps what it is answered."""

    got: list[object] = field(default_factory=list)
    size: int = 0

    def respond_run(self, frames: list[bytes], size: int) -> None:
        self.got += frames
        self.size += size

    def respond_parts(self, request: Request, parts: tuple[bytes]) -> None:
        self.got += parts

    def respond(self, request: Request, code: int, *, remark: str) -> None:
        self.got.append((request.opaque, code, remark))
        self.size += request.size


def test_a_commit_within_a_run_answers_what_it_covers() -> None:
    async def test() -> None:
        pending, peer = PendingResponses(), Peer()
        connection = cast(Connection, peer)
        answers = AnswerRun()
        answers.frames, answers.opaques, answers.sizes = [b"a", b"b", b"c"], [1, 2, 3], [10, 20, 30]
        pending.add(4, connection, Request(310, 0), b"before")
        pending.add_run(5, connection, answers)
        pending.add(8, connection, Request(310, 4), b"behind")
        assert len(pending) == 5 and pending.oldest
        pending.on_commit(5)
        assert (peer.got, peer.size, len(pending)) == ([b"before", b"a"], 10, 3)
        pending.on_commit(6)
        assert (peer.got[2:], peer.size, len(pending)) == ([b"b"], 30, 2)
        pending.end("gone")
        assert peer.got[3:] == [(3, 1, "outcome unknown: gone"), (4, 1, "outcome unknown: gone")]
        assert (peer.size, len(pending), pending.oldest) == (60, 0, 0)

    run(test)

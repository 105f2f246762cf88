"""A broker over a fake node, and a client that speaks to its handlers in real frames, without sockets."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from dledger.broker.broker import Broker
from dledger.broker.config import BrokerConfig
from dledger.broker.member_requests import MEMBER_PROOF, content_of
from dledger.formats.message_ids import pack_ipv4_host
from dledger.formats.record import Record, decode_records
from dledger.peers.proofs import Proofs
from dledger.remoting.codes import LanguageCode, RequestCode, ResponseCode
from dledger.remoting.commands import FLAG_REDIRECT, Request, SerializeType
from dledger.remoting.errors import RemotingError
from dledger.remoting.frames import FrameReader, encode_request, encode_response, fields_of
from dledger.remoting.headers import PullMessageHeader, SendMessageV2Header
from dledger.remoting.server import Connection
from dledger.runtime.env import Env, SystemWallClock
from dledger.runtime.files import Buffer, OsFiles
from dledger.runtime.ids import Ids
from dledger.runtime.live_settings import SettingsSource
from dledger.runtime.log import StandardLog
from dledger.runtime.workers import ThreadWorkers
from tests.broker.fake_node import FakeLog, FakeNode


class ManualClock(SystemWallClock):
    """Stands still until moved."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.value = now_ms

    def now_ms(self) -> int:
        return self.value


def make_env(seed: int = 1) -> Env:
    rng = random.Random(seed)
    return Env(OsFiles(), ManualClock(), rng, Ids(rng), ThreadWorkers(1), StandardLog("test"), 1, "boot")


def make_config(root: str, **changes: Any) -> BrokerConfig:
    values: dict[str, Any] = {
        "store_root": root,
        "peers": {"n0": "127.0.0.1:40911", "n1": "127.0.0.1:40912"},
        "broker_ip": "10.0.0.1",
        "default_topic_queues": 8,
        "hold_while_opening_s": 0.05,
        "offset_flush_s": 0.01,
    }
    return BrokerConfig(**(values | changes))


@dataclass
class Reply:
    """One answer as a client decodes it."""

    code: int
    ext: dict[str, str]
    body: bytes
    remark: str | None

    @property
    def records(self) -> list[Record]:
        return decode_records(self.body)


@dataclass
class FakeConnection:
    """What handlers see of a connection; answers and notices are kept."""

    serial: int = 1
    peer: str = "10.0.0.9:5555"
    peer_host: bytes = pack_ipv4_host("10.0.0.9", 5555)
    closed: bool = False
    slow: bool = False
    crowded: bool = False
    attributes: dict[str, object] = field(default_factory=dict)
    replies: dict[int, Reply] = field(default_factory=dict)
    notices: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    """Bodies of the notices."""
    opaque: int = 0
    dispatch: Callable[[FakeConnection, Request], None] | None = None

    def is_current(self) -> bool:
        return True

    def again(self, request: Request) -> None:
        assert self.dispatch is not None
        self.dispatch(self, request)

    def respond(
        self,
        request: Request,
        code: int,
        *,
        ext: Mapping[str, str] | None = None,
        body: Buffer | Sequence[Buffer] = b"",
        remark: str | None = None,
        promised: bool = False,
    ) -> None:
        data = body if isinstance(body, (bytes, bytearray, memoryview)) else b"".join(body)
        self.respond_parts(request, [encode_response(request, code, ext, remark, len(data)), data])

    def respond_parts(self, request: Request, parts: Sequence[Buffer]) -> None:
        if request.oneway or self.closed:
            return
        [reply] = decode(b"".join(parts))
        assert reply.opaque == request.opaque
        assert request.opaque not in self.replies, "answered twice"
        self.replies[request.opaque] = Reply(reply.code, reply.ext(), reply.body, reply.remark)

    def respond_run(self, frames: Sequence[bytes], size: int) -> None:
        """Answers to sends of the fast path, in one write."""
        for frame in frames:
            [reply] = decode(frame)
            self.respond_parts(reply, (frame,))

    def send_oneway(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        self.notices.append((code, dict(ext or {})))
        self.bodies.append(body)


def decode(frame: bytes) -> list[Request]:
    """Commands in these bytes, by the real reader."""
    reader = FrameReader(buffer_size=max(64, len(frame)))
    reader.buffer()[: len(frame)] = frame
    commands = reader.received(len(frame))
    assert reader.error is None and reader.pending == 0
    return commands


def processor_kinds() -> list[type]:
    """Classes of all processors that a broker has."""
    return [type(one) for one in World("never opened").broker.processors]


class World:
    """One broker, its node, and clients."""

    def __init__(
        self, root: str, log: FakeLog | None = None, source: SettingsSource | None = None, **changes: Any
    ) -> None:
        self.env = make_env()
        self.clock = cast(ManualClock, self.env.wall)
        self.config = make_config(root, **changes)
        self.connection = FakeConnection()
        self.keys = 0
        self.taken = 0
        """Sends that the fast path took."""
        nodes: list[FakeNode] = []

        def make_node(env: Env, config: Any, host: Any) -> FakeNode:
            nodes.append(FakeNode(env, config, host, log))
            return nodes[0]

        self.broker = Broker(self.env, self.config, make_node, source)
        self.features = self.broker.features
        self.node = nodes[0]

    async def open(self, lead: bool = True) -> World:
        await self.node.open()
        if lead:
            self.node.lead()
        return self

    def ask(
        self,
        code: int,
        header: msgspec.Struct | Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        connection: FakeConnection | None = None,
        serialize: SerializeType = SerializeType.JSON,
        flag: int = FLAG_REDIRECT,
        language: LanguageCode = LanguageCode.PYTHON,
    ) -> Pending:
        """Hand one request to its handler as the server does."""
        connection = connection or self.connection
        connection.opaque += 1
        frame = encode_request(code, connection.opaque, header, len(body), flag, serialize, language) + body
        connection.dispatch = self.dispatch
        if not self.taken_at_once(connection, frame):
            [request] = decode(frame)
            self.dispatch(connection, request)
        return Pending(connection, connection.opaque)

    def taken_at_once(self, connection: FakeConnection, frame: bytes) -> bool:
        """Offer it to the fast path of plain sends, as the server does with each read. Whether it took it."""
        buffer = bytearray(frame)
        _, taken, _ = self.features.intake.plain_sends.take(cast(Connection, connection), buffer, len(buffer))
        self.taken += taken
        return taken == 1

    def dispatch(self, connection: FakeConnection, request: Request) -> None:
        """As the server does."""
        try:
            self.broker.handlers[request.code](cast(Connection, connection), request)
        except RemotingError as error:
            connection.respond(request, error.code or ResponseCode.SYSTEM_ERROR, remark=error.remark)

    async def call(self, code: int, header: Any = None, body: bytes = b"", **how: Any) -> Reply:
        """Ask, and wait for the answer."""
        return await self.ask(code, header, body, **how)

    def send(
        self,
        topic: str = "T",
        body: bytes = b"hello",
        queue: int = 0,
        properties: str = "",
        *,
        connection: FakeConnection | None = None,
        flag_bits: int = FLAG_REDIRECT,
        **more: Any,
    ) -> Pending:
        """Send one message; `flag_bits` are the command's, `more` goes into the header.

        Without `properties` it has what each client adds, a unique key: a plain one takes the fast path."""
        self.keys += 1
        properties = properties or f"UNIQ_KEY\x010A000009{self.keys:024X}\x02"
        header = send_header(topic, queue, properties, **more)
        return self.ask(RequestCode.SEND_MESSAGE_V2, header, body, connection=connection, flag=flag_bits)

    def pull(
        self,
        topic: str = "T",
        queue: int = 0,
        offset: int = 0,
        *,
        connection: FakeConnection | None = None,
        language: LanguageCode = LanguageCode.PYTHON,
        **more: Any,
    ) -> Pending:
        """Pull; `more` goes into the header."""
        header = pull_header(topic, queue, offset, **more)
        return self.ask(RequestCode.PULL_MESSAGE, header, connection=connection, language=language)


class Member:
    """Another broker of the group: what the hellos told, and the proofs of its requests."""

    def __init__(self, world: World, node: str = "n1", ip: str = "10.0.0.2") -> None:
        world.node.meta[node] = {"client_addr": f"{ip}:10911", "store_ip": ip}
        self.connection = FakeConnection(serial=9, peer=f"{ip}:40000")
        self.proofs = Proofs(node, b"secret of " + node.encode())
        self._node = node
        self._world = world
        self.meet()

    def meet(self) -> None:
        """Each of the two has dialled the other."""
        node, own = self._world.node, self._world.config.self_id
        for one, name, other in ((node.proofs, self._node, self.proofs), (self.proofs, own, node.proofs)):
            secret = one.tell(name)
            one.introduced(name, secret)
            other.hear(own if one is node.proofs else self._node, secret)

    def proven(
        self, code: int, header: msgspec.Struct | Mapping[str, str] | None, body: bytes = b"", flag: int = 0
    ) -> dict[str, str]:
        """Header fields with a proof."""
        fields = fields_of(header)
        proof = self.proofs.make(self._world.config.self_id, content_of(code, flag, fields, body))
        return {**fields, MEMBER_PROOF: proof}

    async def call(self, code: int, header: Any = None, body: bytes = b"", **how: Any) -> Reply:
        """A request of its own."""
        how.setdefault("connection", self.connection)
        return await self._world.call(code, self.proven(code, header, body), body, **how)


@dataclass
class Pending:
    """An answer that may not be there yet."""

    connection: FakeConnection
    opaque: int

    @property
    def done(self) -> bool:
        return self.opaque in self.connection.replies

    @property
    def reply(self) -> Reply:
        return self.connection.replies[self.opaque]

    def __await__(self) -> Generator[Any, None, Reply]:
        return self._wait().__await__()

    async def _wait(self, timeout_s: float = 20.0) -> Reply:
        # Only ever reached by an answer that does not come: a busy machine may take its time.
        async with asyncio.timeout(timeout_s):
            while not self.done:  # noqa: ASYNC110 - the answer may come from any layer
                await asyncio.sleep(0.001)
        return self.reply


def send_header(topic: str, queue: int, properties: str, **more: Any) -> SendMessageV2Header:
    values: dict[str, Any] = {
        "producerGroup": "PG",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": queue,
        "sysFlag": 0,
        "bornTimestamp": 1_699_999_999_000,
        "flag": 0,
        "properties": properties,
    }
    return SendMessageV2Header(**(values | more))


def pull_header(topic: str, queue: int, offset: int, **more: Any) -> PullMessageHeader:
    values: dict[str, Any] = {
        "consumerGroup": "CG",
        "topic": topic,
        "queueId": queue,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subVersion": 0,
        "subscription": "*",
    }
    return PullMessageHeader(**(values | more))


async def skip_s(seconds: float) -> None:
    """The loop's clock goes so far ahead: what is due until then is due now. So a test gives what must not
    be over yet a time that no pause of the machine uses up, and ends it when it wants."""
    for _ in range(20):  # who is about to wait begins to
        await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    ahead = loop.time() + seconds - time.monotonic()
    loop.time = lambda: time.monotonic() + ahead  # type: ignore[method-assign]


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run an async test; unhandled errors of the loop fail it."""

    async def guarded() -> None:
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        await test()
        assert not problems

    asyncio.run(guarded())

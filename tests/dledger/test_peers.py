"""The connections of a node: versions, what is refused, what is counted."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from dledger.config import NodeConfig
from dledger.election.identity import Hello, encode_hello
from dledger.messages import (
    Append,
    Heartbeat,
    Holding,
    Message,
    ReadIndexRequest,
    ReadIndexResponse,
    RepairRequest,
    RepairResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from dledger.peers.dialling import Dialler
from dledger.peers.links import FIRST_BUFFER, MAX_ERROR_TEXT, MAX_HELD, PeerConnection
from dledger.peers.listener import MAX_STRANGERS
from dledger.peers.peers import Peers
from dledger.peers.proofs import Proofs
from dledger.peers.wire import (
    ERROR,
    HELLO,
    PREFIX,
    PROOF,
    Frame,
    decode_frame,
    decode_message,
    encode_frame,
    encode_message,
)
from dledger.runtime.env import production_env
from tests.broker.harness import skip_s

HELLO_OF_N0 = Hello("g", "n0", "i0", "c", 1, 2, 16 << 20, True, {"n0": "i0", "n1": "i1"})
HELLO_OF_N1 = replace(HELLO_OF_N0, node="n1", incarnation="i1")
SLOW_ABOVE = 4 * 1024 * 1024
"""Unsent bytes above which a link counts as slow."""
LIMIT_S = 60.0
"""For a dial, a hello and an answer: no pause of the machine uses it up."""


class Recorder:
    """Stands for the node: keeps what it is told."""

    def __init__(self) -> None:
        self.hello = HELLO_OF_N0
        self.hellos: list[Hello] = []
        self.up: list[str] = []
        self.messages: list[tuple[str, Message]] = []

    def my_hello(self) -> Hello:
        return self.hello

    def welcome(self, hello: Hello) -> dict[str, str]:
        return {"n0": "", "n1": ""}

    def addresses(self) -> dict[str, str]:
        return {}

    def elsewhere(self, peer: str) -> tuple[str, str] | None:
        return None

    def on_hello(self, hello: Hello) -> None:
        self.hellos.append(hello)

    def on_peer_up(self, peer: str) -> None:
        self.up.append(peer)

    def on_peer_down(self, peer: str) -> None: ...

    def on_refused(self, peer: str) -> None: ...

    def on_message(self, connection: PeerConnection, peer: str, message: Message) -> None:
        self.messages.append((peer, message))

    def on_read(self) -> None: ...

    def on_client_frame(self, connection: PeerConnection, frame: Frame) -> None: ...


class Wire:
    """One raw connection to the node under test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def hello(self, hello: Hello) -> None:
        self.send(encode_frame(HELLO, encode_hello(hello)))

    async def frame(self) -> Frame:
        """The next frame; EOFError when the node closed instead."""
        async with asyncio.timeout(LIMIT_S):
            prefix = await self._reader.readexactly(PREFIX.size)
            rest = await self._reader.readexactly(PREFIX.unpack(prefix)[0] - 2)
        return decode_frame(memoryview(prefix + rest))

    async def message(self) -> Message:
        return decode_message(await self.frame())

    async def refusal(self) -> str:
        """Text of the error frame that ends the connection."""
        frame = await self.frame()
        assert frame.number == ERROR
        async with asyncio.timeout(20):
            assert await self._reader.read() == b""
        return str(frame.header())

    def close(self) -> None:
        self._writer.close()


class Bench:
    """The connections of n0, and n1 as the test plays it."""

    def __init__(self, ports: list[int], peers: Peers, events: Recorder) -> None:
        self._ports = ports
        self.peers = peers
        self.events = events
        self.failures: list[BaseException] = []
        self.dialled: asyncio.Queue[Wire] = asyncio.Queue()

    async def dial(self) -> Wire:
        return Wire(*await asyncio.open_connection("127.0.0.1", self._ports[0]))

    async def join(self, hello: Hello = HELLO_OF_N1) -> Wire:
        """A connection that n1 dialled and that n0 believes."""
        before = len(self.events.hellos)
        wire = await self.dial()
        wire.hello(hello)
        answer = await wire.frame()
        if hello.protocol_max > 1:
            wire.send(encode_frame(PROOF, answer.header()["nonce"]))
        await self.until(lambda: len(self.events.hellos) > before)
        return wire

    async def refused(self, data: bytes) -> str:
        """What n0 says to this instead of listening to it."""
        wire = await self.dial()
        wire.send(data)
        text = await wire.refusal()
        wire.close()
        return text

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - looks at what the node under test does
                await asyncio.sleep(0.002)


@asynccontextmanager
async def connections(ports: list[int], **changes: object) -> AsyncIterator[Bench]:
    settings = {"hello_timeout_s": LIMIT_S, "dial_timeout_s": LIMIT_S, **changes}
    config = NodeConfig(
        "g",
        "n0",
        {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports)},
        "unused",
        bind_host="127.0.0.1",
        **settings,  # type: ignore[arg-type]
    )
    events = Recorder()
    failures: list[BaseException] = []
    peers = Peers(production_env("n0"), config, failures.append)
    bench = Bench(ports, peers, events)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bench.dialled.put_nowait(Wire(reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", ports[1])
    await peers.listen(events)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(peers.dial("n1", config.peers["n1"]), name="dial")
        yield bench
        task.cancel()
        await peers.close()
        server.close()
    assert not failures


@pytest.fixture
def ports(unused_tcp_ports: Callable[[int], list[int]]) -> list[int]:
    return unused_tcp_ports(2)


@pytest.mark.parametrize(("theirs", "spoken"), [(1, 1), (2, 2), (9, 2)])
def test_both_sides_speak_the_highest_version_that_both_know(
    theirs: int, spoken: int, ports: list[int]
) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            assert bench.peers.version("n1") == 0
            dialled = await bench.dialled.get()
            dialled.hello(replace(HELLO_OF_N1, protocol_max=theirs))
            await bench.until(lambda: bench.events.up == ["n1"])
            assert bench.peers.version("n1") == spoken

    asyncio.run(scenario())


def test_what_a_peer_of_version_1_does_not_know_is_dropped_and_counted(ports: list[int]) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            dialled = await bench.dialled.get()
            accepted = await bench.join(replace(HELLO_OF_N1, protocol_max=1))
            dialled.hello(replace(HELLO_OF_N1, protocol_max=1))
            assert (await dialled.frame()).number == HELLO
            await bench.until(lambda: bench.events.up == ["n1"])
            bench.peers.send("n1", RepairRequest(1, 0, 1))
            bench.peers.send("n1", ReadIndexRequest(1, "n0", 1))
            bench.peers.send("n1", Heartbeat(1, "n0"))
            assert await dialled.message() == Heartbeat(1, "n0")
            assert bench.peers.too_new == 2
            bench.peers.send("n1", ReadIndexResponse(1, 0, 1, 1))  # type: ignore[arg-type]
            assert bench.peers.too_new == 3
            accepted.close()

    asyncio.run(scenario())


def test_a_peer_of_version_2_gets_them(ports: list[int]) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            dialled = await bench.dialled.get()
            dialled.hello(HELLO_OF_N1)
            assert (await dialled.frame()).number == HELLO
            await bench.until(lambda: bench.events.up == ["n1"])
            bench.peers.send("n1", RepairRequest(1, 0, 1))
            assert await dialled.message() == RepairRequest(1, 0, 1)
            assert bench.peers.too_new == 0

    asyncio.run(scenario())


def test_answers_that_a_peer_does_not_read_are_told_apart_from_requests_to_it(ports: list[int]) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            assert bench.peers.answer_backlog("n1") == 0
            dialled = await bench.dialled.get()
            accepted = await bench.join()
            dialled.hello(HELLO_OF_N1)
            await bench.until(lambda: bench.events.up == ["n1"])
            bench.peers.send("n1", RepairResponse(1, 0, 0, Holding.HAVE, 0, bytes(32 << 20)))
            assert bench.peers.answer_backlog("n1") > 1 << 20
            assert bench.peers.backlog("n1") == 0
            accepted.close()
            await bench.until(lambda: bench.peers.answer_backlog("n1") == 0)

    asyncio.run(scenario())


def test_pushes_are_compressed_while_the_backlog_of_a_link_is_above_its_limit(ports: list[int]) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            dialled = await bench.dialled.get()
            dialled.hello(HELLO_OF_N1)
            await bench.until(lambda: bench.events.up == ["n1"])
            assert (await dialled.frame()).number == HELLO
            pushes: list[Append] = []
            expected: list[bool] = []

            def push() -> None:
                number = len(pushes)
                data = b"%d " % number + bytes(range(256)) * 2048
                pushes.append(Append(3, "n0", number - 1, 3, number, number, 4096, -1, data))
                expected.append(bench.peers.backlog("n1") > SLOW_ABOVE)
                bench.peers.send("n1", pushes[-1])

            async def receive(count: int) -> list[Frame]:
                frames = [await dialled.frame() for _ in range(count)]
                assert [decode_message(frame) for frame in frames] == pushes[-count:]
                return frames

            while bench.peers.backlog("n1") <= SLOW_ABOVE:
                assert len(pushes) < 100, "sent whole, they fill the link"
                push()  # in one turn of the loop, and nobody reads
            for _ in range(3):
                push()
            assert expected[0] is False and expected[-3:] == [True] * 3
            frames = await receive(len(pushes))
            sizes = [len(frame.payload) for frame in frames]
            assert [size < len(push.data) for size, push in zip(sizes, pushes, strict=True)] == expected
            push()
            (frame,) = await receive(1)
            assert len(frame.payload) == len(pushes[-1].data), "the link is fast again"

    asyncio.run(scenario())


def hello_frame(hello: Hello, **changes: object) -> bytes:
    return encode_frame(HELLO, encode_hello(hello) | changes)


REFUSED = [
    ("group", hello_frame(HELLO_OF_N1, group="other"), "this is group 'g'"),
    ("cluster", hello_frame(HELLO_OF_N1, cluster="d"), "belongs to cluster d"),
    ("unknown peer", hello_frame(HELLO_OF_N1, node="n7"), "is not a member of group g"),
    ("same id", hello_frame(HELLO_OF_N1, node="n0"), "two nodes use the id n0"),
    ("version", hello_frame(HELLO_OF_N1, protocol=[7, 9]), "no common peer protocol"),
    ("version", hello_frame(HELLO_OF_N1, protocol=[0, 0]), "no common peer protocol"),
    ("flushDiskType", hello_frame(HELLO_OF_N1, sync_flush=False), "must be the same"),
    ("mapedFileSizeCommitLog", hello_frame(HELLO_OF_N1, segment_size=1), "must be the same"),
    ("lease reads", hello_frame(HELLO_OF_N1, lease_ms=7), "must be the same"),
    ("malformed hello", hello_frame(HELLO_OF_N1, protocol=[float("inf"), 2]), "not a number"),
    ("malformed hello", hello_frame(HELLO_OF_N1, protocol=[1, 1 << 63]), "not a number"),
    ("malformed hello", hello_frame(HELLO_OF_N1, protocol=None), "malformed"),
    ("malformed hello", hello_frame(HELLO_OF_N1, protocol=[]), "malformed"),
    ("malformed hello", hello_frame(HELLO_OF_N1, segment_size=float("nan")), "not a number"),
    ("malformed hello", hello_frame(HELLO_OF_N1, node=["n1"]), "not a text"),
    ("malformed hello", hello_frame(HELLO_OF_N1, incarnation="x" * 1000), "not a text"),
    ("malformed hello", hello_frame(HELLO_OF_N1, members=[1, 2]), "not a map"),
    ("malformed hello", hello_frame(HELLO_OF_N1, members={f"n{n}": "i" for n in range(65)}), "not a map"),
    ("malformed hello", hello_frame(HELLO_OF_N1, meta={"a": ["b"]}), "not a text"),
    ("malformed hello", encode_frame(HELLO, {}), "malformed"),
]


@pytest.mark.parametrize(
    ("cause", "data", "text"), REFUSED, ids=[f"{c}-{n}" for n, (c, _, _) in enumerate(REFUSED)]
)
def test_who_does_not_fit_is_told_why_and_counted_and_logged_once(
    cause: str, data: bytes, text: str, ports: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            for _ in range(3):
                assert text in await bench.refused(data)
            assert bench.peers.refused() == {cause: 3}
            assert bench.events.hellos == []

    asyncio.run(scenario())
    assert len([record for record in caplog.records if "refused" in record.message]) == 1


GARBAGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 64,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    PREFIX.pack(5, 3) + b"abc",
    PREFIX.pack(200_000, 3),
    encode_frame(HELLO, "no map"),
    encode_frame(3, [99, "n1"]),
    encode_frame(PROOF, "nonce"),
    PREFIX.pack(8, 6) + b"\x92\x00\x81\x91\x01\x01",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_ends_at_its_connection(garbage: bytes, ports: list[int]) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            for _ in range(2):
                wire = await bench.dial()
                wire.send(garbage)
                with pytest.raises(asyncio.IncompleteReadError):
                    await wire.frame()
                wire.close()
            await bench.until(lambda: bench.peers.refused() == {"garbage": 2})
            assert bench.events.messages == []
            await bench.join()

    asyncio.run(scenario())


def test_a_recorded_connection_played_again_is_refused(ports: list[int]) -> None:
    vote = b"".join(bytes(part) for part in encode_message(VoteRequest(7, "n1", 5, 3)))

    async def scenario() -> None:
        async with connections(ports) as bench:
            wire = await bench.dial()
            wire.hello(HELLO_OF_N1)
            proof = encode_frame(PROOF, (await wire.frame()).header()["nonce"])
            wire.send(proof + vote)
            await bench.until(lambda: len(bench.events.messages) == 1)

            replay = await bench.dial()
            replay.send(encode_frame(HELLO, encode_hello(HELLO_OF_N1)) + proof + vote)
            assert (await replay.frame()).number == HELLO
            assert "replay" in await replay.refusal()
            assert bench.peers.refused() == {"replay": 1}
            assert len(bench.events.messages) == 1, "nothing of it is believed"
            wire.send(vote)
            await bench.until(lambda: len(bench.events.messages) == 2)

    asyncio.run(scenario())


def test_nothing_is_believed_before_the_nonce_came_back(ports: list[int]) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            early = await bench.dial()
            early.send(encode_frame(HELLO, encode_hello(HELLO_OF_N1)) + encode_frame(3, [9, "n1"]))
            assert (await early.frame()).number == HELLO
            with pytest.raises(asyncio.IncompleteReadError):
                await early.frame()
            late = await bench.dial()
            late.hello(HELLO_OF_N1)
            assert (await late.frame()).number == HELLO
            await skip_s(LIMIT_S)
            assert "nonce" in await late.refusal()
            assert bench.peers.refused() == {"garbage": 1, "silent": 1}
            assert bench.events.messages == [] and bench.events.hellos == []

    asyncio.run(scenario())


def test_only_who_dials_tells_a_secret(ports: list[int]) -> None:
    """Whoever connects to the peer port, with the hello of a member, learns nothing to sign with."""

    async def scenario() -> None:
        async with connections(ports) as bench:
            stranger = await bench.dial()
            stranger.hello(HELLO_OF_N1)
            assert (await stranger.frame()).header()["secret"] == ""
            told: list[str] = []
            for _ in range(2):
                dialled = await bench.dialled.get()
                told.append((await dialled.frame()).header()["secret"])
                dialled.hello(HELLO_OF_N1)
                await bench.until(lambda: bench.peers.connected("n1"))
                dialled.close()
                await bench.until(lambda: not bench.peers.connected("n1"))
            member = Proofs("n1", b"secret of n1")
            proofs = []
            for secret in told:
                member.hear("n0", secret)
                proofs.append(member.make("n0", [b"x"]))
            for proof in proofs:
                assert bench.peers.proofs.check(proof, [b"x"]) == "n1"
            assert told[0] != told[1]

    asyncio.run(scenario())


def test_a_secret_counts_while_its_peer_is_connected(ports: list[int]) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            first, second = Proofs("n1", b"1"), Proofs("n1", b"2")
            wire = await bench.join(replace(HELLO_OF_N1, secret=first.tell("n0")))
            first.introduced("n0", "1.")
            second.introduced("n0", "1.")
            assert first.check(bench.peers.proofs.make("n1", [b"x"]), [b"x"]) == "n0"
            await bench.join(replace(HELLO_OF_N1, secret=second.tell("n0")))
            assert second.check(bench.peers.proofs.make("n1", [b"x"]), [b"x"]) == "n0", "it started again"
            wire.close()
            older = await bench.join(replace(HELLO_OF_N1, secret=""))
            assert bench.peers.proofs.receivers == ()
            older.close()
            wire = await bench.join(replace(HELLO_OF_N1, secret=second.tell("n0")))
            assert bench.peers.proofs.receivers == ("n1",)
            wire.close()
            await bench.until(lambda: bench.peers.proofs.receivers == ())
            assert "secret" not in repr(replace(HELLO_OF_N1, secret="1.00"))

    asyncio.run(scenario())


def test_who_answers_at_an_address_says_whether_its_program_makes_proofs(ports: list[int]) -> None:
    """An older program leaves the secret out. A connection to this node that does so changes nothing."""
    older = encode_hello(HELLO_OF_N1)
    del older["secret"]

    async def scenario() -> None:
        async with connections(ports) as bench:
            dialled = await bench.dialled.get()
            await dialled.frame()
            dialled.hello(HELLO_OF_N1)
            await bench.until(lambda: bench.peers.connected("n1"))
            stranger = await bench.dial()
            stranger.send(encode_frame(HELLO, older))
            stranger.send(encode_frame(PROOF, (await stranger.frame()).header()["nonce"]))
            await bench.until(lambda: bench.peers.reached_by("n1"))
            assert bench.peers.without_proofs() == []
            dialled.close()
            dialled = await bench.dialled.get()
            await dialled.frame()
            assert bench.peers.without_proofs() == [], "nobody answers there now"
            dialled.send(encode_frame(HELLO, older))
            await bench.until(lambda: bench.peers.without_proofs() == ["n1"])

    asyncio.run(scenario())


BAD_MESSAGES = [
    Heartbeat(3, "n2"),
    VoteRequest(3, "n0", 1, 1),
    ReadIndexRequest(3, "n2", 1),
    VoteResponse(3, 3, False, VoteResult.ACCEPT),
    Heartbeat(1 << 63, "n1"),
    Heartbeat(-2, "n1"),
]


@pytest.mark.parametrize("message", BAD_MESSAGES, ids=str)
def test_a_peer_speaks_for_itself_and_in_numbers_that_fit(message: Message, ports: list[int]) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            wire = await bench.join()
            wire.send(b"".join(bytes(part) for part in encode_message(message)))
            assert await wire.refusal()
            await bench.until(lambda: bench.peers.refused() == {"message": 1})
            assert bench.events.messages == []

    asyncio.run(scenario())


def test_an_error_that_repeats_what_came_is_cut(ports: list[int]) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            wire = await bench.join()
            append_of_size = encode_frame(8, [3, "n1", 0, 0, 1, 1, 0, 0, "x" * 65_500])
            wire.send(append_of_size)
            assert len(await wire.refusal()) < MAX_ERROR_TEXT
            await bench.until(lambda: bench.peers.refused() == {"message": 1})
            assert bench.events.messages == []
            text = await bench.refused(encode_frame(HELLO, encode_hello(HELLO_OF_N1) | {"group": "y" * 512}))
            assert len(text) == MAX_ERROR_TEXT and text.startswith("this is group 'g', not 'yyy")

    asyncio.run(scenario())


def test_an_introduced_peer_cannot_become_somebody_else(ports: list[int]) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            wire = await bench.join()
            wire.hello(replace(HELLO_OF_N1, node="n0"))
            assert await wire.refusal()
            await bench.until(lambda: bench.peers.refused() == {"message": 1})

    asyncio.run(scenario())


def test_strangers_and_clients_do_not_crowd_out_peers(ports: list[int]) -> None:
    async def scenario() -> None:
        async with connections(ports, max_client_connections=3) as bench:
            strangers = [await bench.dial() for _ in range(MAX_STRANGERS)]
            clients = [await bench.dial() for _ in range(3)]
            for client in clients:
                client.send(encode_frame(HELLO, {"client": True}))
                assert (await client.frame()).number == HELLO
            assert "client connections" in await bench.refused(encode_frame(HELLO, {"client": True}))
            await bench.join()
            assert bench.peers.refused() == {"clients": 1, "strangers": 3}, "the oldest had to go"
            clients[0].close()
            await bench.until(lambda: sum(1 for one in bench.peers._accepted if one.client) == 2)
            again = await bench.dial()
            again.send(encode_frame(HELLO, {"client": True}))
            assert (await again.frame()).number == HELLO
            for wire in [*strangers, *clients, again]:
                wire.close()

    asyncio.run(scenario())


def live_connections() -> list[PeerConnection]:
    """The accepted connections that are in memory, whoever knows them."""
    return [one for one in gc.get_objects() if isinstance(one, PeerConnection) and one.dialled is None]


@pytest.mark.parametrize(
    "begins", [b"", b"\0", b"GET / HTTP/1.0\r\n\r\n"], ids=["silent", "one byte", "HTTP"]
)
def test_connections_that_close_without_a_hello_leave_nothing_behind(begins: bytes, ports: list[int]) -> None:
    """Health checks of TCP do this for months; the collector looks at old objects rarely."""

    async def scenario() -> None:
        async with connections(ports) as bench:
            before = len(live_connections())
            for _ in range(20):
                wire = await bench.dial()
                wire.send(begins)
                wire.close()
            await bench.until(lambda: len(live_connections()) == before)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()


def test_a_connection_that_says_nothing_has_no_buffer(ports: list[int]) -> None:
    async def scenario() -> None:
        async with connections(ports) as bench:
            before = live_connections()
            wires = [await bench.dial() for _ in range(20)]
            for wire in wires[:10]:
                wire.send(b"\0")
            await bench.until(lambda: sum(one._filled for one in live_connections()) == 10)
            there = [one for one in live_connections() if one not in before]
            sizes = sorted(len(one._buffer) for one in there)
            assert sizes == [0] * 10 + [FIRST_BUFFER] * 10
            for wire in wires:
                wire.close()

    asyncio.run(scenario())


def test_hellos_without_their_nonce_are_strangers_too(ports: list[int]) -> None:
    """Anybody can repeat a hello that he saw: few may wait for their nonce, and without much memory."""

    async def scenario() -> None:
        async with connections(ports) as bench:
            wires = []
            for _ in range(MAX_STRANGERS + 20):
                wires.append(await bench.dial())
                wires[-1].send(hello_frame(HELLO_OF_N1))
                assert (await wires[-1].frame()).number == HELLO
            await bench.until(lambda: len(bench.peers._accepted) == MAX_STRANGERS)
            assert bench.peers.refused() == {"strangers": 20}
            large = PREFIX.pack(16 * 1024 * 1024 - 4, 10)
            wires[-1].send(large + b"x")
            await bench.until(lambda: len(bench.peers._accepted) == MAX_STRANGERS - 1)
            await bench.join()
            for wire in wires:
                wire.close()

    asyncio.run(scenario())


def test_who_says_nothing_has_to_go(ports: list[int]) -> None:
    async def scenario() -> None:
        async with connections(ports, hello_timeout_s=0.1) as bench:
            assert "no hello in time" in await (await bench.dial()).refusal()
            assert bench.peers.refused() == {"silent": 1}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["127.0.0.1", "127.0.0.2"], ConnectionRefusedError),
        (["::1", "127.0.0.1"], ConnectionRefusedError),
        (["127.0.0.1", "silent"], OSError),
        ([], OSError),
    ],
)
def test_a_refusal_is_seen_through_a_name_with_several_addresses(
    addresses: list[str], expected: type[OSError], ports: list[int]
) -> None:
    """A connection refused at every address proves that the process is gone (S17); a silent one does not."""

    async def scenario() -> None:
        asked: list[str] = []
        reached = asyncio.Event()

        async def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
            asked.append(host)
            return [(0, 0, 0, "", (address, port)) for address in addresses]

        async def create_connection(factory: object, host: str, port: int) -> object:
            if host == "silent":
                reached.set()
                await asyncio.sleep(10 * LIMIT_S)
            return await type(loop).create_connection(loop, factory, host, port)  # type: ignore[arg-type]

        loop = asyncio.get_running_loop()
        loop.getaddrinfo = getaddrinfo  # type: ignore[method-assign, assignment]
        loop.create_connection = create_connection  # type: ignore[method-assign, assignment]
        dialler = Dialler(f"some-host:{ports[1]}", None, LIMIT_S)
        dialling = asyncio.ensure_future(
            dialler.connect(lambda: PeerConnection(lambda *_: None, lambda _: None, 1000))
        )
        if "silent" in addresses:
            await reached.wait()
            await skip_s(LIMIT_S)
        with pytest.raises(expected) as caught:
            await dialling
        assert isinstance(caught.value, ConnectionRefusedError) is (expected is ConnectionRefusedError)
        assert asked == ["some-host"]

    asyncio.run(scenario())


def test_a_redial_waits_for_no_name_server(ports: list[int]) -> None:
    async def scenario() -> None:
        asked: list[str] = []

        async def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
            asked.append(host)
            return [(0, 0, 0, "", ("127.0.0.1", port))]

        asyncio.get_running_loop().getaddrinfo = getaddrinfo  # type: ignore[method-assign, assignment]
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", ports[1])
        dialler = Dialler(f"some-host:{ports[1]}", None, LIMIT_S)
        for _ in range(2):
            connection = await dialler.connect(lambda: PeerConnection(lambda *_: None, lambda _: None, 1000))
            connection.close()
        assert asked == ["some-host"]
        server.close()
        for count in (1, 2):
            with pytest.raises(ConnectionRefusedError):
                await dialler.connect(lambda: PeerConnection(lambda *_: None, lambda _: None, 1000))
            assert len(asked) == count, "after a failure the name is asked anew"

    asyncio.run(scenario())


class FakeTransport(asyncio.Transport):
    """Counts what is paused."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def test_a_client_with_too_much_under_way_is_not_read() -> None:
    async def scenario() -> None:
        frames: list[int] = []
        connection = PeerConnection(lambda c, frame: handle(c, frame), lambda _: None, 1000)

        def handle(connection: PeerConnection, frame: Frame) -> None:
            frames.append(frame.header())
            connection.hold()

        transport = FakeTransport()
        connection.connection_made(transport)
        connection.client = True
        data = b"".join(encode_frame(64, number) for number in range(MAX_HELD + 4))
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))
        assert frames == list(range(MAX_HELD)), "what was read already waits too"
        assert transport.paused
        connection.release()
        assert frames == list(range(MAX_HELD + 1)) and transport.paused
        for _ in range(4):
            connection.release()
        assert frames == list(range(MAX_HELD + 4)) and not transport.paused
        connection.pause_writing()
        assert transport.paused, "answers that are not read stop the questions"
        connection.resume_writing()
        await asyncio.sleep(0)
        assert not transport.paused

    asyncio.run(scenario())

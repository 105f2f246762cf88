"""What cannot be meant is refused where it is said; what is meant the same way is taken."""

from __future__ import annotations

import asyncio
import http.server
import math
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from dledger.client import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ClientClosed,
    ClientError,
    ClientOptions,
    ConsumerOptions,
    FlowLimits,
    FromWhere,
    InvalidMessage,
    Message,
    MessageModel,
    NoNameServer,
    PopOptions,
    Producer,
    ProducerOptions,
    PullConsumer,
    PullOptions,
    PushConsumer,
    SendResult,
)
from dledger.client.address_hints import PEER_HELLO
from dledger.client.consuming.subscription import subscribe
from dledger.peers.listener import PeerPort
from dledger.peers.wire import HELLO, encode_frame
from dledger.remoting.client import RemotingClient
from dledger.runtime.env import production_env
from tests.client.consumer_kit import QUICK, consume, fill, until
from tests.client.fake_cluster import FakeCluster
from tests.client.test_sync import running

NOWHERE = "127.0.0.1:1"
ANY: Any = None
PUSH = (PushConsumer, AsyncPushConsumer)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Message("t", b"x", tags=["a"]), "a message has one tag"),  # type: ignore[arg-type]
        (lambda: Message("t", b"x", tags=b"a"), "a message has one tag"),  # type: ignore[arg-type]
        (lambda: Message("t", b"x", keys=7), "keys=7"),  # type: ignore[arg-type]
        (lambda: Message("t", b"x", keys=["a", 7]), "keys="),  # type: ignore[list-item]
        (lambda: Message("t", b"x", keys=b"k"), "keys="),  # type: ignore[arg-type]
    ],
)
def test_a_message_of_wrong_parts_is_refused_when_it_is_made(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(InvalidMessage, match=text):
        make()


@pytest.mark.parametrize("fields", [{"tags": ["a"]}, {"keys": 7}, {"properties": {"a": ["b"]}}])
def test_a_message_that_is_changed_to_wrong_parts_is_refused_when_it_is_sent(fields: dict[str, Any]) -> None:
    """The text of a list was stored as a tag that nobody finds."""
    message = Message("orders", b"x")
    for name, value in fields.items():
        setattr(message, name, value)
    with (
        running(FakeCluster(topics={"orders": 1})) as fake,
        Producer("producers", fake.namesrv) as producer,
        pytest.raises(InvalidMessage),
    ):
        producer.send(message)


@pytest.mark.parametrize("known", [False, True], ids=["first sends", "topic known"])
@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({"flag": "1"}, {}),
        ({"flag": None}, {}),
        ({"properties": [("a", "b")]}, {}),
        ({"keys": "\ud800"}, {}),
        ({"delay": timedelta.max}, {}),
        ({}, {"ordering_key": 17}),
        ({}, {"ordering_key": "\ud800"}),
        ({}, {"queue": 3}),
    ],
)
def test_a_wrong_argument_is_told_and_holds_up_nothing_behind_it(
    known: bool, fields: dict[str, Any], how: dict[str, Any]
) -> None:
    """What was no ClientError got lost, with the messages behind it or with the whole producer."""

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            FakeCluster(topics={"orders": 2}) as fake,
            AsyncProducer("producers", fake.namesrv, ProducerOptions(close_timeout_s=1.0)) as producer,
        ):
            if known:
                await producer.prepare("orders")
            told: list[SendResult | ClientError] = []
            producer.send_soon(Message("orders", b"x", **fields), told.append, **how)
            producer.send_soon(Message("orders", b"behind"), told.append)
            await producer.flush()
            assert sorted(type(outcome).__name__ for outcome in told) == ["InvalidMessage", "SendResult"]
            assert fake.bodies("orders") == [b"behind"] and producer._pending_count == 0
            with pytest.raises(InvalidMessage):
                await producer.send(Message("orders", b"x", **fields), **how)

    asyncio.run(main())


def test_whatever_fails_a_message_is_told_its_callback() -> None:
    class Odd(dict[str, str]):
        def items(self) -> Any:
            raise RuntimeError("odd")

    async def main() -> None:
        async with (
            FakeCluster(topics={"orders": 1}) as fake,
            AsyncProducer("producers", fake.namesrv) as producer,
        ):
            told: list[Any] = []
            producer.send_soon(Message("orders", b"x", properties=Odd(a="b")), told.append)
            producer.send_soon(Message("orders", b"behind"), told.append)
            await producer.flush()
            assert [type(outcome) for outcome in told] == [ClientError, SendResult]
            assert isinstance(told[0].__cause__, RuntimeError)

    asyncio.run(main())


@pytest.mark.parametrize("topic", [None, b"orders", 3])
def test_a_topic_that_is_no_text_is_refused(topic: Any) -> None:
    with (
        running(FakeCluster(topics={"orders": 1})) as fake,
        Producer("producers", fake.namesrv) as producer,
    ):
        with pytest.raises(InvalidMessage, match="the topic name"):
            producer.send(Message(topic, b"x"))
        with pytest.raises(InvalidMessage, match="the topic name"):
            producer.send_async(Message(topic, b"x"), print)


@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.send_nowait(Message("orders", b"x"), print),
        lambda producer: producer.send_soon(Message("orders", b"x"), print),
        lambda producer: producer.send_batch_nowait([Message("orders", b"x")], print),
        lambda producer: producer._pending_count,
        lambda producer: producer._resent_count,
        lambda producer: asyncio.run(producer._room()),
    ],
)
def test_a_producer_that_was_not_started_says_so(call: Callable[[Any], Any]) -> None:
    with pytest.raises(ClientClosed, match="not started"):
        call(AsyncProducer("producers", NOWHERE))


@pytest.mark.parametrize(
    "body", [b"body", bytearray(b"body"), memoryview(b"body"), memoryview(b"b.o.d.y.")[::2]]
)
def test_what_holds_bytes_is_a_body(body: Any) -> None:
    with running(FakeCluster(topics={"orders": 1})) as fake, Producer("producers", fake.namesrv) as producer:
        producer.send(Message("orders", body))
        producer.send("orders", body, tags="a", keys=["k"], properties={"p": "q"}, ordering_key="o")
        asyncio.run(producer.asend("orders", body))  # type: ignore[arg-type]
        assert fake.bodies("orders") == [b"body"] * 3
        assert {"TAGS": "a", "KEYS": "k", "p": "q"}.items() <= fake.stored("orders")[1].properties.items()


def test_a_body_is_taken_as_it_is_when_the_message_is_made() -> None:
    buffer = bytearray(b"before")
    message = Message("orders", buffer)
    buffer[:] = b"after."
    assert message.body == b"before"
    assert message == Message("orders", b"before")


def test_send_takes_a_topic_and_a_body_or_a_message_with_a_queue() -> None:
    async def main() -> None:
        async with (
            FakeCluster(topics={"orders": 2}) as fake,
            AsyncProducer("producers", fake.namesrv) as producer,
        ):
            second = (await producer.queues("orders"))[1]
            results = [
                await producer.send("orders", b"x", queue=second),
                await producer.send(Message("orders", b"x"), second),
                await producer.send(Message("orders", b"x"), queue=second),
            ]
            assert [result.queue for result in results] == [second] * 3
            wrong: list[Callable[[Any], Any]] = [
                lambda send: send("orders"),
                lambda send: send("orders", second),
                lambda send: send("orders", "text"),
                lambda send: send(b"orders", b"x"),
                lambda send: send(Message("orders", b"x"), b"another body"),
                lambda send: send(Message("orders", b"x"), tags="a"),
            ]
            for call in wrong:
                with pytest.raises(InvalidMessage):
                    await call(producer.send)

    asyncio.run(main())


@pytest.mark.parametrize("face", PUSH)
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"from_where": "frist"}, "FromWhere.FIRST"),
        ({"from_where": 0}, "FromWhere.FIRST"),
        ({"model": "everybody"}, "MessageModel.BROADCASTING"),
        ({"from_where": FromWhere.TIMESTAMP}, "needs a time"),
        ({"from_timestamp_ms": 1_700_000_000_000}, "needs a time"),
        ({"from_where": "timestamp", "from_timestamp_ms": 1.7e9}, "milliseconds"),
        ({"listener": "print"}, "listener is str"),
        ({"batch_listener": print}, "give either"),
        ({"options": ProducerOptions()}, "options= is ProducerOptions: give ConsumerOptions"),
        ({"options": PullOptions()}, "give ConsumerOptions"),
        ({"client": ConsumerOptions()}, "client= is ConsumerOptions: give ClientOptions"),
        ({"topic": "not a topic"}, "holds ' '"),
        ({"expression": "a > 5"}, "looks like a condition"),
        ({"group": "not a group"}, "holds ' '"),
        ({"namesrv": "http://host:9876"}, "NameServer address"),
    ],
)
def test_a_push_consumer_is_refused_where_it_is_made(face: Any, fields: dict[str, Any], text: str) -> None:
    given = {"group": "group", "namesrv": NOWHERE, "listener": print, "topic": "orders", **fields}
    with pytest.raises(ClientError, match=text):
        face(given.pop("group"), given.pop("namesrv"), given.pop("listener"), **given)


@pytest.mark.parametrize("face", [Producer, AsyncProducer, PullConsumer, AsyncPullConsumer])
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"options": ConsumerOptions()}, "options= is ConsumerOptions"),
        ({"client": ProducerOptions()}, "client= is ProducerOptions: give ClientOptions"),
        ({"group": ""}, "group name is empty"),
        ({"namesrv": "host"}, "NameServer address"),
    ],
)
def test_other_clients_are_refused_where_they_are_made(face: Any, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ClientError, match=text):
        face(**{"group": "group", "namesrv": NOWHERE, **fields})


@pytest.mark.parametrize("name", ["first", "FIRST", "First", FromWhere.FIRST])
def test_where_to_begin_may_be_given_by_name(name: Any) -> None:
    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 3)
        got: list[bytes] = []
        with PushConsumer(
            "group",
            fake.namesrv,
            lambda m: got.append(m.body),
            topic="orders",
            from_where=name,
            options=QUICK,
        ):
            until(lambda: len(got) == 3)
        with PullConsumer("reports", fake.namesrv) as reader:
            reader.assign(reader.queues("orders"), start=name)
            assert reader.position(reader.queues("orders")[0]) == 0
            with pytest.raises(ClientError, match=r"FromWhere\.FIRST"):
                reader.assign([], start="frist")


def test_the_model_may_be_given_by_name() -> None:
    consumer = AsyncPushConsumer("group", NOWHERE, print, topic="orders", model="broadcasting")
    assert consumer._model is MessageModel.BROADCASTING


@pytest.mark.parametrize(
    "expression",
    [
        "a > 5",
        "a=1",
        "a IS NOT NULL",
        "TAGS in ('a', 'b')",
        "a between 1 and 2",
        "not a",
        "x = 'y' OR z",
        '"a"',
    ],
)
def test_a_condition_on_properties_is_no_tag(expression: str) -> None:
    """It was taken for a tag, and nothing was delivered."""
    with pytest.raises(ClientError, match="SQL92"):
        subscribe("orders", expression, 0)
    consumer = PushConsumer("group", NOWHERE, print)
    with pytest.raises(ClientError, match="SQL92"):
        consumer.subscribe("orders", expression)


@pytest.mark.parametrize(
    "expression", ["in || out", "not", "OR", "a-b || c.d:e", "is_paid", "für || 支付", "and || or"]
)
def test_ordinary_words_are_tags(expression: str) -> None:
    assert subscribe("orders", expression, 0).tags == tuple(part.strip() for part in expression.split("||"))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ConsumerOptions(concurrency=0), "concurrency=0: give a whole number, more than 0"),
        (lambda: ConsumerOptions(concurrency=1.5), "concurrency=1.5"),  # type: ignore[arg-type]
        (lambda: ConsumerOptions(batch_size=-1), "batch_size=-1"),
        (lambda: ConsumerOptions(commit_s="5"), "commit_s='5': give a number"),  # type: ignore[arg-type]
        (lambda: ConsumerOptions(pull=FlowLimits()), "pull= is FlowLimits"),  # type: ignore[arg-type]
        (lambda: ProducerOptions(timeout_s=0), "timeout_s=0"),
        (lambda: ProducerOptions(timeout_s=float("nan")), "timeout_s=nan"),
        (lambda: ProducerOptions(max_pending=True), "max_pending=True"),
        (lambda: PullOptions(flow=PullOptions()), "flow= is PullOptions"),  # type: ignore[arg-type]
        (lambda: PullOptions(flow=FlowLimits(max_messages=0)), "FlowLimits: max_messages=0"),
        (lambda: PullOptions(suspend_s=40), "not longer than suspend_s"),
        (lambda: PullOptions(suspend_s=1e300, timeout_s=math.inf), "suspend_s=1e"),
        (lambda: PopOptions(invisible_s=math.inf), r"invisible_s=inf: give 1e\+09 at most"),
        (lambda: ClientOptions(heartbeat_s=0), "heartbeat_s=0"),
    ],
)
def test_options_that_would_stop_everything_are_refused(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ClientError, match=text):
        make()


def test_options_at_their_ends_are_taken() -> None:
    ProducerOptions(retry_times=0, compress_over=0, close_timeout_s=0)
    ConsumerOptions(close_timeout_s=0, max_reconsume_times=0)


# --- a wrong port ------------------------------------------------------------------------------------


def test_the_greeting_is_that_of_the_log_s_clients() -> None:
    assert encode_frame(HELLO, {"client": True}) == PEER_HELLO


async def refusal(address: str) -> str:
    async with AsyncProducer("producers", address) as producer:
        with pytest.raises(NoNameServer) as refused:
            async with asyncio.timeout(100):
                await producer.send(Message("orders", b"x"))
    return str(refused.value)


def test_the_port_of_a_broker_is_named_as_such() -> None:
    with running(FakeCluster(topics={"orders": 1})) as fake:
        told = asyncio.run(refusal(fake.brokers[0].address))
        assert f"{fake.brokers[0].address} is the port of a broker (listenPort)" in told
        assert "9876" in told
        # One wrong address beside a right one costs nothing.
        with Producer("producers", f"{fake.brokers[0].address};{fake.namesrv}") as producer:
            assert isinstance(producer.send("orders", b"x"), SendResult)


def test_a_web_port_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """This server says nothing to our requests, and waits for the end of their line."""
    invoke = RemotingClient.invoke

    async def soon_over(self: RemotingClient, *question: Any, timeout_s: float) -> Any:
        return await invoke(self, *question, timeout_s=0.1)

    monkeypatch.setattr(RemotingClient, "invoke", soon_over)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        assert "is a web port" in asyncio.run(refusal(f"127.0.0.1:{server.server_port}"))
    finally:
        server.shutdown()
        server.server_close()


def test_the_port_of_a_broker_s_health_is_named_as_a_web_port() -> None:
    web = pytest.importorskip("aiohttp.web")

    async def main() -> None:
        runner = web.AppRunner(web.Application())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        assert "is a web port" in await refusal(f"127.0.0.1:{port}")
        await runner.cleanup()

    asyncio.run(main())


def test_a_port_that_speaks_tls_is_named_as_such() -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(4)
            writer.write(b"\x15\x03\x01\x00\x02\x02\x46")  # alert: fatal, protocol version
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            assert "accepts only TLS" in await refusal(f"127.0.0.1:{port}")

    asyncio.run(main())


def test_a_port_where_nobody_listens_is_told_as_before() -> None:
    assert "check that it runs, and that the address is right" in asyncio.run(refusal(NOWHERE))


def test_a_consumer_at_a_wrong_port_says_so_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    with running(FakeCluster(topics={"orders": 1})) as fake:

        class Wrong:
            namesrv = fake.brokers[0].address

        consume(PushConsumer, Wrong(), print, lambda: "the port of a broker" in caplog.text)  # type: ignore[arg-type]


def test_the_port_of_peers_is_named_as_such() -> None:
    async def main() -> None:
        env = production_env("test")
        port = PeerPort(env, "127.0.0.1", 0)
        await port.open()
        assert isinstance(port._server, asyncio.Server)
        number = port._server.sockets[0].getsockname()[1]
        assert "brokers of a group use among themselves" in await refusal(f"127.0.0.1:{number}")
        await port.close()
        env.workers.close()

    asyncio.run(main())

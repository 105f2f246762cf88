"""Large changes of the tables come in pieces: others are answered meanwhile, and other changes wait."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

import pytest

from dledger.namesrv import changes as module
from dledger.namesrv.config import NamesrvConfig
from dledger.namesrv.routes import PIECE
from dledger.namesrv.service import NameServer
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.frames import encode_request
from dledger.remoting.registration import DataVersion, Registration, TopicConfig, encode_registration
from dledger.remoting.server import Connection
from tests.broker.harness import FakeConnection, decode, make_env, run

TOPICS = 10 * PIECE
IDENTITY = {"brokerName": "b", "brokerAddr": "10.0.0.1:1", "clusterName": "c", "brokerId": "0"}


class World:
    """A NameServer without a network."""

    def __init__(self) -> None:
        self.nameserver = NameServer(make_env(), NamesrvConfig())
        self.nameserver.server.loop = asyncio.get_running_loop()
        self.connection = FakeConnection(dispatch=self.dispatch)
        self.opaque = 0

    def dispatch(self, connection: FakeConnection, request: object) -> None:
        self.nameserver.server.dispatch(cast(Connection, connection), request)  # type: ignore[arg-type]

    def ask(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> int:
        """Send a request; its number."""
        self.opaque += 1
        [request] = decode(encode_request(code, self.opaque, fields, len(body)) + body)
        self.dispatch(self.connection, request)
        return self.opaque

    def register(self, count: int, counter: int = 1, compressed: bool = False, **fields: str) -> int:
        topics = {f"topic-{number}": TopicConfig(f"topic-{number}", 4, 4, 6) for number in range(count)}
        body = encode_registration(Registration(topics, DataVersion(1, counter)), compressed=compressed)
        header = {**IDENTITY, "haServerAddr": "", "compressed": str(compressed).lower(), **fields}
        return self.ask(RequestCode.REGISTER_BROKER, header, body)

    @property
    def topics(self) -> int:
        return len(self.nameserver.routes.topics())

    async def answered(self, number: int) -> int:
        """Its code. In no turn of the loop more than a piece is changed."""
        before = self.topics
        while number not in self.connection.replies:
            await asyncio.sleep(0)
            assert abs(self.topics - before) <= PIECE
            before = self.topics
        return self.connection.replies[number].code


@pytest.mark.parametrize("compressed", [False, True])
def test_topics_come_and_go_a_piece_a_turn(compressed: bool) -> None:
    async def test() -> None:
        world = World()
        number = world.register(TOPICS, compressed=compressed)
        assert number not in world.connection.replies
        assert await world.answered(number) == ResponseCode.SUCCESS
        assert world.topics == TOPICS
        assert await world.answered(world.register(3, 2, wholeTable="true")) == ResponseCode.SUCCESS
        assert world.topics == 3
        await world.answered(world.register(TOPICS, 3))
        await world.answered(world.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b"}))
        assert world.connection.replies[world.opaque].ext == {"wipeTopicCount": str(TOPICS)}
        await world.answered(world.ask(RequestCode.UNREGISTER_BROKER, IDENTITY))
        assert world.topics == 0

    run(test)


def test_questions_are_answered_meanwhile_and_changes_wait_in_their_order() -> None:
    async def test() -> None:
        world = World()
        first = world.register(TOPICS)
        wipe = world.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b"})
        small = world.register(1, 9, brokerName="other", brokerAddr="10.0.0.2:1")
        gone = world.ask(RequestCode.UNREGISTER_BROKER, IDENTITY)
        question = world.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert list(world.connection.replies) == [question]
        await world.answered(gone)
        assert list(world.connection.replies) == [question, first, wipe, small, gone]
        assert world.connection.replies[wipe].ext == {"wipeTopicCount": str(TOPICS)}
        assert world.topics == 1

    run(test)


def test_a_connection_that_closes_meanwhile_takes_its_registration_along() -> None:
    async def test() -> None:
        world = World()
        number = world.register(TOPICS)
        await asyncio.sleep(0)
        world.nameserver._connection_closed(cast(Connection, world.connection))
        await world.answered(number)
        assert world.topics == TOPICS
        for _ in range(TOPICS // PIECE + 2):
            await asyncio.sleep(0)
        assert world.topics == 0

    run(test)


def test_a_connection_that_closes_while_it_waits_is_not_registered() -> None:
    async def test() -> None:
        world = World()
        number = world.register(TOPICS)
        gone = FakeConnection(dispatch=world.dispatch)
        world.connection, first = gone, world.connection
        world.register(1, brokerName="other", brokerAddr="10.0.0.2:1")
        gone.closed = True
        world.nameserver._connection_closed(cast(Connection, gone))
        world.connection = first
        await world.answered(number)
        for _ in range(4):
            await asyncio.sleep(0)
        assert list(world.nameserver.routes.cluster_info().brokerAddrTable) == ["b"]

    run(test)


def test_clients_that_close_wait_for_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(module, "MAX_WAITING", 1)
        world = World()
        number = world.register(TOPICS)
        await asyncio.sleep(0)
        for _ in range(3):
            world.nameserver._connection_closed(cast(Connection, FakeConnection(dispatch=world.dispatch)))
        second = world.register(TOPICS, counter=2)
        assert await world.answered(number) == ResponseCode.SUCCESS
        assert await world.answered(second) == ResponseCode.SUCCESS

    run(test)


def test_what_goes_wrong_late_is_answered_and_the_next_change_begins() -> None:
    async def test() -> None:
        world = World()
        topics = {f"t{number}": TopicConfig(f"t{number}") for number in range(3000)}
        topics["t2999"] = TopicConfig("t2999", "many")  # type: ignore[arg-type]
        body = encode_registration(Registration(topics, DataVersion(1, 1)))
        bad = world.ask(RequestCode.REGISTER_BROKER, {**IDENTITY, "haServerAddr": ""}, body)
        good = world.register(5)
        assert await world.answered(bad) == ResponseCode.SYSTEM_ERROR
        assert await world.answered(good) == ResponseCode.SUCCESS
        assert world.topics == 5

    run(test)


def test_too_many_that_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 3)

    async def test() -> None:
        world = World()
        world.register(TOPICS)
        wiped = [world.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b"}) for _ in range(4)]
        assert world.connection.replies[wiped[3]].code == ResponseCode.SYSTEM_BUSY
        assert [await world.answered(number) for number in wiped[:3]] == [ResponseCode.SUCCESS] * 3

    run(test)


def test_an_event_that_fails_lets_the_next_change_begin() -> None:
    async def test() -> None:
        changes = module.Changes()
        done: list[str] = []

        def failing() -> module.Change:
            yield
            raise KeyError("x")

        def fine(name: str) -> module.Change:
            done.append(name)
            yield from ()

        failed: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))
        changes.event(failing)
        changes.event(partial(fine, "a"))
        assert done == []
        for _ in range(4):
            await asyncio.sleep(0)
        assert done == ["a"] and len(failed) == 1
        changes.event(partial(fine, "b"))
        assert done == ["a", "b"]

    run(test)

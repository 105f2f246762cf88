"""Turns of the loop stay short: a few connections each, in their order, and what others wait for besides."""

from __future__ import annotations

import asyncio
import selectors
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from dledger.runtime.turns import ACCEPTED, TurnLoop, TurnSelector, favour, listen

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="epoll")

Pair = tuple[socket.socket, socket.socket]
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


@pytest.fixture
def pairs() -> Iterator[Callable[[int], list[Pair]]]:
    """Makes connections; of each the first end is read from here."""
    with ExitStack() as opened:

        def make(count: int) -> list[Pair]:
            made = [socket.socketpair() for _ in range(count)]
            for pair in made:
                for one in pair:
                    one.setblocking(False)
                    opened.enter_context(one)
            return made

        yield make


def test_a_turn_takes_a_few_and_those_that_wait_come_in_their_order(
    pairs: Callable[[int], list[Pair]],
) -> None:
    selector = TurnSelector(10)
    made = pairs(35)
    for number, (here, there) in enumerate(made):
        selector.register(here, READ, number)
        there.send(b"x")
    turns = [[key.data for key, _ in selector.select(0)] for _ in range(4)]
    assert [len(turn) for turn in turns] == [10, 10, 10, 10]
    assert [one for turn in turns for one in turn][:35] == list(range(35))
    selector.close()


def test_the_favoured_do_not_stand_behind_others(pairs: Callable[[int], list[Pair]]) -> None:
    selector = TurnSelector(10)
    made = pairs(36)
    favoured, answered = made[0]
    selector.favour(favoured.fileno())
    for number, (here, _) in enumerate(made):
        selector.register(here, READ, number)
    for _, there in made[1:]:
        there.send(b"x")
    assert 0 not in [key.data for key, _ in selector.select(0)]
    answered.send(b"x")  # the last one to say something
    found = [key.data for key, _ in selector.select(0)]
    assert found[0] == 0
    assert len(found) == 11, "and the others lose nothing by it"
    selector.unregister(favoured)  # not read for a while
    selector.register(favoured, READ, 0)
    assert selector.select(0)[0][0].data == 0
    selector.unregister(favoured)
    selector.unfavour(favoured.fileno())
    selector.register(favoured, READ, 0)  # a number that the system gave to another connection
    assert 0 not in [key.data for key, _ in selector.select(0)]
    selector.favour(favoured.fileno())
    selector.unfavour(favoured.fileno())  # while it is read
    assert 0 not in [key.data for key, _ in selector.select(0)]
    selector.close()


def test_the_favoured_wake_a_loop_that_sleeps(pairs: Callable[[int], list[Pair]]) -> None:
    selector = TurnSelector()
    [(here, there)] = pairs(1)
    selector.register(here, READ, "late")
    selector.favour(here.fileno())
    there.send(b"x")
    assert [key.data for key, _ in selector.select(10)] == ["late"]
    selector.close()


@pytest.mark.parametrize("make", [selectors.EpollSelector, TurnSelector])
@pytest.mark.parametrize("favoured", [False, True])
def test_it_does_what_a_selector_of_the_library_does(
    pairs: Callable[[int], list[Pair]], make: Callable[[], selectors.BaseSelector], favoured: bool
) -> None:
    selector = make()
    [(here, there)] = pairs(1)
    if favoured and isinstance(selector, TurnSelector):
        selector.favour(here.fileno())
    with pytest.raises(KeyError):
        selector.get_key(here)
    with pytest.raises(KeyError):
        selector.unregister(here)
    with pytest.raises(KeyError):
        selector.modify(here, READ)
    with pytest.raises(ValueError, match="nvalid"):
        selector.register(here, 0)
    key = selector.register(here, WRITE, "a")
    assert selector.get_key(here) == key == selector.get_map()[here.fileno()]
    with pytest.raises(KeyError):
        selector.register(here, READ)
    assert selector.select(0) == [(key, WRITE)]
    key = selector.modify(here, READ, "b")
    assert selector.select(0) == []
    assert selector.select(0.001) == []
    key = selector.modify(here, READ | WRITE, "c")
    there.send(b"x")
    assert selector.select() == [(key, READ | WRITE)]
    there.close()  # told as both: whoever reads or writes learns it
    assert selector.select(-1) == [(key, READ | WRITE)]
    number = here.fileno()
    here.close()
    assert selector.unregister(number) == key
    assert len(selector.get_map()) == 0
    selector.close()


def turns_until(done: Callable[[], bool], each: Callable[[int], None] | None = None) -> int:
    """How many turns of a `TurnLoop` it takes; `each` is called with their number."""

    async def count() -> int:
        for turn in range(10_000):
            if done():
                return turn
            if each is not None:
                each(turn)
            await asyncio.sleep(0)
        raise TimeoutError

    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        return runner.run(count())


def test_a_worker_thread_is_heard_beside_a_thousand_connections(pairs: Callable[[int], list[Pair]]) -> None:
    heard: list[int] = []
    told: list[bool] = []
    made = pairs(400)

    def begin(turn: int) -> None:
        loop = asyncio.get_running_loop()
        if turn == 0:
            for here, there in made:
                there.send(b"x")
                loop.add_reader(here, here.recv, 1)
        elif turn == 1:
            loop.call_soon_threadsafe(told.append, True)
            heard.append(sum(1 for here, _ in made if _readable(here)))

    assert turns_until(lambda: bool(told), begin) <= 3
    assert heard[0] > 300, "most of them still waited"


def _readable(one: socket.socket) -> bool:
    try:
        return bool(one.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def test_a_favoured_connection_is_read_beside_a_thousand_others(pairs: Callable[[int], list[Pair]]) -> None:
    order: list[int] = []
    made = pairs(400)

    class Reader(asyncio.Protocol):
        def __init__(self, number: int) -> None:
            self.number = number

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            if self.number == 399:
                favour(transport)

        def data_received(self, data: bytes) -> None:
            order.append(self.number)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        opened = [
            (await loop.create_connection(lambda number=number: Reader(number), sock=here))[0]  # type: ignore[misc]
            for number, (here, _) in enumerate(made)
        ]
        for _, there in made:
            there.send(b"x")
        while len(order) < len(made):  # noqa: ASYNC110
            await asyncio.sleep(0)
        for transport in opened:
            transport.close()
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        runner.run(main())
    assert 399 in order[:130], "the first turn or the second"
    assert sorted(order) == list(range(400))


def test_a_listener_accepts_a_few_a_turn_and_loses_none() -> None:
    clients = 3 * ACCEPTED + 5
    made: list[int] = []
    turn = 0

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(turn)

    async def main() -> None:
        nonlocal turn
        server = await listen(Accepted, "127.0.0.1", 0)
        with ExitStack() as opened:
            for _ in range(clients):
                one = opened.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(server.sockets[0].getsockname())
            while len(made) < clients:
                turn += 1
                await asyncio.sleep(0)
        server.close()

    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        runner.run(main())
    assert max(made.count(number) for number in set(made)) == ACCEPTED


def test_more_than_a_hundred_may_wait_to_be_accepted() -> None:
    """Asyncio's listeners have room for so many: one more is not heard although it is connected."""
    clients = 120

    async def main() -> None:
        heard = asyncio.Semaphore(0)

        class Accepted(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                heard.release()

        server = await listen(Accepted, "127.0.0.1", 0)
        with ExitStack() as opened:
            for _ in range(clients):
                one = opened.enter_context(socket.socket())
                one.settimeout(20)
                one.connect(server.sockets[0].getsockname())  # the loop stands still meanwhile
                one.send(b"x")
            async with asyncio.timeout(60):
                for _ in range(clients):
                    await heard.acquire()
        server.close()

    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        runner.run(main())

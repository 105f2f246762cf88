"""No request holds up the event loop: each code of broker and NameServer with its worst accepted input.

What is counted is the steps of the interpreter in the longest callback of the loop, from the frame's bytes
on (turns.py). A code without an entry in worst_inputs.py fails: whoever adds a code says what its worst input
is. `python -m tests.broker.measure_turns` measures the same turns in milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import cast

import pytest

from dledger.broker.filter.sql_filter import SqlFilters
from dledger.namesrv.config import NamesrvConfig
from dledger.namesrv.service import NameServer
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.frames import encode_request
from dledger.remoting.server import Connection, RemotingServer
from tests.broker.harness import FakeConnection, World, decode, make_env, run
from tests.broker.turns import MAX_STEPS, Turns
from tests.broker.worst_inputs import (
    BROKER,
    NAMESERVER,
    Asked,
    ask,
    end_background,
    make_broker,
    make_nameserver,
)

LONGER = {
    RequestCode.HEART_BEAT: 450_000,  # of as many groups, each with a topic, as fit into the body
}
"""Steps of the requests whose worst turn takes more than MAX_STEPS. None may be added, or raised."""


def longest_turns(
    code: int, inputs: list[Asked], make: Callable[[int], Awaitable[RemotingServer]], turns: Turns
) -> dict[int, int]:
    """The steps of the longest turn for each input, by its place in the list."""
    found = {}

    async def test() -> None:
        for place, asked in enumerate(inputs):
            server = await make(place)  # a new one each time: some remember what they were told
            with turns.watching():
                await ask(server, code, asked)
            found[place] = turns.longest
        await end_background()

    run(test)
    return found


def judge(code: int, found: dict[int, int]) -> None:
    """Fail when a turn takes more steps than this code may."""
    limit = LONGER.get(RequestCode(code), MAX_STEPS)
    worst = max(found, key=lambda place: found[place])
    assert found[worst] <= limit, (
        f"{RequestCode(code).name} takes {found[worst]:,} steps in one turn of the loop for input {worst} of "
        f"tests/broker/worst_inputs.py, and may take {limit:,}: bound the input, or do it in pieces"
    )


@pytest.mark.parametrize("code", sorted(BROKER), ids=lambda code: RequestCode(code).name)
def test_no_request_holds_up_a_brokers_loop(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if code == RequestCode.END_TRANSACTION:
        asyncio.run(make_broker(code, tmp_path / "before"))  # from then on it is known where the halves are

    SqlFilters().get("a = 1")  # builds the grammar, once in a process

    def make(place: int) -> Awaitable[RemotingServer]:
        return make_broker(code, tmp_path / str(place))

    judge(code, longest_turns(code, BROKER[code](), make, Turns(monkeypatch)))


@pytest.mark.parametrize("code", sorted(NAMESERVER), ids=lambda code: RequestCode(code).name)
def test_no_request_holds_up_a_nameservers_loop(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    judge(code, longest_turns(code, NAMESERVER[code](), lambda _: make_nameserver(), Turns(monkeypatch)))


def missing_entries(table: str, entries: Iterable[int], served: Iterable[int]) -> list[str]:
    """What to change in tests/broker/worst_inputs.py, a sentence for each code."""
    known, codes = set(entries), set(served)
    return [
        *(
            f"{RequestCode(code).name} ({code}) has no worst input: add the largest accepted input "
            f"to {table} in tests/broker/worst_inputs.py"
            for code in sorted(codes - known)
        ),
        *(
            f"{RequestCode(code).name} ({code}) is not served any longer: remove it from {table} in "
            "tests/broker/worst_inputs.py"
            for code in sorted(known - codes)
        ),
    ]


def test_each_code_has_an_entry(tmp_path: Path) -> None:
    """A request without a worst input could hold up the loop without anybody noticing."""
    broker = World(str(tmp_path)).broker
    nameserver = NameServer(make_env(), NamesrvConfig())
    wrong = [
        *missing_entries("BROKER", BROKER, broker.handlers),
        *missing_entries("NAMESERVER", NAMESERVER, nameserver.server.handlers),
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_a_missing_entry_is_named_with_its_file() -> None:
    (sentence,) = missing_entries("BROKER", [10], [10, 303])
    assert (
        sentence.startswith("QUERY_CONSUME_TIME_SPAN (303) has no worst input")
        and "worst_inputs.py" in sentence
    )
    (sentence,) = missing_entries("BROKER", [10, 303], [10])
    assert sentence.startswith("QUERY_CONSUME_TIME_SPAN (303) is not served any longer")


def test_more_than_a_code_takes_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    async def test() -> None:
        server = (await World(str(tmp_path)).open()).broker.server
        for code in (RequestCode.HEART_BEAT, RequestCode.GET_MAX_OFFSET):
            connection = FakeConnection()
            [request] = decode(encode_request(code, 1, None, 1 << 20) + b"{" * (1 << 20))
            server.dispatch(cast(Connection, connection), request)
            reply = connection.replies[1]
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert f"the body of {code.name} has 1048576 bytes; the limit is" in (reply.remark or "")

    run(test)

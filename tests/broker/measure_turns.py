"""`python -m tests.broker.measure_turns`: the longest turn of the loop for the worst input of a request.

The default suite counts the same turns in steps of the interpreter (test_turn_cost.py), which say nothing of
what single calls in C take. Here they are measured in processor time, on a machine that should be quiet. The
least of a few tries counts, as a collection of garbage may come into one.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
import msgspec

from dledger.broker.filter.sql_filter import SqlFilters
from dledger.remoting.codes import RequestCode
from dledger.remoting.server import RemotingServer
from tests.broker.worst_inputs import (
    BROKER,
    NAMESERVER,
    Asked,
    ask,
    end_background,
    make_broker,
    make_nameserver,
)

TRIES = 4


class Row(msgspec.Struct):
    """The longest turn of one request."""

    server: str
    code: int
    name: str
    milliseconds: float
    worst_input: int
    """Its place in the list of tests/broker/worst_inputs.py."""


async def longest_ms(
    inputs: list[Asked], code: int, make: Callable[[], Awaitable[RemotingServer]]
) -> list[float]:
    """For each input the processor time of the longest callback of the loop."""
    longest = 0.0
    run_handle = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        nonlocal longest
        began = time.thread_time()
        run_handle(handle)
        longest = max(longest, time.thread_time() - began)

    found = []
    asyncio.Handle._run = measured  # type: ignore[method-assign]
    try:
        for asked in inputs:
            tries = []
            for _ in range(TRIES):
                server = await make()
                longest = 0.0
                await ask(server, code, asked)
                tries.append(longest * 1000)
            found.append(min(tries))
    finally:
        asyncio.Handle._run = run_handle  # type: ignore[method-assign]
    await end_background()
    return found


def measure(server: str, code: int, directory: Path) -> Row:
    """The longest turn of one request."""
    numbers = itertools.count()

    def make() -> Awaitable[RemotingServer]:
        return make_nameserver() if server == "namesrv" else make_broker(code, directory / str(next(numbers)))

    if (server, code) == ("broker", RequestCode.END_TRANSACTION):
        asyncio.run(make())  # from then on it is known where the halves are
    inputs = (NAMESERVER if server == "namesrv" else BROKER)[code]()
    found = asyncio.run(longest_ms(inputs, code, make))
    worst = max(range(len(found)), key=lambda place: found[place])
    return Row(server, int(code), RequestCode(code).name, round(found[worst], 2), worst)


@click.command(help="Measure the longest turn of the loop for the worst input of each request.")
@click.option("--match", metavar="TEXT", default="", help="Only requests whose name contains this.")
@click.option("--json", "as_json", is_flag=True, help="The last line is one JSON object.")
def main(match: str, as_json: bool) -> None:
    """See the help text above."""
    SqlFilters().get("a = 1")  # builds the grammar, once in a process
    rows = []
    for server, table in (("broker", BROKER), ("namesrv", NAMESERVER)):
        for code in table:
            if match in RequestCode(code).name:
                with tempfile.TemporaryDirectory() as directory:
                    rows.append(measure(server, code, Path(directory)))
    rows.sort(key=lambda row: -row.milliseconds)
    for row in rows:
        click.echo(f"{row.milliseconds:8.2f} ms  {row.server:<8} {row.name} (input {row.worst_input})")
    if as_json:
        click.echo(msgspec.json.encode({"turns": rows}))


if __name__ == "__main__":
    main()

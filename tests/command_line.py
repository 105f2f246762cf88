"""The command `dledger` in this process, for tests."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from dledger.commands.app import COMMANDS, command, load
from dledger.commands.declaring import Declared
from dledger.runtime.options import Options


def run(*words: str) -> int:
    """What `dledger WORDS` ends with. As of a process: a text instead of a code goes to standard error."""
    try:
        command.main(args=list(words), prog_name="dledger")
    except SystemExit as ended:
        code: Any = ended.code
        if code is None or isinstance(code, int):
            return code or 0
        print(code, file=sys.stderr)
        return 1
    return 0


def options(*words: str) -> Options:
    """What the function gets that does the work of `dledger WORDS`. click.UsageError."""
    name, *rest = words
    found: click.Command = load(COMMANDS[name])
    context: click.Context | None = None
    while isinstance(found, click.Group):
        context = click.Context(found, info_name=name, parent=context)
        name = rest.pop(0)
        inner = found.get_command(context, name)
        if inner is None:
            raise click.UsageError(f"no command {name}")
        found = inner
    assert isinstance(found, Declared), found
    with found.make_context(name, rest, context) as made:
        return found.options(made.params)


def audit(words: Sequence[str]) -> int:
    """`dledger audit WORDS`."""
    return run("audit", *words)


def spark(words: Sequence[str]) -> int:
    """`dledger spark WORDS`."""
    return run("spark", *words)


def bench(words: Sequence[str]) -> int:
    """`dledger bench WORDS`."""
    return run("bench", *words)


def chaos(words: Sequence[str]) -> int:
    """`dledger chaos WORDS`."""
    return run("chaos", *words)


def broker(words: Sequence[str]) -> int:
    """`dledger broker WORDS`. This process goes on as it was: SIGTERM is not handled by the command."""
    return _server("broker", words)


def namesrv(words: Sequence[str]) -> int:
    """`dledger namesrv WORDS`, in the same way."""
    return _server("namesrv", words)


def _server(name: str, words: Sequence[str]) -> int:
    before = signal.getsignal(signal.SIGTERM)
    try:
        return run(name, *words)
    finally:
        signal.signal(signal.SIGTERM, before)

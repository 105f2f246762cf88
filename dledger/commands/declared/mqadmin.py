"""`dledger mqadmin`: RocketMQ's commands, whose options have its spelling (`-n`, `-t`, `--brokerAddr`).

The table of these commands (`dledger.commands.mqadmin.table`) declares their options. Here they only become
click commands: for completion, for the list, and so that nothing is loaded before a command is known.
"""

from __future__ import annotations

import sys
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from dledger.commands.declaring import Command
from dledger.commands.exit_codes import MQADMIN as CODES

_PACKAGE = "dledger.commands.mqadmin"
_REST = "arguments"


def _words(ctx: click.Context, parameter: click.Parameter | None, incomplete: str) -> list[str]:
    """Names of RocketMQ's commands, then the options of the one that is there."""
    table = import_module(f"{_PACKAGE}.table")
    words = ctx.params.get(_REST) or ()
    if not words:
        names = ["help", *table.COMMANDS]
    else:
        found = table.find(words[0])
        options = () if found is None else found.options
        names = [name for one in options for name in (f"-{one.short}", f"--{one.long}") if name != "-"]
        names.append("--json")
    return [name for name in names if name.lower().startswith(incomplete.lower())]


class _Mqadmin(Command):
    """Completes options which it does not parse itself."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Those of the command that is there."""
        return [CompletionItem(name) for name in _words(ctx, None, incomplete)]


def _run(arguments: tuple[str, ...]) -> None:
    sys.exit(import_module(f"{_PACKAGE}.cli").main(arguments))


MQADMIN = _Mqadmin(
    "mqadmin",
    codes=CODES,
    params=[click.Argument([_REST], nargs=-1, type=click.UNPROCESSED, shell_complete=_words)],
    callback=_run,
    help="RocketMQ's mqadmin commands.",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)

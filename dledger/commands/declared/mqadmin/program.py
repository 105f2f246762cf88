"""`dledger mqadmin`: the click command that runs RocketMQ's commands, with RocketMQ's spelling of options
(`-n`, `-t`, `--brokerAddr`).

The table `dledger.commands.declared.mqadmin.table` declares these options; click does not parse them. The
click command exists for completion and for the list of commands, and so that nothing is imported before
the command's name is known.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from dledger.commands.declared.mqadmin.table import COMMANDS, SECTIONS, find, meant
from dledger.commands.declaring import Command
from dledger.commands.exit_codes import DONE, FAILED, INTERRUPTED
from dledger.commands.exit_codes import MQADMIN as CODES
from dledger.commands.mqadmin.options import HELP, WrongOptions, help_text, parse

_PACKAGE = "dledger.commands.mqadmin"
_REST = "arguments"


def _words(ctx: click.Context, parameter: click.Parameter | None, incomplete: str) -> list[str]:
    """Return completions: the names of RocketMQ's commands, and after a command's name its options."""
    words = ctx.params.get(_REST) or ()
    if not words:
        names = ["help", *COMMANDS]
    else:
        found = find(words[0])
        options = () if found is None else found.options
        names = [name for one in options for name in (f"-{one.short}", f"--{one.long}") if name != "-"]
        names.append("--json")
    return [name for name in names if name.lower().startswith(incomplete.lower())]


class _Mqadmin(Command):
    """The click command `dledger mqadmin`. It completes options that click does not parse."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the options of the command that was typed."""
        return [CompletionItem(name) for name in _words(ctx, None, incomplete)]


def main(argv: Sequence[str]) -> int:
    """Run one of RocketMQ's commands; returns the exit code."""
    words = list(argv)
    if not words or words[0] in ("-h", "--help") or words == ["help"]:
        print(_all_commands())
        return DONE
    asked_for_help = words[0] == "help"
    name = words[1] if asked_for_help else words[0]
    command = find(name)
    if command is None:
        near = meant(name)
        hint = f" Did you mean {near}?" if near else " See `dledger mqadmin`."
        print(f"The sub command {name} not exist.{hint}", file=sys.stderr)
        return FAILED
    if asked_for_help:
        print(help_text(command.name, command.options))
        return DONE
    try:
        given = parse(command.options, words[1:])
        if HELP.key in given:
            print(help_text(command.name, command.options))
            return DONE
        return int(import_module(f"{_PACKAGE}.cli").run(command, given))
    except WrongOptions as error:
        print(f"{error}\n{help_text(command.name, command.options)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _all_commands() -> str:
    lines = ["usage: dledger mqadmin COMMAND [-n <namesrv>] [--json] ...", "", "RocketMQ's commands:"]
    for section, commands in SECTIONS.items():
        lines += ["", f"{section}:", *(f"   {command.name:<35} {command.text}" for command in commands)]
    lines += ["", "See 'dledger mqadmin help <command>' for more information on a specific command."]
    lines += ["", "Exit codes:", *(f"  {number:<4} {meaning}" for number, meaning in CODES.rows())]
    return "\n".join(lines)


def _run(arguments: tuple[str, ...]) -> None:
    sys.exit(main(arguments))


MQADMIN = _Mqadmin(
    "mqadmin",
    codes=CODES,
    params=[click.Argument([_REST], nargs=-1, type=click.UNPROCESSED, shell_complete=_words)],
    callback=_run,
    help="RocketMQ's mqadmin commands.",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)

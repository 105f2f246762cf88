"""The command `dledger`: a table of sub-commands, each imported only when it is asked for.

`dledger --help` and a wrong word therefore cost nothing but click. A sub-command is a click command, or a
program that parses its arguments itself; one whose packages are not installed says which extra brings them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import Any

import click
from click.shell_completion import CompletionItem

from dledger.commands.standard_output import OutputFailed, guarded

EXIT_USAGE = 2
EXIT_NO_OUTPUT = 2
"""Of a command whose standard output cannot be written."""
EXIT_NO_VERDICT = 4
"""The same of audits, for which 2 says that there are errors."""
EXIT_TERMINATED = 128 + signal.SIGTERM
"""Of a server that was asked to end before it had begun: as shells have it of who SIGTERM ended."""
EXIT_INTERRUPTED = 128 + signal.SIGINT
"""Of a command that Ctrl-C ended."""
_REST = "arguments"


@dataclass(frozen=True)
class Program:
    """A sub-command: a function that parses its own arguments, `(arguments) -> exit code`, or with `click` a
    click command."""

    section: str
    summary: str
    place: str
    """`module:name`."""
    before: tuple[str, ...] = ()
    """Arguments that stand before those given: `dledger sim` is `dledger chaos sim`."""
    extra: str = ""
    """What to install where a package is missing: `pip install 'dledger[extra]'`."""
    click: bool = False


GROUP, SERVERS, LOG = "A group on this machine", "Servers", "Replicated log"
CHECKS, TRIALS = "Audit and Spark", "Trials"
ADMINISTRATION = "Administration"
_GROUP = "dledger.commands.local_group"
_LOG = "dledger.commands.log:main"
_MOVING = "dledger.commands.moving.cli"
_MQADMIN = "dledger.commands.mqadmin"
_AUDIT, _SPARK = "dledger.audit.__main__:main", "dledger.spark.__main__:main"
_CHAOS, _BENCH = "dledger.chaos.__main__:main", "dledger.bench.__main__:main"

COMMANDS = MappingProxyType(
    {
        "up": Program(GROUP, "start it, or what of it does not run", f"{_GROUP}:up", click=True),
        "status": Program(GROUP, "who leads, how far each node is", f"{_GROUP}:status", click=True),
        "kill-leader": Program(GROUP, "SIGKILL the leader", f"{_GROUP}:kill_leader", click=True),
        "restart": Program(GROUP, "bring back what is down", f"{_GROUP}:restart", click=True),
        "down": Program(GROUP, "stop it; the data stays", f"{_GROUP}:down", click=True),
        "broker": Program(SERVERS, "run a broker", "dledger.broker.cli:program", extra="server"),
        "namesrv": Program(SERVERS, "run a NameServer", "dledger.namesrv.cli:run"),
        "serve": Program(SERVERS, "run a node of a log without a broker", _LOG, ("serve",)),
        "admin": Program(
            ADMINISTRATION,
            "topics, groups, messages, offsets, brokers, accounts",
            "dledger.commands.admin.cli:admin",
            click=True,
        ),
        "mqadmin": Program(ADMINISTRATION, "RocketMQ's mqadmin commands", f"{_MQADMIN}.cli:main"),
        "completion": Program(
            ADMINISTRATION,
            "have a shell complete all of these",
            "dledger.commands.completion:completion",
            click=True,
        ),
        "append": Program(LOG, "append one entry to a group's log", _LOG, ("append",)),
        "get": Program(LOG, "read one committed entry", _LOG, ("get",)),
        "member": Program(LOG, "list, add, remove or promote members", _LOG, ("member",)),
        "transfer": Program(LOG, "hand leadership over", _LOG, ("transfer",)),
        "prefer": Program(LOG, "say who should lead", _LOG, ("prefer",)),
        "delete-before": Program(LOG, "retention by hand", _LOG, ("delete-before",)),
        "dump": Program(LOG, "list the entries of a store directory", _LOG, ("dump",)),
        "backup": Program(LOG, "copy a store while its node runs", _LOG, ("backup",)),
        "recover": Program(
            LOG, "go on after the loss of a majority, or end a forged term", _LOG, ("recover",)
        ),
        "import": Program(
            LOG, "make a group of a store of Apache's", f"{_MOVING}:import_command", extra="server"
        ),
        "export": Program(
            LOG, "make stores of Apache's of one of ours", f"{_MOVING}:export_command", extra="server"
        ),
        "mirror": Program(
            LOG, "copy topics to another cluster while both run", f"{_MOVING}:mirror_command", extra="server"
        ),
        "verify": Program(CHECKS, "check one store directory", _AUDIT, ("verify",), "server"),
        "audit": Program(CHECKS, "check store directories, and compare replicas", _AUDIT, extra="server"),
        "spark": Program(CHECKS, "the same, and jobs over topics, on Spark", _SPARK, extra="spark"),
        "sim": Program(TRIALS, "simulated groups under faults", _CHAOS, ("sim",), "server"),
        "chaos": Program(TRIALS, "kill, replace and simulate", _CHAOS, extra="server"),
        "bench": Program(TRIALS, "measure a running group", _BENCH, extra="server"),
    }
)
"""In the order in which `dledger --help` lists them."""


class Commands(click.Group):
    """Finds a sub-command in the table, or says which one was probably meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, as the table has them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The sub-command; nothing of it is imported yet."""
        program = COMMANDS.get(cmd_name)
        return None if program is None else _command(cmd_name, program)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with a hint."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else " See `dledger --help`."
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """As click's; Ctrl-C ends it in order, and without a word, as shells have it of who SIGINT ended."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """By section."""
        for section in dict.fromkeys(program.section for program in COMMANDS.values()):
            rows = [(name, one.summary) for name, one in COMMANDS.items() if one.section == section]
            with formatter.section(section):
                formatter.write_dl(rows)


def _command(name: str, program: Program) -> click.Command:
    if program.click:
        command: click.Command = load(name, program)
        return command
    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    complete = _mqadmin_words if name == "mqadmin" else None
    rest = click.Argument([_REST], nargs=-1, type=click.UNPROCESSED, shell_complete=complete)

    def run(arguments: Sequence[str]) -> None:
        if program.section == SERVERS:
            end_on_sigterm()
        sys.exit(load(name, program)([*program.before, *arguments]))

    kind = _Mqadmin if name == "mqadmin" else click.Command
    return kind(name, context_settings=settings, params=[rest], callback=run, help=program.summary)


def _mqadmin_words(ctx: click.Context, parameter: click.Parameter | None, incomplete: str) -> list[str]:
    """Names of RocketMQ's commands, then the options of the one that is there."""
    table = import_module(f"{_MQADMIN}.table")
    words = ctx.params.get(_REST) or ()
    if not words:
        names = ["help", *table.COMMANDS]
    else:
        found = table.find(words[0])
        options = () if found is None else found.options
        names = [name for one in options for name in (f"-{one.short}", f"--{one.long}") if name != "-"]
        names.append("--json")
    return [name for name in names if name.lower().startswith(incomplete.lower())]


class _Mqadmin(click.Command):
    """Completes options which it does not parse itself."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Those of the command that is there."""
        return [CompletionItem(name) for name in _mqadmin_words(ctx, None, incomplete)]


def end_on_sigterm() -> None:
    """Until its event loop takes signals over, a server ends at once: nothing is open yet.

    Its imports take seconds on a busy machine, and what has no handler does not reach process 1 of a
    container.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(EXIT_TERMINATED))


def load(name: str, program: Program) -> Any:
    """What stands at its place; a package that is missing ends the command with what to install."""
    module, _, function = program.place.partition(":")
    try:
        return getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        if not program.extra or (error.name or "").startswith("dledger"):
            raise
        print(f"dledger {name} needs {error.name}: pip install 'dledger[{program.extra}]'", file=sys.stderr)
        sys.exit(EXIT_USAGE)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dledger", prog_name="dledger")
def command() -> None:
    """A Raft-replicated message log that speaks Apache RocketMQ's protocol."""


def main(argv: Sequence[str] | None = None) -> Any:
    """The whole command; the exit code of the process."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    program = COMMANDS.get(arguments[0]) if arguments else None
    if program is not None and program.section == SERVERS:  # they run all the same: remoting.cli.announce
        return command.main(args=arguments, prog_name="dledger")
    try:
        with guarded():
            return command.main(args=arguments, prog_name="dledger")
    except OutputFailed as failure:
        print(f"dledger: standard output cannot be written: {failure}", file=sys.stderr)
        sys.exit(EXIT_NO_VERDICT if program is not None and program.section == CHECKS else EXIT_NO_OUTPUT)

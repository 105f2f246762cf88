"""The command `dledger`: a table of sub-commands, each of which is imported only when it is used.

So `dledger --help` and an unknown sub-command load nothing but click. Every sub-command is a click
command; `dledger.commands.declaring` explains how a sub-command is declared.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import Any

import click

from dledger.commands.exit_codes import INTERRUPTED, NOT_SEEN, USAGE
from dledger.commands.standard_output import OutputFailed, guarded


@dataclass(frozen=True)
class Program:
    """A sub-command: where its click command is defined, and its text in the list of commands."""

    section: str
    summary: str
    place: str
    """Module and name of the click command, as `module:NAME`."""


GROUP, SERVERS, LOG = "A group on this machine", "Servers", "Replicated log"
CHECKS, TRIALS = "Audit and Spark", "Trials"
MESSAGES, ADMINISTRATION = "Topics, groups and messages", "Administration"
_GROUP = "dledger.commands.local_group"
_DECLARED = "dledger.commands.declared"
_LOG = f"{_DECLARED}.log"
_ADMIN = f"{_DECLARED}.admin"

COMMANDS = MappingProxyType(
    {
        "up": Program(GROUP, "start a group, or the parts of it that are down", f"{_GROUP}:up"),
        "status": Program(GROUP, "show the leader, and how far each node is", f"{_GROUP}:status"),
        "kill-leader": Program(GROUP, "kill the leader (SIGKILL)", f"{_GROUP}:kill_leader"),
        "restart": Program(GROUP, "start the parts that are down", f"{_GROUP}:restart"),
        "down": Program(GROUP, "stop the group; its data stays", f"{_GROUP}:down"),
        "broker": Program(SERVERS, "run a broker", f"{_DECLARED}.servers:BROKER"),
        "namesrv": Program(SERVERS, "run a NameServer", f"{_DECLARED}.servers:NAMESRV"),
        "serve": Program(SERVERS, "run a node of a replicated log, without a broker", f"{_LOG}:SERVE"),
        "topic": Program(MESSAGES, "list, show, create, update, delete topics", f"{_ADMIN}.topic:TOPIC"),
        "group": Program(
            MESSAGES, "list, show, create, update, delete consumer groups", f"{_ADMIN}.group:GROUP"
        ),
        "message": Program(MESSAGES, "find, show, send, redeliver messages", f"{_ADMIN}.message:MESSAGE"),
        "offset": Program(
            MESSAGES, "show, reset, clone offsets of consumer groups", f"{_ADMIN}.offset:OFFSET"
        ),
        "produce": Program(
            MESSAGES, "send lines, JSON lines or CSV as messages", f"{_DECLARED}.messages:PRODUCE"
        ),
        "consume": Program(
            MESSAGES, "print messages as lines, JSON lines or CSV", f"{_DECLARED}.messages:CONSUME"
        ),
        "admin": Program(
            ADMINISTRATION,
            "manage topics, groups, messages, offsets, brokers, accounts",
            f"{_ADMIN}.cli:ADMIN",
        ),
        "mqadmin": Program(
            ADMINISTRATION, "the mqadmin commands of RocketMQ", f"{_DECLARED}.mqadmin.program:MQADMIN"
        ),
        "dashboard": Program(
            ADMINISTRATION, "show clusters in a browser", f"{_DECLARED}.dashboard:DASHBOARD"
        ),
        "completion": Program(
            ADMINISTRATION, "let a shell complete these commands", "dledger.commands.completion:completion"
        ),
        "append": Program(LOG, "append one entry to a group's log", f"{_LOG}:APPEND"),
        "get": Program(LOG, "read one committed entry", f"{_LOG}:GET"),
        "member": Program(LOG, "list, add, remove or promote members", f"{_LOG}:MEMBER"),
        "transfer": Program(LOG, "transfer leadership", f"{_LOG}:TRANSFER"),
        "prefer": Program(LOG, "set the preferred leaders", f"{_LOG}:PREFER"),
        "delete-before": Program(LOG, "remove old segments by hand", f"{_LOG}:DELETE_BEFORE"),
        "dump": Program(LOG, "list the entries of a store directory", f"{_LOG}:DUMP"),
        "backup": Program(LOG, "copy a store while its node runs", f"{_LOG}:BACKUP"),
        "recover": Program(
            LOG, "continue after the loss of a majority, or reset a forged term", f"{_LOG}:RECOVER"
        ),
        "import": Program(LOG, "make a group from a store of Apache RocketMQ", f"{_DECLARED}.moving:IMPORT"),
        "export": Program(
            LOG, "make stores for Apache RocketMQ from one of ours", f"{_DECLARED}.moving:EXPORT"
        ),
        "mirror": Program(LOG, "copy topics to another cluster while both run", f"{_DECLARED}.moving:MIRROR"),
        "verify": Program(CHECKS, "check one store directory", f"{_DECLARED}.checks:VERIFY"),
        "audit": Program(CHECKS, "check store directories and compare replicas", f"{_DECLARED}.checks:AUDIT"),
        "lake": Program(CHECKS, "put topics into a Delta Lake or Iceberg table", f"{_DECLARED}.checks:LAKE"),
        "spark": Program(CHECKS, "audits, and jobs over topics, on Spark", f"{_DECLARED}.spark:SPARK"),
        "sim": Program(TRIALS, "simulate groups under faults", f"{_DECLARED}.trials:SIMULATION"),
        "chaos": Program(
            TRIALS, "simulations, mutants, and faults in real processes", f"{_DECLARED}.trials:CHAOS"
        ),
        "bench": Program(TRIALS, "measure a running group, and its parts", f"{_DECLARED}.bench:BENCH"),
    }
)
"""The sub-commands in the order of `dledger --help`."""
SHORT_FOR = MappingProxyType({"verify": "audit verify", "sim": "chaos sim"})
"""Maps a short command to the full command that it stands for."""


class Commands(click.Group):
    """The click group `dledger`: it finds a sub-command in the table, or suggests one with a similar name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the sub-commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the click command of a sub-command, but not the function that does its work."""
        program = COMMANDS.get(cmd_name)
        return None if program is None else load(program)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the sub-command as click does. The error for an unknown sub-command suggests one with a
        similar name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else " See `dledger --help`."
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command as click does. Ctrl-C ends the command silently, with the exit code that shells
        give to a process that SIGINT ended."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of sub-commands, grouped by section."""
        for section in dict.fromkeys(program.section for program in COMMANDS.values()):
            rows = [(name, one.summary) for name, one in COMMANDS.items() if one.section == section]
            with formatter.section(section):
                formatter.write_dl(rows)


def load(program: Program) -> click.Command:
    """Import the click command of one row of the table."""
    module, _, name = program.place.partition(":")
    found: click.Command = getattr(import_module(module), name)
    return found


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dledger", prog_name="dledger")
def command() -> None:
    """A Raft-replicated message log that speaks Apache RocketMQ's protocol."""


def main(argv: Sequence[str] | None = None) -> Any:
    """Run the whole command; returns the exit code of the process."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    program = COMMANDS.get(arguments[0]) if arguments else None
    if program is not None and program.section == SERVERS:  # they run all the same: remoting.cli.announce
        return command.main(args=arguments, prog_name="dledger")
    checks = program is not None and program.section == CHECKS
    if checks:
        from dledger.audit.crash import exit_4_on_crash

        exit_4_on_crash()
    try:
        with guarded():
            return command.main(args=arguments, prog_name="dledger")
    except OutputFailed as failure:
        print(f"dledger: standard output cannot be written: {failure}", file=sys.stderr)
        sys.exit(NOT_SEEN if checks else USAGE)

"""Functions that declare commands for operators, and options that several of these commands have."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from dledger.commands import exit_codes
from dledger.commands.admin.completing import complete_groups, complete_nothing, complete_topics
from dledger.commands.declaring import Command, Group
from dledger.commands.exit_codes import ExitCodes
from dledger.local.default_group import local_namesrv
from dledger.runtime.environment_variables import NAMESRV_ADDR

ACTIONS = "dledger.commands.admin"


def group(name: str, summary: str) -> Group:
    """Make a click group for the commands about one subject."""
    return Group(name, summary)


def action(
    owner: click.Group,
    name: str,
    summary: str,
    place: str,
    *params: click.Parameter,
    changes: bool = False,
) -> None:
    """Declare a command whose work is done by `async def action(admin, told, **values)`; `place` names
    this function as `module:function` of `dledger.commands.admin`. If `changes` is set, the command has
    the options --dry-run and --yes."""
    owner.add_command(operation(name, summary, f"{ACTIONS}.{place}", *params, changes=changes))


def operation(
    name: str,
    summary: str,
    place: str,
    *params: click.Parameter,
    changes: bool = False,
    codes: ExitCodes = exit_codes.ADMIN,
    **more: Any,
) -> Command:
    """Declare a command as `action` does, but with a function in any package, and without a click group."""

    def run(**values: Any) -> None:
        module, _, function = place.partition(":")
        found = getattr(import_module(module), function)
        import_module(f"{ACTIONS}.running").run(found, values)

    every = [*params, *(_changes() if changes else ()), *_everywhere()]
    return Command(name, codes=codes, params=every, callback=run, help=summary, **more)


def _everywhere() -> list[click.Parameter]:
    return [
        click.Option(
            ["-n", "--namesrv"],
            metavar="ADDR",
            envvar=NAMESRV_ADDR,
            show_envvar=True,
            default=local_namesrv,
            help="NameServers, host:port;host:port. Without it: those of the group that `dledger up` made in "
            "this directory.",
            shell_complete=complete_nothing,
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="One JSON object on standard output."),
    ]


def _changes() -> list[click.Parameter]:
    return [
        click.Option(["--dry-run"], is_flag=True, help="Show what would change without changing it."),
        click.Option(["-y", "--yes"], is_flag=True, help="Do not ask for confirmation."),
    ]


def where() -> list[click.Parameter]:
    """Return the options `--cluster` and `--broker`."""
    return [
        click.Option(["-c", "--cluster"], metavar="NAME", help="Brokers of this cluster. [default: all]"),
        click.Option(
            ["-b", "--broker"],
            metavar="NAME",
            shell_complete=complete_nothing,
            help="One broker group, by its name or by an address. [default: all]",
        ),
    ]


def topic_name(what: str = "topic") -> click.Argument:
    """Return the argument that names a topic."""
    return click.Argument([what], metavar="TOPIC", shell_complete=complete_topics)


def group_name() -> click.Argument:
    """Return the argument that names a consumer group."""
    return click.Argument(["name"], metavar="GROUP", shell_complete=complete_groups)

"""`dledger admin member`: the members of a Raft group, and who leads it. The same as `dledger member`,
`dledger transfer` and `dledger prefer`, which know the nodes by the ports of their peers (`--peers`)."""

from __future__ import annotations

import sys

import click

from dledger.commands.admin.running import SETTINGS, group
from dledger.commands.log import main

MEMBER = group("member", "Members of a Raft group: list, add, remove, promote, transfer, prefer.")
_COMMANDS = {
    "list": ("List the members as the leader sees them.", ("member", "list")),
    "add": ("Add a member: it gets the log, and votes when it has caught up.", ("member", "add")),
    "remove": ("Remove a member; a leader hands over first.", ("member", "remove")),
    "promote": ("Make a learner that has caught up a voter.", ("member", "promote")),
    "transfer": ("Hand leadership over.", ("transfer",)),
    "prefer": ("Say who should lead.", ("prefer",)),
}


def _add(name: str, summary: str, words: tuple[str, ...]) -> None:
    def run(arguments: tuple[str, ...]) -> None:
        sys.exit(main([*words, *arguments]))

    settings = {**SETTINGS, "ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    rest = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
    MEMBER.add_command(
        click.Command(name, params=[rest], callback=run, help=summary, context_settings=settings)
    )


for _name, (_summary, _words) in _COMMANDS.items():
    _add(_name, _summary, _words)

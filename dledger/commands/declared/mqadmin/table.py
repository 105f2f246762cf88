"""All commands of `dledger mqadmin`, and a search by name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from dledger.commands.declared.mqadmin import (
    accounts,
    brokers,
    exports,
    groups,
    messages,
    namesrv,
    offsets,
    others,
    sending,
    topics,
)
from dledger.commands.declared.mqadmin.options import Command

SECTIONS: Mapping[str, tuple[Command, ...]] = MappingProxyType(
    {
        "Topics": topics.COMMANDS,
        "Consumer groups and producers": groups.COMMANDS,
        "Offsets": offsets.COMMANDS,
        "Messages": messages.COMMANDS,
        "Sending": sending.COMMANDS,
        "Brokers": brokers.COMMANDS,
        "NameServers": namesrv.COMMANDS,
        "Access control": accounts.COMMANDS,
        "Files": exports.COMMANDS,
        "Not applicable to a Raft group": others.COMMANDS,
    }
)
COMMANDS: Mapping[str, Command] = MappingProxyType(
    {command.name: command for commands in SECTIONS.values() for command in commands}
)


def find(word: str) -> Command | None:
    """Return the command with this name or alias; upper and lower case count as equal, as in Apache's
    mqadmin."""
    wanted = word.lower()
    for command in COMMANDS.values():
        if wanted in (command.name.lower(), command.alias.lower()):
            return command
    return None


def meant(word: str) -> str | None:
    """Return the command with the most similar name; None if no name is similar."""
    names = {name.lower(): name for name in COMMANDS}
    near = get_close_matches(word.lower(), names, 1)
    return names[near[0]] if near else None

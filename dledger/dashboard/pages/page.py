"""What a page is: an address, a function that loads its data, and a template.

The data is a struct. Programs get it as JSON, and the template makes HTML of the same struct.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from dledger.admin import AsyncAdminClient
from dledger.admin.asking import master_of
from dledger.dashboard.facts import Facts
from dledger.dashboard.watching import Watching

T = TypeVar("T")
ROWS = 50
"""Rows of a table on one page."""
MAX_WORD = 512
"""Longest word of an address that is used, in characters; a longer one is cut."""


class NotThere(Exception):
    """Raised if what a page is about does not exist. The text says what to do."""


class WrongWords(Exception):
    """Raised if the words of an address make no sense. The text says what to give."""


@dataclass(frozen=True)
class Asked:
    """A request for a page: the cluster, the names in its address, and the words after the question mark."""

    cluster: Watching
    facts: Facts
    names: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def admin(self) -> AsyncAdminClient:
        """The client that asks the cluster."""
        return self.cluster.admin

    def word(self, name: str) -> str:
        """A word of the address, without spaces around it; empty if it was not given."""
        return self.words.get(name, "").strip()[:MAX_WORD]

    def number(self, name: str, default: int) -> int:
        """A whole number, 0 or more, from the words of the address. Raises WrongWords for anything else."""
        text = self.word(name)
        if not text:
            return default
        if not text.isdecimal() or len(text) > 18:
            raise WrongWords(f"{name}: give a whole number of 0 or more, not {text!r}")
        return int(text)


Load = Callable[[Asked], Awaitable[msgspec.Struct]]


@dataclass(frozen=True)
class Page:
    """One page. `path` is below the path of a cluster, with names in braces."""

    name: str
    """Name of its template, without the ending."""
    path: str
    title: str
    load: Load
    command: Callable[[Asked], str]
    """The command that shows the same in a shell, without its NameServers."""
    listed: bool = False
    """Whether it is in the navigation."""


def command(words: str, *names: str, options: Sequence[str] = ()) -> str:
    """A command line of words, options and names. Options and names are quoted for a shell.

    >>> command("dledger topic show", "a$(b)")
    "dledger topic show 'a$(b)'"
    >>> command("dledger message list", "-x", options=["--tags=a b"])
    "dledger message list '--tags=a b' -- -x"
    """
    ends = ["--"] if any(name.startswith("-") for name in names) else []
    return " ".join([words, *map(shlex.quote, [*options, *ends, *names])])


async def broker_groups(admin: AsyncAdminClient) -> dict[str, str]:
    """The broker groups of the cluster, each with the address to ask: its master's, or that of any broker if
    it has no master."""
    groups = (await admin.brokers.cluster()).groups()
    return {one.brokerName: at for one in groups for at in [master_of(one)] if at is not None}


class Rows(msgspec.Struct, frozen=True):
    """A part of a long table."""

    number: int
    """Number of this part, from 1 on."""
    parts: int
    total: int
    """Rows in all parts."""


def part_of(rows: list[T], asked: Asked, name: str = "page") -> tuple[list[T], Rows]:
    """The rows of the part that the parameter `name` chooses, and which part that is. A number that is too
    large gives the last part."""
    parts = max(1, -(-len(rows) // ROWS))
    number = min(max(1, asked.number(name, 1)), parts)
    return rows[(number - 1) * ROWS : number * ROWS], Rows(number, parts, len(rows))

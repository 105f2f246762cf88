"""Where the processes of a group run, and at which addresses they are found. By default all are on
loopback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dledger.local.ports import HOST

NAMESRV = "namesrv"
"""Name of the NameServer in the tables of a placement. The brokers have their node ids."""


@dataclass(frozen=True)
class Placement:
    """Exceptions from the default for single processes. It belongs to a running group and is not saved with
    its settings, so the commands `dledger stop` and `status` do not know it."""

    hosts: Mapping[str, str] = field(default_factory=dict)
    """Maps a process to the address at which clients, peers and NameServers find it. Default: loopback."""
    listen: Mapping[str, str] = field(default_factory=dict)
    """Maps a process to the address at which it listens. Default: the loopback address."""
    health: Mapping[str, str] = field(default_factory=dict)
    """Maps a broker to the address at which its `/health` is found. Default: loopback."""
    before: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Maps a process to the words before its command, such as `nsenter` and its options. The program that
    they name must execute the command in its own process."""
    programs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Maps a process to the arguments of Python that start it, without those for the configuration. Default:
    `-m` and the module of the product."""

    def host(self, name: str) -> str:
        """Address at which this process is found."""
        return self.hosts.get(name, HOST)

    def command(self, name: str, python: Sequence[str], module: str, arguments: Sequence[str]) -> list[str]:
        """The whole command of a process."""
        program = self.programs.get(name, ("-m", module))
        return [*self.before.get(name, ()), *python, *program, *arguments]


LOOPBACK = Placement()

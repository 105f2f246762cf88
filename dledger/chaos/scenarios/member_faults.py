"""Changes of the members while the group runs. An operator on a machine of its own gives the commands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from dledger.chaos.machine.settings import MS
from dledger.chaos.scenarios.link_faults import LinkFaults
from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.scenarios.stage import OPERATOR, PORT
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.env import Env

START_MS = 20
"""Time between the start of a new node and the command that adds it, in ms."""
TRIES, PAUSE_S = 10, 0.5
"""How often an operator tries to add a removed member again, and the pause between two tries in seconds."""


class MemberFaults(LinkFaults):
    """Adds and removes members, and changes the preferred leader. The operator gives one command at a
    time."""

    def member_kinds(self) -> dict[str, Callable[[Fault], bool]]:
        """The kinds of faults in this module, with their methods."""
        return {
            "grow": self._grow,
            "shrink": self._shrink,
            "rejoin": self._rejoin,
            "prefer": self._prefer,
        }

    def _grow(self, fault: Fault) -> bool:
        """Start a new node on a spare machine and add it."""
        spares = [name for name in self._stage.names if not self._stage.machines[name].in_use]
        if not spares or not self._operator_is_free():
            return False
        name = spares[fault.pick % len(spares)]
        self._stage.machines[name].in_use = True
        self._stage.start(name)

        async def add(client: DLedgerClient) -> None:
            await client.add_member(name, f"{name}:{PORT}")
            self._stage.marks.reach("member added")

        self._later(START_MS, lambda: self._command(add))
        return True

    def _shrink(self, fault: Fault) -> bool:
        """Remove a member if the group is larger than planned. Its machine is wiped later, and is then spare
        again."""
        members = self._stage.members()
        spare = len(members) - self._stage.plan.nodes
        if spare <= 0 or not self._operator_is_free():
            return False
        name = members[fault.pick % len(members)]

        async def remove(client: DLedgerClient) -> None:
            await client.remove_member(name)
            self._stage.marks.reach("member removed")
            self._world.push(self._world.now + fault.lasting_ms * MS, self._retire, name)

        self._command(remove)
        return True

    def _retire(self, name: str) -> None:
        if name in self._stage.members():
            return  # added again meanwhile
        machine = self._stage.machines[name]
        machine.in_use = False
        self._world.kill(name)
        if machine.has_store:
            machine.wipe()

    def _rejoin(self, fault: Fault) -> bool:
        """Remove a member and add it again with its store, as if its machine had moved. The member's disk may
        be so slow that the member does not know of its removal when it is added again."""
        members = self._stage.members()
        if len(members) < self._stage.plan.nodes or not self._operator_is_free():
            return False
        name = members[fault.pick % len(members)]
        disk = self._world.nodes[name].disk
        disk.slow(fault.amount)
        self._later(fault.lasting_ms, partial(disk.slow, 1))

        async def again(client: DLedgerClient) -> None:
            await client.remove_member(name)
            for _ in range(TRIES):
                try:
                    await client.add_member(name, f"{name}:{PORT}")
                except RequestFailed:
                    await asyncio.sleep(PAUSE_S)
                else:
                    self._stage.marks.reach("a member left and came back")
                    return

        self._command(again)
        return True

    def _prefer(self, fault: Fault) -> bool:
        """Let the group prefer another member as leader, or none."""
        members = self._stage.members()
        if not members or not self._operator_is_free():
            return False
        chosen = [members[fault.pick % len(members)]] if fault.pick % 4 else None

        async def prefer(client: DLedgerClient) -> None:
            await client.prefer(chosen)

        self._command(prefer)
        return True

    def _operator_is_free(self) -> bool:
        return self._world.node(OPERATOR).process is None

    def _command(self, work: Callable[[DLedgerClient], Awaitable[None]]) -> None:
        if not self._operator_is_free():
            return

        async def main(env: Env) -> None:
            async with DLedgerClient(env, self._stage.peers) as client:
                try:
                    await work(client)
                except RequestFailed as error:
                    env.log.info("command failed", error=error)

        self._world.spawn(OPERATOR, main)

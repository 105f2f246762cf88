"""Clients on machines of their own. They use the real `DLedgerClient` and perform the operations of the
plan."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from dledger.chaos.machine.settings import MS
from dledger.chaos.scenarios.history import ABSENT, ACKNOWLEDGED, REFUSED, UNKNOWN, Call, History
from dledger.chaos.scenarios.plan import Operation
from dledger.chaos.scenarios.register_host import body_of
from dledger.messages import Code
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.env import Env

if TYPE_CHECKING:
    from dledger.chaos.scenarios.stage import Stage

KEYS = 8
CURIOUS = 4
"""Every CURIOUS-th read asks for the first entry that is not committed. So does one read during each burst of
appends."""
BATCH_LIMIT_S = 2.0
"""How long a client waits for the outcome of a batch, in seconds."""
CERTAINLY_NOT = (Code.LEADER_PENDING_FULL, Code.DISK_FULL, Code.UNEXPECTED_ARGUMENT, Code.NOT_LEADER)
"""Answers that say for certain that the request was not executed."""
COMMITTED = re.compile(r"committed entries are (-?\d+)\.\.(-?\d+)")


class Client:
    """The program of one client machine."""

    def __init__(self, stage: Stage, number: int, history: History, operations: list[Operation]) -> None:
        self.name: str = stage.client_names[number]
        self.done: bool = False
        self._stage = stage
        self._history = history
        self._operations = operations
        self._count = 0

    async def main(self, env: Env) -> None:
        """Perform all operations one after another, none before its time."""
        async with DLedgerClient(env, self._stage.peers) as client:
            for operation in self._operations:
                early = operation.at_ms * MS - self._now()
                if early > 0:
                    await asyncio.sleep(early / 1e9)
                await self._perform(client, operation)
        self.done = True

    def _now(self) -> int:
        process = self._stage.world.nodes[self.name].process
        assert process is not None
        return process.loop.now_ns()

    async def _perform(self, client: DLedgerClient, operation: Operation) -> None:
        if operation.kind == "get":
            known = self._history.known_indexes()
            curious = operation.pick % CURIOUS == 0 or not known
            await self._get(client, self._next() if curious else known[operation.pick % len(known)])
        elif operation.kind == "read":
            await self._read_point(client, operation.pick)
        elif operation.kind == "burst":
            async with asyncio.TaskGroup() as group:
                for number in range(operation.count):
                    group.create_task(self._append(client, operation.size), name=f"burst-{number}")
                group.create_task(self._get(client, self._next()), name="burst-get")
        elif operation.kind == "batch":
            await self._batch(operation)
        else:
            await self._append(client, operation.size)

    async def append_last(self, env: Env) -> None:
        """Append one more value, until the group acknowledges it. This shows that the group makes
        progress."""
        async with DLedgerClient(env, self._stage.peers, timeout_s=2.0) as client:
            outcome = UNKNOWN
            while outcome != ACKNOWLEDGED:
                outcome = (await self._append(client, 100)).outcome
                await asyncio.sleep(0.05)
        self.done = True

    async def _batch(self, operation: Operation) -> None:
        """Append several values as one client batch."""
        calls = []
        for _ in range(operation.count):
            self._count += 1
            value = body_of(f"{self.name}-{self._count}", f"k{self._count % KEYS}", operation.size)
            calls.append(self._history.begin(Call(self.name, "append", self._now(), value)))
        values = [call.value for call in calls]
        self._history.batches.append(values)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[str, int]] = loop.create_future()

        def settle(outcome: str, first: int) -> None:
            if not answer.done():
                answer.set_result((outcome, first))

        def reply(outcome: str, first: int) -> None:
            if not answer.done():  # otherwise the client no longer waits, or has ended
                loop.call_soon(settle, outcome, first)

        self._stage.batches.offer(values, reply)
        try:
            outcome, first = await asyncio.wait_for(answer, BATCH_LIMIT_S)
        except TimeoutError:
            outcome, first = UNKNOWN, -1
        for place, call in enumerate(calls):
            call.outcome, call.end, call.index = outcome, self._now(), first + place

    async def _append(self, client: DLedgerClient, size: int) -> Call:
        self._count += 1
        value = body_of(f"{self.name}-{self._count}", f"k{self._count % KEYS}", size)
        call = self._history.begin(Call(self.name, "append", self._now(), value))
        try:
            call.index = await client.append(value)
            call.outcome = ACKNOWLEDGED
        except RequestFailed as error:
            call.outcome = REFUSED if error.code in CERTAINLY_NOT else UNKNOWN
            call.text = str(error)
            self._refused(error.code)
        call.end = self._now()
        return call

    def _refused(self, code: Code | None) -> None:
        """Count the coverage marks that stand for this refusal."""
        if code is Code.UNEXPECTED_ARGUMENT:
            self._stage.marks.reach("an append was refused as too large")
        elif code is Code.LEADER_PENDING_FULL and not self._stage.hands_over():
            self._stage.marks.reach("an append was refused as too much was pending")

    def _next(self) -> int:
        """Index of the first entry that is not committed yet, so that no client may be shown it."""
        return self._stage.cluster.commit_index + 1

    async def _get(self, client: DLedgerClient, index: int) -> None:
        call = self._history.begin(Call(self.name, "get", self._now(), index=index))
        try:
            entry = await client.get(index)
            call.value = entry.body
            call.outcome = ACKNOWLEDGED
            if entry.index != index:
                self._stage.violated(f"{self.name} asked for entry {index} and got {entry.index}")
            self._stage.cluster.count("what is read is committed")
            if index > self._stage.cluster.commit_index:
                self._stage.violated(f"{self.name} was shown entry {index}, which is not committed (S25)")
        except RequestFailed as error:
            call.outcome = self._not_shown(index, error)
            call.text = str(error)
        call.end = self._now()

    def _not_shown(self, index: int, error: RequestFailed) -> str:
        """The outcome of a get that returned no entry. It is ABSENT if the answer says that there is no such
        committed entry, otherwise UNKNOWN.

        If the log begins after the entry, retention has removed the entry. That says nothing about what is
        committed.
        """
        if error.code is not Code.UNEXPECTED_ARGUMENT:
            return UNKNOWN
        committed = COMMITTED.fullmatch(str(error))
        if committed is None:
            self._stage.violated(f"{self.name} asked for entry {index} and was told: {error}")
            return UNKNOWN
        first, last = int(committed[1]), int(committed[2])
        if first <= index <= last:
            self._stage.violated(f"{self.name} did not get entry {index}, and was told: {error}")
        return UNKNOWN if index < first else ABSENT

    async def _read_point(self, client: DLedgerClient, pick: int) -> None:
        """Ask the leader, or any node, for the read point of a linearizable read that begins now."""
        places = [None, *self._stage.peers.values()]
        call = self._history.begin(Call(self.name, "read", self._now()))
        try:
            call.index = await client.read_index(places[pick % len(places)])
            call.outcome = ACKNOWLEDGED
        except (RequestFailed, OSError) as error:
            call.outcome = UNKNOWN
            call.text = str(error)
        call.end = self._now()

"""Client batches (safety.md S11). They are appended as a broker appends them, by a caller in the leader's own
process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dledger.chaos.scenarios.history import ACKNOWLEDGED, REFUSED, UNKNOWN
from dledger.formats.entry import HEADER_SIZE, Kind
from dledger.formats.record import system_record, system_record_size

if TYPE_CHECKING:
    from dledger.chaos.scenarios.machine import Machine
    from dledger.chaos.scenarios.stage import Stage

Reply = Callable[[str, int], None]
"""Called with an outcome and the index of the batch's first entry."""


class Batches:
    """The client batches of one run. A batch is never answered if its leader ends; then its outcome is
    unknown."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._waiting: dict[str, list[tuple[int, int, int, Reply]]] = {}

    def offer(self, values: list[bytes], reply: Reply) -> None:
        """Let the leader append these values as one batch. `reply` is called with the outcome, outside of any
        process."""
        self._stage.world.push(self._stage.world.now, lambda _: self._deliver(values, reply), None)

    def started(self, machine: Machine) -> None:
        """Note that a node was started again. Batches that waited at this node before the start are never
        answered."""
        self._waiting[machine.name] = []

    def committed(self, machine: Machine, index: int) -> None:
        """Answer the batches that wait at this node, up to its new commit index."""
        waiting = self._waiting[machine.name]
        while waiting and waiting[0][1] <= index:
            first, last, term, reply = waiting.pop(0)
            entry = machine.log.get(last)
            outcome = ACKNOWLEDGED if entry is not None and entry.term == term else UNKNOWN
            self._answer(reply, outcome, first)

    def _answer(self, reply: Reply, outcome: str, first: int) -> None:
        self._stage.world.push(self._stage.world.now, lambda _: reply(outcome, first), None)

    def _deliver(self, values: list[bytes], reply: Reply) -> None:
        leader = self._stage.leader()
        process = None if leader is None else self._stage.world.nodes[leader].process
        if leader is None or process is None:
            reply(REFUSED, -1)
            return
        machine = self._stage.machines[leader]
        process.loop.call_soon(lambda: self._seal(machine, values, reply))

    def _seal(self, machine: Machine, values: list[bytes], reply: Reply) -> None:
        node = machine.node
        appender = None if node is None else node.appender
        if node is None or appender is None or appender.refusal is not None:
            self._answer(reply, REFUSED, -1)
            return
        sizes = [system_record_size(len(value)) for value in values]
        pos = appender.reserve(sum(HEADER_SIZE + size for size in sizes))
        first = last = appender.next_index
        for place, (value, size) in enumerate(zip(values, sizes, strict=True)):
            record = system_record(value, pos + HEADER_SIZE, appender.now_ms())
            last = appender.add((record,), size, Kind.RAW, len(values) - 1 - place)
            pos += HEADER_SIZE + size
        self._waiting[machine.name].append((first, last, node.term, reply))

"""Faults of runs with brokers. They hit nodes, the NameServer, the clients, and derived files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dledger.chaos.machine.settings import MS
from dledger.chaos.scenarios.broker_stage import NAMESRV, PULL, BrokerStage
from dledger.chaos.scenarios.faults import Injector
from dledger.chaos.scenarios.plan import Fault

DERIVED = ("consumequeue", "state")
ROLL_WITHIN_MS = 8_000
"""How long the fault waits for a broker to put timer messages into the log again, in ms."""
ROLL_MOMENTS_MS = 8
"""The broker is killed less than this many milliseconds after it has put timer messages into the log again.
"""


class BrokerInjector(Injector):
    """Injects the faults of a plan with brokers. It also hits the NameServer and the clients, and shuts
    brokers down as SIGTERM does."""

    def __init__(self, stage: BrokerStage) -> None:
        super().__init__(stage)
        self._brokers = stage
        self._kinds |= {
            "namesrv-kill": self._namesrv_kill,
            "namesrv-leader": self._namesrv_leader,
            "namesrv-power": self._namesrv_power,
            "namesrv-cut": self._namesrv_cut,
            "namesrv-stop": self._namesrv_stop,
            "client-kill": self._client_kill,
            "eio-derived": self._derived_error,
            "roll-kill": self._roll_kill,
            "batch-crash": self._batch_crash,
        }

    def finish(self) -> None:
        super().finish()
        world = self._world
        world.cont(NAMESRV)
        self._brokers.start_namesrv()
        for name in self._brokers.client_names:
            self._brokers.start_client(name)

    def _terminate(self, fault: Fault) -> bool:
        """Shut a broker down, so that it hands leadership over, unregisters and ends. It is started again
        later."""
        target = self._target(fault)
        process = None if target is None else self._world.nodes[target].process
        if target is None or process is None or not self._brokers.shut_down(target):
            return False

        def again() -> None:
            if self.over:
                self._stage.start(target)
            else:
                self._start_later(fault.lasting_ms, target)

        self._stage.when_ended(process, again)
        return True

    # The NameServer

    def _namesrv_kill(self, fault: Fault) -> bool:
        self._world.kill(NAMESRV)
        self._later(fault.lasting_ms, self._brokers.start_namesrv)
        return True

    def _namesrv_leader(self, fault: Fault) -> bool:
        """Kill the NameServer and, a moment later, the leader: clients must find the next leader without a
        NameServer."""
        if self._stage.leader() is None:
            return False
        self._namesrv_kill(fault)
        shorter = replace(fault, lasting_ms=fault.lasting_ms // 2)

        def kill() -> None:
            self._kill(shorter)

        self._later(fault.pick % 100, kill)
        return True

    def _namesrv_power(self, fault: Fault) -> bool:
        self._world.power_cut(NAMESRV, mode=self._mode(fault))
        self._later(fault.lasting_ms, self._brokers.start_namesrv)
        return True

    def _namesrv_cut(self, fault: Fault) -> bool:
        """Cut the NameServer off from all machines, from one broker, or from any one machine."""
        others = [*self._stage.names, *self._stage.client_names]
        if fault.pick % 3:
            target = self._target(fault) or self._stage.names[0]
            others = [target] if fault.pick % 3 == 1 else [others[fault.pick // 3 % len(others)]]
        pairs = [(NAMESRV, other) for other in others]
        return self._block(fault, pairs + [(other, NAMESRV) for _, other in pairs])

    def _namesrv_stop(self, fault: Fault) -> bool:
        if not self._brokers.namesrv_runs:
            return False
        self._world.stop(NAMESRV)
        self._later(fault.lasting_ms, partial(self._world.cont, NAMESRV))
        return True

    # Derived files

    def _derived_error(self, fault: Fault) -> bool:
        """Let the next writes or fsyncs of ConsumeQueues or of their snapshot fail. The broker then ends."""
        target = self._target(fault)
        if target is None:
            return False
        disk, machine = self._world.nodes[target].disk, self._stage.machines[target]
        place = DERIVED[fault.pick // 2 % len(DERIVED)]
        disk.fail(
            "fsync" if fault.pick % 2 else "write", fault.amount, f"{self._brokers.broker_root}/{place}"
        )
        machine.may_end = True

        def again() -> None:
            disk.mend()
            machine.may_end = False
            self._world.kill(target)
            self._stage.start(target)

        self._later(fault.lasting_ms, again)
        return True

    # What a broker appends by itself

    def _batch_crash(self, fault: Fault) -> bool:
        """End the leader before its n-th effect after the next batch of messages that it makes from its own
        state.

        Every second time these messages are delayed messages that are due. Otherwise they may also be timers,
        committed transactions, or copies of messages for a retry. From this fault on, each push of the leader
        holds one batch. So if the leader writes two batches in one turn although the content belongs into one
        batch (safety.md S11), the crash separates them.
        """
        name = self._stage.leader()
        broker = None if name is None else self._brokers.broker(name)
        process = None if name is None else self._world.nodes[name].process
        node = None if name is None else self._stage.machines[name].node
        if name is None or broker is None or process is None or node is None:
            return False
        replication, writer = node.replicator.leader, broker.gate.writer
        if replication is None or writer is None:
            return False
        replication.push_bytes = 1
        together, restored, delays = writer.add_together, writer.add_restored, broker.features.schedule.delays
        before, armed = [delays.delivered], [True]

        def crash(made: bool) -> None:
            wanted = delays.delivered != before[0] if fault.pick // 2 % 2 else made
            before[0] = delays.delivered
            if wanted and armed and not self.over:
                armed.clear()
                self._stage.marks.reach("a leader ended behind a batch that it made by itself")
                self._world.crash_before(name, fault.amount, power=fault.pick % 2 > 0, mode=self._mode(fault))
                self._start_when_ended(fault.lasting_ms, name)

        def add_together(messages: Sequence[Any], ops: Sequence[Any]) -> int:
            index = together(messages, ops)
            crash(bool(messages))
            return index

        def add_restored(found: Any, ops: Sequence[Any]) -> int:
            index = restored(found, ops)
            crash(True)
            return index

        vars(writer).update(add_together=add_together, add_restored=add_restored)
        return True

    # Timers

    def _roll_kill(self, fault: Fault) -> bool:
        """Wait for a broker that puts waiting timer messages into the log again, and kill it a moment later.
        The messages may then be uncommitted, committed or applied."""
        rolled = {name: self._rolled(name) for name in self._stage.names}
        self._await_roll(fault, rolled, self._world.now + ROLL_WITHIN_MS * MS)
        return True

    def _await_roll(self, fault: Fault, before: dict[str, tuple[int, int]], until: int) -> None:
        for name, (life, count) in before.items():
            now = self._rolled(name)
            if now[1] > (count if now[0] == life else 0):
                self._later(fault.pick % ROLL_MOMENTS_MS, partial(self._kill_one, name, fault.lasting_ms))
                return
        if self._world.now < until:
            self._later(1, partial(self._await_roll, fault, before, until))

    def _rolled(self, name: str) -> tuple[int, int]:
        """The number of a broker's starts, and how many messages the broker has put into the log again since
        its last start."""
        host = self._stage.machines[name].host
        broker = getattr(host, "broker", None)
        return (
            (0, 0)
            if broker is None
            else (self._stage.machines[name].lives, broker.features.timer.service.rolled)
        )

    def _kill_one(self, name: str, lasting_ms: int) -> None:
        if self._world.nodes[name].process is not None:
            self._stage.marks.reach("a broker was killed as it put timer messages into the log again")
            self._world.kill(name)
            self._start_later(lasting_ms, name)

    # Clients

    def _client_kill(self, fault: Fault) -> bool:
        """Kill the pull consumer every second time, otherwise any client. The client is started again and
        continues."""
        names = self._brokers.client_names
        wanted = names[PULL : PULL + 1] if fault.pick % 2 else names
        running = [name for name in wanted if self._world.nodes[name].process is not None]
        if not running:
            return False
        name = running[fault.pick // 2 % len(running)]
        self._world.kill(name)
        self._later(fault.lasting_ms, partial(self._brokers.start_client, name))
        return True

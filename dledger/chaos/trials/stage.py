"""The trial as its client programs see it, and the programs themselves.

The programs are those of the simulator (`dledger.chaos.scenarios.broker_clients`). Here they run in one
process, on a usual event loop, against real brokers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dledger.chaos.scenarios.broker_clients import FIRST_TOPIC, Producer, Program
from dledger.chaos.scenarios.broker_history import BrokerHistory
from dledger.chaos.scenarios.broker_replay import Stored
from dledger.chaos.scenarios.marks import Marks
from dledger.chaos.scenarios.oracle import Queue
from dledger.chaos.scenarios.plan import Operation
from dledger.chaos.trials.client_kinds import CLIENTS
from dledger.chaos.trials.probing import TOPIC as PROBE_TOPIC
from dledger.chaos.trials.programs import SENDS, FocusedProducer
from dledger.chaos.trials.system import SystemUnderTest
from dledger.local.ports import HOST
from dledger.runtime.env import Env, production_env


class TrialStage:
    """Implements `EveryStage` for a trial. Its time begins at 0 with the trial."""

    def __init__(self, system: SystemUnderTest, clients: Sequence[str], send: str = "mixed") -> None:
        """`clients` names the kinds of client programs, and `send` what the producers send (`SENDS`)."""
        self.marks: Marks = Marks()
        self.measured: bool = False
        self.begun: int = 0
        self._system = system
        self._clients = tuple(clients)
        self._send = send
        self._began = time.monotonic_ns()
        self._running: dict[str, None] = {}
        self.client_names: tuple[str, ...] = tuple(
            f"{kind}-{number}" for kind in clients for number in range(CLIENTS[kind].count)
        )

    @property
    def elections(self) -> int:
        """How many leaders were seen so far."""
        return self._system.elections

    @elections.setter
    def elections(self, value: int) -> None:
        raise AttributeError("the watcher counts the elections")

    @property
    def namesrv_addr(self) -> str:
        return self._system.namesrv_addr

    @property
    def broker_name(self) -> str:
        return self._system.broker_name

    @property
    def namespace(self) -> str:
        return self._system.namespace

    @property
    def resets_in_order(self) -> bool:
        return "pop-orderly" in self._clients

    def begin(self) -> None:
        """Begin the time of the trial."""
        self._began = time.monotonic_ns()
        self._system.begin()

    def now_ns(self) -> int:
        """Time since the beginning of the trial, in ns."""
        return time.monotonic_ns() - self._began

    @property
    def made_topics(self) -> list[str]:
        """Topics that the trial has to create before its clients start."""
        others = [CLIENTS[kind].topic for kind in self._clients if CLIENTS[kind].topic]
        return list(dict.fromkeys([*([PROBE_TOPIC] if "probe" in self._clients else []), *others]))

    @property
    def peers(self) -> Mapping[str, str]:
        return self._system.log_addresses()

    def client_directory(self, name: str) -> Path:
        return self._system.client_directory(name)

    def client_address(self, name: str) -> str:
        return HOST

    def client_now(self, name: str) -> int:
        return self.now_ns()

    def client_runs(self, name: str) -> bool:
        return name in self._running

    def leader_term(self) -> int:
        return self._system.leader_term()

    def committed_messages(self) -> Mapping[Queue, Sequence[Stored]]:
        return {}

    async def run(self, program: Program, seed: int) -> None:
        """Run a program to its end."""
        env = client_env(seed, program.name)
        self._running[program.name] = None
        try:
            await program.main(env)
        finally:
            self._running.pop(program.name, None)
            env.workers.close()

    def programs(self, history: BrokerHistory, operations: Sequence[Operation]) -> list[Program]:
        """Make all programs of the trial."""
        topics = [FIRST_TOPIC, *self.made_topics]
        found: list[Program] = []
        for kind in map(CLIENTS.__getitem__, self._clients):
            for make in kind.programs:
                found.append(make(self, len(found), history, topics))
            for client, planned in enumerate(kind.planned, kind.first):
                own = [one for one in operations if one.client == client]
                make_planned = self._producer() if planned is Producer else planned
                found.append(make_planned(self, len(found), history, topics, own))
        return found

    def _producer(self) -> type[Producer]:
        focus = SENDS[self._send]
        return Producer if focus is None else type("Focused", (FocusedProducer,), {"kind": focus})


def client_env(seed: int, name: str) -> Env:
    """The access of a client program to the outside world. Its random decisions follow from the seed; its ids
    do not, because two trials must not share them."""
    return replace(production_env(name), random=random.Random(f"{seed}/{name}"))

"""The trial as its client programs see it, and the programs themselves.

The programs are those of the simulator (`dledger.chaos.scenarios.broker_clients`). Here they run in one
process, on a usual event loop, against real brokers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dledger.chaos.scenarios.broker_clients import (
    FIRST_TOPIC,
    Operator,
    OrderlyWorker,
    Producer,
    Program,
    PushWorker,
)
from dledger.chaos.scenarios.broker_history import BrokerHistory
from dledger.chaos.scenarios.broker_replay import Stored
from dledger.chaos.scenarios.marks import Marks
from dledger.chaos.scenarios.oracle import Queue
from dledger.chaos.scenarios.ordered_worker import OrderedWorker
from dledger.chaos.scenarios.plan import Operation
from dledger.chaos.scenarios.pop_worker import PopWorker
from dledger.chaos.scenarios.unaware_reader import UnawareReader
from dledger.chaos.trials.arena import Arena
from dledger.chaos.trials.probing import TOPIC as PROBE_TOPIC
from dledger.chaos.trials.probing import Probing
from dledger.chaos.trials.programs import (
    SENDS,
    FocusedProducer,
    PullAndEndReader,
    SlowWorker,
    TopicChurn,
    UserChanges,
)
from dledger.local.ports import HOST
from dledger.runtime.env import Env, production_env

Plain = Callable[["TrialStage", int, BrokerHistory, list[str]], Program]
PROGRAMS: Mapping[str, tuple[Plain, ...]] = {
    "probe": (Probing,),
    "pull": (PullAndEndReader,),
    "push": (PushWorker, PushWorker),
    "pop": (PopWorker, PopWorker),
    "orderly": (OrderlyWorker, OrderlyWorker),
    "pop-orderly": (OrderedWorker, OrderedWorker),
    "topics": (TopicChurn,),
    "unaware": (UnawareReader,),
    "push-slow": (SlowWorker, SlowWorker),
    "users": (UserChanges,),
}
"""The programs of each kind of client that has no operations in the plan."""


class TrialStage:
    """Implements `ClientStage` for a trial. Its time begins at 0 with the trial."""

    def __init__(self, arena: Arena, clients: Sequence[str], send: str = "mixed") -> None:
        """`clients` names the kinds of client programs, and `send` what the producers send (`SENDS`)."""
        self.marks: Marks = Marks()
        self.measured: bool = False
        self.begun: int = 0
        self._arena = arena
        self._clients = tuple(clients)
        self._send = send
        self._began = time.monotonic_ns()
        self._running: dict[str, None] = {}
        self.client_names: tuple[str, ...] = tuple(
            f"{kind}-{number}" for kind in clients for number in range(_count(kind))
        )

    @property
    def elections(self) -> int:
        """How many leaders were seen so far."""
        return self._arena.elections

    @elections.setter
    def elections(self, value: int) -> None:
        raise AttributeError("the watcher counts the elections")

    @property
    def namesrv_addr(self) -> str:
        return self._arena.cluster.namesrv_addr

    @property
    def resets_in_order(self) -> bool:
        return "pop-orderly" in self._clients

    def begin(self) -> None:
        """Begin the time of the trial."""
        self._began = time.monotonic_ns()
        self._arena.begin()

    def now_ns(self) -> int:
        """Time since the beginning of the trial, in ns."""
        return time.monotonic_ns() - self._began

    def client_address(self, name: str) -> str:
        return HOST

    def client_now(self, name: str) -> int:
        return self.now_ns()

    def client_runs(self, name: str) -> bool:
        return name in self._running

    def leader_term(self) -> int:
        return self._arena.leader_term()

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
        topics = [FIRST_TOPIC, *([PROBE_TOPIC] if "probe" in self._clients else [])]
        found: list[Program] = []
        planned = 0
        for kind in self._clients:
            if kind in PROGRAMS:
                found += [
                    make(self, len(found) + at, history, topics) for at, make in enumerate(PROGRAMS[kind])
                ]
                continue
            for _ in range(_count(kind)):
                client = 2 if kind == "operator" else planned
                planned += kind == "producers"
                own = [one for one in operations if one.client == client]
                make_planned = Operator if kind == "operator" else self._producer()
                found.append(make_planned(self, len(found), history, topics, own))
        return found

    def _producer(self) -> type[Producer]:
        focus = SENDS[self._send]
        return Producer if focus is None else type("Focused", (FocusedProducer,), {"kind": focus})


def _count(kind: str) -> int:
    return {"producers": 2, "operator": 1}.get(kind) or len(PROGRAMS[kind])


def client_env(seed: int, name: str) -> Env:
    """The access of a client program to the outside world. Its random decisions follow from the seed; its ids
    do not, because two trials must not share them."""
    return replace(production_env(name), random=random.Random(f"{seed}/{name}"))

"""Runs a trial: starts the group and the clients, injects the faults of the plan, waits until everything came
to its end, stops the group, and lets the checkers judge.

The time limits of the end phase are long. They say "never", not "too slow": how fast a failover was is
measured, and judged nowhere.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from dledger.chaos.failover import LOAD_TOPIC, Helper
from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.broker_clients import Planned, Producer
from dledger.chaos.scenarios.broker_history import BrokerHistory
from dledger.chaos.scenarios.history import ACKNOWLEDGED, REFUSED, UNKNOWN
from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.trials.arena import SEGMENT_SIZE, Arena
from dledger.chaos.trials.checkers import judge, judge_handed
from dledger.chaos.trials.drawing import draw_faults, draw_operations
from dledger.chaos.trials.evidence import Evidence, read_entries, what_waits
from dledger.chaos.trials.nemeses import NEMESES, choose
from dledger.chaos.trials.node_logs import Line, read_lines
from dledger.chaos.trials.probing import TOPIC as PROBE_TOPIC
from dledger.chaos.trials.result import Injected, Result, bins_of, failovers_of
from dledger.chaos.trials.scenario import Scenario
from dledger.chaos.trials.stage import TrialStage, client_env
from dledger.local.cluster import ClusterError
from dledger.local.processes import ProcessError
from dledger.peers.log_client import RequestFailed

WHOLE_LIMIT_S = 60.0
"""Longest time until all nodes have caught up, in seconds."""
CLIENTS_LIMIT_S = 180.0
"""Longest time after the last fault until the producers have made all their operations, in seconds."""
QUIET_LIMIT_S = 180.0
"""Longest time until everything that waits was delivered and every group received it, in seconds."""
LOOK_EVERY_S = 1.0
POLL_S = 0.1
AUDIT_LIMIT_S = 600.0
LOAD_QUEUES = PROBE_QUEUES = 4
STALE_NS = 1_000_000_000
"""How long a leader that was cut off may answer from an old state, in ns, as in the simulator."""

ENDLESS = ("probe", "topics", "users")
"""Clients that would go on for ever. They are ended before the end phase."""

Tell = Callable[[str], None]
FAULT_ERRORS = (ClusterError, ProcessError, RequestFailed, OSError, TimeoutError)
"""Errors with which injecting or undoing a fault may fail. They are noted in the result."""


class Stuck(Exception):
    """Raised when something in the end phase did not come in time."""


class Trial:
    """One trial. `run` may be called once."""

    def __init__(self, scenario: Scenario, seed: int, directory: Path, tell: Tell) -> None:
        self._scenario = scenario
        self._seed = seed
        self._tell = tell
        self._arena = Arena(directory, scenario)
        self._stage = TrialStage(self._arena, scenario.clients, scenario.send)
        self._history = BrokerHistory()
        self._programs = self._stage.programs(self._history, draw_operations(scenario, seed))
        self._faults = draw_faults(scenario, seed)
        self._injected: list[Injected] = []
        stop_ns = max((one.lasting_ms for one in self._faults if one.kind == "stop"), default=0) * 1_000_000
        self._evidence = Evidence(
            self._history,
            clients=scenario.clients,
            stale_ns=STALE_NS + stop_ns,
            clocks_are_right=not any(one.kind == "clock-jump" for one in self._faults),
        )

    async def run(self) -> Result:
        """Run the trial. Raises ClusterError if the group does not start. Whatever goes wrong later is in the
        verdicts."""
        scenario, arena = self._scenario, self._arena
        self._tell(f"starting {scenario.nodes} brokers in {arena.cluster.directory}")
        try:
            await asyncio.to_thread(self._start)
            async with self._load() as load:
                await self._play(load)
        finally:
            try:
                await asyncio.to_thread(arena.cluster.stop)
            finally:
                arena.close()
        self._tell("reading the log and comparing the stores")
        await asyncio.to_thread(self._collect)
        return await asyncio.to_thread(self._result)

    def _start(self) -> None:
        cluster = self._arena.cluster
        cluster.start()
        if "probe" in self._scenario.clients:
            cluster.create_topic(PROBE_TOPIC, PROBE_QUEUES)

    @asynccontextmanager
    async def _load(self) -> AsyncIterator[Helper | None]:
        if not self._scenario.load:
            yield None
            return
        cluster, window = self._arena.cluster, str(self._scenario.load)
        await asyncio.to_thread(cluster.create_topic, LOAD_TOPIC, LOAD_QUEUES)
        with Helper("dledger.chaos.pressure", cluster.namesrv_addr, LOAD_TOPIC, "--window", window) as helper:
            yield helper

    async def _play(self, load: Helper | None) -> None:
        """Clients, faults and the end phase."""
        self._stage.begin()
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self._arena.watch(node), name=f"watch-{node}") for node in self._arena.nodes
            ]
            clients = {
                program.name: tasks.create_task(self._stage.run(program, self._seed), name=program.name)
                for program in self._programs
            }
            background += clients.values()
            if load is not None:
                await asyncio.to_thread(load.ask, "on")
            await self._inject()
            await self._until(self._scenario.seconds)
            for name, client in clients.items():
                if name.rpartition("-")[0] in ENDLESS:
                    client.cancel()
            try:
                await self._end(load)
            except Stuck as stuck:
                self._evidence.delay = str(stuck)
            for task in background:
                task.cancel()

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self._arena.elapsed_s()))

    # Faults

    async def _inject(self) -> None:
        """Inject all faults, each at its time or when the fault before it is over."""
        async with asyncio.TaskGroup() as tasks:
            last: asyncio.Task[None] | None = None
            for fault in self._faults:
                await self._until(fault.at_ms / 1000)
                if self._scenario.whole and last is not None:
                    await last
                    await self._whole()
                if self._arena.elapsed_s() >= self._scenario.seconds:
                    break
                last = tasks.create_task(self._strike(fault), name=f"fault-{fault.at_ms}")

    async def _strike(self, fault: Fault) -> None:
        nodes = choose(self._arena, fault)
        if not nodes and fault.target != "namesrv":
            return  # there is no leader at this moment
        begin = self._arena.elapsed_s()
        place = len(self._injected)
        injected = Injected(fault.kind, fault.target, tuple(nodes), round(begin, 3))
        self._injected.append(injected)
        self._tell(f"{begin:6.1f} s  {fault.kind} of {', '.join(nodes) or fault.target}")
        try:
            undo = await asyncio.to_thread(NEMESES[fault.kind].strike, self._arena, nodes, fault)
            if self._arena.struck_s > begin:  # a message that was sent in between is no failover
                injected = replace(injected, begin_s=round(self._arena.struck_s, 4))
            if undo is not None:
                await asyncio.sleep(fault.lasting_ms / 1000)
                await asyncio.to_thread(undo)
                injected = replace(injected, end_s=round(self._arena.elapsed_s(), 3))
        except FAULT_ERRORS as problem:
            injected = replace(injected, error=str(problem) or repr(problem))
        self._injected[place] = injected

    async def _whole(self) -> None:
        """Wait until all nodes have caught up."""
        try:
            await asyncio.to_thread(self._arena.cluster.wait_caught_up, WHOLE_LIMIT_S)
        except ClusterError as error:
            raise Stuck(str(error)) from error

    # The end

    async def _end(self, load: Helper | None) -> None:
        """Wait until everything came to its end. Raises Stuck if something does not come in time."""
        self._tell("the faults are over: waiting until everything comes to its end")
        await asyncio.to_thread(self._arena.heal)
        await self._whole()
        planned = [one for one in self._programs if isinstance(one, Planned)]
        await self._within(
            CLIENTS_LIMIT_S, "the producers do not end", lambda: all(one.done for one in planned)
        )
        producers = [one for one in planned if isinstance(one, Producer)]
        if producers:
            await self._send_last(producers[-1])
        if load is not None:
            await asyncio.to_thread(load.ask, "off")
            found = await asyncio.to_thread(load.ask, "check")
            twice = max(0, found["stored"] - found["acked"] - found["failed"])
            self._evidence.load = (found["acked"], found["lost"], twice)
        await self._quiet()

    async def _send_last(self, producer: Producer) -> None:
        env = client_env(self._seed, f"{producer.name}-last")
        try:
            async with asyncio.timeout(CLIENTS_LIMIT_S):
                await producer.send_last(env)
        except TimeoutError:
            raise Stuck(f"after {CLIENTS_LIMIT_S:g} s not every topic takes a message") from None
        finally:
            env.workers.close()

    async def _quiet(self) -> None:
        """Wait until nothing waits any longer in the group, and every consumer group received everything."""
        deadline = time.monotonic() + QUIET_LIMIT_S
        while True:
            missing = await asyncio.to_thread(self._missing)
            if not missing:
                return
            if time.monotonic() > deadline:
                raise Stuck(f"after {QUIET_LIMIT_S:g} s: {missing}")
            await asyncio.sleep(LOOK_EVERY_S)

    def _missing(self) -> str:
        leader = self._arena.leader()
        if leader is None:
            return "no node leads"
        state = self._arena.cluster.state(leader)
        look = Evidence(self._history, clients=self._scenario.clients)
        store = str(self._arena.cluster.store(leader))
        read_entries(store, SEGMENT_SIZE, int(state.get("committed_index", -1)), look.replay.apply)
        if waits := what_waits(look.replay):
            return f"{waits} wait"
        try:
            judge_handed(look)
        except InvariantViolated as lagging:
            return str(lagging)
        return ""

    async def _within(self, limit_s: float, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > deadline:
                raise Stuck(f"after {limit_s:g} s {what}")
            await asyncio.sleep(POLL_S)

    # The verdicts

    def _collect(self) -> None:
        """Read the log of the node whose log reaches furthest, and audit all stores."""
        cluster, evidence = self._arena.cluster, self._evidence
        ends = {
            node: read_entries(str(cluster.store(node)), SEGMENT_SIZE, None, lambda header, record: None)
            for node in self._arena.nodes
        }
        longest = max(ends, key=lambda node: ends[node])
        read_entries(str(cluster.store(longest)), SEGMENT_SIZE, None, evidence.apply)
        stores = [str(cluster.store(node)) for node in self._arena.nodes]
        command = [sys.executable, "-m", "dledger", "audit", "compare", *stores, "--same-time"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=AUDIT_LIMIT_S, check=False)
        evidence.replicas = (done.returncode, done.stdout[-4000:] + done.stderr[-2000:])

    def _lines(self) -> list[Line]:
        arena = self._arena
        logs = arena.cluster.directory / "logs"
        found = [
            line
            for node in arena.nodes
            for line in read_lines(logs / f"broker-{node}", node, arena.began_wall)
        ]
        return sorted(found, key=lambda line: line.at_s)

    def _result(self) -> Result:
        scenario, history = self._scenario, self._history
        sends = history.sends
        counts = {
            "acknowledged": sum(send.outcome == ACKNOWLEDGED for send in sends),
            "refused": sum(send.outcome == REFUSED for send in sends),
            "unknown": sum(send.outcome == UNKNOWN for send in sends),
            "received": len(history.receipts),
            "entries": self._evidence.replay.index + 1,
            "elections": self._arena.elections,
            "faults": len(self._injected),
            "load": self._evidence.load[0],
        }
        return Result(
            scenario=scenario.name,
            purpose=scenario.purpose,
            must_hold=scenario.must_hold,
            seed=self._seed,
            seconds=scenario.seconds,
            command=f"dledger chaos run {scenario.name} --seconds {scenario.seconds:g} --seed {self._seed}",
            nodes=self._arena.nodes,
            flush=scenario.flush,
            clients=scenario.clients,
            network="" if self._arena.network is None else self._arena.network.kind,
            notes=self._arena.notes,
            faults=self._injected,
            roles=self._arena.seen,
            failovers=failovers_of(self._injected, sends, self._lines()),
            bins=bins_of(sends, self._arena.elapsed_s()),
            counts=counts,
            verdicts=judge(self._evidence),
        )


async def run_trial(scenario: Scenario, seed: int, directory: Path, tell: Tell) -> Result:
    """Run one trial in this directory, which must be empty or new."""
    return await Trial(scenario, seed, directory, tell).run()

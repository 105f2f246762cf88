"""Runs a trial: starts the group and the clients, injects the faults of the plan, waits until everything came
to its end, stops the group, and lets the checkers judge.

The time limits of the end phase are so long that only what never comes exceeds them. How fast a failover was
is measured, and judged nowhere.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.line_process import LineProcess
from dledger.chaos.pressure import LOAD_TOPIC
from dledger.chaos.scenarios.broker_clients import Planned, Producer
from dledger.chaos.scenarios.broker_history import BrokerHistory
from dledger.chaos.scenarios.history import ACKNOWLEDGED, REFUSED, UNKNOWN
from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.trials.arena import Arena
from dledger.chaos.trials.checkers import judge, judge_handed, stored_again
from dledger.chaos.trials.client_kinds import kind_of
from dledger.chaos.trials.drawing import draw_faults, draw_operations
from dledger.chaos.trials.evidence import Evidence, what_waits
from dledger.chaos.trials.injected import Injected
from dledger.chaos.trials.nemeses import choose
from dledger.chaos.trials.other_clients import OtherClient
from dledger.chaos.trials.result import Result, bins_of, failovers_of, programs_of
from dledger.chaos.trials.scenario import Scenario
from dledger.chaos.trials.stage import TrialStage, client_env
from dledger.chaos.trials.system import SystemUnderTest, Undo
from dledger.local.cluster import ClusterError
from dledger.local.processes import ProcessError
from dledger.peers.log_client import RequestFailed

WHOLE_LIMIT_S = 60.0
"""Longest time until all nodes have caught up, in seconds."""
CLIENTS_LIMIT_S = 180.0
"""Longest time after the last fault until the producers have made all their operations, in seconds."""
QUIET_LIMIT_S = 180.0
"""Longest time until everything that waits was delivered and every group received it, in seconds."""
OTHERS_LIMIT_S = 180.0
"""Longest time in which the clients of other projects have to start, in seconds."""
LOOK_EVERY_S = 1.0
POLL_S = 0.1
LOAD_QUEUES = PROBE_QUEUES = 4
FAULT_THREADS = 8
"""Largest number of faults that are injected or undone at the same time."""
T = TypeVar("T")
STALE_NS = 1_000_000_000
"""How long a leader that was cut off may answer from an old state, in ns, as in the simulator."""
STANDSTILL = ("stop", "disk-hang")
"""Kinds of faults during which a leader may not apply what the others acknowledge for it, and answers with
its old state until it is deposed."""

Tell = Callable[[str], None]
FAULT_ERRORS = (ClusterError, ProcessError, RequestFailed, OSError, TimeoutError)
"""Errors with which injecting or undoing a fault may fail. They are noted in the result."""


FAILOVER_KINDS = ("kill", "stop", "wipe", "power-loss", "partition")
"""Kinds of faults that take the leader away without a warning, so that a failover follows."""


class Stuck(Exception):
    """Raised when something did not come in time."""


class Trial:
    """One trial. `run` may be called once."""

    def __init__(
        self, system: SystemUnderTest, scenario: Scenario, seed: int, tell: Tell, command: str
    ) -> None:
        """`command` is the command that repeats this trial."""
        self._scenario = scenario
        self._command = command
        self._seed = seed
        self._tell = tell
        self._system = system
        self._stage = TrialStage(system, scenario.clients, scenario.send)
        self._history = BrokerHistory()
        self._programs = self._stage.programs(self._history, draw_operations(scenario, seed))
        self._faults = draw_faults(scenario, seed)
        self._injected: list[Injected] = []
        self._ended_s = 0.0
        self._threads = ThreadPoolExecutor(FAULT_THREADS, thread_name_prefix="fault")
        self._evidence = Evidence(
            self._history,
            clients=scenario.clients,
            checked_topics=tuple(scenario.settings.get("duplicateCheckTopics", "").split(",")),
            planned=tuple(dict.fromkeys(fault.kind for fault in self._faults)),
            clocks_are_right=not any(one.kind == "clock-jump" for one in self._faults),
        )

    async def run(self) -> Result:
        """Run the trial. Raises ClusterError if the group does not start. Whatever goes wrong later is in the
        verdicts."""
        system = self._system
        self._tell(f"starting with {system.where}")
        try:
            try:
                await self._in_thread(partial(system.start, self._topics()))
                async with self._load() as load:
                    await self._play(load)
                await asyncio.to_thread(system.stop)
            except BaseException:  # also if the trial is interrupted: whatever happens, nothing stays behind
                await asyncio.shield(asyncio.to_thread(self._end_now))
                raise
            self._threads.shutdown()
        finally:
            system.close()
        self._tell("reading the log and judging")
        await asyncio.to_thread(self._collect)
        return await asyncio.to_thread(self._result)

    def _end_now(self) -> None:
        """End what faults do, wait until no fault does anything more, and leave nothing behind."""
        self._system.interrupt()
        self._threads.shutdown()
        self._system.clear()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Run a blocking call that may start processes, in a thread that `_end_now` waits for."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _topics(self) -> dict[str, int]:
        """The topics that have to exist before the clients start, with their numbers of queues."""
        found = dict.fromkeys(self._stage.made_topics, PROBE_QUEUES)
        return found | ({LOAD_TOPIC: LOAD_QUEUES} if self._scenario.load else {})

    @asynccontextmanager
    async def _load(self) -> AsyncIterator[LineProcess | None]:
        if not self._scenario.load:
            yield None
            return
        options = ["--window", str(self._scenario.load), "--namespace", self._system.namespace]
        with LineProcess("dledger.chaos.pressure", self._system.namesrv_addr, LOAD_TOPIC, *options) as helper:
            yield helper

    async def _play(self, load: LineProcess | None) -> None:
        """Clients, faults and the end phase."""
        others = [one for one in self._programs if isinstance(one, OtherClient)]
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self._stage.run(program, self._seed), name=program.name)
                for program in others
            ]
            try:
                self._stage.begin()
                await self._others_ready(others)
                self._stage.begin()
                await self._play_on(tasks, background, others, load)
            except (Stuck, *FAULT_ERRORS) as problem:
                self._evidence.delay = str(problem) or repr(problem)
            self._ended_s = self._system.elapsed_s()
            for task in background:
                task.cancel()

    async def _others_ready(self, others: Sequence[OtherClient]) -> None:
        """Start the clients of other projects. Raises Stuck if one does not come to this in time."""
        if others:
            self._tell(f"starting {', '.join(one.name for one in others)}")
        await self._within(
            OTHERS_LIMIT_S, "clients of other projects do not start", lambda: all(one.ready for one in others)
        )
        _check_others(others)

    async def _play_on(
        self,
        tasks: asyncio.TaskGroup,
        background: list[asyncio.Task[None]],
        others: Sequence[OtherClient],
        load: LineProcess | None,
    ) -> None:
        """Everything after the clients of other projects have started. Tasks that do not end by themselves
        are added to `background`."""
        background += [
            tasks.create_task(self._system.watch(node), name=f"watch-{node}") for node in self._system.nodes
        ]
        clients = {
            program.name: tasks.create_task(self._stage.run(program, self._seed), name=program.name)
            for program in self._programs
            if program not in others
        }
        background += clients.values()
        for other in others:
            await other.begin()
        if load is not None:
            await asyncio.to_thread(load.ask, "on")
        await self._inject()
        await self._until(self._scenario.seconds)
        for name, client in clients.items():
            if kind_of(name).endless:
                client.cancel()
        for other in others:
            await other.stop_sending()
        await self._end(load, others)

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self._system.elapsed_s()))

    # Faults

    async def _inject(self) -> None:
        """Inject all faults, each at its time or when the fault before it is over.

        When the time of the trial is over, only kinds that were not injected yet follow, because on a busy
        machine everything takes longer. Raises Stuck if the nodes do not catch up after a fault.
        """
        strikes: list[asyncio.Task[None]] = []
        delay = ""
        async with asyncio.TaskGroup() as tasks:
            for fault in self._faults:
                await self._until(fault.at_ms / 1000)
                if self._scenario.whole and strikes:
                    await strikes[-1]
                    if delay := await self._not_whole():
                        break
                late = self._system.elapsed_s() >= self._scenario.seconds
                if late and any(one.kind == fault.kind and not one.error for one in self._injected):
                    continue
                strikes.append(tasks.create_task(self._strike(fault), name=f"fault-{fault.at_ms}"))
        if delay:
            raise Stuck(f"after a fault: {delay}")

    async def _strike(self, fault: Fault) -> None:
        system = self._system
        nodes = choose(system, fault)
        if not nodes and fault.target != "namesrv":
            return  # there is no leader at this moment
        place = len(self._injected)
        injected = Injected(fault.kind, fault.target, tuple(nodes), round(system.elapsed_s(), 3))
        self._injected.append(injected)
        self._tell(f"{injected.begin_s:6.1f} s  {fault.kind} of {', '.join(nodes) or fault.target}")

        def strike() -> tuple[Undo | None, float | None]:
            system.strikes()
            return system.strike(nodes, fault), system.struck_s()

        try:
            undo, struck_s = await self._in_thread(strike)
            if struck_s is not None:  # a message that was sent before the signal is no failover
                injected = replace(injected, begin_s=round(struck_s, 4))
            if system.executes(fault.kind):
                injected = replace(injected, command_s=round(system.elapsed_s() - injected.begin_s, 3))
            if undo is not None:
                await asyncio.sleep(fault.lasting_ms / 1000)
                await self._in_thread(undo)
                injected = replace(injected, end_s=round(system.elapsed_s(), 3))
        except FAULT_ERRORS as problem:
            injected = replace(injected, error=str(problem) or repr(problem))
        self._injected[place] = injected

    async def _not_whole(self) -> str:
        """Wait until all nodes have caught up. Returns what is wrong if they do not; otherwise an empty
        text."""
        return await self._in_thread(partial(self._system.not_whole, WHOLE_LIMIT_S))

    # The end

    async def _end(self, load: LineProcess | None, others: Sequence[OtherClient]) -> None:
        """Wait until everything came to its end. Raises Stuck if something does not come in time."""
        self._tell("the faults are over: waiting until everything comes to its end")
        await self._in_thread(self._system.heal)
        if delay := await self._not_whole():
            raise Stuck(delay)
        planned = [one for one in self._programs if isinstance(one, Planned)]
        if left := sum(one.leave_out_rest() for one in planned):
            self._system.note(f"{left} operations of the plan were left out: the time of the trial was over")
        await self._within(
            CLIENTS_LIMIT_S,
            "the producers do not end",
            lambda: all(one.done for one in planned) and all(one.done for one in others),
        )
        _check_others(others)
        producers = [one for one in planned if isinstance(one, Producer)]
        if producers:
            await self._send_last(producers[-1])
        if load is not None:
            await asyncio.to_thread(load.ask, "off")
            found = await asyncio.to_thread(load.ask, "check")
            self._evidence.load = (found["acked"], found["lost"])
        await self._quiet()
        _check_others(others)

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
        """What has not come yet, as a text; empty if everything has."""
        look = Evidence(self._history, clients=self._scenario.clients)
        if problem := self._system.read_committed(look):
            return problem
        if "log" in look.broken:
            return ""  # the verdicts will say it
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
        evidence = self._evidence
        stops = [one.end_s - one.begin_s for one in self._injected if one.kind in STANDSTILL and one.end_s]
        evidence.stale_ns = STALE_NS + round(max(stops, default=0.0) * 1e9)
        evidence.injected = self._injected
        self._system.collect(evidence, self._injected, self._ended_s)

    def _result(self) -> Result:
        scenario, history = self._scenario, self._history
        sends = history.sends
        counts = {
            "acknowledged": sum(send.outcome == ACKNOWLEDGED for send in sends),
            "refused": sum(send.outcome == REFUSED for send in sends),
            "unknown": sum(send.outcome == UNKNOWN for send in sends),
            "received": len(history.receipts),
            "entries": self._evidence.entry_count,
            "elections": self._system.elections,
            "faults": sum(not one.error for one in self._injected),
            "failed_faults": sum(bool(one.error) for one in self._injected),
            "load": self._evidence.load[0],
            "stored_again": stored_again(self._evidence),
        }
        return Result(
            scenario=scenario.name,
            purpose=scenario.purpose,
            must_hold=scenario.must_hold,
            seed=self._seed,
            seconds=scenario.seconds,
            command=self._command,
            began=datetime.fromtimestamp(self._system.began_wall, UTC).isoformat(timespec="seconds"),
            ended_s=round(self._ended_s, 1),
            program=f"dledger {_version()}, Python {platform.python_version()}, {os.cpu_count()} cores",
            nodes=self._system.nodes,
            size=self._system.size,
            flush=self._system.flush,
            clients=scenario.clients,
            network="" if self._system.network is None else self._system.network.kind,
            group=self._system.where,
            notes=self._system.notes,
            left_out=dict(self._system.left_out),
            flights=list(self._evidence.flights),
            faults=self._injected,
            roles=self._system.seen,
            failovers=failovers_of(
                [one for one in self._injected if one.kind in FAILOVER_KINDS], sends, self._system.lines()
            ),
            bins=bins_of(sends, self._ended_s),
            counts=counts,
            programs=programs_of(sends, history.receipts),
            verdicts=judge(self._evidence),
        )


def _check_others(others: Sequence[OtherClient]) -> None:
    """Raise Stuck if a client of another project could not go on."""
    if errors := [one.error for one in others if one.error]:
        raise Stuck("; ".join(errors))


def _version() -> str:
    try:
        return importlib.metadata.version("dledger")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


async def run_trial(scenario: Scenario, seed: int, directory: Path, tell: Tell, named: str = "") -> Result:
    """Run one trial on a group of its own in this directory, which must be empty or new. `named` is how the
    user named the scenario."""
    command = f"dledger chaos run {named or scenario.name} --seconds {scenario.seconds:g} --seed {seed}"
    return await run_on(Arena(directory, scenario), scenario, seed, tell, command)


async def run_on(system: SystemUnderTest, scenario: Scenario, seed: int, tell: Tell, command: str) -> Result:
    """Run one trial on this system. `command` repeats it. SIGTERM and SIGHUP end it as Ctrl-C does: nothing
    stays behind."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    return await Trial(system, scenario, seed, tell, command).run()

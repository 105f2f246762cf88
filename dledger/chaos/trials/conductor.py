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
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from dledger.chaos.failover import LOAD_TOPIC, Helper
from dledger.chaos.flight_replay import replay_path
from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.broker_clients import Planned, Producer
from dledger.chaos.scenarios.broker_history import BrokerHistory
from dledger.chaos.scenarios.history import ACKNOWLEDGED, REFUSED, UNKNOWN
from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.trials.arena import SEGMENT_SIZE, Arena
from dledger.chaos.trials.checkers import judge, judge_handed
from dledger.chaos.trials.drawing import draw_faults, draw_operations
from dledger.chaos.trials.evidence import Evidence, read_entries, what_waits
from dledger.chaos.trials.injected import Flight, Injected
from dledger.chaos.trials.nemeses import FILES, NEMESES, Undo, choose
from dledger.chaos.trials.node_logs import Line, read_lines
from dledger.chaos.trials.probing import TOPIC as PROBE_TOPIC
from dledger.chaos.trials.result import Result, bins_of, failovers_of
from dledger.chaos.trials.scenario import Scenario
from dledger.chaos.trials.stage import TrialStage, client_env
from dledger.files.offline import InstallUnfinished, StoreUnreadable, node_directory
from dledger.flight.reading import UnusableRecording
from dledger.formats.entry import EntryHeader
from dledger.local.cluster import ClusterError
from dledger.local.processes import ProcessError
from dledger.log.base import ORIGIN
from dledger.peers.log_client import RequestFailed
from dledger.runtime.files import OsFiles
from dledger.runtime.signals import TERMINATED

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
FAULT_THREADS = 8
"""Largest number of faults that are injected or undone at the same time."""
T = TypeVar("T")
STALE_NS = 1_000_000_000
"""How long a leader that was cut off may answer from an old state, in ns, as in the simulator."""
STANDSTILL = ("stop", "disk-hang")
"""Kinds of faults during which a leader may not apply what the others acknowledge for it, and answers with
its old state until it is deposed."""

ENDLESS = ("probe", "topics", "users")
"""Clients that would go on for ever. They are ended before the end phase."""

Tell = Callable[[str], None]
FAULT_ERRORS = (ClusterError, ProcessError, RequestFailed, OSError, TimeoutError)
"""Errors with which injecting or undoing a fault may fail. They are noted in the result."""
UNREADABLE_STORE = (StoreUnreadable, InstallUnfinished, OSError)


FAILOVER_KINDS = ("kill", "stop", "wipe", "power-loss", "partition")
"""Kinds of faults that take the leader away without a warning, so that a failover follows."""


class Stuck(Exception):
    """Raised when something did not come in time."""


class Trial:
    """One trial. `run` may be called once."""

    def __init__(self, scenario: Scenario, seed: int, directory: Path, tell: Tell, named: str) -> None:
        """`named` is how the user named the scenario: its name or its file."""
        self._scenario = scenario
        self._named = named
        self._seed = seed
        self._tell = tell
        self._arena = Arena(directory, scenario)
        self._stage = TrialStage(self._arena, scenario.clients, scenario.send)
        self._history = BrokerHistory()
        self._programs = self._stage.programs(self._history, draw_operations(scenario, seed))
        self._faults = draw_faults(scenario, seed)
        self._injected: list[Injected] = []
        self._ended_s = 0.0
        self._threads = ThreadPoolExecutor(FAULT_THREADS, thread_name_prefix="fault")
        self._begin_looking()
        self._evidence = Evidence(
            self._history,
            clients=scenario.clients,
            planned=tuple(dict.fromkeys(fault.kind for fault in self._faults)),
            clocks_are_right=not any(one.kind == "clock-jump" for one in self._faults),
        )

    async def run(self) -> Result:
        """Run the trial. Raises ClusterError if the group does not start. Whatever goes wrong later is in the
        verdicts."""
        scenario, arena = self._scenario, self._arena
        self._tell(f"starting {scenario.nodes} brokers in {arena.cluster.directory}")
        try:
            try:
                await self._in_thread(self._start)
                async with self._load() as load:
                    await self._play(load)
            except BaseException:  # also if the trial is interrupted: whatever happens, nothing stays behind
                await asyncio.shield(asyncio.to_thread(self._end_now))
                raise
            await asyncio.to_thread(arena.stop)
            self._threads.shutdown()
        finally:
            arena.close()
        self._tell("reading the log and comparing the stores")
        await asyncio.to_thread(self._collect)
        return await asyncio.to_thread(self._result)

    def _end_now(self) -> None:
        """End all processes, and wait until no fault starts another one."""
        self._arena.kill()
        self._threads.shutdown()
        self._arena.kill()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Run a blocking call that may start processes, in a thread that `_end_now` waits for."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _start(self) -> None:
        cluster = self._arena.cluster
        with self._arena.starting:
            if self._arena.closing:
                return
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
            try:
                await self._inject()
                await self._until(self._scenario.seconds)
                for name, client in clients.items():
                    if name.rpartition("-")[0] in ENDLESS:
                        client.cancel()
                await self._end(load)
            except (Stuck, *FAULT_ERRORS) as problem:
                self._evidence.delay = str(problem) or repr(problem)
            self._ended_s = self._arena.elapsed_s()
            for task in background:
                task.cancel()

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self._arena.elapsed_s()))

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
                late = self._arena.elapsed_s() >= self._scenario.seconds
                if late and any(one.kind == fault.kind and not one.error for one in self._injected):
                    continue
                strikes.append(tasks.create_task(self._strike(fault), name=f"fault-{fault.at_ms}"))
        if delay:
            raise Stuck(f"after a fault: {delay}")

    async def _strike(self, fault: Fault) -> None:
        arena = self._arena
        nodes = choose(arena, fault)
        if not nodes and fault.target != "namesrv":
            return  # there is no leader at this moment
        place = len(self._injected)
        injected = Injected(fault.kind, fault.target, tuple(nodes), round(arena.elapsed_s(), 3))
        self._injected.append(injected)
        self._tell(f"{injected.begin_s:6.1f} s  {fault.kind} of {', '.join(nodes) or fault.target}")

        def strike() -> tuple[Undo | None, float | None]:
            arena.strikes()
            return NEMESES[fault.kind].strike(arena, nodes, fault), arena.struck_s()

        try:
            undo, struck_s = await self._in_thread(strike)
            if struck_s is not None:  # a message that was sent before the signal is no failover
                injected = replace(injected, begin_s=round(struck_s, 4))
            if undo is not None:
                await asyncio.sleep(fault.lasting_ms / 1000)
                await self._in_thread(undo)
                injected = replace(injected, end_s=round(arena.elapsed_s(), 3))
        except FAULT_ERRORS as problem:
            injected = replace(injected, error=str(problem) or repr(problem))
        self._injected[place] = injected

    async def _not_whole(self) -> str:
        """Wait until all nodes have caught up. Returns what is wrong if they do not; otherwise an empty
        text."""
        try:
            await self._in_thread(partial(self._arena.cluster.wait_caught_up, WHOLE_LIMIT_S))
        except ClusterError as error:
            return str(error)
        return ""

    # The end

    async def _end(self, load: Helper | None) -> None:
        """Wait until everything came to its end. Raises Stuck if something does not come in time."""
        self._tell("the faults are over: waiting until everything comes to its end")
        await self._in_thread(self._arena.heal)
        if delay := await self._not_whole():
            raise Stuck(delay)
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
            self._evidence.load = (found["acked"], found["lost"])
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

    def _begin_looking(self) -> None:
        """Let the next look of the end phase read the whole log. Later looks go on where it ended."""
        self._look = Evidence(self._history, clients=self._scenario.clients)
        self._looked = ORIGIN

    def _missing(self) -> str:
        """What has not come yet, as a text; empty if everything has."""
        leader = self._arena.leader()
        if leader is None:
            return "no node leads"
        committed = self._arena.cluster.committed_index(leader)
        if committed < 0:
            return f"{leader} leads, and does not answer"
        look, store = self._look, str(self._arena.cluster.store(leader))
        try:
            self._looked = read_entries(store, SEGMENT_SIZE, committed, look.apply, self._looked)
        except UNREADABLE_STORE as error:
            self._begin_looking()  # a part of the entries may have been applied
            return f"the log of {leader} cannot be read: {error}"
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
        """Read the log of the node whose log reaches furthest, and audit all stores."""
        cluster, evidence = self._arena.cluster, self._evidence
        stores = [str(cluster.store(node)) for node in self._arena.nodes]
        try:
            ends = {store: read_entries(store, SEGMENT_SIZE, None, _ignore).index for store in stores}
            longest = max(stores, key=lambda store: ends[store])
            read_entries(longest, SEGMENT_SIZE, None, evidence.apply)
        except UNREADABLE_STORE as error:
            evidence.broken["log"] = f"the log cannot be read: {error}"
        command = [sys.executable, "-m", "dledger", "audit", "compare", *stores, "--same-time"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=AUDIT_LIMIT_S, check=False)
            evidence.replicas = (done.returncode, done.stdout[-4000:] + done.stderr[-2000:])
        except subprocess.TimeoutExpired:
            evidence.replicas = (-1, f"the audit did not end within {AUDIT_LIMIT_S:g} s")
        stops = [one.end_s - one.begin_s for one in self._injected if one.kind in STANDSTILL and one.end_s]
        evidence.stale_ns = STALE_NS + round(max(stops, default=0.0) * 1e9)
        evidence.injected = self._injected
        evidence.flights = self._flights()
        evidence.served = list(self._arena.served.values())
        evidence.ends = self._unexpected_ends()

    def _flights(self) -> list[Flight]:
        """Replay the flight recordings of all nodes. A recording that cannot be read is left out, and noted:
        a fault may have taken its disk."""
        found = []
        for node in self._arena.nodes if self._arena.records else ():
            try:
                directory = node_directory(OsFiles(), str(self._arena.cluster.store(node)))
                done = replay_path(directory, keep=1)
            except (UnusableRecording, StoreUnreadable, OSError) as error:
                self._arena.note(f"{node}: no flight recording: {error}")
                continue
            found.append(Flight(node, done.total_steps, done.problems, done.missing))
        return found

    def _unexpected_ends(self) -> list[str]:
        """The processes that ended by themselves, or not in time, as texts.

        SIGKILL comes from a fault. After SIGTERM a broker ends with exit code 0, or with TERMINATED if its
        store was not open yet. A broker whose disk was disturbed may end itself.
        """
        excused = {node for one in self._injected if NEMESES[one.kind].needs == FILES for node in one.nodes}
        found = []
        for end in self._arena.ends:
            stopped_late = end.code == -signal.SIGKILL and end.at_s >= self._ended_s
            if end.code not in (0, TERMINATED, -signal.SIGTERM, -signal.SIGKILL) and end.node not in excused:
                found.append(f"{end.node} ended with exit code {end.code} before {end.at_s:.1f} s")
            elif stopped_late:
                found.append(f"{end.node} did not end after SIGTERM, and was killed")
        return found

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
            "faults": sum(not one.error for one in self._injected),
            "failed_faults": sum(bool(one.error) for one in self._injected),
            "load": self._evidence.load[0],
        }
        return Result(
            scenario=scenario.name,
            purpose=scenario.purpose,
            must_hold=scenario.must_hold,
            seed=self._seed,
            seconds=scenario.seconds,
            command=f"dledger chaos run {self._named} --seconds {scenario.seconds:g} --seed {self._seed}",
            began=datetime.fromtimestamp(self._arena.began_wall, UTC).isoformat(timespec="seconds"),
            ended_s=round(self._ended_s, 1),
            program=f"dledger {_version()}, Python {platform.python_version()}, {os.cpu_count()} cores",
            nodes=self._arena.nodes,
            flush=scenario.flush,
            clients=scenario.clients,
            network="" if self._arena.network is None else self._arena.network.kind,
            notes=self._arena.notes,
            flights=list(self._evidence.flights),
            faults=self._injected,
            roles=self._arena.seen,
            failovers=failovers_of(
                [one for one in self._injected if one.kind in FAILOVER_KINDS], sends, self._lines()
            ),
            bins=bins_of(sends, self._ended_s),
            counts=counts,
            verdicts=judge(self._evidence),
        )


def _version() -> str:
    try:
        return importlib.metadata.version("dledger")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _ignore(header: EntryHeader, record: bytes) -> None:
    """Do nothing with an entry."""


async def run_trial(scenario: Scenario, seed: int, directory: Path, tell: Tell, named: str = "") -> Result:
    """Run one trial in this directory, which must be empty or new. `named` is how the user named the
    scenario. SIGTERM and SIGHUP end it as Ctrl-C does: no process stays behind."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    return await Trial(scenario, seed, directory, tell, named or scenario.name).run()

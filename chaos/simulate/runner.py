"""One run: a plan played on a stage, checked while it goes on and in the end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from chaos.invariants import InvariantViolated
from chaos.sim import RunFailed, RunTimeout, Trace
from chaos.sim.settings import MS, SECOND
from chaos.simulate.clients import Client
from chaos.simulate.disks import entry_of
from chaos.simulate.faults import Injector
from chaos.simulate.history import History, Verdict, judge
from chaos.simulate.plan import CLIENTS, Plan
from chaos.simulate.register_host import State
from chaos.simulate.stage import Stage
from formats.entry import EntryHeader, Kind
from formats.record import decode_record

CHECKPOINTS = 3
CLIENTS_LIMIT_S = 60.0
PROGRESS_LIMIT_S = 10.0
"""After everything was healed, the group must take a new value and agree within this virtual time."""
LATENCY_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass
class Outcome:
    """What one run was. Plain values: it crosses processes and lies in files."""

    seed: int
    profile: str
    violation: str = ""
    kind: str = ""
    """Of a violation: its first words without numbers, so that shrinking keeps to the same one."""
    simulated_s: float = 0.0
    recovery_s: float = 0.0
    """Virtual time from the healing of everything to equal logs."""
    events: int = 0
    callbacks: int = 0
    entries: int = 0
    terms: int = 0
    elections: int = 0
    digest: str = ""
    history: dict[str, int] = field(default_factory=dict)
    latencies: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    checks: dict[str, int] = field(default_factory=dict)


class Run:
    """See the module."""

    def __init__(self, plan: Plan, trace: Trace | None = None) -> None:
        self.plan = plan
        self.outcome = Outcome(plan.seed, plan.profile)
        self._trace = trace
        self.stage = Stage(plan, trace)
        self.injector = Injector(self.stage)
        self.history = History()
        self._verdict = Verdict()

    def play(self) -> Outcome:
        """To the end, or to the first violation."""
        world = self.stage.world
        try:
            with world:
                self._acts()
        except (RunFailed, RunTimeout, InvariantViolated) as error:
            self.outcome.violation = str(error) or type(error).__name__
            self.outcome.kind = kind_of(self.outcome.violation)
        self._sum_up()
        return self.outcome

    def _acts(self) -> None:
        stage, world, plan = self.stage, self.stage.world, self.plan
        for name in stage.names:
            stage.start(name)
        clients = [
            Client(stage, number, self.history, [one for one in plan.operations if one.client == number])
            for number in range(CLIENTS)
        ]
        for client in clients:
            world.spawn(client.name, client.main)
        self.injector.schedule(plan.faults)
        rng = world.stream("checkpoints")
        for _ in range(CHECKPOINTS):
            world.push(rng.randrange(plan.duration_ms) * MS, lambda _: self.check_all(), None)
        world.run_for(plan.duration_ms / 1000)
        self._heal(clients)

    def _heal(self, clients: list[Client]) -> None:
        """The liveness phase: everything is whole again; the group must go on and agree."""
        world = self.stage.world
        self.injector.finish()
        began = world.now
        world.run_until(lambda: all(client.done for client in clients), CLIENTS_LIMIT_S)
        last = clients[0]
        last.done = False
        world.run_until(lambda: world.nodes[last.name].process is None, 1)
        world.spawn(last.name, last.append_last)
        world.run_until(lambda: last.done, PROGRESS_LIMIT_S)
        world.run_until(self._agreed, PROGRESS_LIMIT_S)
        self.outcome.recovery_s = (world.now - began) / SECOND
        self.check_all()
        self._judge()

    def _agreed(self) -> bool:
        nodes = [self.stage.machines[name].node for name in self.stage.members()]
        leader = self.stage.leader()
        if leader is None:
            return False
        wanted = self.stage.machines[leader].node
        assert wanted is not None
        last = wanted.log.last_index
        return all(node is not None and node.applied_index == node.log.last_index == last for node in nodes)

    # Checkpoints and the end

    def check_all(self) -> None:
        """Everything from the ground up: what the disks hold against what the nodes say."""
        hosts: dict[int, list[tuple[str, object]]] = {}
        for name in self.stage.names:
            machine = self.stage.machines[name]
            probe, host = machine.probe, machine.host
            if machine.node is None or probe is None or host is None or not probe.opened:
                continue
            probe.check()
            rebuilt = self._rebuild(name, host.state.index)
            self.stage.cluster.same(
                "state equals a rebuild from the log",
                [("host", host.state.encode()), ("rebuild", rebuilt.encode())],
            )
            hosts.setdefault(host.state.index, []).append((name, host.state.encode()))
        for values in hosts.values():
            self.stage.cluster.same("equal states at equal indexes", values)

    def _rebuild(self, name: str, index: int) -> State:
        machine = self.stage.machines[name]
        cluster = self.stage.cluster
        state = State()
        durable = self._durable_log(name)
        for header, body in durable:
            if header.index <= index:
                state.apply(header, body)
            # Equal bytes: a shadow entry has the chain over everything before it.
            cluster.count("disk equals memory")
            shadow = machine.log.get(header.index)
            if shadow is not None and shadow.term == header.term and shadow != entry_of(header):
                raise InvariantViolated(f"{name}: disk and memory differ at entry {header.index}")
        return state

    def _durable_log(self, name: str) -> list[tuple[EntryHeader, bytes]]:
        return list(self.stage.machines[name].disk_store.walk(durable=True))

    def _judge(self) -> None:
        """All logs are equal, byte for byte on the disks; the clients' histories fit them."""
        names = self.stage.members()
        logs = [self._durable_log(name) for name in names]
        cluster = self.stage.cluster
        cluster.same(
            "equal logs in the end", [(name, _digest(log)) for name, log in zip(names, logs, strict=True)]
        )
        values: dict[int, bytes] = {}
        for header, body in logs[0]:
            if header.kind == Kind.RAW:
                values[header.index] = decode_record(body).body
            committed = cluster.committed.get(header.index)
            if committed is not None and committed != entry_of(header):
                raise InvariantViolated(
                    f"entry {header.index} was committed as {committed}, the log has {header}"
                )
        if cluster.commit_index >= 0 and logs[0][-1][0].index < cluster.commit_index:
            raise InvariantViolated(f"the log ends before entry {cluster.commit_index}, which was committed")
        cluster.count("history of the clients")
        self._verdict = judge(self.history.calls, values)
        self.outcome.entries = len(logs[0])
        if self._verdict.recovered:
            self.stage.marks.reach("an append of unknown outcome is in the log")
        if self._verdict.unknown > self._verdict.recovered:
            self.stage.marks.reach("an append of unknown outcome is nowhere")

    def _sum_up(self) -> None:
        outcome, stage = self.outcome, self.stage
        outcome.simulated_s = stage.world.now / SECOND
        outcome.events = stage.world.events
        outcome.terms = max(stage.cluster.leaders, default=0)
        outcome.elections = stage.elections
        outcome.digest = self._trace.digest if self._trace is not None else ""
        outcome.history = asdict(self._verdict) | {"operations": len(self.history.calls)}
        outcome.faults = dict(sorted(self.injector.injected.items()))
        outcome.marks = dict(sorted(stage.marks.reached.items()))
        outcome.checks = dict(sorted(stage.cluster.checks.items()))
        for call in self.history.calls:
            if call.end >= 0 and call.kind == "append" and call.outcome == "acknowledged":
                bucket = _bucket((call.end - call.begin) / MS)
                outcome.latencies[bucket] = outcome.latencies.get(bucket, 0) + 1


def _bucket(latency_ms: float) -> str:
    return next((f"{limit} ms" for limit in LATENCY_BUCKETS_MS if latency_ms <= limit), "more")


def _digest(log: list[tuple[EntryHeader, bytes]]) -> tuple[int, int, int]:
    """The last entry's chain covers all bodies; positions and sizes are in the sum."""
    if not log:
        return (0, -1, 0)
    last = log[-1][0]
    return (sum(header.pos ^ header.channel for header, _ in log), last.index, last.chain_crc)


def kind_of(violation: str) -> str:
    """What kind of violation a text tells of: its first line without numbers."""
    line = violation.split("\n")[0]
    return "".join(letter for letter in line if not letter.isdigit())[:120]


def run_plan(plan: Plan, trace: Trace | None = None) -> Outcome:
    """Play one plan."""
    return Run(plan, trace).play()

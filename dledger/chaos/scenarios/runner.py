"""Plays a plan on a stage (the simulated machines of a run), and checks it during the run and at its end.

`Run` does this with bare nodes, and `broker_run.BrokerRun` with brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.machine import RunFailed, RunTimeout, Trace
from dledger.chaos.machine.settings import MS, SECOND
from dledger.chaos.scenarios.chronicle import Replay
from dledger.chaos.scenarios.clients import Client
from dledger.chaos.scenarios.disks import entry_of
from dledger.chaos.scenarios.faults import Injector
from dledger.chaos.scenarios.history import History, Verdict, judge, judge_batches
from dledger.chaos.scenarios.machine import Machine
from dledger.chaos.scenarios.plan import CLIENTS, Plan
from dledger.chaos.scenarios.profiles import PROFILES
from dledger.chaos.scenarios.stage import Stage
from dledger.formats.entry import EntryHeader, Kind
from dledger.formats.record import decode_record
from dledger.messages import Health
from dledger.node.node import Node
from dledger.replication.leader import PushState

CHECKPOINTS = 3
CLIENTS_LIMIT_S = 60.0
SETTLE_LIMIT_S = 20.0
"""Longest time until an idle group has settled, in seconds of virtual time after all faults have ended and
the clients are done. A group has settled if all entries are committed and applied everywhere, and every
member is ready to vote."""
HAND_OVER_LIMIT_S = 3.0
FAILOVER_LIMIT_S = 6.0
"""Longest time for which an idle group on a good network may be without a leader, in seconds. It is a few
election time-outs, because votes may be split."""
PROGRESS_LIMIT_S = 10.0
"""Longest time, in seconds of virtual time, until a group without faults has accepted a new value and all
logs are equal."""
LATENCY_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass
class Outcome:
    """The result of one run. It has plain values, because it is passed between processes and written to
    files."""

    seed: int
    profile: str
    violation: str = ""
    kind: str = ""
    """The kind of the violation (see `kind_of`). While a plan is shrunk, the kind must stay the same."""
    simulated_s: float = 0.0
    recovery_s: float = 0.0
    """Virtual time, in seconds, from the end of all faults until all logs are equal."""
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
    """One run of bare nodes: it plays a plan and checks the run (see the module)."""

    def __init__(self, plan: Plan, trace: Trace | None = None) -> None:
        self.plan = plan
        self.outcome: Outcome = Outcome(plan.seed, plan.profile)
        self._trace = trace
        self.stage: Stage = self.make_stage()
        self.injector: Injector = self.make_injector()
        self.history: History = History()
        self._clients: list[Client] = []
        self._verdict = Verdict()

    def make_stage(self) -> Stage:
        """Make the stage on which the plan is played."""
        return Stage(self.plan, self._trace)

    def make_injector(self) -> Injector:
        """Make the injector for the plan's faults."""
        return Injector(self.stage)

    def play(self) -> Outcome:
        """Play the plan to the end, or to the first violation."""
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
        self.begin_clients()
        self.injector.schedule(plan.faults)
        rng = world.stream("checkpoints")
        for _ in range(CHECKPOINTS):
            world.push(rng.randrange(plan.duration_ms) * MS, lambda _: self.check_all(), None)
        world.run_for(plan.duration_ms / 1000)
        self._heal()

    def begin_clients(self) -> None:
        """Start the programs of the clients."""
        operations = self.plan.operations
        self._clients = [
            Client(self.stage, number, self.history, [one for one in operations if one.client == number])
            for number in range(CLIENTS)
        ]
        for client in self._clients:
            self.stage.world.spawn(client.name, client.main)

    def _heal(self) -> None:
        """End all faults. Then check that the group makes progress and that all logs become equal."""
        world = self.stage.world
        self.injector.finish()
        began = world.now
        self.end_clients()
        # This is checked before a client sends anything more, so that an error is found which the next append
        # would repair.
        self.within(SETTLE_LIMIT_S, "an idle group settles", self._settled)
        self.stage.cluster.count("an idle group settles")
        self.change_leaders()
        self.await_progress()
        self.within(PROGRESS_LIMIT_S, "all logs are equal", self._agreed)
        self.outcome.recovery_s = (world.now - began) / SECOND
        self.check_all()
        self._judge()

    def change_leaders(self) -> None:
        """Make a randomly chosen voter the leader, then kill the leader and start it again, while the group
        is idle."""
        stage = self.stage
        head = self._head()
        voters = sorted(head.members.voters)
        if len(voters) < 3:
            return  # without one of them the rest is no majority
        target = stage.world.stream("the last leader").choice(voters)
        leader = head.config.self_id
        moved = None if target == leader else self.injector.hand_over(leader, target)
        if moved is not None:
            self.within(HAND_OVER_LIMIT_S, "a hand-over ends", lambda: bool(moved))
            chosen = stage.machines[target].node
            if not moved[0] and chosen is not None and not chosen.health.flags:
                raise InvariantViolated(f"after healing leadership is not handed to {target}")
            self.within(HAND_OVER_LIMIT_S, "somebody leads after it", lambda: stage.leader() is not None)
        stage.start(self.lose_leader())
        self.within(SETTLE_LIMIT_S, "an idle group settles after a failover", self._settled)
        stage.cluster.count("an idle group survives its leader")

    def lose_leader(self) -> str:
        """Kill the leader and wait for the next one. Returns the name of the killed node, which is not
        started again."""
        lost = self._head().config.self_id
        self.stage.world.kill(lost)
        self.within(FAILOVER_LIMIT_S, f"{lost} is replaced", lambda: self.stage.leader() not in (None, lost))
        return lost

    def _head(self) -> Node:
        leader = self.stage.leader()
        node = None if leader is None else self.stage.machines[leader].node
        if node is None:
            raise InvariantViolated("after healing nobody leads")
        return node

    def end_clients(self) -> None:
        """Wait until the clients have done all operations of the plan."""
        self.within(CLIENTS_LIMIT_S, "the clients end", lambda: all(one.done for one in self._clients))

    def await_progress(self) -> None:
        """Wait until the group has taken one more value."""
        world = self.stage.world
        last = self._clients[0]
        last.done = False
        self.within(1, "the last client ends", lambda: world.nodes[last.name].process is None)
        world.spawn(last.name, last.append_last)
        self.within(PROGRESS_LIMIT_S, "the group takes a new value", lambda: last.done)

    def within(self, limit_s: float, what: str, happened: Callable[[], bool]) -> None:
        """Run until `happened` returns true. Raises InvariantViolated if it does not within `limit_s` seconds
        of virtual time."""
        try:
            self.stage.world.run_until(happened, limit_s)
        except RunTimeout as error:
            raise InvariantViolated(f"after healing it does not happen that {what}: {error}") from error

    def _settled(self) -> bool:
        """Whether all members agree and are well.

        Every entry must be committed, durable and applied everywhere. Every member must have learned the
        leader since its last start, must be allowed to vote again, and must report no problem.
        """
        if not self._agreed():
            return False
        # A machine that was started a moment ago may have all entries although the leader still uses the
        # connection to the process before it, which lost its power. Messages over that connection are lost,
        # so a hand-over would fail for a good reason.
        leader = self.stage.leader()
        nodes = [self.stage.machines[name].node for name in self.stage.members()]
        return all(node is not None and node.elector.leader_id == leader and _is_well(node) for node in nodes)

    def _agreed(self) -> bool:
        members = self.stage.members()
        if any(self.stage.machines[name].still_rotten() for name in members):
            return False
        nodes = [self.stage.machines[name].node for name in members]
        leader = self.stage.leader()
        if leader is None:
            return False
        wanted = self.stage.machines[leader].node
        assert wanted is not None
        last = wanted.log.last_index
        return all(node is not None and node.applied_index == node.log.last_index == last for node in nodes)

    # Checkpoints and the end

    def check_all(self) -> None:
        """Check everything from the beginning: compare the content of the disks with what the nodes say."""
        cluster = self.stage.cluster
        self._check_snapshots()
        hosts: dict[int, list[tuple[str, object]]] = {}
        for name in self.stage.names:
            machine = self.stage.machines[name]
            probe, host = machine.probe, machine.host
            if machine.node is None or probe is None or host is None or not probe.opened:
                continue
            probe.check("a checkpoint")
            machine.check_units()
            if machine.still_rotten() or machine.node.snapshots.receiver.replacing:
                continue  # its log cannot be read from the start now
            rebuilt = self._rebuild(machine, host.index)
            cluster.same(
                "state equals a rebuild from the log",
                [("host", host.content()), ("rebuild", rebuilt.encode())],
            )
            hosts.setdefault(host.index, []).append((name, host.content()))
        for index, state in self.stage.chronicle.states(hosts).items():
            cluster.same("equal states at equal indexes", [("all that was committed", state), *hosts[index]])

    def _rebuild(self, machine: Machine, index: int) -> Replay:
        """Compute the state at `index` from the disk: from the snapshot at which the log begins and the
        entries after it."""
        cluster = self.stage.cluster
        state = self.stage.replay()
        if machine.base.pos > 0:
            found = machine.disk_store.snapshot(machine.base.pos, durable=True)
            if found is None:
                raise InvariantViolated(f"{machine.name}: no snapshot where the log begins: {machine.base}")
            state = self.stage.replay(found[1], found[0].index)
        for header, body in self._durable_log(machine):
            if header.index <= index:
                state.apply(header, body)
            # Equal bytes: an entry of the shadow has a checksum of everything before it.
            cluster.count("disk equals memory")
            shadow = machine.log.get(header.index)
            if shadow is not None and shadow.term == header.term and shadow != entry_of(header):
                raise InvariantViolated(f"{machine.name}: disk and memory differ at entry {header.index}")
        return state

    def _check_snapshots(self) -> None:
        """Check that snapshots of the same position are equal on all disks, and equal the replayed state."""
        manifests: dict[int, list[tuple[str, object]]] = {}
        states: dict[int, list[tuple[str, object]]] = {}
        for name in self.stage.names:
            store = self.stage.machines[name].disk_store
            for pos in store.snapshots():
                found = store.snapshot(pos, durable=True)
                if found is not None:
                    manifests.setdefault(pos, []).append((name, found[0]))
                    content = self.stage.replay(found[1], found[0].index).encode()
                    states.setdefault(found[0].index, []).append((name, content))
        for values in manifests.values():
            self.stage.cluster.same("equal snapshots at equal places", values)
        for index, replayed in self.stage.chronicle.states(states).items():
            self.stage.cluster.same("snapshot equals replay", [("replay", replayed), *states[index]])

    def _durable_log(self, machine: Machine) -> list[tuple[EntryHeader, bytes]]:
        fsynced = self.stage.profile.sync_flush
        return list(machine.disk_store.walk(fsynced, machine.base.pos, machine.base.index))

    def _judge(self) -> None:
        """Check that all logs are equal, byte for byte on the disks, and that what the clients observed fits
        them."""
        names = self.stage.members()
        machines = [self.stage.machines[name] for name in names]
        logs = [self._durable_log(machine) for machine in machines]
        cluster = self.stage.cluster
        begin = max(machine.base.index for machine in machines) + 1
        cluster.same(
            "equal logs in the end",
            [(name, _digest(log, begin)) for name, log in zip(names, logs, strict=True)],
        )
        last = logs[0][-1][0].index if logs[0] else machines[0].base.index
        if last < cluster.commit_index:
            raise InvariantViolated(f"the log ends before entry {cluster.commit_index}, which was committed")
        whole = [*self.stage.chronicle.entries(0, machines[0].base.index), *logs[0]]
        for header, _ in whole:
            committed = cluster.committed.get(header.index)
            if committed is not None and committed != entry_of(header):
                raise InvariantViolated(
                    f"entry {header.index} was committed as {committed}, the log has {header}"
                )
        self.outcome.entries = last + 1
        cluster.count("history of the clients")
        self.judge_history(whole)

    def judge_history(self, log: Iterable[tuple[EntryHeader, bytes]]) -> None:
        """Check that what the clients observed fits the whole log, which is given as (header, record) of each
        entry."""
        values = {header.index: decode_record(body).body for header, body in log if header.kind == Kind.RAW}
        self._verdict = judge(self.history.calls, values)
        self.stage.cluster.count("a client batch is whole or not there", len(self.history.batches))
        if judge_batches(self.history.batches, values) < len(self.history.batches):
            self.stage.marks.reach("a client batch is not there at all")
        if self._verdict.refused:
            self.stage.marks.reach("an append refused for good reason")
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
        outcome.faults = dict(sorted(self.injector.injected.items()))
        if stage.world.cold_reads:
            stage.marks.reach("an index unit had to be fetched")
        outcome.marks = dict(sorted(stage.marks.reached.items()))
        outcome.checks = dict(sorted(stage.cluster.checks.items()))
        self.sum_up_history()

    def sum_up_history(self) -> None:
        """Fill in the clients' part of the outcome."""
        self.outcome.history = asdict(self._verdict) | {"operations": len(self.history.calls)}
        for call in self.history.calls:
            if call.end >= 0 and call.kind == "append" and call.outcome == "acknowledged":
                self.took((call.end - call.begin) / MS)

    def took(self, latency_ms: float) -> None:
        """Count the latency of an acknowledged append."""
        latencies = self.outcome.latencies
        bucket = _bucket(latency_ms)
        latencies[bucket] = latencies.get(bucket, 0) + 1


def _is_well(node: Node) -> bool:
    """Whether a member of an idle group is well. A leader is well only if replication to all its peers is up
    to date, too.

    A slow disk is ignored, because it is reported for minutes. A clock that has jumped stays wrong. So a
    leader with such a clock counts as well only if no other voter is healthy.
    """
    flags = int(node.health.flags) & ~(Health.SLOW | Health.CLOCK)
    if node.replicator.leader is not None and node.health.flags & Health.CLOCK:
        elector = node.elector
        if any(elector.health_of(peer) == Health.GOOD for peer in elector.voters):
            return False
    if not node.elector.may_vote or node.trust.reasons or flags or node.members.pending(node.commit_index):
        return False
    leader = node.replicator.leader
    return leader is None or all(
        peer.state is PushState.APPEND
        and peer.durable == node.log.last_index
        # a new store does not count before the configuration names it
        and (peer.counts or name not in node.members.voters)
        for name, peer in leader.progress.items()
    )


def _bucket(latency_ms: float) -> str:
    return next((f"{limit} ms" for limit in LATENCY_BUCKETS_MS if latency_ms <= limit), "more")


def _digest(log: list[tuple[EntryHeader, bytes]], begin: int) -> tuple[int, int, int]:
    """A digest of a log from entry `begin` on. The chain value of the last entry covers all bodies, and the
    sum covers positions and channels."""
    if not log:
        return (0, -1, 0)
    last = log[-1][0]
    headers = [header for header, _ in log if header.index >= begin]
    return (sum(header.pos ^ header.channel for header in headers), last.index, last.chain_crc)


def kind_of(violation: str) -> str:
    """The kind of a violation: the first line of its text without digits, at most 120 characters."""
    line = violation.split("\n")[0]
    return "".join(letter for letter in line if not letter.isdigit())[:120]


def make_run(plan: Plan, trace: Trace | None = None) -> Run:
    """Make the run of one plan, with brokers if its profile says so."""
    if PROFILES[plan.profile].brokers:
        from dledger.chaos.scenarios.broker_run import (
            BrokerRun,  # imported only if needed, because it loads broker and client
        )

        return BrokerRun(plan, trace)
    return Run(plan, trace)


def run_plan(plan: Plan, trace: Trace | None = None) -> Outcome:
    """Play one plan. Returns the outcome."""
    return make_run(plan, trace).play()

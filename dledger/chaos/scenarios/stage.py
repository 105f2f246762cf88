"""The stage of a run: the simulated world with the machines of a group and of its clients, and the judges
that watch them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from errno import EIO
from functools import partial

from dledger.chaos.invariants import Cluster, Entry, InvariantViolated
from dledger.chaos.machine import Exit, Process, Settings, Trace, World
from dledger.chaos.machine.settings import SECOND
from dledger.chaos.scenarios.batches import Batches
from dledger.chaos.scenarios.chronicle import Chronicle, Replay
from dledger.chaos.scenarios.machine import Machine
from dledger.chaos.scenarios.marks import NEVER, Marks
from dledger.chaos.scenarios.picture import Picture
from dledger.chaos.scenarios.plan import CLIENTS, Plan, draw_protocol
from dledger.chaos.scenarios.probe import Probe
from dledger.chaos.scenarios.profiles import PROFILES, Profile
from dledger.chaos.scenarios.register_host import RegisterHost, State
from dledger.config import NodeConfig
from dledger.errors import EXIT_STORE, NodeFailed
from dledger.formats.entry import Kind
from dledger.host import Role
from dledger.log.retention import RetentionSettings
from dledger.node.node import Node
from dledger.protocol import PROTOCOL_MAX, PROTOCOL_MIN, PROTOCOL_WITH_PROOF
from dledger.runtime.env import Env

PORT = 40911
PUSH_BYTES = 8 * 1024
"""Target size of a push frame, in bytes. It is so small that a burst, and some client batches, need more than
one frame."""
RESTART_NS = SECOND
"""Time, in ns, after which an operator restarts a node that ended because of its disk."""
ALL_DAY = tuple(range(24))


class WatchedWorld(World):
    """A world that reports log lines and the ends of processes to the stage."""

    on_log: Callable[[str], None] | None = None
    on_end: Callable[[Process, Exit], None] | None = None
    disposed: bool = False

    def log(self, process: Process, level: str, text: str) -> None:
        super().log(process, level, text)
        if self.on_log is not None and level != "debug":
            self.on_log(text)

    def dispose(self) -> None:
        self.disposed = True
        super().dispose()

    def ended(self, process: Process, how: Exit) -> None:
        first = process.exit is None
        super().ended(process, how)
        if first and self.on_end is not None and not self.disposed:
            self.on_end(process, how)


def _by_its_disk(error: BaseException) -> bool:
    if not isinstance(error, NodeFailed):
        return isinstance(error, OSError) and error.errno == EIO
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return error.exit_code == EXIT_STORE or isinstance(cause, OSError)


def _changes_members(node: Node) -> bool:
    return node.role is Role.LEADER and node.members.pending(node.commit_index)


OPERATOR = "op"
"""Name of the machine from which an operator changes the members."""


class Stage:
    """The machines of a run, by name. It starts and restarts nodes, and remembers what was observed."""

    clients: int = CLIENTS
    """Number of client machines."""
    may_raise: tuple[type[BaseException], ...] = (NodeFailed,)
    """Errors with which a program of the group may end if its disk failed."""
    bystanders: tuple[str, ...] = ()
    """Names of further machines, which are neither of the group nor of clients."""

    def __init__(self, plan: Plan, trace: Trace | None) -> None:
        self.plan = plan
        self.profile: Profile = PROFILES[plan.profile]
        settings = Settings(spread_chance=self.profile.spread_chance, strict_names=True)
        self.world: WatchedWorld = WatchedWorld(plan.seed, settings=settings, trace=trace)
        self.cluster: Cluster = Cluster()
        self.index_units: int = self.profile.segment // 256
        """Number of units in an index file. It is about as large as the number of entries in a segment."""
        self.chronicle: Chronicle = Chronicle(self.cluster.committed, self.replay)
        self.marks: Marks = Marks()
        self.picture: Picture | None = None
        """Records what nodes send and become; None if nobody wants a picture of this run."""
        self.batches: Batches = Batches(self)
        self.elections: int = 0
        self.at_install: Callable[[str], None] | None = None
        """Called once with the name of the next node that begins to replace its log."""
        self.at_cut: Callable[[str], None] | None = None
        """Called once with the name of the next node that begins to cut its log."""
        self.at_change: Callable[[str], None] | None = None
        """Called once with the name of the next leader that appends a configuration."""
        self.at_saved: Callable[[str], None] | None = None
        """Called once with the name of the next node that has saved a term and has not sent it in a message
        yet."""
        self.at_snapshot: Callable[[str], None] | None = None
        """Called once with the name of the next node that begins to take a snapshot of its state."""
        self._then: dict[Process, Callable[[], None]] = {}
        self.names: tuple[str, ...] = tuple(f"n{number}" for number in range(plan.nodes + plan.spares))
        self.founders: tuple[str, ...] = self.names[: plan.nodes]
        self._seen = self.founders
        self.client_names: tuple[str, ...] = tuple(f"c{number}" for number in range(self.clients))
        self.peers: dict[str, str] = {name: f"{name}:{PORT}" for name in self.names}
        self.machines: dict[str, Machine] = {name: Machine(self, name) for name in self.names}
        for name in self.founders:
            self.machines[name].in_use = True
        for name in (*self.client_names, *self.bystanders):
            self.world.node(name)
        self.world.on_log = self._logged
        self.world.on_end = self._ended

    def start(self, name: str) -> None:
        """Start a node on its machine, if the machine is in use and no process runs there."""
        machine = self.machines[name]
        if machine.running or not machine.in_use:
            return
        machine.check_units()
        if not machine.has_store:
            machine.group = self._group_of_today(name)
        machine.lives += 1
        machine.probe = machine.host = None
        self.batches.started(machine)
        main = partial(self._main, machine=machine)
        self.world.restart(name, main, may_raise=self.may_raise)

    async def _main(self, env: Env, machine: Machine) -> None:
        config = NodeConfig(
            group="g0",
            self_id=machine.name,
            peers={name: self.peers[name] for name in machine.group},
            store_dir="/store",
            segment_size=self.profile.segment,
            max_entry_bytes=self.profile.max_entry,
            pending_entries=self.profile.pending,
            index_units_per_file=self.index_units,
            sync_flush=self.profile.sync_flush,
            push_bytes=PUSH_BYTES,
            lease_reads=self.profile.lease_reads,
            protocol_min=PROTOCOL_MIN if self.profile.versions else PROTOCOL_WITH_PROOF,
            protocol_max=self._protocol(machine),
            pool_segments=1,
            scrub_pause_s=3.0,
            lag_probe_s=1.0,
            retention=self._retention(),
            allowed_sources=(self.world.node(OPERATOR).address,),
        )
        probe = Probe(self, machine)
        machine.host = host = RegisterHost(probe, self.profile.ballast, self._dawdles(machine))
        node = Node(env, config, host)
        probe.attach(node)
        machine.probe = probe
        await node.run()

    def _dawdles(self, machine: Machine) -> Callable[[], float] | None:
        """A function that returns how many seconds the next asynchronous call of the node's host takes. None
        if calls take no time."""
        if not self.profile.dawdling:
            return None
        draws = self.world.stream(f"host/{machine.name}/{machine.lives}")
        return lambda: draws.choice((0.0, 0.05, 0.5))

    def _protocol(self, machine: Machine) -> int:
        """The highest peer protocol that the node speaks since its last start."""
        if not self.profile.versions:
            return PROTOCOL_MAX
        return draw_protocol(self.plan, machine.name, machine.lives)

    def replay(self, parts: Mapping[str, bytes] | None = None, index: int = -1) -> Replay:
        """A new state machine of the judge: empty, or restored from the parts of a snapshot at `index`."""
        return State() if parts is None else State.decode(parts["state"])

    def _retention(self) -> RetentionSettings:
        reserved_s = self.profile.reserved_s
        if reserved_s is None:
            return RetentionSettings()
        return RetentionSettings(
            reserved_s / 3600, ALL_DAY, interval_s=0.5, snapshots_kept=self.profile.snapshots
        )

    def _ended(self, process: Process, how: Exit) -> None:
        machine = self.machines.get(process.name)
        if machine is None:
            return
        if self.picture is not None:
            self.picture.is_now(machine.name, "DOWN", -1, serving=False, at=self.world.now)
        self._ends(machine)
        if not self.profile.sync_flush and not self.world.nodes[machine.name].powered:
            machine.loses_what_it_said()
        then = self._then.pop(process, None)
        if then is not None:
            self.world.push(self.world.now, lambda _: then(), None)
        if all(not self.world.nodes[name].powered for name in self.founders):
            self.marks.reach("no node has power")
        if how.error is None:
            return
        error = how.error
        excused = machine.excused or machine.may_end
        if excused and isinstance(error, self.may_raise) and _by_its_disk(error):
            self.marks.reach("node ended by its disk")
            if machine.may_end:
                self.marks.reach("a broker ended by its derived files")
            self.world.push(self.world.now + RESTART_NS, self._restart, machine.name)
            return
        self.world.fail(process, "the node ended", error)

    def _logged(self, text: str) -> None:
        self.marks.line(text)
        if any(part in text for part in NEVER):
            self.violated(f"a node says: {text}")

    def _restart(self, name: str) -> None:
        self.start(name)

    def when_ended(self, process: Process, then: Callable[[], None]) -> None:
        """Call `then` when this process ends. Only the function that was given last is called."""
        self._then[process] = then

    def violated(self, text: str) -> None:
        """Report a violation. The run ends after the current event."""
        process = self.world.current
        if process is None:
            raise InvariantViolated(text)
        self.world.fail(process, f"invariant violated: {text}", None)

    # What happened

    def elected(self, machine: Machine, term: int) -> None:
        """Note that a node won an election."""
        self.elections += 1
        others = [other.node for other in self.machines.values() if other is not machine]
        own = 0 if machine.node is None else machine.node.config.protocol_max
        theirs = [node.config.protocol_max for node in others if node is not None]
        if own and any(own < their for their in theirs):
            self.marks.reach("a node of the older protocol leads one of the newer")
        if own and any(own > their for their in theirs):
            self.marks.reach("a node of the newer protocol leads one of the older")
        if any(node is not None and node.role is Role.LEADER for node in others):
            self.marks.reach("a new leader while the old one still leads")

    def appended(self, machine: Machine, entry: Entry) -> None:
        """Note that an entry was added to a log."""
        if entry.pos % self.profile.segment == 0 and entry.pos and len(self.alive()) < len(self.founders):
            self.marks.reach("segment rolled while a node is down")
        if self.at_change is not None and entry.channel >> 24 & 0x7F == Kind.CONFIG:
            self._changes(machine)
        if entry.size == self.profile.max_entry:
            self.marks.reach("an entry of the largest size")

    def _changes(self, machine: Machine) -> None:
        """Note that a configuration was added to a log."""
        if machine.node is not None and machine.node.role is Role.LEADER:
            then, self.at_change = self.at_change, None
            if then is not None:
                then(machine.name)

    def installs(self, machine: Machine) -> None:
        """Note that a node replaces its log by a snapshot."""
        then, self.at_install = self.at_install, None
        if then is not None:
            then(machine.name)

    def cuts(self, machine: Machine) -> None:
        """Note that a node begins to cut its log."""
        self.marks.reach("follower truncated")
        then, self.at_cut = self.at_cut, None
        if then is not None:
            then(machine.name)

    def saved(self, machine: Machine) -> None:
        """Note that a node has saved its term or vote. Nothing that waited for the save was done yet."""
        if self.at_saved is not None and self._untold(machine):
            then, self.at_saved = self.at_saved, None
            then(machine.name)

    def _untold(self, machine: Machine) -> bool:
        """Whether the disk has a term that the node has not used in a message yet."""
        state = machine.disk_store.hard_state()
        return state is not None and state.term > self.cluster.announced.get(machine.store, 0)

    def takes_snapshot(self, machine: Machine) -> None:
        """Note that a node has copied its state and begins to write the copy."""
        then, self.at_snapshot = self.at_snapshot, None
        if then is not None:
            then(machine.name)

    def changing_members(self) -> bool:
        """Whether a leader has a configuration that is not committed yet."""
        return any(
            machine.node is not None and _changes_members(machine.node) for machine in self.machines.values()
        )

    def taking_snapshots(self) -> bool:
        """Whether any node has a copy of its state that is not written yet."""
        nodes = (machine.node for machine in self.machines.values())
        return any(node is not None and node.snapshots.boundary._waiting for node in nodes)

    def _ends(self, machine: Machine) -> None:
        """Count the coverage marks for the situation in which a node's process ends."""
        probe = machine.probe
        if probe is None or not probe.opened:
            self.marks.reach("end during recovery")
            return
        node = probe.node
        if node.role is Role.LEADER and node.log.last_index > node.commit_index:
            self.marks.reach("leader ended with an uncommitted tail")
        if node.log.last_index > node.log.durable_index:
            self.marks.reach("end with entries not yet durable")
        if self._untold(machine):
            self.marks.reach("end between saving a term and telling it")
        if node.reads.by_lease:
            self.marks.reach("a lease answered reads")
        if probe.cutting:
            self.marks.reach("end during a truncation")
        if node.snapshots.boundary._waiting:
            self.marks.reach("a fault while a state snapshot is taken")
        if _changes_members(node) or self.changing_members():
            self.marks.reach("a fault during a membership change")
        if node.snapshots.receiver.replacing:
            self.marks.reach("end during an install")

    # Leader and members

    def leader(self) -> str | None:
        """Name of the serving leader, or None. If two nodes regard themselves as serving, it is the one of
        the higher term."""
        best: tuple[int, str] | None = None
        for name in self.names:
            node = self.machines[name].node
            if node is not None and node.serving and (best is None or node.term > best[0]):
                best = (node.term, name)
        return None if best is None else best[1]

    def hands_over(self) -> bool:
        """Whether a leader refuses appends because it hands leadership over."""
        nodes = (machine.node for machine in self.machines.values())
        return any(node is not None and node.appender is not None and node.appender.paused for node in nodes)

    def members(self) -> list[str]:
        """Names of the members in the leader's configuration, voters and learners. Without a leader they are
        the members at the start of the run."""
        leader = self.leader()
        node = None if leader is None else self.machines[leader].node
        return list(self.founders) if node is None else sorted(node.members.current.members)

    def _group_of_today(self, name: str) -> tuple[str, ...]:
        """The members in the settings of a node that starts with an empty store. They are the members that
        its operator sees now or saw last, and the node itself."""
        if self.leader() is not None:
            self._seen = tuple(self.members())
        return self._seen if name in self._seen else (*self._seen, name)

    def alive(self) -> list[str]:
        """Names of the nodes whose process runs."""
        return [name for name in self.names if self.machines[name].running]

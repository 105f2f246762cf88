"""The stage of a run: a world with the machines of a group and of its clients, watched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from chaos.invariants import Cluster, Entry, InvariantViolated
from chaos.sim import Exit, Process, Settings, Trace, World
from chaos.sim.settings import SECOND
from chaos.simulate.disks import DurableMark, StoreOnDisk
from chaos.simulate.marks import Marks
from chaos.simulate.plan import CLIENTS, Plan
from chaos.simulate.probe import Probe
from chaos.simulate.register_host import RegisterHost
from dledger.config import NodeConfig
from dledger.errors import EXIT_STORE, NodeFailed
from dledger.host import Role
from dledger.log.retention import RetentionSettings
from dledger.node import Node
from runtime.env import Env

PORT = 40911
SEGMENT = 64 * 1024
CHANNEL = (32, 36)
"""Where kind and batch remainder lie in the header of an entry."""
RESTART_NS = SECOND
"""After this an operator starts a node again that its disk has ended."""
SETTINGS = Settings()


class WatchedWorld(World):
    """A world that tells of log lines and of the ends of processes."""

    on_log: Callable[[str], None] | None = None
    on_end: Callable[[Process, Exit], None] | None = None
    disposed = False

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


def _by_its_disk(error: NodeFailed) -> bool:
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return error.exit_code == EXIT_STORE or isinstance(cause, OSError)


class Machine:
    """One machine of the group: its store on disk and, while a process runs, its node."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name
        self.wipes = 0
        self.lives = 0
        self.in_use = False
        """A spare machine is not, until its node is to be added."""
        self.excused = False
        """Its disk failed: the node may end with an error, and know less afterwards."""
        self.log: dict[int, Entry] = {}
        """The log as its node last had it, in memory or not."""
        self.rotten: dict[int, Entry] = {}
        """Entries that a fault damaged on this disk, until they are whole again."""
        self.node_dir = f"/store/dledger-{name}"
        self.probe: Probe | None = None
        self.host: RegisterHost | None = None
        self.renew_reader()

    def renew_reader(self) -> None:
        """The disk was wiped or replaced."""
        self.disk_store = StoreOnDisk(self.stage.world.node(self.name).disk, self.node_dir)
        self.durable = DurableMark(self.disk_store, SEGMENT)

    def wipe(self) -> None:
        """Its store is gone; what comes next is another one."""
        self.stage.world.nodes[self.name].disk.wipe("/store")
        self.wipes += 1
        self.log = {}
        self.rotten = {}
        self.renew_reader()

    def still_rotten(self) -> bool:
        """Whether any damaged entry is neither repaired nor cut."""
        for index, entry in list(self.rotten.items()):
            if self.log.get(index) != entry or self.durable.is_there(index, entry):
                del self.rotten[index]
        return bool(self.rotten)

    def rots(self, begin: int, end: int) -> None:
        """Bytes `begin` to `end` of the log are damaged."""
        for index, entry in self.log.items():
            if entry.pos < end and entry.pos + entry.size > begin:
                self.rotten[index] = entry

    @property
    def has_store(self) -> bool:
        """Whether anything was ever stored here."""
        return self.disk_store.find(durable=False) is not None

    def durable_byte(self, amount: int, pick: int) -> int | None:
        """Place in the log of a byte of an entry whose index unit is durable: damage there is rot."""
        node = self.node
        if node is None or not self.log:
            return None
        last = self.disk_store.durable_mark(min(self.log), max(self.log))
        known = [index for index in self.log if index <= last]
        if not known:
            return None
        entry = self.log[known[pick % len(known)]]
        offset = amount % entry.size
        if CHANNEL[0] <= offset < CHANNEL[1]:
            offset = CHANNEL[1]  # no CRC covers these bytes (docs/guarantees.md)
        return entry.pos + offset

    def segment_path(self, start: int) -> str:
        """Of the segment that starts there."""
        return f"{self.node_dir}/data/{start:020d}"

    def old_segment(self, pick: int) -> int | None:
        """Start of a segment before the newest."""
        segments = self.disk_store.segments(durable=True)[:-1]
        return segments[pick % len(segments)][0] if segments else None

    @property
    def store(self) -> str:
        """Name of the store: another one after a wipe."""
        return f"{self.name}.{self.wipes}" if self.wipes else self.name

    @property
    def running(self) -> bool:
        """Whether a process runs."""
        return self.stage.world.nodes[self.name].process is not None

    @property
    def node(self) -> Node | None:
        """The running node, once it was made."""
        return self.probe.node if self.probe is not None and self.running else None

    def has_durably(self, log: dict[int, Entry], index: int) -> bool:
        """Whether this machine's disk holds a log up to `index`, whatever its own node says."""
        entry = log.get(index)
        return entry is not None and self.log.get(index) == entry and self.holds(index)

    def holds(self, index: int) -> bool:
        """Whether its own log up to `index` is durable."""
        return self.durable.holds(self.log, min(self.log, default=0), index, self.rotten)


class Stage:
    """Machines by name; starts and restarts nodes; remembers what was seen."""

    def __init__(self, plan: Plan, trace: Trace | None) -> None:
        self.plan = plan
        self.world = WatchedWorld(plan.seed, settings=SETTINGS, trace=trace)
        self.cluster = Cluster()
        self.marks = Marks()
        self.elections = 0
        self._then: tuple[Process, Callable[[], object]] | None = None
        self.names = tuple(f"n{number}" for number in range(plan.nodes + plan.spares))
        self.founders = self.names[: plan.nodes]
        self.client_names = tuple(f"c{number}" for number in range(CLIENTS))
        self.peers = {name: f"{name}:{PORT}" for name in self.names}
        self.machines = {name: Machine(self, name) for name in self.names}
        for name in self.founders:
            self.machines[name].in_use = True
        for name in self.client_names:
            self.world.node(name)
        self.world.on_log = self.marks.line
        self.world.on_end = self._ended

    def start(self, name: str) -> None:
        """Start a node on its machine, if none runs there."""
        machine = self.machines[name]
        if machine.running or not machine.in_use:
            return
        machine.lives += 1
        machine.probe = machine.host = None
        main = partial(self._main, machine=machine)
        self.world.restart(name, main, may_raise=(NodeFailed,))

    async def _main(self, env: Env, machine: Machine) -> None:
        known = (*self.founders, *(() if machine.name in self.founders else (machine.name,)))
        config = NodeConfig(
            group="g0",
            self_id=machine.name,
            peers={name: self.peers[name] for name in known},
            store_dir="/store",
            segment_size=SEGMENT,
            max_entry_bytes=16 * 1024,
            index_units_per_file=256,
            pool_segments=1,
            scrub_pause_s=3.0,
            lag_probe_s=1.0,
            # The judge reads whole logs; retention and installs have their own scenarios in tests/chaos.
            retention=RetentionSettings(clean_forcibly=False),
        )
        probe = Probe(self, machine)
        machine.host = RegisterHost(probe)
        node = Node(env, config, machine.host)
        probe.attach(node)
        machine.probe = probe
        await node.run()

    def _ended(self, process: Process, how: Exit) -> None:
        machine = self.machines.get(process.name)
        if machine is None:
            return
        self._ends(machine)
        if self._then is not None and self._then[0] is process:
            self.world.push(self.world.now, self._do_then, None)
        if all(not self.world.nodes[name].powered for name in self.founders):
            self.marks.reach("no node has power")
        if how.error is None:
            return
        error = how.error
        if machine.excused and isinstance(error, NodeFailed) and _by_its_disk(error):
            self.marks.reach("node ended by its disk")
            self.world.push(self.world.now + RESTART_NS, self._restart, machine.name)
            return
        self.world.fail(process, "the node ended", error)

    def _restart(self, name: str) -> None:
        self.start(name)

    def when_ended(self, process: Process, then: Callable[[], object]) -> None:
        """Call back at the instant at which this process ends."""
        self._then = (process, then)

    def _do_then(self, _: None) -> None:
        then, self._then = self._then, None
        if then is not None:
            then[1]()

    def violated(self, text: str) -> None:
        """An oracle says no: the run ends after this event."""
        process = self.world.current
        if process is None:
            raise InvariantViolated(text)
        self.world.fail(process, f"invariant violated: {text}", None)

    # What happened

    def elected(self, machine: Machine, term: int) -> None:
        """Somebody won an election."""
        self.elections += 1
        others = [other.node for other in self.machines.values() if other is not machine]
        if any(node is not None and node.role is Role.LEADER for node in others):
            self.marks.reach("a new leader while the old one still leads")

    def appended(self, machine: Machine, entry: Entry) -> None:
        """An entry joined a log."""
        if entry.pos % SEGMENT == 0 and entry.pos and len(self.alive()) < len(self.founders):
            self.marks.reach("segment rolled while a node is down")

    def cuts(self, machine: Machine, index: int, entry: Entry) -> None:
        """A node cuts its log."""
        self.marks.reach("follower truncated")
        holders = sum(1 for other in self.machines.values() if other.log.get(index) == entry)
        if holders * 2 > len(self.founders):
            self.marks.reach("cut what a majority held (figure 8)")

    def _ends(self, machine: Machine) -> None:
        """A process of the group is about to be no more."""
        probe = machine.probe
        if probe is None or not probe.opened:
            self.marks.reach("end during recovery")
            return
        node = probe.node
        if node.role is Role.LEADER and node.log.last_index > node.commit_index:
            self.marks.reach("leader ended with an uncommitted tail")
        if node.log.last_index > node.log.durable_index:
            self.marks.reach("end with entries not yet durable")
        state = machine.disk_store.hard_state()
        if state is not None and state.term > self.cluster.announced.get(machine.store, 0):
            self.marks.reach("end between saving a term and telling it")
        if node._replicator._cuts:
            self.marks.reach("end during a truncation")

    # Who is who

    def leader(self) -> str | None:
        """Who serves; the one of the highest term if two think so."""
        best: tuple[int, str] | None = None
        for name in self.names:
            node = self.machines[name].node
            if node is not None and node.serving and (best is None or node.term > best[0]):
                best = (node.term, name)
        return None if best is None else best[1]

    def members(self) -> list[str]:
        """Members of the leader's configuration, voters and learners; the founders while nobody leads."""
        leader = self.leader()
        node = None if leader is None else self.machines[leader].node
        return list(self.founders) if node is None else sorted(node._members.current.members)

    def alive(self) -> list[str]:
        """Nodes whose process runs."""
        return [name for name in self.names if self.machines[name].running]

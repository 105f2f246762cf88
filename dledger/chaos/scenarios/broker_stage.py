"""The stage of a run with whole brokers. A *stage* has the simulated machines of a run and starts their
programs: here three brokers, a NameServer, and clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from dledger.broker.app import main as broker_main
from dledger.broker.broker import Broker
from dledger.broker.config import NODE_DEFAULTS, BrokerConfig
from dledger.broker.intake.resends import ALL_TOPICS
from dledger.broker.store.message_store import StoreLimits
from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.machine import Exit, Process, Trace
from dledger.chaos.machine.node import Main
from dledger.chaos.scenarios.broker_replay import BrokerReplay, Stored
from dledger.chaos.scenarios.chronicle import Replay
from dledger.chaos.scenarios.client_stage import BROKER_NAME
from dledger.chaos.scenarios.machine import Machine
from dledger.chaos.scenarios.newer import NEWER_TABLES, NOTES, Note
from dledger.chaos.scenarios.oracle import Queue
from dledger.chaos.scenarios.plan import BROKER_PRODUCERS, Plan, draw_newer
from dledger.chaos.scenarios.probe import Probe
from dledger.chaos.scenarios.profiles import PROFILES
from dledger.chaos.scenarios.stage import PUSH_BYTES, RESTART_NS, Stage
from dledger.chaos.scenarios.timer_history import PRECISION_MS, ROLL_WINDOW_SLOTS
from dledger.chaos.scenarios.transaction_history import CHECK_AFTER_MS, CHECK_EVERY_MS, CHECK_MAX
from dledger.config import NodeConfig
from dledger.errors import EXIT_CONFIG, NodeFailed
from dledger.formats.entry import unpack_header
from dledger.formats.state import TABLES, Source, pack_parts
from dledger.host import Chunk, Host, LogReader, Role
from dledger.namesrv.config import NamesrvConfig
from dledger.namesrv.service import NameServer
from dledger.namesrv.service import main as namesrv_main
from dledger.node.node import Node
from dledger.remoting.errors import RemotingError
from dledger.runtime.env import Env

NAMESRV = "ns"
NAMESRV_PORT = 9876
CLUSTER = "DefaultCluster"
LIMITS = StoreLimits(
    flush_interval_s=0.5, snapshot_interval_s=3.0, hot_units_queue=16, index_slots=101, index_units=400
)
"""Limits that make brokers write derived files and their snapshots often, and read from files most of the
time."""
PRODUCERS, OPERATOR = tuple(range(BROKER_PRODUCERS)), BROKER_PRODUCERS
NOTE_EVERY_S = 0.4
PULL, PUSH, POP = OPERATOR + 1, (OPERATOR + 2, OPERATOR + 3), (OPERATOR + 4, OPERATOR + 5)
"""Numbers of the client machines that pull, push and pop."""
ORDERLY = (POP[-1] + 1, POP[-1] + 2)
"""Numbers of the client machines with orderly consumers, in runs that have them."""
ORDERED = (ORDERLY[-1] + 1, ORDERLY[-1] + 2)
"""Numbers of the client machines that pop in order, in runs with orderly consumers."""
BRIEF_CLIENT = POP[-1] + 1
"""Number of the client machine that deletes topics, in runs that have it."""
UNAWARE = POP[-1] + 1
"""Number of the client machine that does not notice lost connections, in runs that have it."""
CHECKED_SEEDS = 4
"""In every CHECKED_SEEDS-th seed brokers look every send up in the table of repeated sends
(`duplicateCheckTopics`), even if it is not marked as a repetition."""
LOCK_LIVE_S = 5.0
"""How long the brokers of these runs keep the lock of a queue if nobody renews it, in seconds."""


class WatchedHost:
    """The host of a node in a broker. It passes each call on to the broker, and tells the probe (the observer
    of the node) of the call."""

    def __init__(self, stage: BrokerStage, broker: Broker, probe: Probe) -> None:
        self._stage = stage
        self._probe = probe
        self.broker = broker

    @property
    def index(self) -> int:
        """Index of the last entry that the broker's state and queues include."""
        return self.broker.store.applied_index

    def content(self) -> bytes:
        """The replicated state of the broker, encoded in the same way as the judge's replay."""
        return self._content(self.index)

    def _content(self, index: int) -> bytes:
        return BrokerReplay.from_parts(pack_parts(self.broker.store.state), index).encode()

    async def open(self, log: LogReader) -> int:
        self._probe.opening(log)
        index = await self.broker.open(log)
        if index >= 0:
            self._stage.marks.reach("a broker goes on from its own snapshot")
        return index

    def snapshot(self) -> Iterable[tuple[str, bytes]]:
        return self.broker.snapshot()

    async def restore(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        await self.broker.restore(parts, index, pos)
        self._stage.begins(pos)
        self._probe.restored(self._content(index), index)
        if NOTES.name in parts:
            self._stage.marks.reach("a snapshot with a newer part was installed")

    async def log_begins(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        self._stage.begins(pos)
        await self.broker.log_begins(parts, index, pos)

    async def kept_from(self) -> int | None:
        return await self.broker.kept_from()

    def apply(self, chunk: Chunk) -> None:
        offset = 0
        for _ in range(chunk.count):
            header = unpack_header(chunk.data, offset)
            self._probe.applied(header)
            offset += header.size
        self.broker.apply(chunk)
        if self.broker.features.intake.resends.recognized:
            self._stage.marks.reach("a leader had the message that was sent again")
        self._stage.cluster.count("no pull waits for what is there")
        check_prompt(self._probe.machine.name, self.broker)

    def on_role(self, role: Role, term: int, leader_id: str | None) -> None:
        self._probe.role(role, term)
        if self.broker.forwarder.forwarded:
            self._stage.marks.reach("a broker forwarded what only the leader can do")
        if len(self.broker.forwarder):
            self._stage.marks.reach("the leader changed while a request was forwarded to it")
        self.broker.on_role(role, term, leader_id)

    def on_serving(self, term: int) -> None:
        self._probe.serving(term)
        self.broker.on_serving(term)
        if self._stage.profile.upgrades:
            asyncio.get_running_loop().call_later(NOTE_EVERY_S, self._note, term)

    def _note(self, term: int) -> None:
        """Let a leader of the newer program write rows of its extra table as soon as all running brokers know
        that table."""
        writer, stage = self.broker.gate.writer, self._stage
        if writer is None or writer.term != term:
            return
        asyncio.get_running_loop().call_later(NOTE_EVERY_S, self._note, term)
        versions = [stage.newer[name] for name in stage.alive()]
        if any(versions) and not all(versions):
            stage.marks.reach("brokers of two versions serve together")
        if not stage.newer[self._probe.machine.name] or not writer.room:
            return
        number = writer.messages % 7
        note = NOTES.removal(f"n{number - 1}") if number % 3 == 0 else Note(f"n{number}", f"{term}").op()
        try:
            writer.append_op(note)
        except RemotingError:
            stage.marks.reach("a newer operation waited for an older broker")
            return
        stage.newer_written = True
        stage.marks.reach("a newer operation was written")

    def on_commit(self, commit_index: int) -> None:
        self._probe.committed(commit_index)
        self._stage.committed(self._probe)
        self.broker.on_commit(commit_index)

    def on_stopped_serving(self, term: int) -> None:
        self._probe.stopped_serving(term)
        self.broker.on_stopped_serving(term)


def check_prompt(name: str, broker: Broker) -> None:
    """Check that no pull waits although there are messages at its offset. If the broker forgot such a pull,
    the time-out of the pull would hide the error."""
    for pull in broker.features.longpolling.pulls.held:
        end = broker.store.state.next_offset(pull.topic, pull.queue_id)
        if pull.offset < end:
            raise InvariantViolated(
                f"{name}: a pull waits at {pull.offset} of {pull.topic}/{pull.queue_id}, which ends at {end}"
            )


class BrokerStage(Stage):
    """The stage (the simulated machines and their programs) of a run with brokers."""

    clients: int = POP[-1] + 1
    bystanders: tuple[str, ...] = (NAMESRV,)
    may_raise: tuple[type[BaseException], ...] = (NodeFailed, OSError)
    broker_root = "/store"
    """The directory in which a broker has its files."""

    def __init__(self, plan: Plan, trace: Trace | None) -> None:
        if PROFILES[plan.profile].orderly:
            self.clients = ORDERED[-1] + 1
        elif PROFILES[plan.profile].deletes:
            self.clients = BRIEF_CLIENT + 1
        elif PROFILES[plan.profile].unaware:
            self.clients = UNAWARE + 1
        super().__init__(plan, trace)
        self.ledger: BrokerReplay = BrokerReplay()
        """The replay of everything that was committed so far."""
        self.begun: int = 0
        """The latest position at which the log of any broker has begun so far. Earlier messages may no longer
        be readable."""
        self.newer: dict[str, bool] = {}
        """Maps a broker to whether it runs the newer program, in a run with upgrades."""
        self.told_newer: dict[str, bool] = {}
        """Maps a broker to whether it ran the newer program before its last start. Other brokers may rely on
        that until the broker reports otherwise."""
        self.newer_written = False
        """Whether an operation was appended that the older program does not know. After that no broker is
        started with the older program."""
        self.measured = False
        """Whether the run measures how fast messages are delivered. Meanwhile consumers do nothing that takes
        long, such as commits."""
        self.programs: dict[str, Main] = {}
        """Maps a client machine to its program."""
        self._stops: dict[Process, asyncio.Event] = {}
        self._nameserver: NameServer | None = None
        self.start_namesrv()

    # The NameServer

    def start_namesrv(self) -> None:
        """Start the NameServer if it does not run."""
        if self.world.nodes[NAMESRV].process is None:
            config = NamesrvConfig(listen_port=NAMESRV_PORT, kv_path="/kvConfig.json")
            main = partial(namesrv_main, config=config, on_ready=self._namesrv_ready)
            self.world.restart(NAMESRV, main)

    def _namesrv_ready(self, nameserver: NameServer) -> None:
        self._nameserver = nameserver

    def routes_are_right(self) -> bool:
        """Whether the NameServer knows all brokers and has the serving leader as broker id 0."""
        leader = self.leader()
        nameserver = self._nameserver if self.namesrv_runs else None
        if leader is None or nameserver is None:
            return False
        known = nameserver.routes.member_group(CLUSTER, BROKER_NAME)
        addresses = {} if known is None else known.brokerAddrs
        brokers = {name: self.broker(name) for name in self.founders}
        wanted = {name: one.config.client_addr for name, one in brokers.items() if one is not None}
        complete = sorted(addresses.values()) == sorted(wanted.values())
        return complete and addresses.get(0) == wanted.get(leader)

    @property
    def namesrv_runs(self) -> bool:
        """Whether the process of the NameServer runs."""
        return self.world.nodes[NAMESRV].process is not None

    def start_client(self, name: str) -> None:
        """Start the program of a client machine, if it does not run."""
        if self.world.nodes[name].process is None:
            self.world.restart(name, self.programs[name])

    # What client programs ask (`ClientStage`)

    @property
    def namesrv_addr(self) -> str:
        return f"{NAMESRV}:{NAMESRV_PORT}"

    @property
    def broker_name(self) -> str:
        return BROKER_NAME

    @property
    def namespace(self) -> str:
        return ""

    @property
    def resets_in_order(self) -> bool:
        return self.profile.orderly

    def client_address(self, name: str) -> str:
        return self.world.nodes[name].address

    def client_now(self, name: str) -> int:
        process = self.world.nodes[name].process
        assert process is not None
        return process.loop.now_ns()

    def client_runs(self, name: str) -> bool:
        return self.world.nodes[name].process is not None

    def committed_messages(self) -> Mapping[Queue, Sequence[Stored]]:
        return self.ledger.messages

    # Brokers

    def start(self, name: str) -> None:
        machine = self.machines[name]
        if self.profile.upgrades and not machine.running:
            self.told_newer[name] = self.told_newer.get(name, False) or self.newer.get(name, False)
            self.newer[name] = self.newer_written or draw_newer(self.plan, name, machine.lives + 1)
        super().start(name)

    def _tables(self, name: str) -> Sequence[Source]:
        return NEWER_TABLES if self.newer.get(name) else TABLES

    def _too_old(self, name: str, error: BaseException | None) -> bool:
        """Whether a broker ended correctly because it found an operation of the newer program after it had
        been started with the older one.

        This is expected only of a broker that ran the newer program before. The others never find such an
        operation, because the newer brokers wait for them.
        """
        expected = isinstance(error, NodeFailed) and error.exit_code == EXIT_CONFIG
        return expected and self.newer_written and not self.newer.get(name, True) and self.told_newer[name]

    def _ended(self, process: Process, how: Exit) -> None:
        if self._too_old(process.name, how.error):
            self._ends(self.machines[process.name])
            self.world.push(self.world.now + RESTART_NS, self._restart, process.name)
            return
        super()._ended(process, how)

    async def _main(self, env: Env, machine: Machine) -> None:
        config = BrokerConfig(
            config_export_s=0,
            cluster_name=CLUSTER,
            broker_name=BROKER_NAME,
            broker_ip=self.world.nodes[machine.name].address,
            namesrv_addr=(f"{NAMESRV}:{NAMESRV_PORT}",),
            store_root=self.broker_root,
            self_id=machine.name,
            peers={name: self.peers[name] for name in self.founders},
            node=replace(NODE_DEFAULTS, pool_segments=1),
            store=LIMITS,
            lock_live_s=LOCK_LIVE_S,
            transaction_timeout_ms=CHECK_AFTER_MS,
            transaction_check_interval_ms=CHECK_EVERY_MS,
            transaction_check_max=CHECK_MAX,
            timer_precision_ms=PRECISION_MS,
            timer_roll_window_slots=ROLL_WINDOW_SLOTS,
            duplicate_check_topics=(ALL_TOPICS,) if self.plan.seed % CHECKED_SEEDS == 0 else (),
        )
        stop = asyncio.Event()
        process = self.world.nodes[machine.name].process
        assert process is not None
        self._stops[process] = stop
        factory = partial(self._make_node, machine)
        tables = self._tables(machine.name)
        await broker_main(env, config, stop, make_node=factory, tables=tables)

    def _make_node(self, machine: Machine, env: Env, config: NodeConfig, host: Host) -> Node:
        small = replace(
            config,
            segment_size=self.profile.segment,
            max_entry_bytes=16 * 1024,
            index_units_per_file=self.index_units,
            push_bytes=PUSH_BYTES,
            scrub_pause_s=3.0,
            lag_probe_s=1.0,
            retention=self._retention(),
        )
        assert isinstance(host, Broker)
        probe = Probe(self, machine)
        machine.host = watched = WatchedHost(self, host, probe)
        node = Node(env, small, watched)
        probe.attach(node)
        machine.probe = probe
        return node

    def broker(self, name: str) -> Broker | None:
        """The broker that runs on a machine. None if no broker runs on it yet."""
        machine = self.machines[name]
        host = machine.host
        return host.broker if machine.running and isinstance(host, WatchedHost) else None

    def shut_down(self, name: str) -> bool:
        """Shut a broker down, as the outer shell of the program does on SIGTERM. Returns False if the broker
        does not run."""
        process = self.world.nodes[name].process
        stop = None if process is None else self._stops.get(process)
        if process is None or stop is None:
            return False
        process.loop.call_soon(stop.set)
        return True

    # What happened

    def replay(self, parts: Mapping[str, bytes] | None = None, index: int = -1) -> Replay:
        return BrokerReplay() if parts is None else BrokerReplay.from_parts(parts, index)

    def begins(self, pos: int) -> None:
        """Note that the log of a broker begins at this position, or is about to."""
        self.begun = max(self.begun, pos)

    def committed(self, probe: Probe) -> None:
        """Bring the ledger up to date: apply the entries that have become committed in the group. Called when
        the commit index of a node has moved."""
        if self.ledger.index < self.cluster.commit_index:
            probe.guarded(self._advance)

    def _advance(self) -> None:
        for header, record in self.chronicle.entries(self.ledger.index + 1, self.cluster.commit_index):
            self.ledger.apply(header, record)

    def elected(self, machine: Machine, term: int) -> None:
        super().elected(machine, term)
        if not self.namesrv_runs:
            self.marks.reach("the NameServer was down while the leader changed")

    def leader_term(self) -> int:
        """The term of the serving leader. -1 while no leader serves."""
        leader = self.leader()
        node = None if leader is None else self.machines[leader].node
        return -1 if node is None else node.term

"""Follows one cluster: its nodes, its rates, and how far its consumer groups are behind.

Everything here is in the memory of the dashboard. It begins empty, and is bounded: one hour of samples and of
changes of roles, and the last look at each node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dledger.admin import AsyncAdminClient, ClusterView, Refused
from dledger.client import BrokerRefused, ClientError
from dledger.remoting.bodies import MASTER_ID
from dledger.remoting.codes import ResponseCode
from dledger.remoting.node_report import NodeReport, RoleChange
from dledger.remoting.operator_bodies import ConsumeStats
from dledger.runtime.cooperative import Pace

SAMPLE_S = 5.0
"""Time between two looks at the cluster, in seconds."""
KEPT_S = 3600
"""How long samples and changes of roles are shown, in seconds."""
MAX_SAMPLES = int(KEPT_S / SAMPLE_S)
CURRENT_S = 4 * SAMPLE_S
"""Age up to which a sample is the present rate, in seconds."""
MAX_CHANGES = 256
"""Largest number of changes of roles that are kept for each node."""
BACKLOGS_S = 15.0
"""Time between two looks at the backlogs of all groups, in seconds. They are looked at only while somebody
has a page open."""
OPEN_S = 60.0
"""How long after the last request somebody counts as looking, in seconds."""
MAX_NODES_AT_ONCE = 16
"""Nodes that are asked at the same time."""
LOOK_LIMIT_S = 4.0
"""Longest wait for one node, in seconds. A node that takes longer counts as not reached in this look."""
ROWS_AT_ONCE = 100
"""Backlogs that are added up before the loop turns to other work."""
SILENT, APART = "it does not answer", "it is not connected"


class NodeView(msgspec.Struct, frozen=True):
    """One broker at the last look. A number that the broker does not report is None."""

    group: str
    id: str
    """Id of the node in its group; for a broker of Apache RocketMQ its broker id."""
    address: str
    reached: bool
    """Whether it answered the dashboard."""
    problem: str = ""
    """Why it is not reached."""
    role: str = "UNKNOWN"
    term: int | None = None
    leader: str | None = None
    serving: bool = False
    voter: bool = True
    connected: bool | None = None
    """Whether its leader is connected to it; None if that is not known."""
    version: str = ""
    booted_ms: int | None = None
    committed: int | None = None
    durable: int | None = None
    applied: int | None = None
    end: int | None = None
    lag_entries: int | None = None
    """Entries of the leader's log that are not durable at this node, as the leader reports it."""
    disk_used: float | None = None
    """Share of the disk in use, 0 to 1."""
    fsync_ms_mean: float | None = None
    fsync_ms_max: float | None = None
    loop_lag_ms_max: float | None = None
    reasons: tuple[str, ...] = ()
    """Why it is not healthy."""
    warnings: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    changes: tuple[RoleChange, ...] = ()
    """Its last changes of role, also those before a restart that this dashboard has seen."""
    rate_in: float | None = None
    """Messages a second that it received in the last 10 seconds."""
    rate_out: float | None = None
    """Messages a second that it gave to consumers in the last 10 seconds."""


class Sample(msgspec.Struct, frozen=True):
    """The rates of one broker group: messages a second in the 10 seconds before."""

    at_ms: int
    rate_in: float
    rate_out: float


class Backlog(msgspec.Struct, frozen=True):
    """How far a consumer group is behind in one topic."""

    group: str
    topic: str
    messages: int
    rate: float
    """Messages a second that the group consumed in the last minute."""


Answer = tuple[NodeReport | None, Mapping[str, str]]
"""What a broker answered: its report, None for a broker of Apache RocketMQ, and its runtime figures."""


class Watching:
    """Follows one cluster until cancelled (`run`)."""

    def __init__(self, name: str, admin: AsyncAdminClient) -> None:
        self.name = name
        self.admin = admin
        self.nodes: dict[str, dict[str, NodeView]] = {}
        """Maps each broker group to its nodes, by id. Replaced by each look."""
        self.looked_ms: int = 0
        """When the nodes were last looked at with success, in ms since the epoch; 0: not yet."""
        self.problem: str = "the cluster was not looked at yet"
        """Why the last look failed; empty if it did not."""
        self.backlogs: list[Backlog] = []
        """The backlogs of all groups, the largest first."""
        self.backlogs_ms: int = 0
        """When the backlogs were last looked at with success; 0: not yet."""
        self.backlog_problem: str = ""
        """Why backlogs are missing; empty if none is."""
        self._samples: dict[str, deque[Sample]] = {}
        self._changes: dict[tuple[str, str], dict[RoleChange, None]] = {}
        self._asked_s = -OPEN_S
        self._slots = asyncio.Semaphore(MAX_NODES_AT_ONCE)

    def now_ms(self) -> int:
        """The time, in ms since the epoch."""
        return self.admin.now_ms()

    def asked(self) -> None:
        """Note that somebody looks at a page."""
        self._asked_s = asyncio.get_running_loop().time()

    def samples(self, group: str) -> list[Sample]:
        """The rates of a broker group in the last hour, the oldest first."""
        since = self.now_ms() - KEPT_S * 1000
        return [one for one in self._samples.get(group, ()) if one.at_ms >= since]

    def rate(self, group: str) -> Sample | None:
        """The present rates of a broker group; None if they are not known."""
        found = self._samples.get(group)
        current = found and found[-1].at_ms >= self.now_ms() - CURRENT_S * 1000
        return found[-1] if found and current else None

    async def run(self) -> None:
        """Look at the cluster again and again, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_at_nodes(), name=f"nodes-{self.name}")
            tasks.create_task(self._look_at_backlogs(), name=f"backlogs-{self.name}")

    # Nodes

    async def _look_at_nodes(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(SAMPLE_S)

    async def look(self) -> None:
        """Look at all nodes once. A failure is noted in `problem`."""
        try:
            view = await self.admin.brokers.cluster()
        except ClientError as error:
            self.problem = str(error)
            return
        names = [group.brokerName for group in view.groups()]
        async with asyncio.TaskGroup() as tasks:
            looks = [
                tasks.create_task(self._look_at_group(view, name), name=f"look-{name}") for name in names
            ]
        self.nodes = {name: look.result() for name, look in zip(names, looks, strict=True)}
        self.problem, self.looked_ms = "", self.now_ms()
        for name, nodes in self.nodes.items():
            self._sample(name, nodes.values())
        for gone in [name for name in self._samples if name not in self.nodes]:
            del self._samples[gone]
        for key in [key for key in self._changes if key[1] not in self.nodes.get(key[0], ())]:
            del self._changes[key]

    async def _look_at_group(self, view: ClusterView, name: str) -> dict[str, NodeView]:
        registered = {address: str(id_) for id_, address in view.group(name).brokerAddrs.items()}
        answers, silent = await self._ask(registered)
        # The NameServers may not know a node that is connected to the others.
        members = _members(answers.values())
        further = {at: id_ for id_, at in members.items() if at and at not in registered}
        if further:
            more, still = await self._ask(further)
            answers |= more
            silent |= still
        found = views_of(name, registered, answers, silent, self.nodes.get(name, {}))
        return {one.id: self._remembered(one) for one in sorted(found, key=lambda one: one.id)}

    async def _ask(self, addresses: Iterable[str]) -> tuple[dict[str, Answer], dict[str, str]]:
        """Ask these brokers. Returns what each reached one answered, and why the others are not reached."""
        places = list(addresses)
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(self._ask_one(at), name=f"ask-{at}") for at in places]
        answers: dict[str, Answer] = {}
        silent: dict[str, str] = {}
        for at, task in zip(places, asked, strict=True):
            result = task.result()
            if isinstance(result, str):
                silent[at] = result
            else:
                answers[at] = result
        return answers, silent

    async def _ask_one(self, address: str) -> Answer | str:
        async with self._slots:
            try:
                async with asyncio.timeout(LOOK_LIMIT_S):
                    runtime = await self.admin.brokers.runtime(address)
                    try:
                        return await self.admin.brokers.node(address), runtime
                    except Refused as error:
                        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                            raise
                        return None, runtime
            except BrokerRefused as error:
                return str(error)
            except (ClientError, TimeoutError):
                return SILENT

    def _remembered(self, node: NodeView) -> NodeView:
        """The node with the changes of its role that were seen earlier: after a restart it reports only
        those since then, and nothing while it is away."""
        since = self.now_ms() - KEPT_S * 1000
        known = self._changes.setdefault((node.group, node.id), {})
        known |= dict.fromkeys(node.changes)
        kept = sorted((one for one in known if one.at_ms >= since or one in node.changes), key=_at_ms)
        self._changes[node.group, node.id] = dict.fromkeys(kept[-MAX_CHANGES:])
        return msgspec.structs.replace(node, changes=tuple(kept[-MAX_CHANGES:]))

    def _sample(self, group: str, nodes: Iterable[NodeView]) -> None:
        leader = leader_of(nodes)
        if leader is not None and leader.rate_in is not None:
            sample = Sample(self.now_ms(), leader.rate_in, leader.rate_out or 0.0)
            self._samples.setdefault(group, deque(maxlen=MAX_SAMPLES)).append(sample)

    # Backlogs

    async def _look_at_backlogs(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if loop.time() - self._asked_s < OPEN_S:
                await self.look_at_backlogs()
                await asyncio.sleep(BACKLOGS_S)
            else:
                await asyncio.sleep(0.5)

    async def look_at_backlogs(self) -> None:
        """Look at the backlogs of all groups once. A failure is noted in `backlog_problem`."""
        found: dict[tuple[str, str], Backlog] = {}
        problems: list[str] = []
        pace = Pace(ROWS_AT_ONCE)
        try:
            groups = (await self.admin.brokers.cluster()).groups()
        except ClientError as error:
            self.backlog_problem = str(error)
            return
        for group in groups:
            master = group.brokerAddrs.get(MASTER_ID)
            if master is None:
                problems.append(f"{group.brokerName} has no master")
                continue
            try:
                rows = (await self.admin.offsets.all_stats(master)).groups
            except ClientError as error:
                problems.append(str(error))
                continue
            for name, stats in rows:
                await pace.step()
                for topic, messages in _behind(stats).items():
                    before = found.get((name, topic), Backlog(name, topic, 0, 0.0))
                    rate = before.rate + stats.consumeTps
                    found[name, topic] = Backlog(name, topic, before.messages + messages, rate)
        self.backlog_problem = "; ".join(problems)
        self.backlogs = sorted(found.values(), key=lambda one: (-one.messages, one.group, one.topic))
        self.backlogs_ms = self.now_ms()


def _behind(stats: ConsumeStats) -> dict[str, int]:
    found: dict[str, int] = {}
    for queue, row in stats.offsets.items():
        found[queue.topic] = found.get(queue.topic, 0) + max(0, row.brokerOffset - row.consumerOffset)
    return found


def _at_ms(change: RoleChange) -> int:
    return change.at_ms


def _members(answers: Iterable[Answer]) -> dict[str, str]:
    """The addresses of the nodes of a group by id, empty for one that nobody is connected to."""
    found: dict[str, str] = {}
    for report, _ in answers:
        for id_, address in report.members.items() if report else ():
            found[id_] = address or found.get(id_, "")
    return found


def leader_of(nodes: Iterable[NodeView]) -> NodeView | None:
    """The node that serves. While the network is parted, two may: the one with the highest term."""
    return max((one for one in nodes if one.serving), key=lambda one: one.term or 0, default=None)


def views_of(
    group: str,
    registered: Mapping[str, str],
    answers: Mapping[str, Answer],
    silent: Mapping[str, str],
    before: Mapping[str, NodeView],
) -> list[NodeView]:
    """The nodes of a broker group. `registered` maps addresses to broker ids. `answers` and `silent` say what
    was answered, or why not, by address. `before` has the nodes of the look before, by id."""
    reports = [report for report, _ in answers.values() if report is not None]
    chief = max(reports, key=lambda one: (one.serving, one.term or 0), default=None)
    found = [_view(group, at, report, runtime, chief) for at, (report, runtime) in answers.items()]
    named = {one.id for one in found}
    addresses = _members(answers.values())
    if chief is None:  # brokers of Apache RocketMQ, or nobody answers
        known = {one.address: one for one in before.values() if one.address}
        for at, why in silent.items():
            last = known.get(at)
            id_, voter = (last.id, last.voter) if last else (registered.get(at, at), True)
            found.append(NodeView(group, id_, at, reached=False, problem=why, voter=voter))
        return found
    voters, members = chief.node.voters, [*chief.node.voters, *chief.node.learners]
    missing = [id_ for id_ in members if id_ not in named]
    nameless = [at for at in silent if at not in addresses.values()]
    for id_ in missing:
        at = addresses.get(id_, "")
        if not at and len(missing) == len(nameless) == 1:
            at = nameless[0]  # registered, and nobody is connected to it any more
        elif not at and id_ in before:
            at = before[id_].address
        why = silent.get(at, APART)
        found.append(NodeView(group, id_, at, reached=False, problem=why, voter=id_ in voters))
    return found


def _view(
    group: str, address: str, report: NodeReport | None, runtime: Mapping[str, str], chief: NodeReport | None
) -> NodeView:
    """What a broker answered, as a view. `chief` is the report of the group's leader, if there is one."""
    booted = _whole(runtime.get("bootTimestamp"))
    rate_in, rate_out = _rate(runtime.get("putTps")), _rate(runtime.get("getTransferredTps"))
    version = runtime.get("brokerVersionDesc", "")
    if report is None:
        role = runtime.get("brokerRole", "UNKNOWN")
        return NodeView(
            group,
            runtime.get("brokerId", address),
            address,
            reached=True,
            role=role,
            serving=role != "SLAVE",
            version=version,
            booted_ms=booted,
            rate_in=rate_in,
            rate_out=rate_out,
        )
    log, id_ = report.node, report.id or address
    voters: Sequence[str] = chief.node.voters if chief is not None else log.voters
    peer = chief.node.peers.get(id_) if chief is not None and chief.serving else None
    return NodeView(
        group,
        id_,
        address,
        reached=True,
        role=report.role,
        term=report.term,
        leader=report.leader,
        serving=report.serving,
        voter=id_ in voters or not voters,
        connected=True if report.serving else peer.connected if peer else None,
        version=version,
        booted_ms=booted,
        committed=log.committed_index,
        durable=log.durable_index,
        applied=report.applied_index,
        end=log.end_index,
        lag_entries=0 if report.serving else peer.lag_entries if peer else None,
        disk_used=log.used_ratio,
        fsync_ms_mean=log.flush_ms_mean,
        fsync_ms_max=log.flush_ms_max,
        loop_lag_ms_max=log.loop_lag_ms_max,
        reasons=tuple(report.reasons),
        warnings=tuple(report.warnings),
        statements=tuple(log.statements),
        changes=tuple(report.role_changes),
        rate_in=rate_in,
        rate_out=rate_out,
    )


def _whole(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _rate(text: str | None) -> float | None:
    """The first of three rates, which are those of the last 10 seconds, minute and 10 minutes."""
    try:
        return float((text or "").split()[0])
    except (ValueError, IndexError):
        return None

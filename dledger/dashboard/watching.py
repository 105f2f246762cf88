"""Follows one cluster: its nodes, its rates, and how far its consumer groups are behind.

Everything here is in the memory of the dashboard. It begins empty, and is bounded: one hour of samples for
each broker group, and the last look at each node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dledger.admin import AsyncAdminClient, ClusterView, Refused
from dledger.client import ClientError
from dledger.remoting.bodies import MASTER_ID
from dledger.remoting.codes import ResponseCode

SAMPLE_S = 5.0
"""Time between two looks at the cluster, in seconds."""
KEPT_S = 3600
"""How long samples and events are shown, in seconds."""
MAX_SAMPLES = int(KEPT_S / SAMPLE_S)
BACKLOGS_S = 15.0
"""Time between two looks at the backlogs of all groups, in seconds. They are looked at only while somebody
has a page open."""
OPEN_S = 60.0
"""How long after the last request somebody counts as looking, in seconds."""
MAX_NODES_AT_ONCE = 16
"""Nodes that are asked at the same time."""
LOOK_LIMIT_S = 4.0
"""Longest wait for one node, in seconds. A node that takes longer counts as not reached in this look."""


class RoleChange(msgspec.Struct, frozen=True):
    """A change of a node's role, its term or the leader that it knows. `why` is empty if only the leader
    changed."""

    at_ms: int
    role: str
    term: int
    leader: str | None = None
    why: str = ""


class NodeView(msgspec.Struct, frozen=True):
    """One broker at the last look. A number that the broker does not report is None."""

    group: str
    id: str
    """Id of the node in its group; for a broker of Apache RocketMQ its broker id."""
    address: str
    reached: bool
    problem: str = ""
    """Why it is not reached."""
    role: str = "UNKNOWN"
    term: int | None = None
    leader: str | None = None
    serving: bool = False
    voter: bool = True
    version: str = ""
    booted_ms: int | None = None
    committed: int | None = None
    durable: int | None = None
    applied: int | None = None
    end: int | None = None
    lag_entries: int | None = None
    """Entries of the leader's log that are not durable at this node, by the leader's account."""
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
    oldest_ms: int
    """Store time of the oldest message after the group's offset, as far as it is known; 0: not known."""
    rate: float
    """Messages a second that the group consumes."""


class Watching:
    """Follows one cluster until cancelled (`run`)."""

    def __init__(self, name: str, admin: AsyncAdminClient) -> None:
        self.name = name
        self.admin = admin
        self.nodes: dict[str, dict[str, NodeView]] = {}
        """Maps each broker group to its nodes, by address. Replaced by each look."""
        self.rates: dict[str, deque[Sample]] = {}
        """Maps each broker group to its samples of the last hour, the oldest first."""
        self.backlogs: list[Backlog] = []
        """The backlogs of all groups, the largest first."""
        self.backlogs_ms: int = 0
        """When the backlogs were looked at, in ms since the epoch; 0: not yet."""
        self.problem: str = "the cluster was not looked at yet"
        """Why the last look failed; empty if it did not."""
        self.backlog_problem: str = ""
        self._asked_s = 0.0
        self._slots = asyncio.Semaphore(MAX_NODES_AT_ONCE)

    def now_ms(self) -> int:
        """The time, in ms since the epoch."""
        return self.admin.now_ms()

    def asked(self) -> None:
        """Note that somebody looks at a page."""
        self._asked_s = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Look at the cluster again and again, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_at_nodes(), name=f"nodes-{self.name}")
            tasks.create_task(self._look_at_backlogs(), name=f"backlogs-{self.name}")

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
        found: dict[str, dict[str, NodeView]] = {}
        for group in view.groups():
            found[group.brokerName] = await self._look_at_group(view, group.brokerName)
        self.nodes, self.problem = found, ""
        for name, nodes in found.items():
            self._sample(name, nodes.values())
        for gone in [name for name in self.rates if name not in found]:
            del self.rates[gone]

    async def _look_at_group(self, view: ClusterView, name: str) -> dict[str, NodeView]:
        addresses = {address: str(id_) for id_, address in view.group(name).brokerAddrs.items()}
        nodes = await self._ask(name, addresses)
        # A follower that is not registered is known to the others.
        further: dict[str, str] = {}
        for answer, _ in nodes.values():
            further |= {at: id_ for id_, at in _members(answer).items() if at and at not in addresses}
        if further:
            nodes |= await self._ask(name, further)
        leader = next((answer for answer, _ in nodes.values() if answer.get("serving")), {})
        views = [node_view(name, at, answer, runtime, leader) for at, (answer, runtime) in nodes.items()]
        silent = [at for at in {**addresses, **further} if at not in nodes]
        known = {at: id_ for answer, _ in nodes.values() for id_, at in _members(answer).items()}
        for at in silent:
            id_ = known.get(at) or {**addresses, **further}[at]
            views.append(NodeView(name, id_, at, reached=False, problem="it does not answer"))
        named = {view.id for view in views}
        before = {view.id: view.address for view in self.nodes.get(name, {}).values()}
        for answer, _ in nodes.values():
            for id_, at in _members(answer).items():
                if not at and id_ not in named:
                    address = before.get(id_, "")
                    views.append(NodeView(name, id_, address, reached=False, problem="it is not connected"))
                    named.add(id_)
        return {view.address or view.id: view for view in sorted(views, key=lambda one: one.id)}

    async def _ask(
        self, group: str, addresses: Mapping[str, str]
    ) -> dict[str, tuple[dict[str, Any], dict[str, str]]]:
        """Ask these brokers. Returns what each reached one answered."""
        answers = await asyncio.gather(*(self._ask_one(address) for address in addresses))
        return {at: answer for at, answer in zip(addresses, answers, strict=True) if answer is not None}

    async def _ask_one(self, address: str) -> tuple[dict[str, Any], dict[str, str]] | None:
        async with self._slots:
            try:
                async with asyncio.timeout(LOOK_LIMIT_S):
                    runtime = await self.admin.brokers.runtime(address)
                    try:
                        return await self.admin.brokers.node(address), runtime
                    except Refused as error:
                        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                            raise
                        return {}, runtime  # a broker of Apache RocketMQ
            except (ClientError, TimeoutError):
                return None

    def _sample(self, group: str, nodes: Iterable[NodeView]) -> None:
        leader = next((one for one in nodes if one.serving), None)
        if leader is not None and leader.rate_in is not None:
            sample = Sample(self.now_ms(), leader.rate_in, leader.rate_out or 0.0)
            self.rates.setdefault(group, deque(maxlen=MAX_SAMPLES)).append(sample)

    async def _look_at_backlogs(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self.nodes and loop.time() - self._asked_s < OPEN_S:
                await self.look_at_backlogs()
                await asyncio.sleep(BACKLOGS_S)
            else:
                await asyncio.sleep(0.5)

    async def look_at_backlogs(self) -> None:
        """Look at the backlogs of all groups once. A failure is noted in `backlog_problem`."""
        found: dict[tuple[str, str], Backlog] = {}
        try:
            for address in list((await self.admin.brokers.cluster()).info.brokerAddrTable.values()):
                master = address.brokerAddrs.get(MASTER_ID)
                if master is None:
                    continue
                for group, stats in (await self.admin.offsets.all_stats(master)).groups:
                    for queue, row in stats.offsets.items():
                        key = group, queue.topic
                        before = found.get(key, Backlog(group, queue.topic, 0, 0, 0.0))
                        behind = max(0, row.brokerOffset - row.consumerOffset)
                        oldest = row.lastTimestamp if behind else 0
                        known = [one for one in (before.oldest_ms, oldest) if one]
                        found[key] = Backlog(
                            group,
                            queue.topic,
                            before.messages + behind,
                            min(known, default=0),
                            stats.consumeTps,
                        )
        except ClientError as error:
            self.backlog_problem = str(error)
            return
        self.backlog_problem = ""
        self.backlogs = sorted(found.values(), key=lambda one: (-one.messages, one.group, one.topic))
        self.backlogs_ms = self.now_ms()


def _members(answer: Mapping[str, Any]) -> dict[str, str]:
    found = answer.get("members")
    return {str(id_): str(at) for id_, at in found.items()} if isinstance(found, dict) else {}


def node_view(
    group: str,
    address: str,
    answer: Mapping[str, Any],
    runtime: Mapping[str, str],
    leader: Mapping[str, Any],
) -> NodeView:
    """What a broker answered, as a view. `answer` is empty for a broker of Apache RocketMQ. `leader` is the
    answer of the group's leader, or empty."""
    booted = _whole(runtime.get("bootTimestamp"))
    rate_in, rate_out = _rate(runtime.get("putTps")), _rate(runtime.get("getTransferredTps"))
    if not answer:
        role = runtime.get("brokerRole", "UNKNOWN")
        return NodeView(
            group,
            runtime.get("brokerId", address),
            address,
            reached=True,
            role=role,
            serving=role != "SLAVE",
            version=runtime.get("brokerVersionDesc", ""),
            booted_ms=booted,
            rate_in=rate_in,
            rate_out=rate_out,
        )
    status = answer.get("node")
    status = status if isinstance(status, dict) else {}
    id_ = str(answer.get("id") or address)
    progress = ((leader.get("node") or {}).get("peers") or {}).get(id_) or {}
    flushes = status.get("flush_ms_mean"), status.get("flush_ms_max")
    return NodeView(
        group,
        id_,
        address,
        reached=True,
        role=str(answer.get("role") or "UNKNOWN"),
        term=answer.get("term"),
        leader=answer.get("leader"),
        serving=bool(answer.get("serving")),
        voter=id_ in (status.get("voters") or [id_]),
        version=runtime.get("brokerVersionDesc", ""),
        booted_ms=booted,
        committed=status.get("committed_index"),
        durable=status.get("durable_index"),
        applied=answer.get("applied_index"),
        end=status.get("end_index"),
        lag_entries=0 if answer.get("serving") else progress.get("lag_entries"),
        disk_used=status.get("used_ratio"),
        fsync_ms_mean=flushes[0],
        fsync_ms_max=flushes[1],
        loop_lag_ms_max=status.get("loop_lag_ms_max"),
        reasons=tuple(map(str, answer.get("reasons") or ())),
        warnings=tuple(map(str, answer.get("warnings") or ())),
        statements=tuple(map(str, status.get("statements") or ())),
        changes=msgspec.convert(answer.get("role_changes") or [], tuple[RoleChange, ...]),
        rate_in=rate_in,
        rate_out=rate_out,
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdecimal() else None


def _rate(text: str | None) -> float | None:
    """The first of three rates, which are those of the last 10 seconds, minute and 10 minutes."""
    try:
        return float((text or "").split()[0])
    except (ValueError, IndexError):
        return None

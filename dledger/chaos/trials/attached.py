"""A group that others have started, as the system under test.

The trial sends to this group only. It changes nothing but its own topics and consumer groups, which have a
namespace of their own and are deleted at the end, and what the faults do.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from dledger.admin.client import AdminClient
from dledger.audit.store_directory import StoreError
from dledger.chaos.scenarios.broker_clients import FIRST_TOPIC
from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.trials.attaching import LINKS, Attachment, FoundGroup
from dledger.chaos.trials.checkers import GROUPS
from dledger.chaos.trials.client_proxy import ClientProxy
from dledger.chaos.trials.evidence import Evidence
from dledger.chaos.trials.executed import Runner
from dledger.chaos.trials.injected import Injected
from dledger.chaos.trials.live_log import LiveLog, belongs_to
from dledger.chaos.trials.nemeses import TRANSFER_S
from dledger.chaos.trials.node_logs import Line
from dledger.chaos.trials.system import SystemUnderTest, Undo
from dledger.client.errors import ClientError
from dledger.client.namespaces import with_namespace
from dledger.client.options import ClientOptions
from dledger.client.producing.producer import AsyncProducer
from dledger.formats.addresses import split_address
from dledger.lake.log_reading import GroupLog
from dledger.local.cluster import ClusterError
from dledger.local.placement import NAMESRV
from dledger.peers.log_client import DLedgerClient
from dledger.remoting.bodies import SubscriptionGroupConfig
from dledger.runtime.env import production_env

FIRST_QUEUES = 8
"""Queues of the topic to which the producers send, as if a broker had created it."""
WHOLE_POLL_S = 0.2
CLEAR_LIMIT_S = 60.0
"""Longest time, in seconds, for which the deletion of the trial's topics and consumer groups is tried."""
CLEAR_POLL_S = 0.5
WATCHING = ClientOptions(request_timeout_s=1.0, failover_timeout_s=0.5, namesrv_timeout_s=1.0)
"""Time limits of the watcher: a node that does not answer in time counts as silent."""
NEEDED = ("LEADER", "FOLLOWER")
"""Roles of the nodes of a whole group."""


class AttachedGroup(SystemUnderTest):
    """A group that others have started."""

    def __init__(self, group: FoundGroup, attachment: Attachment) -> None:
        """Raises OSError if the proxy cannot listen."""
        super().__init__(tuple(group.brokers))
        self.namespace: str = attachment.namespace
        self.broker_name: str = group.broker_name
        self.flush: str = group.flush
        self.where: str = f"the group {group.broker_name} behind {group.namesrv}"
        self.left_out: Mapping[str, str] = attachment.left_out
        self.leftover: str = ""
        """What the trial could not undo or delete at its end; empty if nothing."""
        self._group = group
        self._attachment = attachment
        self._runner = Runner()
        self._open: dict[int, Undo] = {}
        """What undoes the faults of commands that are not undone yet."""
        self._lock = threading.Lock()
        self._count = 0
        self._clients = ExitStack()
        self._watching: AdminClient | None = None
        self._log = GroupLog(group.namesrv, group.broker_name)
        self._live: LiveLog | None = None
        self._creates = False
        """Whether the trial has begun to create topics, so that there may be something to delete."""
        self._proxy = ClientProxy(group.brokers) if attachment.link_kinds else None
        self.network = self.proxy = self._proxy

    @property
    def diversions(self) -> dict[tuple[str, int], tuple[str, int]]:
        """Maps addresses of brokers to those to which the client programs connect instead."""
        return {} if self._proxy is None else self._proxy.diversions

    @property
    def namesrv_addr(self) -> str:
        return self._group.namesrv

    def start(self, topics: Mapping[str, int]) -> None:
        """Note where the log of the trial begins, and create the topics and consumer groups: the brokers may
        be set to make none by themselves."""
        try:
            self._watching = self._clients.enter_context(AdminClient(self._group.namesrv, WATCHING))
            self._clients.enter_context(self._log)
            begin = self._log.state().committed + 1
            self._live = LiveLog(self._log, begin, self.namespace)
            if self.closing:
                return
            self._creates = True
            asyncio.run(self._create({FIRST_TOPIC: FIRST_QUEUES, **topics}))
            self._create_groups()
        except (ClientError, StoreError) as error:
            raise ClusterError(f"{self.where}: {error}") from error

    async def _create(self, topics: Mapping[str, int]) -> None:
        options = ClientOptions(namespace=self.namespace)
        async with AsyncProducer("trial", self._group.namesrv, client=options) as producer:
            for topic, queues in topics.items():
                await producer.create_topic(topic, queues, self.broker_name)

    def _create_groups(self) -> None:
        kinds = self._attachment.scenario.clients
        with AdminClient(self._group.namesrv) as admin:
            master = admin.brokers.masters(broker_name=self.broker_name)[self.broker_name]
            for name in dict.fromkeys(GROUPS[kind] for kind in kinds if kind in GROUPS):
                config = SubscriptionGroupConfig(groupName=with_namespace(name, self.namespace))
                admin.groups.put(master, config)

    # What happens

    def state(self, node: str) -> Mapping[str, Any]:
        assert self._watching is not None
        try:
            told = self._watching.brokers.runtime(self._group.brokers[node])
        except ClientError:
            return {}
        return {
            "role": told.get("raftRole", ""),
            "term": int(told.get("raftTerm") or -1),
            "serving": told.get("brokerActive") == "true",
            "end": int(told.get("commitLogMaxOffset") or 0),
        }

    def not_whole(self, limit_s: float) -> str:
        deadline = time.monotonic() + limit_s
        wanted = -1
        while True:
            states = {node: self.state(node) for node in self.nodes}
            leader = next((one for one in states.values() if one.get("serving")), None)
            if leader is not None and wanted < 0:
                wanted = leader["end"]
            behind = [
                node for node, one in states.items() if one.get("role") not in NEEDED or one["end"] < wanted
            ]
            if leader is not None and not behind:
                return ""
            if time.monotonic() > deadline or self.closing:
                what = f"{', '.join(behind)} did not catch up" if leader else "no node leads"
                return f"after {limit_s:g} s {what}"
            time.sleep(WHOLE_POLL_S)

    def read_committed(self, evidence: Evidence) -> str:
        live, problem = self._read()
        evidence.replay = live.replay
        return problem

    def _read(self) -> tuple[LiveLog, str]:
        """Read the log up to what is committed now. Returns also why this is not possible; empty if it
        is."""
        assert self._live is not None
        try:
            self._live.read(self._log.state().committed)
        except (ClientError, StoreError) as error:
            return self._live, f"the log cannot be read: {error}"
        return self._live, ""

    # What faults do

    def executes(self, kind: str) -> bool:
        return kind in self._attachment.commands

    def strike(self, nodes: Sequence[str], fault: Fault) -> Undo | None:
        if fault.kind in self._attachment.commands:
            return self._execute(nodes, fault)
        if fault.kind in LINKS:
            return LINKS[fault.kind](self, list(nodes), fault)
        self._transfer(nodes, fault)
        return None

    def _execute(self, nodes: Sequence[str], fault: Fault) -> Undo | None:
        """Run the command of this fault for each of the nodes."""
        struck: list[Mapping[str, str]] = []
        undo = None
        if fault.kind in self._attachment.undo_commands:
            with self._lock:
                self._count += 1
                undo = self._open[self._count] = partial(self._end, self._count, fault.kind, struck)
        try:
            for node in nodes or [NAMESRV]:
                struck.append(self._values(node, fault))
                self._runner.run(self._attachment.commands[fault.kind], struck[-1])
        except ClusterError:
            if undo is not None:
                undo()
            raise
        return undo

    def _end(self, number: int, kind: str, struck: list[Mapping[str, str]]) -> None:
        """Undo a fault of a command, once."""
        while struck:
            self._runner.run(self._attachment.undo_commands[kind], struck[0])
            struck.pop(0)
        with self._lock:
            self._open.pop(number, None)

    def _values(self, node: str, fault: Fault) -> Mapping[str, str]:
        address = self._group.brokers.get(node) or self._group.namesrv.split(";")[0]
        host, port = split_address(address)
        return {
            "node": node,
            "host": host,
            "port": str(port),
            "address": address,
            "amount": str(fault.amount),
        }

    def _transfer(self, nodes: Sequence[str], fault: Fault) -> None:
        targets = [node for node in self.nodes if node not in nodes]
        target = targets[fault.pick % len(targets)]
        leader = self._ask(lambda client: client.transfer(target))
        if leader != target:
            raise ClusterError(f"leadership was to go to {target}, and {leader} leads")

    def _ask(self, question: Callable[[DLedgerClient], Any]) -> Any:
        env = production_env("trial")

        async def ask() -> Any:
            async with DLedgerClient(env, self._group.log_ports, TRANSFER_S) as client:
                return await question(client)

        try:
            return asyncio.run(ask())
        finally:
            env.workers.close()

    def heal(self) -> None:
        """Join all links, and undo what is not undone yet. Raises ClusterError if a command fails."""
        if self.network is not None:
            self.network.heal()
        for undo in list(self._open.values()):
            undo()

    # The end

    def interrupt(self) -> None:
        self.closing = True
        self._runner.interrupt()

    def clear(self) -> None:
        """Undo all faults, and delete the topics and groups. What fails is in `leftover`."""
        self._runner.resume()
        failures = []
        try:
            self.heal()
        except (ClusterError, OSError, TimeoutError) as error:
            failures.append(str(error))
        left = self._delete_all() if self._creates else ""
        failures += [left] if left else []
        self.leftover = "; ".join(failures)
        self._clients.close()

    def stop(self) -> None:
        """Read the log to its end, and delete the topics and groups."""
        live, problem = self._read()
        live.broken = live.broken or problem
        self.leftover = self._delete_all()
        self._clients.close()

    def _delete_all(self) -> str:
        """Delete everything in the namespace. Returns what is left, with the reason; empty if nothing is."""
        deadline = time.monotonic() + CLEAR_LIMIT_S
        while True:
            left, why = ["its topics and consumer groups"], ""
            try:
                with AdminClient(self._group.namesrv) as admin:
                    left = self._delete_from(admin)
            except ClientError as error:
                why = str(error)
            if not left:
                return ""
            if time.monotonic() > deadline:
                return (
                    f"{', '.join(left)} of the namespace {self.namespace} could not be deleted {why}: delete "
                    "them with `dledger topic delete` and `dledger group delete`"
                )
            time.sleep(CLEAR_POLL_S)

    def _delete_from(self, admin: AdminClient) -> list[str]:
        """Delete what is there now. Returns the names of what was there.

        Consumers connect to all broker groups of a cluster, and each of them makes the retry topics of their
        consumer groups. So all are asked, not only the one that the trial disturbs."""
        found: dict[str, None] = {}
        for master in admin.brokers.masters().values():
            for name in filter(self._ours, admin.groups.configs(master)):
                admin.groups.delete(master, name, offsets=True)
                found[name] = None
            for name in filter(self._ours, admin.topics.configs(master).topicConfigTable):
                admin.topics.delete(master, name)
                found[name] = None
        return list(found | dict.fromkeys(filter(self._ours, admin.topics.names())))

    def _ours(self, name: str) -> bool:
        return belongs_to(name, self.namespace)

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()

    def collect(self, evidence: Evidence, injected: Sequence[Injected], ended_s: float) -> None:
        """Give the judges what was read of the log."""
        assert self._live is not None
        evidence.replay = self._live.replay
        evidence.first_index = evidence.begin = self._live.begin
        evidence.left_out = self.left_out
        if self._live.broken:
            evidence.broken["log"] = self._live.broken

    def lines(self) -> list[Line]:
        """None: the logs of the nodes cannot be read from here."""
        return []

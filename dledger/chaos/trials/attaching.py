"""`dledger chaos run --namesrv`: finds a group that others have started, and says what a trial may do to it.

Nothing here changes anything in the group. What cannot be done is refused before the trial starts, with a
text that says what could be done instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from dledger.admin.client import AdminClient
from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.trials import network_nemeses
from dledger.chaos.trials.executed import Template
from dledger.chaos.trials.nemeses import TRANSFER_S
from dledger.chaos.trials.scenario import Scenario
from dledger.chaos.trials.system import SystemUnderTest, Undo
from dledger.client.errors import ClientError
from dledger.client.options import ClientOptions
from dledger.config import parse_peers
from dledger.local.cluster import ClusterError
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.env import new_id, production_env
from dledger.runtime.options import WrongUsage
from dledger.runtime.settings import ConfigError

ATTACHED_CLIENTS = ("probe", "producers", "pull", "push", "push-slow", "orderly")
"""The client programs that may run at a group of others."""
TRANSFER = "transfer"
LINKS: Mapping[str, Callable[[SystemUnderTest, list[str], Fault], Undo | None]] = {
    "clients-cut": network_nemeses.clients_cut,
    "half-open": network_nemeses.half_open,
    "slow-link": network_nemeses.slow_link,
    "flaky": network_nemeses.flaky,
    "reconnect-storm": network_nemeses.reconnect_storm,
}
"""The kinds of faults that a proxy injects into the connections of the trial's own clients."""
NEEDS_FILES: Mapping[str, str] = {
    "replicas": "the stores of the brokers cannot be read from here; `dledger spark audit --namesrv` "
    "compares them",
    "processes": "the processes of the brokers belong to others",
    "flights": "the flight recordings of the brokers cannot be read from here; `dledger chaos replay` "
    "replays them on their machines",
}
"""Maps the rules that need files or processes of the brokers to the reason why they are left out."""


@dataclass(frozen=True)
class FoundGroup:
    """A broker group that others have started."""

    namesrv: str
    broker_name: str
    brokers: Mapping[str, str]
    """Maps each node that votes to the address (host:port) at which clients find it."""
    log_ports: Mapping[str, str]
    """Maps each node to the address at which its peers find it."""
    flush: str
    """flushDiskType of the brokers."""
    why_no_transfer: str = ""
    """Why leadership cannot be transferred from here; empty if it can."""


@dataclass(frozen=True)
class Attachment:
    """What a trial does at a group of others."""

    scenario: Scenario
    """The scenario without what is left out."""
    commands: Mapping[str, Template]
    """Maps a kind of fault to the command that injects it."""
    undo_commands: Mapping[str, Template]
    left_out: Mapping[str, str]
    """Maps what is left out to the reason."""
    namespace: str = field(default_factory=lambda: f"trial-{new_id()[:8]}")

    @property
    def link_kinds(self) -> list[str]:
        """The kinds of faults for which the trial needs a proxy."""
        kinds = {fault.kind for fault in self.scenario.faults}
        return sorted(kind for kind in kinds if kind in LINKS and kind not in self.commands)


def find_group(namesrv: str, broker_name: str | None) -> FoundGroup:
    """Ask the NameServers for the broker group, each of its brokers for its settings, and the group for its
    voters. Raises WrongUsage if it is not clear which group is meant, and ClusterError if a broker does not
    answer, or is not one of this project's."""
    try:
        with AdminClient(namesrv, ClientOptions(request_timeout_s=5.0)) as admin:
            groups = {group.brokerName: group for group in admin.brokers.cluster().groups()}
            known = ", ".join(sorted(groups)) or "none"
            if broker_name is None and len(groups) != 1:
                raise WrongUsage(f"--broker-name says which broker group is meant; registered are: {known}")
            name = broker_name or next(iter(groups))
            if name not in groups:
                raise WrongUsage(f"--broker-name {name}: registered are: {known}")
            settings = {
                address: admin.brokers.settings(address) for address in groups[name].brokerAddrs.values()
            }
    except ClientError as error:
        raise ClusterError(str(error)) from error
    if not settings:
        raise ClusterError(f"no broker of {name} is registered: start them first")
    for address, found in settings.items():
        if not found.get("dLegerSelfId") or not found.get("dLegerPeers"):
            raise ClusterError(f"{address} is not a broker of a replicated group of this project")
    one = next(iter(settings.values()))
    try:
        log_ports = parse_peers(one["dLegerPeers"])
    except ConfigError as error:
        raise ClusterError(str(error)) from error
    voters, why = asyncio.run(_ask_voters(log_ports))
    log_ports = voters or log_ports
    brokers = {found["dLegerSelfId"]: address for address, found in settings.items()}
    if missing := sorted(log_ports.keys() - brokers.keys()):
        raise ClusterError(
            f"{', '.join(missing)} of {name} did not register at the NameServers: a trial begins with a "
            "whole group, so start them first"
        )
    flush = one.get("flushDiskType", "SYNC_FLUSH")
    return FoundGroup(
        namesrv, name, {node: brokers[node] for node in sorted(log_ports)}, log_ports, flush, why
    )


async def _ask_voters(log_ports: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Ask the group at these log ports for its voters: node -> address of its log port. Returns none of them,
    and the reason, if the group does not answer."""
    env = production_env("trial")
    try:
        async with DLedgerClient(env, log_ports, TRANSFER_S) as client:
            members = (await client.members())["members"]
    except (RequestFailed, OSError, TimeoutError) as error:
        return {}, str(error)
    finally:
        env.workers.close()
    return {row["id"]: row["address"] for row in members if row["role"] == "voter"}, ""


def plan_attachment(
    scenario: Scenario,
    commands: Mapping[str, Template],
    undo_commands: Mapping[str, Template],
    why_no_transfer: str,
) -> Attachment:
    """Decide what of a scenario is done at a group of others. `why_no_transfer` is empty if leadership can be
    transferred. Raises WrongUsage if a fault cannot be
    injected, or if a command fits no fault."""
    kinds = list(dict.fromkeys(fault.kind for fault in scenario.faults))
    if unused := sorted(commands.keys() - set(kinds)):
        raise WrongUsage(
            f"--exec {unused[0]}: the scenario {scenario.name} has no such fault; it has {', '.join(kinds)}"
        )
    if unused := sorted(undo_commands.keys() - commands.keys()):
        raise WrongUsage(f"--exec-undo {unused[0]}: give also --exec {unused[0]}=COMMAND")
    reasons = {}
    for kind in kinds:
        if kind not in commands and kind != TRANSFER and kind not in LINKS:
            reasons[kind] = "the processes, disks and networks of others are not touched"
    if TRANSFER in kinds and TRANSFER not in commands and why_no_transfer:
        reasons[TRANSFER] = f"the log port of the group cannot be used: {why_no_transfer}"
    if reasons:
        listed = "; ".join(f"{kind}: {why}" for kind, why in reasons.items())
        example = next(iter(reasons))
        raise WrongUsage(
            f"these faults of {scenario.name} cannot be injected into a group of others: {listed}. Give a "
            f"command for each of them (--exec {example}='ssh {{host}} ...', and --exec-undo for what ends "
            f"it), or take another scenario: {TRANSFER}, {', '.join(LINKS)} need none"
        )
    clients = tuple(kind for kind in scenario.clients if kind in ATTACHED_CLIENTS)
    if not clients:
        raise WrongUsage(
            f"none of the clients of {scenario.name} ({', '.join(scenario.clients)}) may run at a group of "
            f"others; these may: {', '.join(ATTACHED_CLIENTS)}"
        )
    left_out = dict(NEEDS_FILES)
    for kind in scenario.clients:
        if kind not in clients:
            left_out[f"clients {kind}"] = "it would need settings of the brokers, or change what others use"
    if scenario.send not in ("plain", "mixed") or "producers" in clients:
        left_out |= _left_out_of_sends(scenario)
    if scenario.settings or scenario.flush != Scenario.flush:
        left_out["settings"] = "the brokers keep the settings that they have"
    adjusted = replace(scenario, clients=clients, send="plain", settings={})
    return Attachment(adjusted, dict(commands), dict(undo_commands), left_out)


def _left_out_of_sends(scenario: Scenario) -> dict[str, str]:
    if scenario.send == "plain":
        return {}
    why = "producers send plain messages only: others wait in queues that all applications share"
    every = ("delays", "timers", "transactions")
    return dict.fromkeys(every if scenario.send == "mixed" else (scenario.send,), why)


def describe(group: FoundGroup, attachment: Attachment) -> Iterator[str]:
    """What the trial will do, as lines of text."""
    scenario = attachment.scenario
    where = ", ".join(f"{node} at {address}" for node, address in group.brokers.items())
    yield f"group     {group.broker_name} behind {group.namesrv}: {where}"
    yield (
        f"names     topics and consumer groups of the trial are in the namespace {attachment.namespace}; "
        "they are deleted at the end"
    )
    sends = (
        f", {scenario.rate} operations a second of the producers" if "producers" in scenario.clients else ""
    )
    load = f", {scenario.load} messages of 1 KiB in flight" if scenario.load else ""
    yield f"clients   {', '.join(scenario.clients)}, for {scenario.seconds:g} s{sends}{load}"
    for fault in scenario.faults:
        low, high = fault.every_s
        yield (
            f"fault     {fault.kind} of {fault.target}, every {low:g} to {high:g} s: "
            f"{_how(fault.kind, attachment)}"
        )
    for what, why in attachment.left_out.items():
        yield f"left out  {what}: {why}"


def _how(kind: str, attachment: Attachment) -> str:
    if kind in attachment.commands:
        undo = attachment.undo_commands.get(kind)
        ends = f", and in the end: {undo.text}" if undo else ", and nothing in the end"
        return f"{attachment.commands[kind].text}{ends}"
    if kind == TRANSFER:
        return "leadership is handed to another node"
    return "on the connections of the trial's own clients"

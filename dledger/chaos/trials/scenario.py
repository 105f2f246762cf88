"""A scenario: what a trial does, in a short TOML file.

    name = "kill-leader"
    purpose = "The leader's process is killed again and again."
    must_hold = "Nothing acknowledged is lost, and a new leader serves at once."
    clients = ["producers", "pull", "push"]

    [[faults]]
    kind = "kill"
    target = "leader"
    every_s = [3.0, 5.0]
    lasts_s = [0.5, 2.0]

The table in `KEYS` names every key. A key that is not known is an error, and so is a value of another type.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from dledger.chaos.trials.client_kinds import CLIENTS
from dledger.chaos.trials.nemeses import NEMESES, SPARE, TARGETS, needs_of
from dledger.chaos.trials.programs import SENDS

MAX_SECONDS = 24 * 3600
MAX_RATE = 2_000
"""Largest number of operations a second that the producers of a trial begin. All observations are kept in
memory until the end."""
MAX_NODES = 5
RESERVED = (
    "brokerClusterName", "brokerName", "brokerIP1", "bindAddress", "listenPort", "httpPort", "namesrvAddr",
    "storePathRootDir", "logDir", "enableDLegerCommitLog", "dLegerGroup", "dLegerSelfId", "dLegerPeers",
    "flushDiskType", "mapedFileSizeCommitLog", "transactionTimeOut", "transactionCheckInterval",
    "transactionCheckMax", "timerPrecisionMs", "timerRollWindowSlot", "cleanFileForciblyEnable",
)  # fmt: skip
"""Properties of brokers that a scenario may not set: processes, clients and judges rely on them."""
LIBRARY = "library"
"""The directory with the scenarios of the project."""


class ScenarioError(ValueError):
    """Raised for a scenario that cannot be run. The text names the file, the key and the rule."""


@dataclass(frozen=True)
class FaultSpec:
    """One kind of fault in a scenario. The plan draws its times from `every_s`, and how long each fault lasts
    from `lasts_s` (in seconds, shortest and longest)."""

    kind: str
    target: str
    every_s: tuple[float, float]
    lasts_s: tuple[float, float] = (0.0, 0.0)
    amount: tuple[int, int] = (0, 0)
    """The kind of the fault says what this number means."""


@dataclass(frozen=True)
class Scenario:
    """A scenario, complete with its defaults."""

    name: str
    purpose: str
    must_hold: str
    clients: tuple[str, ...] = ("producers", "pull", "push")
    seconds: float = 60.0
    """How long clients and faults run. The end phase comes on top."""
    nodes: int = 3
    rate: int = 100
    """Operations a second that the producers begin, all together."""
    send: str = "mixed"
    """What the producers send (`dledger.chaos.trials.programs.SENDS`)."""
    load: int = 0
    """Messages of 1 KiB that a further process keeps in flight. 0: no further process."""
    flush: str = "SYNC_FLUSH"
    whole: bool = True
    """Whether a fault waits until all nodes have caught up after the fault before it."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further properties of all brokers."""
    faults: tuple[FaultSpec, ...] = ()


_RANGE = "two numbers, the smaller one first"
KEYS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "name": (str, "the name of the scenario"),
    "purpose": (str, "what is done, in one or two sentences"),
    "must_hold": (str, "what the trial shows if all verdicts are good"),
    "clients": (list, f"client programs: {', '.join(CLIENTS)}"),
    "seconds": ((int, float), "how long clients and faults run"),
    "nodes": (int, "brokers of the group: 3 or 5"),
    "rate": (int, f"operations a second of the producers, up to {MAX_RATE}"),
    "send": (str, f"what the producers send: {', '.join(SENDS)}"),
    "load": (int, "messages of 1 KiB that a further process keeps in flight"),
    "flush": (str, "SYNC_FLUSH or ASYNC_FLUSH"),
    "whole": (bool, "whether a fault waits until the group is whole after the fault before it"),
    "settings": (dict, "further properties of all brokers"),
    "faults": (list, "tables, each with `kind`, `target`, `every_s`, `lasts_s` and `amount`"),
}
FAULT_KEYS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "kind": (str, f"one of {', '.join(sorted(NEMESES))}"),
    "target": (str, f"one of {', '.join(TARGETS)}"),
    "every_s": (list, f"pause before each fault, in seconds: {_RANGE}"),
    "lasts_s": (list, f"how long each fault lasts, in seconds: {_RANGE}"),
    "amount": (list, f"a number that the kind of fault explains: {_RANGE}"),
}


def parse_scenario(text: str, source: str) -> Scenario:
    """Make a scenario of a TOML text. `source` names the text in errors. Raises ScenarioError."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{source}: {error}") from error
    _check_keys(found, KEYS, source)
    for key in ("name", "purpose", "must_hold"):
        if not found.get(key):
            raise ScenarioError(f"{source}: {key} is missing: give {KEYS[key][1]}")
    faults = tuple(
        _fault(one, f"{source}: faults[{place}]") for place, one in enumerate(found.pop("faults", []))
    )
    clients = tuple(map(str, found.pop("clients", Scenario.clients)))
    settings = {key: str(value) for key, value in found.pop("settings", {}).items()}
    scenario = Scenario(**found, clients=clients, settings=settings, faults=faults)
    _check(scenario, source)
    return scenario


def _check_keys(
    found: Mapping[str, Any], known: Mapping[str, tuple[type | tuple[type, ...], str]], source: str
) -> None:
    for key, value in found.items():
        if key not in known:
            raise ScenarioError(f"{source}: there is no key {key!r}; the keys are {', '.join(known)}")
        kind, meaning = known[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ScenarioError(f"{source}: {key} is {value!r}: give {meaning}")


def _fault(found: Any, source: str) -> FaultSpec:
    if not isinstance(found, dict):
        raise ScenarioError(f"{source} is {found!r}: write each fault as a table [[faults]]")
    _check_keys(found, FAULT_KEYS, source)
    for key in ("kind", "target", "every_s"):
        if key not in found:
            raise ScenarioError(f"{source}: {key} is missing: give {FAULT_KEYS[key][1]}")
    if found["kind"] not in NEMESES:
        raise ScenarioError(f"{source}: kind is {found['kind']!r}: give {FAULT_KEYS['kind'][1]}")
    allowed = NEMESES[found["kind"]].targets
    if found["target"] not in allowed:
        raise ScenarioError(
            f"{source}: target of {found['kind']} is {found['target']!r}: give one of {', '.join(allowed)}"
        )
    every, lasts = _range(found, "every_s", source), _range(found, "lasts_s", source)
    low, high = _range(found, "amount", source)
    if every[0] <= 0:
        raise ScenarioError(f"{source}: every_s begins with {every[0]:g}: give more than 0")
    return FaultSpec(found["kind"], found["target"], every, lasts, (round(low), round(high)))


def _range(found: Mapping[str, Any], key: str, source: str) -> tuple[float, float]:
    value = found.get(key, [0, 0])
    numbers = len(value) == 2 and all(
        isinstance(one, (int, float)) and not isinstance(one, bool) for one in value
    )
    if not numbers or not 0 <= value[0] <= value[1]:
        raise ScenarioError(f"{source}: {key} is {value!r}: give {_RANGE}")
    return float(value[0]), float(value[1])


def _check(scenario: Scenario, source: str) -> None:
    wrong = [name for name in scenario.clients if name not in CLIENTS]
    taken = [name for name in scenario.settings if name in RESERVED]
    kinds = [fault.kind for fault in scenario.faults]
    moves = SPARE in needs_of(kinds) and any(fault.target == "same" for fault in scenario.faults)
    rules = (
        (scenario.clients, "clients", f"there are none; {KEYS['clients'][1]}"),
        (len(set(scenario.clients)) == len(scenario.clients), "clients", "give each only once"),
        (not moves, "faults", "a node that is exchanged (member) cannot be the same in all faults (same)"),
        (not taken, "settings", f"{', '.join(taken)}: the trial itself sets this"),
        (not wrong, "clients", f"{', '.join(wrong)} unknown; {KEYS['clients'][1]}"),
        (scenario.nodes in (3, MAX_NODES), "nodes", f"{scenario.nodes}: give 3 or {MAX_NODES}"),
        (0 < scenario.rate <= MAX_RATE, "rate", f"{scenario.rate}: give 1 to {MAX_RATE}"),
        (scenario.send in SENDS, "send", f"{scenario.send}: {KEYS['send'][1]}"),
        (0 <= scenario.load <= 1024, "load", f"{scenario.load}: give 0 to 1024"),
        (0 < scenario.seconds <= MAX_SECONDS, "seconds", f"{scenario.seconds:g}: give 1 to {MAX_SECONDS}"),
        (scenario.flush in ("SYNC_FLUSH", "ASYNC_FLUSH"), "flush", f"{scenario.flush}: {KEYS['flush'][1]}"),
    )
    for holds, key, text in rules:
        if not holds:
            raise ScenarioError(f"{source}: {key}: {text}")


def library() -> dict[str, Scenario]:
    """All scenarios of the project, by name, sorted."""
    found = {}
    folder = resources.files("dledger.chaos.trials") / LIBRARY
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.name.endswith(".toml"):
            scenario = parse_scenario(entry.read_text(encoding="utf-8"), entry.name)
            found[scenario.name] = scenario
    return found

"""The result of a trial as one JSON object: for programs, and for the report (`page`).

Times are seconds since the beginning of the trial, unless a name says otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from dledger.chaos.scenarios.broker_history import Receipt, Send
from dledger.chaos.scenarios.history import ACKNOWLEDGED, REFUSED, UNKNOWN
from dledger.chaos.trials.checkers import Verdict
from dledger.chaos.trials.injected import Flight, Injected
from dledger.chaos.trials.node_logs import Line, Parts, parts_of
from dledger.chaos.trials.probing import TOPIC as PROBE_TOPIC
from dledger.chaos.trials.system import Seen

LOOK_S = 10.0
"""How long after a fault the logs of the nodes are searched for the parts of a failover, in seconds, if no
message was acknowledged after it."""
BIN_S = 0.5
"""Width of a bin of the series over time, in seconds."""
VERSION = 1
"""Version of the format of the result."""


@dataclass(frozen=True)
class Failover:
    """The time without a leader after one fault at the leader, as a client saw it."""

    at_s: float
    kind: str
    node: str
    ms: float | None
    """From the fault to the first acknowledgement of a message that was first sent after the fault. None if
    there was none until the clients ended. If a command of the user injected the fault, it struck at some
    moment while the command ran; then this is the longest time between two acknowledgements from the begin of
    the command to the first acknowledgement of a message that was first sent after its end."""
    parts: Parts


@dataclass(frozen=True)
class Bin:
    """What clients saw in one bin of BIN_S seconds."""

    at_s: float
    acknowledged: int
    failed: int
    p50_ms: float | None
    max_ms: float | None


@dataclass(frozen=True)
class Done:
    """What one client program did, as numbers of sends (single messages or batches) and messages."""

    client: str
    acknowledged: int
    unknown: int
    refused: int
    received: int


@dataclass
class Result:
    """Everything about one trial."""

    scenario: str
    purpose: str
    must_hold: str
    seed: int
    seconds: float
    command: str
    """The command that repeats this plan."""
    nodes: tuple[str, ...]
    began: str = ""
    """When the trial began: ISO 8601, UTC."""
    ended_s: float = 0.0
    """When the end phase was over."""
    program: str = ""
    """What ran it, and where: versions and number of cores."""
    version: int = VERSION
    flush: str = "SYNC_FLUSH"
    clients: tuple[str, ...] = ()
    size: int = 0
    """Number of members of the group, if members are exchanged and `nodes` therefore has a spare, too. 0: all
    nodes are members."""
    network: str = ""
    """How the processes were connected: `namespaces` or `proxy`; empty if the scenario breaks no links, and
    they were connected directly."""
    group: str = ""
    """Which group it was: one of the trial's own, or one that others have started."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Maps the rules and clients that were left out to the reason."""
    notes: list[str] = field(default_factory=list)
    """What faults reported about themselves."""
    flights: list[Flight] = field(default_factory=list)
    """The replayed flight recordings of the nodes; empty if there are none."""
    faults: list[Injected] = field(default_factory=list)
    roles: list[Seen] = field(default_factory=list)
    failovers: list[Failover] = field(default_factory=list)
    bins: list[Bin] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    programs: list[Done] = field(default_factory=list)
    """What each client program did."""
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every rule holds."""
        return all(verdict.holds for verdict in self.verdicts)

    def encode(self) -> dict[str, Any]:
        """The result as a JSON object."""
        return {"holds": self.holds, **asdict(self)}


def programs_of(sends: Sequence[Send], receipts: Sequence[Receipt]) -> list[Done]:
    """What each client program did, by its name, sorted."""
    outcomes = Counter((send.client, send.outcome) for send in sends)
    received = Counter(receipt.consumer for receipt in receipts)
    names = sorted({client for client, _ in outcomes} | set(received))
    return [
        Done(
            name,
            outcomes[name, ACKNOWLEDGED],
            outcomes[name, UNKNOWN],
            outcomes[name, REFUSED],
            received[name],
        )
        for name in names
    ]


def bins_of(sends: Sequence[Send], seconds: float) -> list[Bin]:
    """The sends of all clients, by the time at which they ended."""
    done: dict[int, list[Send]] = {}
    for send in sends:
        if send.end >= 0:
            done.setdefault(int(send.end / 1e9 / BIN_S), []).append(send)
    found = []
    for number in range(int(seconds / BIN_S) + 1):
        ended = done.get(number, [])
        times = sorted((one.end - one.begin) / 1e6 for one in ended if one.outcome == ACKNOWLEDGED)
        middle = round(times[len(times) // 2], 2) if times else None
        longest = round(times[-1], 2) if times else None
        found.append(Bin(number * BIN_S, len(times), len(ended) - len(times), middle, longest))
    return found


def failovers_of(faults: Sequence[Injected], sends: Sequence[Send], lines: Sequence[Line]) -> list[Failover]:
    """The time without a leader after each of these faults that struck the leader, from the messages of the
    probe and the logs of all nodes."""
    probes = [send for send in sends if send.topic == PROBE_TOPIC and send.outcome == ACKNOWLEDGED]
    found = []
    for fault in faults:
        if fault.target != "leader" or not fault.nodes or fault.error or not probes:
            continue
        begin = fault.begin_s * 1e9
        sure = begin + (fault.command_s or 0.0) * 1e9
        ended = min((send.end for send in probes if send.begin > sure), default=None)
        if ended is None:
            ms = None
        elif fault.command_s is None:
            ms = round((ended - begin) / 1e6, 1)
        else:
            ms = _longest_pause_ms(probes, begin, ended)
        until_s = fault.begin_s + LOOK_S if ended is None else ended / 1e9
        parts = parts_of(lines, fault.begin_s, fault.nodes[0], until_s)
        found.append(Failover(fault.begin_s, fault.kind, fault.nodes[0], ms, parts))
    return found


def _longest_pause_ms(probes: Sequence[Send], begin: float, end: float) -> float:
    """The longest time between two acknowledgements, of which the second came in [begin, end], in ms."""
    times = sorted(send.end for send in probes if send.end <= end)
    pauses = [after - before for before, after in pairwise(times) if after >= begin]
    return round(max(pauses, default=0.0) / 1e6, 1)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the ordered values that is not exceeded by this share (0 to 1) of the values."""
    return ordered[min(len(ordered) - 1, max(0, -(-int(len(ordered) * share * 1000) // 1000) - 1))]


def times_of(failovers: Sequence[Failover]) -> list[float]:
    """The times of the failovers that were over before the clients ended, in ms, ascending."""
    return sorted(one.ms for one in failovers if one.ms is not None)

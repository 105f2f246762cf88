"""The plan of a seed. It is data that is made at random before the run, and lists all operations and faults
from outside the group.

A run is a function of (seed, plan). The seed decides the order and duration of everything in the world; the
plan lists the operations of the clients and the faults. So a failing run is shrunk by leaving out parts of
its plan, and replayed from a file that holds the rest.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace

from dledger.chaos.scenarios.profiles import PROFILES, Draw, Profile
from dledger.formats.entry import HEADER_SIZE
from dledger.formats.record import system_record_size
from dledger.protocol import PROTOCOL_MAX, PROTOCOL_MIN

CLIENTS = 3
FIRST_FAULT_MS = 4_000
DURATION_MS = 60_000
MIN_FAULTS, MAX_FAULTS = 11, 18
ALSO = 2
"""Largest number of faults that a seed has from `Profile.also`."""
NEAR_FAULTS = 0.35
"""Share of the operations (0 to 1) whose time is close to a fault, because a fault is most likely to lose
operations in flight."""
QUIET = 0.5
"""Share of the plans (0 to 1) with a quiet time, in which faults happen but clients do nothing. An error that
the next append would repair stays visible longer then."""
QUIET_MS = (12_000, 35_000)
LARGEST_BODY = 12 * 1024
"""Size, in bytes, of the largest body in most profiles. For profiles with larger entries see
`Profile.max_entry`."""
MAX_BURSTS, MAX_LARGE = 3, 6
"""Largest number of bursts and of large appends that are added in profiles that have them."""
LARGEST_BATCH = 12 * 1024
"""Limit, in bytes, of all bodies of a client batch together. It is more than a push frame usually holds."""
BROKER_PRODUCERS = 2
TOPIC_CHANGES = 6
"""How many changes of topics the operator makes in a run with brokers. The times of all changes except the
first are close to a fault."""
LEASE_READS = 0.5
"""Share of the appends (0 to 1) that are replaced by reads in profiles with leases. To find a stale read, an
append and a read must come close to a fault."""
BATCHES = 0.3
"""Share of the bursts (0 to 1) that are sent as client batches."""


@dataclass(frozen=True)
class Operation:
    """An operation of a client. It begins at `at_ms`, or later if the client's earlier operations are not
    done yet.

    `kind` says what the client does:

    * "append" appends `size` bytes.
    * "burst" makes `count` appends of `size` bytes at once.
    * "batch" appends the same values as one client batch.
    * "get" asks for an entry, which `pick` chooses and which may not exist.
    * "read" asks the leader, or a node that `pick` chooses, for a read point.
    * In runs with brokers "append", "burst" and "batch" send messages to a topic that `pick` chooses.
    * "topic", only with brokers, creates a topic or gives it more queues.
    """

    at_ms: int
    client: int
    kind: str
    size: int = 0
    count: int = 1
    pick: int = 0


@dataclass(frozen=True)
class Fault:
    """A fault that is injected at `at_ms` and undone after `lasting_ms`.

    `target` is "leader", "follower" or "any", and `pick` chooses among the machines that fit. The meaning of
    `amount` depends on the kind of the fault: for example the number of effects until a crash, a factor, or a
    number of bytes.
    """

    at_ms: int
    kind: str
    target: str
    lasting_ms: int
    pick: int = 0
    amount: int = 0


@dataclass(frozen=True)
class Plan:
    """All operations and faults that come from outside the group in one run."""

    seed: int
    profile: str
    nodes: int
    spares: int
    duration_ms: int
    operations: tuple[Operation, ...] = field(default=())
    faults: tuple[Fault, ...] = field(default=())

    def encode(self) -> str:
        """The plan as one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)


def decode_plan(text: str) -> Plan:
    """Inverse of `Plan.encode`. Raises ValueError, KeyError or TypeError if the text is not a plan."""
    value = json.loads(text)
    operations = tuple(Operation(**item) for item in value.pop("operations"))
    faults = tuple(Fault(**item) for item in value.pop("faults"))
    return Plan(**value, operations=operations, faults=faults)


def profile_of(seed: int) -> str:
    """The profile of a seed for which no profile is given. The seeds take turns through all profiles."""
    names = tuple(PROFILES)
    return names[seed % len(names)]


def draw_plan(seed: int, profile: str | None = None) -> Plan:
    """Make the plan of a seed at random. Raises KeyError if there is no such profile."""
    name = profile_of(seed) if profile is None else profile
    chosen = PROFILES[name]
    rng = random.Random(f"{seed}/plan/{name}")
    faults = _draw_faults(rng, chosen)
    draw_operations = _draw_broker_operations if chosen.brokers else _draw_operations
    operations = draw_operations(rng, chosen, faults)
    nodes = random.Random(f"{seed}/nodes/{name}").choice(chosen.nodes)
    operations += _draw_heavy(random.Random(f"{seed}/heavy/{name}"), chosen, faults)
    also = _draw_also(random.Random(f"{seed}/also/{name}"), chosen)
    operations = _with_quiet(random.Random(f"{seed}/quiet/{name}"), operations)
    in_turn = tuple(sorted(operations, key=lambda one: (one.at_ms, one.client)))
    return Plan(seed, name, nodes, chosen.spares, DURATION_MS, in_turn, faults + also)


def draw_protocol(plan: Plan, name: str, life: int) -> int:
    """The highest peer protocol that a node speaks after its start number `life`, in profiles with several
    protocols."""
    return random.Random(f"{plan.seed}/protocol/{name}/{life}").randint(PROTOCOL_MIN, PROTOCOL_MAX)


def draw_newer(plan: Plan, name: str, life: int) -> bool:
    """Whether a broker runs the newer program after its start number `life`, in profiles with upgrades. It is
    more likely with each start."""
    return random.Random(f"{plan.seed}/newer/{name}/{life}").random() < life / 3


def _draw_operations(
    rng: random.Random, profile: Profile, faults: tuple[Fault, ...]
) -> tuple[Operation, ...]:
    operations: list[Operation] = []
    done = 0
    while done < profile.operations:
        at = rng.randint(500, DURATION_MS - 1500)
        chance = rng.random()
        if rng.random() < NEAR_FAULTS:
            at = rng.choice(faults).at_ms + rng.randint(-60, 120)
            chance = rng.uniform(0.1, 0.6)
        client = rng.randrange(CLIENTS)
        if chance < 0.2:
            kind = "get" if chance < 0.1 else "read"
            operations.append(Operation(at, client, kind, pick=rng.randrange(1 << 16)))
            done += 1
        elif chance < 0.3:
            count = rng.randint(3, 12)
            if rng.random() < BATCHES:
                size = rng.choice((40, 200, LARGEST_BATCH // count))
                if profile.max_entry < LARGEST_BATCH:  # a batch must not be larger than an entry
                    count, size = min(count, 7), min(size, 200)
                operations.append(Operation(at, client, "batch", size=size, count=count))
            else:
                operations.append(Operation(at, client, "burst", size=_size(rng), count=count))
            done += count
        elif profile.lease_reads and rng.random() < LEASE_READS:
            operations.append(Operation(at, client, "read", pick=rng.randrange(1 << 16)))
            done += 1
        else:
            operations.append(Operation(at, client, "append", size=_size(rng)))
            done += 1
    return tuple(sorted(operations, key=lambda one: (one.at_ms, one.client)))


def _draw_heavy(rng: random.Random, profile: Profile, faults: tuple[Fault, ...]) -> tuple[Operation, ...]:
    """Appends close to a fault: bursts with more appends than a leader accepts, and entries of the largest
    size."""
    operations: list[Operation] = []
    low, high = profile.bursts
    for _ in range(rng.randint(1, MAX_BURSTS) if high else 0):
        count = rng.randint(low, high)
        operations.append(Operation(_soon(rng, faults), rng.randrange(CLIENTS), "burst", 200, count))
    largest = largest_body(profile)
    for _ in range(rng.randint(MAX_LARGE // 2, MAX_LARGE) if profile.max_entry > Profile.max_entry else 0):
        size = rng.choice((largest, largest, largest // 2, largest + 1))
        operations.append(Operation(_soon(rng, faults), rng.randrange(CLIENTS), "append", size))
    return tuple(operations)


def _with_quiet(rng: random.Random, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Perhaps put a quiet time into the plan (see `QUIET`). Operations of that time are moved before it. Half
    of the quiet times last until the end."""
    if rng.random() >= QUIET:
        return operations
    lasting = rng.randint(*QUIET_MS)
    latest = DURATION_MS - lasting
    begin = latest if rng.random() < 0.5 else rng.randint(2 * FIRST_FAULT_MS, latest)
    return tuple(
        replace(one, at_ms=rng.randint(FIRST_FAULT_MS, begin)) if begin < one.at_ms < begin + lasting else one
        for one in operations
    )


def _soon(rng: random.Random, faults: tuple[Fault, ...]) -> int:
    """A random time shortly before or after a fault."""
    return rng.choice(faults).at_ms + rng.randint(-60, 500)


def largest_body(profile: Profile) -> int:
    """Size, in bytes, of the largest body that a node of this profile accepts."""
    return profile.max_entry - HEADER_SIZE - system_record_size(0)


def _draw_broker_operations(
    rng: random.Random, profile: Profile, faults: tuple[Fault, ...]
) -> tuple[Operation, ...]:
    """Operations of a run with brokers: sends of two producers, and changes of topics by the third client,
    the operator."""
    operations: list[Operation] = []
    done = 0
    while done < profile.operations:
        at = rng.randint(500, DURATION_MS - 1500)
        chance = rng.random()
        if rng.random() < NEAR_FAULTS:
            at = max(rng.choice(faults).at_ms + rng.randint(-60, 120), 500)
        client, pick = rng.randrange(BROKER_PRODUCERS), rng.randrange(1 << 16)
        count = rng.randint(3, 12)
        if chance < 0.05:
            size = rng.choice((40, 200, LARGEST_BATCH // count))
            operations.append(Operation(at, client, "batch", size=size, count=count, pick=pick))
        elif chance < 0.1:
            operations.append(Operation(at, client, "burst", size=_size(rng), count=count, pick=pick))
        else:
            count = 1
            operations.append(Operation(at, client, "append", size=_size(rng), pick=pick))
        done += count
    for place in range(TOPIC_CHANGES):
        at = rng.choice(faults).at_ms + rng.randint(0, 50) if place else rng.randint(500, 4_000)
        operations.append(Operation(at, BROKER_PRODUCERS, "topic", pick=rng.randrange(1 << 16)))
    return tuple(sorted(operations, key=lambda one: (one.at_ms, one.client)))


def _size(rng: random.Random) -> int:
    return rng.choice((40, 200, 200, 1000, 1000, 3000)) if rng.random() < 0.97 else LARGEST_BODY


def _draw_faults(rng: random.Random, profile: Profile) -> tuple[Fault, ...]:
    kinds = list(profile.faults)
    weights = [draw.weight for draw in kinds]
    count = rng.randint(MIN_FAULTS, MAX_FAULTS)
    # Choose three different kinds first, so that each seed has at least three kinds.
    chosen: list[Draw] = []
    while len(chosen) < min(3, len(kinds)):
        draw = rng.choices(kinds, weights)[0]
        if draw not in chosen:
            chosen.append(draw)
    chosen += rng.choices(kinds, weights, k=count - len(chosen))
    rng.shuffle(chosen)
    times = sorted(rng.randint(FIRST_FAULT_MS, DURATION_MS - 4_000) for _ in chosen)
    faults = [_draw_fault(rng, at, draw) for at, draw in zip(times, chosen, strict=True)]
    return tuple(_in_turn(faults, profile.spares))


def _draw_also(rng: random.Random, profile: Profile) -> tuple[Fault, ...]:
    """The additional faults of a seed, from `Profile.also`."""
    if not profile.also:
        return ()
    weights = [draw.weight for draw in profile.also]
    chosen = rng.choices(profile.also, weights, k=rng.randint(1, ALSO))
    times = sorted(rng.randint(FIRST_FAULT_MS, DURATION_MS - 4_000) for _ in chosen)
    return tuple(_draw_fault(rng, at, draw) for at, draw in zip(times, chosen, strict=True))


def _in_turn(faults: list[Fault], spares: int) -> Iterator[Fault]:
    """Yield the faults, with "grow" and "shrink" exchanged where needed. So the group shrinks only if it has
    grown before, and grows at most by `spares` members."""
    grown = 0
    for fault in faults:
        kind = fault.kind
        if kind == "shrink" and grown == 0:
            kind = "grow"
        elif kind == "grow" and grown == spares:
            kind = "shrink"
        grown += {"grow": 1, "shrink": -1}.get(kind, 0)
        yield replace(fault, kind=kind)


def _draw_fault(rng: random.Random, at_ms: int, draw: Draw) -> Fault:
    low, high = draw.lasting_ms
    first, last = draw.amount
    # Short durations are as interesting as long ones, so the exponent is evenly distributed.
    lasting = round(low * (high / low) ** rng.random()) if low else 0
    return Fault(
        at_ms,
        draw.kind,
        rng.choice(draw.targets),
        lasting,
        rng.randrange(1 << 16),
        rng.randint(first, last),
    )


def without(plan: Plan, keep_operation: Callable[[int], bool], keep_fault: Callable[[int], bool]) -> Plan:
    """Make a smaller plan. It has the operations and faults of `plan` whose places in the lists are to be
    kept."""
    return replace(
        plan,
        operations=tuple(one for place, one in enumerate(plan.operations) if keep_operation(place)),
        faults=tuple(one for place, one in enumerate(plan.faults) if keep_fault(place)),
    )

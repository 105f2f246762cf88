"""Makes the plan of a trial: all operations of its clients and all its faults, from the seed.

The seed fixes the plan, not the interleaving: when a real process runs, the kernel decides.
"""

from __future__ import annotations

import random

from dledger.chaos.scenarios.plan import BROKER_PRODUCERS, Fault, Operation
from dledger.chaos.trials.scenario import FaultSpec, Scenario

FIRST_FAULT_S = 1.0
"""No fault comes earlier, so that each trial has a part without faults to compare with."""
LAST_FAULT_S = 1.0
"""No fault comes in the last seconds of a trial."""
TOPIC_EVERY_S = 15.0
"""Mean time between two changes of topics by the operator, in seconds."""
SIZES = (40, 200, 200, 1000, 1000, 3000)
"""Sizes of message bodies, in bytes; each is equally likely."""
BATCHES, BURSTS = 0.05, 0.05
"""Shares of the operations that send a batch, and several messages at once."""


def draw_operations(scenario: Scenario, seed: int) -> tuple[Operation, ...]:
    """The operations of the producers and the operator, in the order of their times."""
    chance = random.Random(f"{seed}/operations/{scenario.name}")
    operations: list[Operation] = []
    last_ms = round(scenario.seconds * 1000)
    for _ in range(round(scenario.rate * scenario.seconds)):
        at, client, pick = (
            chance.randrange(last_ms),
            chance.randrange(BROKER_PRODUCERS),
            chance.getrandbits(16),
        )
        size, share, count = chance.choice(SIZES), chance.random(), chance.randint(3, 12)
        if share < BATCHES:
            operations.append(Operation(at, client, "batch", min(size, 1000), count, pick))
        elif share < BATCHES + BURSTS:
            operations.append(Operation(at, client, "burst", size, count, pick))
        else:
            operations.append(Operation(at, client, "append", size, pick=pick))
    for _ in range(round(scenario.seconds / TOPIC_EVERY_S)):
        at, pick = chance.randrange(last_ms), chance.getrandbits(16)
        operations.append(Operation(at, BROKER_PRODUCERS, "topic", pick=pick))
    return tuple(sorted(operations, key=lambda one: (one.at_ms, one.client)))


def draw_faults(scenario: Scenario, seed: int) -> tuple[Fault, ...]:
    """The faults in the order of their times. Each kind of fault has a random stream of its own, so a kind
    that is added to a scenario changes nothing in the others."""
    found: list[Fault] = []
    for place, spec in enumerate(scenario.faults):
        found += _draw(spec, random.Random(f"{seed}/{place}/{spec.kind}/{scenario.name}"), scenario.seconds)
    return tuple(sorted(found, key=lambda one: one.at_ms))


def _draw(spec: FaultSpec, chance: random.Random, seconds: float) -> list[Fault]:
    found = []
    at = FIRST_FAULT_S + chance.uniform(0, spec.every_s[0])
    while at < seconds - LAST_FAULT_S:
        lasts = chance.uniform(*spec.lasts_s)
        found.append(
            Fault(
                round(at * 1000),
                spec.kind,
                spec.target,
                round(lasts * 1000),
                chance.getrandbits(16),
                chance.randint(*spec.amount),
            )
        )
        at += lasts + chance.uniform(*spec.every_s)
    return found

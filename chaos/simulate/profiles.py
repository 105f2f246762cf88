"""Profiles: named mixes of faults. A seed picks one by its number, so that each gets its share."""

from __future__ import annotations

from dataclasses import dataclass

ANY = ("any", "leader", "follower")
LEADERS = ("leader", "leader", "any")


@dataclass(frozen=True)
class Draw:
    """One kind of fault in a mix: how often, on whom, for how long, with which number."""

    kind: str
    weight: int = 1
    targets: tuple[str, ...] = ANY
    lasting_ms: tuple[int, int] = (50, 5_000)
    amount: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Profile:
    """A mix, and what a run over many of its seeds must have reached (`marks`)."""

    faults: tuple[Draw, ...]
    nodes: int = 3
    operations: int = 330
    marks: tuple[str, ...] = ()
    waits_for: str = ""
    """Kept out of the default list until this feature is there."""


KILL = Draw("kill", targets=LEADERS)
KILL_ALL = Draw("kill-all", lasting_ms=(20, 3_000))
CRASH = Draw("crash", targets=ANY, amount=(1, 60))
POWER = Draw("power", targets=ANY)
POWER_CRASH = Draw("power-crash", targets=ANY, amount=(1, 60))
POWER_ALL = Draw("power-all", lasting_ms=(20, 3_000))
RESTARTS = Draw("restarts", targets=ANY, lasting_ms=(10, 400), amount=(2, 6))
CUT = Draw("cut", targets=ANY, lasting_ms=(100, 6_000))
ONE_WAY = Draw("one-way", targets=ANY, lasting_ms=(100, 6_000))
ISOLATE = Draw("isolate", targets=LEADERS, lasting_ms=(100, 8_000))
DEAF = Draw("deaf", targets=LEADERS, lasting_ms=(100, 8_000))
MUTE = Draw("mute", targets=LEADERS, lasting_ms=(100, 8_000))
CLIENTS_CUT = Draw("clients-cut", targets=LEADERS, lasting_ms=(100, 4_000))

PROFILES: dict[str, Profile] = {
    "kills": Profile((KILL, CRASH, KILL_ALL, RESTARTS)),
    "power": Profile((POWER, POWER_CRASH, POWER_ALL, KILL)),
    "all-power-loss": Profile((Draw("power-all", 4, lasting_ms=(20, 2_000)), POWER_CRASH, CRASH, ISOLATE)),
    "partitions": Profile((CUT, ISOLATE, CLIENTS_CUT, KILL)),
    "asymmetric": Profile((ONE_WAY, DEAF, MUTE, KILL)),
    "restart-loops": Profile(
        (Draw("restarts", 3, lasting_ms=(10, 400), amount=(2, 8)), KILL_ALL, POWER, CUT)
    ),
    "mixed": Profile(
        (KILL, CRASH, POWER, POWER_CRASH, POWER_ALL, CUT, ONE_WAY, ISOLATE, DEAF, MUTE, RESTARTS)
    ),
    "five-nodes": Profile((KILL, POWER, POWER_ALL, CRASH, CUT, ISOLATE, ONE_WAY), nodes=5),
}


def default_profiles() -> tuple[str, ...]:
    """Names of the profiles whose features are there."""
    return tuple(name for name, profile in PROFILES.items() if not profile.waits_for)

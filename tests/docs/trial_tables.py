"""Generated parts of the page about trials: scenarios, kinds of faults, keys of a scenario, rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from dledger.chaos.trials.checkers import CHECKERS
from dledger.chaos.trials.client_kinds import CLIENTS
from dledger.chaos.trials.nemeses import NEMESES
from dledger.chaos.trials.scenario import FAULT_KEYS, KEYS, library


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(one.replace('|', '&#124;') for one in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def scenarios() -> str:
    """All scenarios of the project."""
    return _table(
        ("scenario", "what is done", "the aim"),
        [(f"`{name}`", one.purpose, one.must_hold) for name, one in library().items()],
    )


def clients() -> str:
    """All kinds of clients."""
    return _table(("client", "what it does"), [(f"`{name}`", kind.about) for name, kind in CLIENTS.items()])


def faults() -> str:
    """All kinds of faults."""
    return _table(
        ("kind", "what it is", "targets"),
        [(f"`{name}`", one.about, ", ".join(one.targets)) for name, one in NEMESES.items()],
    )


def keys() -> str:
    """The keys of a scenario file, and of a fault in it."""
    found: list[tuple[str, str]] = [(f"`{name}`", meaning) for name, (_, meaning) in KEYS.items()]
    found += [(f"`faults`: `{name}`", meaning) for name, (_, meaning) in FAULT_KEYS.items()]
    return _table(("key", "what to give"), found)


def rules() -> str:
    """All rules that are judged."""
    return _table(("rule", "what it says"), [(f"`{one.name}`", one.rule) for one in CHECKERS])


PARTS: Mapping[str, Callable[[], str]] = {
    "trial-scenarios": scenarios,
    "trial-clients": clients,
    "trial-faults": faults,
    "trial-keys": keys,
    "trial-rules": rules,
}

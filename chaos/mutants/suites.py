"""What runs against a mutant: a table, cheapest first. The first suite that fails has caught it."""

from __future__ import annotations

from dataclasses import dataclass

FAST = "fast"
SIM = "sim"


@dataclass(frozen=True)
class Suite:
    """Test files for pytest, or the arguments of `python -m chaos sim`. Only for mutants of `packages`."""

    name: str
    kind: str
    """FAST, or SIM: whole nodes in simulated time."""
    limit_s: float
    tests: tuple[str, ...] = ()
    seeds: int = 0
    """Of `python -m chaos sim` instead of tests."""
    packages: tuple[str, ...] = ()
    """Empty: for all."""
    marks: str = ""
    """pytest's `-m`, where the default leaves something out."""


CORE = ("dledger", "formats", "runtime")

SUITES: tuple[Suite, ...] = (
    Suite(
        "unit",
        FAST,
        120,
        (
            "tests/formats",
            "tests/dledger/test_elector.py",
            "tests/dledger/test_incoming.py",
            "tests/dledger/test_replication.py",
            "tests/dledger/test_wire.py",
            "tests/dledger/test_log_store.py",
        ),
        packages=CORE,
    ),
    Suite("broker", FAST, 240, ("tests/broker",), packages=("broker",)),
    Suite("scripts", FAST, 60, ("tests/scripts/test_raft_scripts.py",), packages=CORE),
    Suite("paper", FAST, 60, ("tests/paper",), packages=CORE),
    Suite(
        "property",
        FAST,
        180,
        (
            "tests/dledger/test_core_schedules.py",
            "tests/dledger/test_log_store_model.py",
            "tests/dledger/test_codec_fuzz.py",
        ),
        packages=CORE,
    ),
    Suite(
        "sim-three-nodes",
        SIM,
        180,
        ("tests/chaos/test_three_nodes.py", "tests/chaos/test_random_faults.py"),
        packages=CORE,
    ),
    Suite("sim-many-seeds", SIM, 600, ("tests/chaos/test_random_faults.py",), packages=CORE, marks="slow"),
)
"""In this order. tests/dledger/test_node.py is not among them: it runs in real time."""

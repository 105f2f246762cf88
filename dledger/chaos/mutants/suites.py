"""The suites that run against a mutant, as a table with the cheapest first. The first suite that fails has
caught the mutant."""

from __future__ import annotations

from dataclasses import dataclass

FAST = "fast"
SIM = "sim"


@dataclass(frozen=True)
class Suite:
    """One suite: test files for pytest, or arguments of `dledger chaos sim`. It runs only for mutants that
    change a folder in `packages`."""

    name: str
    kind: str
    """FAST for tests, or SIM for whole nodes in simulated time."""
    limit_s: float
    tests: tuple[str, ...] = ()
    seeds: int = 0
    """How many seeds of `dledger chaos sim` are played instead of tests. They are played in ever larger
    groups until a seed finds an error."""
    profiles: tuple[str, ...] = ()
    """The fault profiles of these seeds, used in turn. If empty, each seed has its own profile."""
    packages: tuple[str, ...] = ()
    """Folders of `dledger/` for whose mutants the suite runs. If empty, the suite runs for all mutants."""


CORE = (
    "context", "election", "files", "flight", "formats", "log", "members", "node", "peers", "replication",
    "runtime", "snapshots",
)  # fmt: skip
"""Folders of `dledger/`: the replicated log and the packages below it."""

SUITES: tuple[Suite, ...] = (
    Suite(
        "unit",
        FAST,
        180,
        (
            "tests/formats",
            "tests/dledger/test_elector.py",
            "tests/dledger/test_votes.py",
            "tests/dledger/test_transitions.py",
            "tests/dledger/test_rounds.py",
            "tests/dledger/test_reads.py",
            "tests/dledger/test_configuration.py",
            "tests/dledger/test_split_votes.py",
            "tests/dledger/test_log_rot.py",
            "tests/dledger/test_incoming.py",
            "tests/dledger/test_replication.py",
            "tests/dledger/test_wire.py",
            "tests/dledger/test_proofs.py",
            "tests/dledger/test_log_store.py",
            "tests/chaos/test_divergence.py",
        ),
        packages=CORE,
    ),
    Suite("scripts", FAST, 60, ("tests/scripts/test_raft_scripts.py",), packages=CORE),
    Suite("paper", FAST, 60, ("tests/paper",), packages=CORE),
    Suite("schedules", FAST, 120, ("tests/dledger/test_core_schedules.py",), packages=CORE),
    Suite("store-model", FAST, 180, ("tests/dledger/test_log_store_model.py",), packages=CORE),
    Suite("codecs", FAST, 120, ("tests/dledger/test_codec_fuzz.py",), packages=CORE),
    Suite(
        "broker",
        FAST,
        300,
        ("tests/broker", "tests/formats/test_state.py", "tests/formats/test_pending.py"),
        packages=("broker", "formats/state"),
    ),
    Suite(
        "audit",
        FAST,
        600,
        (
            "tests/audit/test_audit_compare.py",
            "tests/audit/test_audit_coverage.py",
            "tests/audit/test_audit_walk.py",
            "tests/audit/test_audit_keys.py",
            "tests/audit/test_audit_snapshots.py",
            "tests/audit/test_audit_state.py",
            "tests/audit/test_audit_apache.py",
            "tests/audit/test_audit_columns.py",
            "tests/audit/test_audit_command.py",
            "tests/audit/test_audit_shipped.py",
            "tests/audit/test_audit_derived.py",
            "tests/audit/test_audit_kept.py",
        ),
        packages=("audit",),
    ),
    Suite("seeds", SIM, 900, seeds=36, packages=CORE),
    Suite(
        "broker-seeds",
        SIM,
        900,
        seeds=24,
        profiles=("brokers", "brokers-power", "brokers-retention", "brokers-upgrade"),
        packages=("broker", "formats/state"),
    ),
    Suite(
        "deletes-seeds",
        SIM,
        300,
        seeds=12,
        profiles=("brokers-deletes",),
        packages=("broker/auth", "broker/topic", "broker/store", "broker/schedule", "formats/state"),
    ),
    Suite(
        "orderly-seeds",
        SIM,
        300,
        seeds=12,
        profiles=("brokers-orderly",),
        packages=("broker/client", "broker/pop", "broker/offset", "formats/state"),
    ),
    Suite(
        "unaware-seeds",
        SIM,
        300,
        seeds=12,
        profiles=("brokers-unaware",),
        packages=("broker/longpolling",),
    ),
    Suite(
        "batches-seeds",
        SIM,
        300,
        seeds=8,
        profiles=("brokers-batches",),
        packages=("broker/schedule", "broker/timer", "broker/transaction"),
    ),
    Suite(
        "scenarios",
        SIM,
        1800,
        (
            "tests/chaos/test_three_nodes.py",
            "tests/chaos/test_election_faults.py",
            "tests/chaos/test_read_points.py",
            "tests/chaos/test_members.py",
            "tests/chaos/test_disk_faults.py",
            "tests/chaos/test_disk_rot.py",
            "tests/chaos/test_beyond.py",
            "tests/chaos/test_strangers.py",
            "tests/chaos/test_clocks_ahead.py",
        ),
        packages=CORE,
    ),
)
"""All suites in the order in which they run. tests/dledger/test_node.py is not among them: it runs in real
time."""

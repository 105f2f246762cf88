"""The outer shell: options that several commands share, and exit codes."""

from __future__ import annotations

import argparse

from audit.compare import LAG_WARNING_ENTRIES
from audit.report_files import report_path


def add_json(command: argparse.ArgumentParser) -> None:
    """`--json`, of every command."""
    command.add_argument("--json", action="store_true", help="print one JSON object")


FAIL_ON = {"warning": 1, "error": 2, "critical": 3}
"""Exit codes below that of the severity chosen become 0; 4 (could not look) stays."""


def add_report_arguments(command: argparse.ArgumentParser) -> None:
    """`--report` and `--fail-on`, of every command with findings."""
    command.add_argument(
        "--report",
        metavar="FILE",
        type=report_path,
        action="append",
        default=[],
        help="also write the result there: .html, .json, .parquet or .txt; may be given several times",
    )
    command.add_argument(
        "--fail-on",
        choices=FAIL_ON,
        default="warning",
        help="exit with 0 when nothing is worse than what is below this (default %(default)s); "
        "4, could not look, stays",
    )


def process_code(exit_code: int, fail_on: str) -> int:
    """What the process ends with."""
    return exit_code if exit_code >= FAIL_ON[fail_on] else 0


def add_audit_arguments(command: argparse.ArgumentParser) -> None:
    """Options that the audit has with and without Spark."""
    command.add_argument(
        "--lag-warning",
        type=int,
        default=LAG_WARNING_ENTRIES,
        metavar="N",
        help="warn of a replica that is more than N entries behind (default %(default)s)",
    )

"""The outer shell: options that several commands share, and exit codes."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import TYPE_CHECKING

from dledger.audit.compare import LAG_WARNING_ENTRIES
from dledger.audit.report_files import report_path
from dledger.runtime.remote_files import absolute, files_for, is_url

if TYPE_CHECKING:
    from dledger.audit.kept import Keep
    from dledger.runtime import Files

RESCAN_HOURS = 168
"""As of brokers that ship digests (`digestRescanHours`)."""


def add_json(command: argparse.ArgumentParser) -> None:
    """`--json`, of every command."""
    command.add_argument("--json", action="store_true", help="print one JSON object")


FAIL_ON = {"warning": 1, "error": 2, "critical": 3}
"""Exit codes below that of the severity chosen become 0; 4 (could not look) stays."""


def add_report(command: argparse.ArgumentParser) -> None:
    """`--report`, of every command with a result that is worth a file."""
    command.add_argument(
        "--report",
        metavar="FILE",
        type=report_path,
        action="append",
        default=[],
        help="also write the result there: .html, .json, .parquet or .txt; may be given several times",
    )


def add_fail_on(command: argparse.ArgumentParser) -> None:
    """`--fail-on`, of every command with a verdict."""
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
        type=not_negative,
        default=LAG_WARNING_ENTRIES,
        metavar="N",
        help="warn of a replica that is more than N entries behind (default %(default)s)",
    )
    command.add_argument(
        "--same-time",
        action="store_true",
        help="the directories are those of stopped or running nodes, not copies taken one after the other: "
        "what one lacks at its end is lacking",
    )
    command.add_argument(
        "--keep",
        metavar="DIR",
        type=_keep_root,
        help="keep the scans of full, committed, clean segments there, a directory or URL, and scan these no "
        "more: not before they change, or --rescan-hours",
    )
    command.add_argument(
        "--rescan-hours",
        metavar="N",
        type=not_negative,
        help="with --keep: scan a segment again N hours after its last scan at the latest, as media rot; "
        f"0: never (default {RESCAN_HOURS})",
    )


class KeepError(Exception):
    """Options that cannot be followed; the text says why."""


def _keep_root(text: str) -> str:
    try:
        import_module("pyarrow")
    except ImportError:
        raise argparse.ArgumentTypeError("needs pyarrow: pip install 'dledger[spark]'") from None
    return absolute(text)


def not_negative(text: str) -> int:
    """A number from 0 on."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value}: at least 0")
    return value


def keep_of(arguments: argparse.Namespace, plain: Files, now_ms: int) -> Keep | None:
    """What `--keep` says, None without it; `now_ms`: wall clock. Blocking. KeepError."""
    if arguments.keep is None:
        if arguments.rescan_hours is not None:
            raise KeepError("--rescan-hours goes with --keep: give it too")
        return None
    from dledger.audit.kept import Keep  # needs pyarrow

    try:
        files = files_for(arguments.keep, plain, writable=True)
        if not is_url(arguments.keep):
            files.mkdir(arguments.keep)
    except OSError as error:
        raise KeepError(f"--keep: {error}") from error
    hours = RESCAN_HOURS if arguments.rescan_hours is None else arguments.rescan_hours
    return Keep(arguments.keep, files, now_ms, hours * 3_600_000)

"""Options and exit codes that audits with and without Spark share."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dledger.audit.defaults import FAIL_ON, RESCAN_HOURS
from dledger.runtime.options import Options
from dledger.runtime.remote_files import absolute, files_for, is_url

if TYPE_CHECKING:
    from dledger.audit.kept import Keep
    from dledger.runtime import Files


def process_code(exit_code: int, fail_on: str) -> int:
    """Return the exit code of the process. It is the audit's `exit_code`, or 0 if `--fail-on` asks only for
    worse results."""
    return exit_code if exit_code >= FAIL_ON[fail_on] else 0


class KeepError(Exception):
    """Raised when options are invalid. The text says why."""


def keep_root(text: str) -> str:
    """Return the directory or URL of `--keep`. Raises ValueError if pyarrow, which writes the kept scans, is
    missing."""
    try:
        import_module("pyarrow")
    except ImportError:
        raise ValueError("needs pyarrow: pip install 'dledger[arrow]'") from None
    return absolute(text)


def keep_of(arguments: Options, plain: Files, now_ms: int) -> Keep | None:
    """Make the `Keep` for the option `--keep`; None if the option is not given. `now_ms` is the wall clock.
    Blocking. Raises KeepError."""
    if arguments.keep is None:
        if arguments.rescan_hours is not None:
            raise KeepError("--rescan-hours needs --keep: give both")
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

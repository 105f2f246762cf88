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
    """The exit code of the process, as `--fail-on` says."""
    return exit_code if exit_code >= FAIL_ON[fail_on] else 0


class KeepError(Exception):
    """Options are invalid; the text says why."""


def keep_root(text: str) -> str:
    """The directory or URL of `--keep`. ValueError without pyarrow, which keeps the scans."""
    try:
        import_module("pyarrow")
    except ImportError:
        raise ValueError("needs pyarrow: pip install 'dledger[spark]'") from None
    return absolute(text)


def keep_of(arguments: Options, plain: Files, now_ms: int) -> Keep | None:
    """The meaning of `--keep`, None if it is not given. `now_ms`: wall clock. Blocking. KeepError."""
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

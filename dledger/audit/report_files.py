"""Results as files, for the option `--report FILE`. The ending of the name decides the format.

A file is published by one rename. So a reader sees the old report or the new one, never a part.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple, Protocol, runtime_checkable

from dledger.runtime import Env, Lane
from dledger.runtime.atomic_file import publish

FORMATS = {
    ".html": "a page",
    ".json": "one object",
    ".parquet": "rows",
    ".txt": "as in the terminal",
}


class Records(NamedTuple):
    """Rows for Parquet. The types of columns are string, bigint, double, and timestamp (ms since the
    epoch)."""

    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[object]]


@runtime_checkable
class Reportable(Protocol):
    """A result that can be written in every format."""

    def as_json(self) -> dict[str, object]:
        """The result as one object."""

    def lines(self) -> Iterator[str]:
        """The result as lines for a terminal."""

    def page(self, when: str) -> str:
        """The result as a self-contained HTML page. `when` is a readable time of the run."""

    def records(self) -> Records:
        """The main results as rows. In the file they have an additional first column `run`, the time of the
        run."""


def report_path(text: str) -> str:
    """Check an argument that names a report. Raises ValueError for an invalid one, so that it is refused
    before any work is done."""
    ending = os.path.splitext(text)[1]
    if ending not in FORMATS:
        close = get_close_matches(ending, FORMATS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{text!r} does not end in one of {', '.join(FORMATS)}{hint}")
    directory = os.path.dirname(text)
    if directory and not os.path.isdir(directory):
        raise ValueError(f"{directory!r}: no such directory")
    if ending == ".parquet":
        try:
            import_module("pyarrow")
        except ImportError:
            raise ValueError("Parquet needs pyarrow: pip install 'dledger[arrow]'") from None
    return text


async def write_report(env: Env, path: str, result: Reportable) -> None:
    """Write one file. Raises OSError, and ValueError for a name that `report_path` refuses."""
    data = await env.workers.run(Lane.DISK, render, result, path, env.wall.now_ms())
    await publish(env.files, env.workers, Lane.DISK, path, data)


def render(result: Reportable, path: str, now_ms: int) -> bytes:
    """Make the bytes of the file. `now_ms` is the time of the run, in ms since the epoch."""
    when = f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    match os.path.splitext(path)[1]:
        case ".html":
            return result.page(when).encode()
        case ".json":
            return json.dumps(result.as_json()).encode() + b"\n"
        case ".parquet":
            from dledger.audit.report_table import parquet_bytes

            return parquet_bytes(result.records(), now_ms)
        case ".txt":
            return "\n".join([*result.lines(), when, ""]).encode()
        case ending:
            raise ValueError(f"{ending!r} is not a format of reports; known are {', '.join(FORMATS)}")

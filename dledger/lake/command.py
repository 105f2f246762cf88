"""`dledger lake` and `dledger audit table`: topics as tables (`dledger.lake`)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import groupby

from dledger.audit.arguments import process_code
from dledger.audit.crash import COULD_NOT_RUN
from dledger.audit.findings import EXIT_CODES, VERDICTS, worst
from dledger.audit.report import finding_lines
from dledger.audit.store_directory import StoreError
from dledger.audit.text_table import text_table
from dledger.client.errors import ClientError
from dledger.lake.certificates import TopicLife
from dledger.lake.deleted import drop_deleted
from dledger.lake.log_reading import Log, LogGone
from dledger.lake.opening import Place, open_table
from dledger.lake.roots import write_roots, written_roots
from dledger.lake.sources import Source, made, open_sources
from dledger.lake.table_audit import TableReport, audit_table
from dledger.lake.tables import TableChanged, TableError, TopicTable
from dledger.lake.typed import ERROR, TypedBodies
from dledger.lake.writer import Progress, TableWriter
from dledger.local.default_group import local_namesrv, no_address
from dledger.runtime import Lane
from dledger.runtime.env import Env, production_env
from dledger.runtime.environment_variables import namesrv_addr
from dledger.runtime.options import Options
from dledger.runtime.remote_files import absolute
from dledger.spark.messages import CorruptMessage
from dledger.spark.option_values import BadOption

FAILED = 1
ROOTS_S = 3600.0
"""Seconds after which `--follow` looks whether a root is due."""
REOPEN_S = 60.0
"""Seconds after which `--follow` looks which broker groups have the topics by now."""
ERRORS = (StoreError, ClientError, TableError, TableChanged, CorruptMessage, BadOption, OSError)


def run(arguments: Options) -> int:
    """Run `dledger lake`, and return the exit code of the process."""
    env = production_env("lake")
    try:
        return asyncio.run(_fill(env, arguments))
    except ERRORS as error:
        return _failed(arguments, f"{error}")
    finally:
        env.workers.close()


def _failed(arguments: Options, why: str) -> int:
    if arguments.json:
        print(json.dumps({"error": why, "exit_code": FAILED}))
    print(f"dledger lake: {why}", file=sys.stderr)
    return FAILED


async def _fill(env: Env, arguments: Options) -> int:
    servers = _servers(arguments)
    if not servers and not arguments.store:
        raise TableError(no_address("--namesrv"))
    work, loop = env.workers.run, asyncio.get_running_loop()
    shown = _Shown(arguments)
    table: TopicTable | None = None
    with ExitStack() as stack:
        writers: list[TableWriter] = []
        logs: list[Log] = []
        opened_at, rooted_at = 0.0, -ROOTS_S
        while True:
            try:
                if not writers or loop.time() - opened_at > REOPEN_S:
                    stack.close()
                    opened_at = loop.time()
                    table, logs, writers = await work(
                        Lane.DISK, _opened, env, arguments, servers, table, stack, shown
                    )
                for writer in writers:
                    await work(Lane.DISK, writer.catch_up)
            except ERRORS as error:
                if not arguments.follow or table is None or isinstance(error, LogGone):
                    raise
                shown.say(f"{error}: tried again in {arguments.every:g} s")
                writers = []
            if not arguments.follow:
                break
            if table is not None and loop.time() - rooted_at > ROOTS_S:
                rooted_at = loop.time()
                await work(Lane.DISK, _root, env, arguments, servers, table, logs, shown)
            await asyncio.sleep(arguments.every)
        assert table is not None
        await work(Lane.DISK, _tidy, arguments, table, shown)
        await work(Lane.DISK, _root, env, arguments, servers, table, logs, shown)
    shown.end(table)
    return 0


def _opened(
    env: Env, arguments: Options, servers: str, table: TopicTable | None, stack: ExitStack, shown: _Shown
) -> tuple[TopicTable, list[Log], list[TableWriter]]:
    """Open the logs, and at first the table. Topics may have got further broker groups."""
    topics, known = arguments.topics, [] if table is None else table.logs()
    if table is None:
        with suppress(TableError):
            known = open_table(_place(arguments)).logs()
    sources = stack.enter_context(open_sources(topics, servers, arguments.store, known))
    found = made(_place(arguments), topics, arguments.schema, sources) if table is None else table
    if table is None and arguments.archive:
        _take_archive(env, arguments, found, sources, shown)
    logs = [source.log for source in sources]
    return found, logs, [_writer(found, source, shown) for source in sources]


def _take_archive(
    env: Env, arguments: Options, table: TopicTable, sources: Sequence[Source], shown: _Shown
) -> None:
    from dledger.lake.from_archive import fill_from_archive

    for source in sources:
        state = source.log.state()
        births = source.births_at(state.begin)
        added = fill_from_archive(table, env.files, absolute(arguments.archive), state, births)
        if added.rows:
            shown.archived += added.rows
            shown.unfit += added.unfit
            shown.say(f"{state.group}: {added.rows:,} rows added from {arguments.archive}")


def _tidy(arguments: Options, table: TopicTable, shown: _Shown) -> None:
    """Do what is wanted at the end."""
    if arguments.drop_deleted:
        for log in table.logs():
            shown.dropped += drop_deleted(table, log)
    if arguments.compact:
        shown.compacted = table.compact()


def _root(
    env: Env, arguments: Options, servers: str, table: TopicTable, logs: Sequence[Log], shown: _Shown
) -> None:
    """Write the roots that are due into the logs."""
    if arguments.no_roots or arguments.store:
        return
    for text in write_roots(table, logs, servers, env.wall.now_ms()):
        shown.say(text)


def _place(arguments: Options) -> Place:
    return Place(arguments.format or "", arguments.to, dict(arguments.option))


def _servers(arguments: Options) -> str:
    """Return the NameServers to ask. If no log is named, those of NAMESRV_ADDR or of the group of this
    directory; empty if there are none."""
    if arguments.namesrv is not None:
        return str(arguments.namesrv)
    return "" if arguments.store else namesrv_addr() or local_namesrv() or ""


def _writer(table: TopicTable, source: Source, shown: _Shown) -> TableWriter:
    return TableWriter(table, source.log, source.births_at, report=shown.progress)


class _Shown:
    """What a user sees of the filling of a table."""

    def __init__(self, arguments: Options) -> None:
        self._json = arguments.json
        self._schema = arguments.schema
        self._is_terminal = sys.stderr.isatty()
        self._is_amid = False
        """Whether the line on the terminal is not ended."""
        self._last: dict[str, Progress] = {}
        self.dropped: list[TopicLife] = []
        """Lives whose messages were removed."""
        self.archived = 0
        """Number of rows that were added from an archive."""
        self.unfit = 0
        """Number of rows from an archive whose body does not fit the schema."""
        self.compacted = 0
        """Number of files that were written together."""

    def progress(self, progress: Progress) -> None:
        """Show how far a table is filled."""
        self._last[progress.group], self._is_amid = progress, True
        text = (
            f"{progress.group}: {progress.rows:,} rows added, up to entry {progress.next_index - 1:,} "
            f"of {progress.committed:,}"
        )
        print(
            f"\r{text}" if self._is_terminal else text, end="" if self._is_terminal else "\n", file=sys.stderr
        )

    def say(self, text: str) -> None:
        """Tell something on a line of its own."""
        self._end_line()
        print(f"dledger lake: {text}", file=sys.stderr)

    def _end_line(self) -> None:
        if self._is_terminal and self._is_amid:
            print(file=sys.stderr)
        self._is_amid = False

    def end(self, table: TopicTable) -> None:
        """Show the result."""
        self._end_line()
        table.refresh()
        added, rows = self.archived + sum(one.rows for one in self._last.values()), table.count()
        unfit = self.unfit + sum(one.unfit for one in self._last.values())
        if self._json:
            shown = {
                "table": table.place,
                "schema": json.loads(table.about.schema or "null"),
                "unfit_bodies": unfit,
                "topics": table.about.topics,
                "added": added,
                "rows": rows,
                "dropped_lives": [one._asdict() for one in self.dropped],
                "compacted_files": self.compacted,
            }
            print(json.dumps(shown))
            return
        print(f"{table.place}: {added:,} rows added, {rows:,} in all")
        if table.about.schema:
            how = ", as inferred from the oldest messages" if self._schema == "infer" else ""
            print(f"bodies have the fields{how}: {TypedBodies(table.about.schema).described()}")
            print(f"bodies that do not fit: {unfit:,} of the {added:,} added (column {ERROR} says why)")
        if self.dropped:
            names = ", ".join(f"{one.topic} (life {one.life})" for one in self.dropped)
            print(f"the messages of {len(self.dropped)} deleted topics were removed: {names}")
        if self.compacted:
            print(f"{self.compacted} files were written together")


def audit(arguments: Options) -> int:
    """Run `dledger audit table`, and return the exit code of the process."""
    try:
        table = open_table(_place(arguments))
        with ExitStack() as stack:
            logs = list(_logs(table, arguments, stack))
            servers = _servers(arguments)
            roots = written_roots(table.uuid, servers, arguments.store) if logs else []
            table.refresh()  # so that it is not older than the roots
            report = audit_table(table, logs, roots)
    except ERRORS as error:
        print(f"dledger audit table: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    severity = worst(report.findings)
    if arguments.json:
        print(json.dumps(_as_json(report)), flush=True)
    else:
        print("\n".join(_lines(report)), flush=True)
    return process_code(EXIT_CODES[severity], arguments.fail_on)


def _logs(table: TopicTable, arguments: Options, stack: ExitStack) -> Iterator[Log]:
    servers = _servers(arguments)
    if servers or arguments.store:
        for source in stack.enter_context(
            open_sources(table.about.topics, servers, arguments.store, table.logs())
        ):
            yield source.log


def _as_json(report: TableReport) -> dict[str, object]:
    return {
        "verdict": VERDICTS[worst(report.findings)],
        "exit_code": EXIT_CODES[worst(report.findings)],
        "table": report.place,
        "rows": report.rows,
        "ranges": [
            {
                "group": one.certificate.group,
                "first_index": one.certificate.first,
                "last_index": one.certificate.last,
                "rows": one.certificate.rows,
                "compared_with": one.compared_with,
            }
            for one in report.ranges
        ],
        "findings": [found.as_json() for found in report.findings],
    }


def _lines(report: TableReport) -> Iterator[str]:
    rows: list[Sequence[str]] = [("group", "entries", "rows", "compared with")]
    for (group, compared_with), joined in groupby(
        report.ranges, lambda one: (one.certificate.group, one.compared_with)
    ):
        ranges = [one.certificate for one in joined]
        first, last = ranges[0].first, ranges[-1].last
        count = sum(one.rows for one in ranges)
        rows.append((group, f"{first}..{last}", str(count), compared_with))
    yield from text_table(rows)
    yield ""
    yield from finding_lines(report.findings)
    verdict = VERDICTS[worst(report.findings)]
    yield f"audit: {verdict} rows={report.rows} ranges={len(report.ranges)} findings={len(report.findings)}"

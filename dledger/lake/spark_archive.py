"""`dledger spark archive --format delta|iceberg`: a table that the tasks of a Spark job fill.

The table is the same as that of `dledger lake`, and either command goes on where the other one ended. Spark
only runs the tasks (`parts`); the files are added to the table by the libraries that `dledger lake` uses. So
no package of Delta Lake or Iceberg for Spark is needed, and the job runs on every version of Spark that the
data source supports.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dledger.audit.store_directory import StoreError
from dledger.client.errors import ClientError
from dledger.runtime.options import Options
from dledger.runtime.remote_files import absolute
from dledger.spark.commands.archive import COMMAND as PARQUET
from dledger.spark.commands.command import CannotRun, Command, Context, Outcome
from dledger.spark.commands.program import run as run_program
from dledger.spark.commands.source_arguments import source_of
from dledger.spark.jobs.errors import JobError
from dledger.spark.messages import CorruptMessage
from dledger.spark.option_values import BadOption

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from dledger.lake.parts import Part, Run, Task

DEFAULT_FORMAT = "parquet"


def run(arguments: Options) -> int:
    """Run `dledger spark archive`, and return the exit code of the process."""
    table = arguments.format != DEFAULT_FORMAT
    if not table:
        arguments.to = absolute(arguments.to)
    return run_program(arguments, [Command(PARQUET.name, _table if table else PARQUET.run)])


@dataclass(frozen=True)
class TableFilled:
    """What a run added to a table."""

    place: str
    topics: tuple[str, ...]
    added: int
    rows: int
    said: tuple[str, ...] = ()
    """What became of the roots, for people."""
    exit_code: int = 0

    def as_json(self) -> dict[str, object]:
        """Return one JSON object."""
        return {"table": self.place, "topics": self.topics, "added": self.added, "rows": self.rows}

    def lines(self) -> Iterator[str]:
        """Yield the lines for people."""
        yield from self.said
        yield f"{self.place}: {self.added:,} rows added, {self.rows:,} in all"


async def _table(context: Context, arguments: Options) -> Outcome:
    async with context.spark("dledger-archive", arguments.master, short=False) as spark:
        return await context.job(spark, "archive", lambda: _fill(spark, context, arguments))


def _fill(spark: SparkSession, context: Context, arguments: Options) -> Outcome:
    try:
        from dledger.lake.opening import Place, open_table
        from dledger.lake.parts import PartsWriter
        from dledger.lake.roots import write_roots
        from dledger.lake.sources import made, open_sources
        from dledger.lake.tables import TableChanged, TableError
    except ImportError as error:
        raise CannotRun(f"{error}: pip install 'dledger[lake]'") from error

    source = source_of(arguments)
    source.check_options(f"archive --format {arguments.format}", ("subscribe",))
    topics = source.named_topics
    if not topics:
        raise JobError(f"--format {arguments.format}: name the topics of the table with --topics")
    place = Place(arguments.format, arguments.to, dict(arguments.table_option))
    added, said = 0, []
    try:
        with ExitStack() as stack:
            logs: list[str] = []
            with suppress(TableError):
                logs = open_table(place).logs()
            sources = stack.enter_context(open_sources(topics, source.servers, source.stores, logs))
            table = made(place, topics, arguments.schema, sources)
            for one in sources:
                context.progress.say(f"archive {one.log.name}")
                added += PartsWriter(table, one.log, one.births_at, tasks_of(spark)).catch_up()
            if source.servers and not arguments.no_roots:
                now_ms = context.env.wall.now_ms()
                said = write_roots(table, [one.log for one in sources], source.servers, now_ms)
        table.refresh()
        return TableFilled(table.place, table.about.topics, added, table.count(), tuple(said))
    except (TableError, TableChanged, StoreError, ClientError, CorruptMessage, BadOption, OSError) as error:
        raise JobError(f"{error}") from error


def tasks_of(spark: SparkSession) -> Run:
    """Return a function that runs tasks of `parts` as tasks of Spark, one for each part."""

    def run_tasks(task: Task, parts: Sequence[Part]) -> list[Any]:
        count = len(parts)
        results = spark.range(0, count, 1, count).mapInArrow(
            _task(task, list(parts)), "number bigint, result binary"
        )
        found = {row["number"]: pickle.loads(row["result"]) for row in results.collect()}
        return [found[number] for number in range(count)]

    return run_tasks


def _task(task: Task, parts: list[Part]) -> Any:
    def run_them(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(task(parts[number]))
                yield pa.RecordBatch.from_pydict({"number": [number], "result": [result]})

    return run_them

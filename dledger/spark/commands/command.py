"""What a command of `dledger spark` is, and what it may use while it runs.

A command is a module of this package with a constant `COMMAND`, a line in the table of `spark.commands`, and
a declaration of its options in `dledger.commands.declared.spark`. Its `run` gets a `Context` and the checked
options, and returns an `Outcome`. `program` prints the outcome (as JSON with `--json`, else as a table), and
the process ends with the exit code of the outcome.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dledger.runtime import Env, Lane
from dledger.runtime.options import Options
from dledger.spark.progress import Progress, tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
PROGRESS_INTERVAL_S = 0.2


class CannotRun(Exception):
    """The command cannot run at all; the process exits with code 4. The text says why and what to do."""


class Outcome(Protocol):
    """Protocol of the result of a command. The result of a command with `reports` is also an
    `audit.report_files.Reportable`."""

    @property
    def exit_code(self) -> int:
        """Exit code: 0 clean, 1 warnings, 2 errors, 3 critical, 4 if the command could not run or could
        not read its input."""

    def as_json(self) -> dict[str, object]:
        """Return one JSON object. Its keys are stable; new ones may be added."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table for people."""


@dataclass
class Context:
    """What a command gets: the environment of the process and the line that shows progress."""

    env: Env
    progress: Progress

    @asynccontextmanager
    async def spark(
        self, app_name: str, master: str | None, *, short: bool = True
    ) -> AsyncIterator[SparkSession]:
        """Yield a session with the data source; it is stopped at the end. Raises CannotRun without pyspark
        or Java.

        `short`: tune the session for a job of seconds (`spark.session.session`). A job that moves message
        bodies is faster without `short`.
        """
        self.progress.say("starting Spark")
        self.progress.show()
        session = await self.env.workers.run(Lane.DISK, _start, app_name, master, short)
        try:
            yield session
        finally:
            await self.env.workers.run(Lane.DISK, session.stop)
            self.progress.clear()

    async def job(self, spark: SparkSession, what: str, function: Callable[[], T]) -> T:
        """Run a blocking job in a worker thread. Meanwhile the progress line shows `what`, and how many
        tasks are done."""
        self.progress.say(what)
        running = self.env.workers.run(Lane.DISK, function)
        while not running.done():
            self.progress.show(tasks(spark))
            await asyncio.wait([running], timeout=PROGRESS_INTERVAL_S)
        from py4j.protocol import Py4JError  # type: ignore[import-untyped,import-not-found,unused-ignore]
        from pyspark.errors import PySparkException

        try:
            return running.result()
        except (PySparkException, Py4JError) as error:
            raise CannotRun(told(str(error))) from error


@dataclass(frozen=True)
class Command:
    """A command: its name, its function and what it supports. Its options are declared in
    `dledger.commands.declared.spark`."""

    name: str
    run: Callable[[Context, Options], Coroutine[Any, Any, Outcome]]
    reports: bool = False
    """Whether the command has the option `--report`. If so, its outcome is a `Reportable`."""
    judges: bool = False
    """Whether the command has the option `--fail-on`. If so, its exit code is that of a severity."""


def told(text: str) -> str:
    """Shorten the text of a Spark exception: return the error of our own code that it contains, or else
    its beginning."""
    ours = re.search(r"^dledger\.[\w.]+: (.+)$", text, re.MULTILINE)
    return ours[1] if ours else text.strip().partition("\n")[0]


def _start(app_name: str, master: str | None, short: bool) -> SparkSession:
    """Start a session. Blocking."""
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped,import-not-found,unused-ignore]
        from pyspark.errors import PySparkException
        from pyspark.logger import PySparkLogger

        from dledger.spark.java import NoJava
        from dledger.spark.session import session
    except ImportError as error:
        raise CannotRun(f"{error}: pip install 'dledger[spark]'") from error
    # An error in a condition is reported in one line. Without this it is also logged as kilobytes of JSON.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        return session(app_name, master, short=short)
    except (NoJava, PySparkException, Py4JError, OSError) as error:
        raise CannotRun(str(error)) from error

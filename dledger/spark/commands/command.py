"""What a command of `dledger spark` is, and what it can count on while it runs.

A command is a module of this package with a constant `COMMAND`, a line in the table of `spark.commands`, and
a declaration of its options in `dledger.commands.declared.checks`. Its `run` gets a `Context` and the checked
options, and returns an `Outcome`. The shell prints it (`--json` or a table), and the process ends with its
exit code.
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
    """The command cannot do its work at all: exit code 4. The text says why and what to do."""


class Outcome(Protocol):
    """What a command found or did. With `reports` also `audit.report_files.Reportable`."""

    @property
    def exit_code(self) -> int:
        """0 clean, 1 warnings, 2 errors, 3 critical, 4 could not run or look."""

    def as_json(self) -> dict[str, object]:
        """One object; keys are stable, new ones may be added."""

    def lines(self) -> Iterator[str]:
        """For people."""


@dataclass
class Context:
    """The doors of the process and the line that shows progress."""

    env: Env
    progress: Progress

    @asynccontextmanager
    async def spark(
        self, app_name: str, master: str | None, *, short: bool = True
    ) -> AsyncIterator[SparkSession]:
        """A session with the data source, stopped at the end. CannotRun without pyspark or Java.

        `short`: for seconds of work (`spark.session.session`); a job that moves bodies is faster without.
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
        """Run a blocking job in a worker; meanwhile the line says what, and how many tasks are done."""
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
    """What a command does. Its options are declared in `dledger.commands.declared.checks`."""

    name: str
    run: Callable[[Context, Options], Coroutine[Any, Any, Outcome]]
    reports: bool = False
    """Whether it has `--report`: its outcome is a `Reportable`."""
    judges: bool = False
    """Whether it has `--fail-on`: its exit code is that of a severity."""


def told(text: str) -> str:
    """What an exception of Spark's is about: our own error in it if there is one, else how it begins."""
    ours = re.search(r"^dledger\.[\w.]+: (.+)$", text, re.MULTILINE)
    return ours[1] if ours else text.strip().partition("\n")[0]


def _start(app_name: str, master: str | None, short: bool) -> SparkSession:
    """A session. Blocking."""
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped,import-not-found,unused-ignore]
        from pyspark.errors import PySparkException
        from pyspark.logger import PySparkLogger

        from dledger.spark.java import NoJava
        from dledger.spark.session import session
    except ImportError as error:
        raise CannotRun(f"{error}: pip install 'dledger[spark]'") from error
    # What is wrong with a condition is told in one line, not also in kilobytes of JSON.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        return session(app_name, master, short=short)
    except (NoJava, PySparkException, Py4JError, OSError) as error:
        raise CannotRun(str(error)) from error

"""Data source `dledger-probe`: each task tells where it runs and what it finds there. `doctor` reads it.

It comes to the executors the way the source `dledger` does, so what stops the one stops the other.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy
import pyarrow
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from dledger.runtime.remote_files import files_for
from dledger.spark import columns
from dledger.spark.packages import package_root
from dledger.spark.source import DledgerSource

COLUMNS = (
    ("host", "string"),
    ("pid", "bigint"),
    ("python", "string"),
    ("versions", "string"),
    ("packages", "string"),
    ("peak_kib", "bigint"),
    ("paths", "string"),
)
_SPREAD_S = 0.2
"""How long a task takes at least: else one executor may answer for all."""


@dataclass(frozen=True)
class Task(InputPartition):
    """One of them. `paths`: stores to look for."""

    paths: tuple[str, ...]


class ProbeSource(DataSource):
    """Options: `tasks`, how many; `paths`, a JSON list of stores."""

    @classmethod
    def name(cls) -> str:
        return f"{DledgerSource.name()}-probe"

    def schema(self) -> str:
        return columns.ddl(COLUMNS)

    def reader(self, schema: object) -> DataSourceReader:
        options = dict(self.options)
        return ProbeReader(int(options.get("tasks", "1")), tuple(json.loads(options.get("paths", "[]"))))


class ProbeReader(DataSourceReader):
    """Plans the tasks and is each of them."""

    def __init__(self, tasks: int, paths: tuple[str, ...]) -> None:
        self._tasks = tasks
        self._paths = paths

    def partitions(self) -> list[InputPartition]:
        return [Task(self._paths)] * self._tasks

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if not isinstance(partition, Task):
            raise TypeError(f"{type(partition).__name__} is no partition of this source")
        time.sleep(_SPREAD_S)
        row = (
            platform.node(),
            os.getpid(),
            platform.python_version(),
            json.dumps(versions()),
            package_root(),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1),
            json.dumps({path: look_at(path) for path in partition.paths}),
        )
        yield from columns.batches(COLUMNS, [row])


def versions() -> dict[str, str]:
    """What must be alike on the driver and the executors."""
    return {
        "pyspark": pyspark.__version__,
        "pyarrow": pyarrow.__version__,
        "numpy": numpy.__version__,
    }


def look_at(path: str) -> str:
    """Empty when there is a directory, else what is wrong."""
    try:
        return "" if files_for(path).is_dir(path) else "no such directory"
    except OSError as error:
        return str(error)

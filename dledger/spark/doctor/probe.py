"""Data source `dledger-probe`: each task reports on which executor it runs and what it finds there.
`doctor` reads this source.

It reaches the executors in the same way as the source `dledger`. So whatever prevents reading `dledger`
prevents reading the probe, too.
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
"""Least duration of a task: if tasks ended sooner, one executor might run all of them."""


@dataclass(frozen=True)
class Task(InputPartition):
    """One task of the probe. `paths`: stores whose presence it checks."""

    paths: tuple[str, ...]


class ProbeSource(DataSource):
    """The data source. Its options: `tasks`, the number of tasks; `paths`, a JSON list of stores."""

    @classmethod
    def name(cls) -> str:
        return f"{DledgerSource.name()}-probe"

    def schema(self) -> str:
        return columns.ddl(COLUMNS)

    def reader(self, schema: object) -> DataSourceReader:
        options = dict(self.options)
        return ProbeReader(int(options.get("tasks", "1")), tuple(json.loads(options.get("paths", "[]"))))


class ProbeReader(DataSourceReader):
    """Reader of the probe: it plans the tasks on the driver, and runs each task on an executor."""

    def __init__(self, tasks: int, paths: tuple[str, ...]) -> None:
        self._tasks = tasks
        self._paths = paths

    def partitions(self) -> list[InputPartition]:
        return [Task(self._paths)] * self._tasks

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if not isinstance(partition, Task):
            raise TypeError(f"{type(partition).__name__} is not a partition of this source")
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
    """Versions that must be the same on the driver and on the executors."""
    return {
        "pyspark": pyspark.__version__,
        "pyarrow": pyarrow.__version__,
        "numpy": numpy.__version__,
    }


def look_at(path: str) -> str:
    """Return the empty text if the path is a directory, else what is wrong."""
    try:
        return "" if files_for(path).is_dir(path) else "no such directory"
    except OSError as error:
        return str(error)

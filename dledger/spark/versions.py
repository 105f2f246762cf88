"""Differences between the releases of Spark. Only this module asks which release runs; all other modules
are written for the newest release.

| since | what |
|---|---|
| 4.0 | data sources in Python, a batch sink that gets Arrow batches |
| 4.1 | filters are pushed down; a streaming sink that gets Arrow batches |
| 4.2 | a stream may be limited in each batch, and knows the trigger AvailableNow |

With older releases, empty classes replace the missing ones; no objects of them are created. The same is
done in a process without pyspark, which reads the same views with `dledger.read` (`arrow_reader`).
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_datasource: ModuleType | None
try:
    _datasource = import_module("pyspark.sql.datasource")
except ModuleNotFoundError as _error:
    if (_error.name or "").partition(".")[0] != "pyspark":
        raise
    _datasource = None

HAS_PUSHDOWN = hasattr(_datasource, "Filter")
HAS_ARROW_STREAM_SINK = hasattr(_datasource, "DataSourceStreamArrowWriter")
try:
    import pyspark.sql.streaming.datasource as _streaming

    HAS_READ_LIMITS = hasattr(_streaming, "SupportsTriggerAvailableNow")
except ImportError:
    HAS_READ_LIMITS = False


def session_pushes() -> bool | None:
    """Whether the session pushes filters down, if the caller was called by Spark's planner. None if that is
    not known.

    A data source in Python is not passed the session's settings. The planner's function holds the setting in
    a variable, which is looked up here. If another release names it differently, only a hint is missing.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith("plan_data_source_read.py"):
            found = frame.f_locals.get("enable_pushdown")
            if isinstance(found, bool):
                return found
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


class Absent:
    """Replaces a class that this release of Spark does not have."""


if _datasource is not None:
    from pyspark.sql.datasource import DataSourceStreamWriter, InputPartition
else:

    class InputPartition:  # type: ignore[no-redef]
        """What one task reads."""

        def __init__(self, value: Any = None) -> None:
            self.value = value

    class DataSourceStreamWriter(Absent):  # type: ignore[no-redef]
        """See `Absent`."""


if HAS_PUSHDOWN:
    from pyspark.sql.datasource import (
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
    )
else:

    class Filter(Absent):  # type: ignore[no-redef]
        """Stands for a filter of a query."""

    class EqualTo(Filter):  # type: ignore[no-redef]
        """See `Absent`."""

    class GreaterThan(Filter):  # type: ignore[no-redef]
        """See `Absent`."""

    class GreaterThanOrEqual(Filter):  # type: ignore[no-redef]
        """See `Absent`."""

    class In(Filter):  # type: ignore[no-redef]
        """See `Absent`."""

    class IsNotNull(Filter):  # type: ignore[no-redef]
        """See `Absent`."""

    class LessThan(Filter):  # type: ignore[no-redef]
        """See `Absent`."""

    class LessThanOrEqual(Filter):  # type: ignore[no-redef]
        """See `Absent`."""


if HAS_READ_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit(Absent):  # type: ignore[no-redef]
        """See `Absent`."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """See `Absent`."""

    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """See `Absent`."""

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """See `Absent`."""

    class ReadMinRows(ReadLimit):  # type: ignore[no-redef]
        """See `Absent`."""

    class SupportsTriggerAvailableNow(Absent):  # type: ignore[no-redef]
        """See `Absent`."""


if HAS_ARROW_STREAM_SINK:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter):  # type: ignore[no-redef]
        """See `Absent`."""


__all__ = [
    "HAS_ARROW_STREAM_SINK",
    "HAS_PUSHDOWN",
    "HAS_READ_LIMITS",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamWriter",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "InputPartition",
    "IsNotNull",
    "LessThan",
    "LessThanOrEqual",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
]

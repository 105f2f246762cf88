"""How far a stream is behind: the figures that Spark's Kafka source adds to the progress of a query.

Spark lets only sources in Java add metrics to the progress, so they are computed here from offsets that are
in the progress of any source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

from dledger.spark.offsets import Offsets, decode


class SourceProgress(Protocol):
    """The progress of one source of a stream (pyspark's `SourceProgress`)."""

    @property
    def endOffset(self) -> str | None:
        """The offset up to which the last batch has read, as JSON."""

    @property
    def latestOffset(self) -> str | None:
        """The newest offset that the source had when the batch was made, as JSON."""


def offsets_behind_latest(source: SourceProgress | Mapping[str, object]) -> dict[str, float]:
    """Return how many messages of each queue the last batch of a stream left unread: their average, maximum
    and minimum, under the names that Spark's Kafka source gives them. Empty if the progress has no offsets.

    `source`: one of the `sources` of the query's progress, as `query.lastProgress.sources[0]`, or the same as
    a dict. Before Spark 4.2, each batch takes everything, and the progress does not say what there was.
    """
    names = ("endOffset", "latestOffset")
    end, latest = (
        _offsets(source.get(name) if isinstance(source, Mapping) else getattr(source, name)) for name in names
    )
    behind = [max(0, offset - end.get(queue, 0)) for queue, offset in latest.items()]
    if not behind or not end:
        return {}
    return {
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
        "maxOffsetsBehindLatest": max(behind),
        "minOffsetsBehindLatest": min(behind),
    }


def _offsets(value: object) -> Offsets:
    """Return the offsets in a field of the progress: JSON, or what it was decoded to."""
    known = json.loads(value) if isinstance(value, str) else value
    return decode(known).offsets if isinstance(known, dict) else {}

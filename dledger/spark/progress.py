"""One line on standard error that shows the progress of a job. It is shown only in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WIDTH = 78


class Progress:
    """The line that shows progress. `stream`: where it is written; None if it is not shown."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._shown = ""
        self._what = ""

    def say(self, what: str) -> None:
        """Set the text of the line. The thread of a job may call this."""
        self._what = what

    def show(self, further: str = "") -> None:
        """Write the line again: its text, followed by `further`."""
        text = ": ".join(part for part in (self._what, further) if part)[:WIDTH]
        if self._stream is not None and text != self._shown:
            self._stream.write("\r" + text.ljust(len(self._shown)))
            self._stream.flush()
            self._shown = text

    def clear(self) -> None:
        """Remove the line, before results are printed."""
        if self._stream is not None and self._shown:
            self._stream.write("\r" + " " * len(self._shown) + "\r")
            self._stream.flush()
        self._shown = ""


def tasks(spark: SparkSession) -> str:
    """Return how many tasks of the running stages are done, as text. It is empty between two stages, and
    with Spark Connect."""
    context = getattr(spark, "sparkContext", None)
    if context is None:
        return ""
    tracker = context.statusTracker()
    stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage))]
    done = sum(stage.numCompletedTasks for stage in stages)
    total = sum(stage.numTasks for stage in stages)
    return f"{done} of {total} tasks" if total else ""

"""Queues as the source of a stream, and a look at them that sees ranges and lives which belong together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from dledger.spark.offsets import Lives, Offsets, QueueRange, There, no_queue, nothing_stored
from dledger.spark.option_values import Queue
from dledger.spark.selection import Bounds, topic_and_group
from dledger.spark.versions import InputPartition

LOOKS = 10
"""Largest number of attempts to read the ranges of the queues while topics are created or deleted."""


class UnstableTopics(Exception):
    """Topics are created and deleted faster than they can be looked at. Nothing is lost."""


class Queues(Protocol):
    """Queues that can be read from one offset to another: the source of a stream. Methods are blocking."""

    def check_topics(self) -> None:
        """Raises BadOption or TopicNotFound if a topic that the options name does not exist."""

    def groups(self) -> list[str]:
        """Return the names of the broker groups that are read."""

    def bounds(self, *, qualify: bool) -> dict[Queue, Bounds]:
        """Return every wanted queue with the range of offsets that exist and are committed now."""

    def lives(self, *, qualify: bool) -> tuple[Lives, Lives]:
        """Return the life of each wanted topic, where the source reports lives: those of now, and those of an
        older snapshot (`There`)."""

    def at_time(self, queues: Sequence[Queue], timestamp_ms: int) -> Offsets:
        """Return, for each queue, the offset of the first message stored at or after a time, in ms since
        the epoch."""

    def message_bytes(self, start: Mapping[Queue, int]) -> int:
        """Return about how many bytes of log a message takes."""

    def plan(self, ranges: Sequence[QueueRange]) -> list[InputPartition]:
        """Return tasks that read these ranges."""

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. Runs on an executor."""

    def close(self) -> None:
        """Close all files and connections."""


def at_times(
    queues: Queues, option: str, named: Mapping[Queue, int], there: Mapping[Queue, Bounds], *, strict: bool
) -> Offsets:
    """Return, for each queue that an option names, the offset of the first message stored at or after its
    time, in ms since the epoch; the end of the queue if there is none. With `strict`, raises BadOption in
    that case. Raises BadOption for a queue that does not exist."""
    by_time: dict[int, list[Queue]] = {}
    for queue, timestamp_ms in named.items():
        if queue not in there:
            raise no_queue(option, queue, there)
        by_time.setdefault(timestamp_ms, []).append(queue)
    found: Offsets = {}
    for timestamp_ms, some in by_time.items():
        found |= queues.at_time(some, timestamp_ms)
    if strict and any(offset >= there[queue].high for queue, offset in found.items()):
        qualify = any(topic_and_group(topic)[1] for topic, _ in named)
        there = queues.bounds(qualify=qualify)  # a message may have come since `there` was read
        for queue, offset in sorted(found.items()):
            if queue not in there or offset >= there[queue].high:
                raise nothing_stored(option, queue, named[queue])
    return found


def look(queues: Queues, *, qualify: bool) -> There:
    """Return what the source has now: ranges and lives that belong together. If a topic is created or
    deleted while the ranges are read, the ranges are read again. Raises UnstableTopics."""
    lives = queues.lives(qualify=qualify)
    for _ in range(LOOKS):
        bounds = queues.bounds(qualify=qualify)
        before, lives = lives, queues.lives(qualify=qualify)
        if lives == before:
            return There(bounds, *lives)
    raise UnstableTopics(
        f"topics were created or deleted during each of {LOOKS} looks at them: start the query again, or "
        "name the topics that are to be read"
    )

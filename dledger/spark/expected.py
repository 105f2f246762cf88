"""The messages that are at some places in the log, according to a ConsumeQueue."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dledger.spark.entry_ranges import Bools, Ints
from dledger.spark.records import Records


@dataclass(frozen=True)
class Expected:
    """The messages that are at some places in the log, according to a ConsumeQueue. `topic` holds indexes
    into `topics`."""

    topics: list[str]
    topic: Ints
    queue_id: Ints
    offset: Ints

    def __getitem__(self, chosen: slice) -> Expected:
        return Expected(self.topics, self.topic[chosen], self.queue_id[chosen], self.offset[chosen])

    def met(self, records: Records) -> Bools:
        """Whether each record is the expected message."""
        number = {topic: at for at, topic in enumerate(records.topics)}
        wanted = np.array([number.get(topic, -1) for topic in self.topics], np.int64)[self.topic]
        right = (records.topic == wanted) & (records.queue_id == self.queue_id)
        return np.asarray(right & (records.queue_offset == self.offset) & records.dispatched, np.bool_)

    def place(self, number: int) -> str:
        """Return the place of one message, for error texts."""
        topic = self.topics[int(self.topic[number])]
        return f"topic {topic}, queue {int(self.queue_id[number])}, offset {int(self.offset[number])}"

"""Puts a message with a delay level into the queue in which it waits."""

from __future__ import annotations

from dledger.broker.commit_log import CommitLogWriter, TopicSlot
from dledger.broker.topic.topic_names import SCHEDULE_TOPIC
from dledger.formats.properties import DELAY, REAL_QID, REAL_TOPIC
from dledger.formats.state import DELAYS, DelayProgress


def wait_in(
    writer: CommitLogWriter,
    slot: TopicSlot,
    queue_id: int,
    properties: dict[str, str],
    level: int,
    levels: int,
) -> tuple[TopicSlot, int]:
    """Return the topic slot and the queue id in which a message of this level waits. A level above `levels`,
    the number of levels, counts as the last level. The real topic and queue are added to `properties`. Raises
    RemotingError with code 14 SERVICE_NOT_AVAILABLE while a voter runs a program that does not know delays.

    The first message of a level records in the log that the level exists. From then on delays may be written
    whichever members are connected.
    """
    writer.check_versions(DelayProgress.operation)
    level = min(level, levels)
    if writer.pending[DELAYS].rows.get(level) is None:
        writer.append_op(DelayProgress(level, 0).op())
    schedule = writer.slot(SCHEDULE_TOPIC)
    assert schedule is not None  # every broker has it
    properties[DELAY] = str(level)
    properties[REAL_TOPIC], properties[REAL_QID] = slot.config.name, str(queue_id)
    return schedule, level - 1

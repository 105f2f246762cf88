"""View `state` of live brokers: the leader of each group is asked, with the requests that RocketMQ's own
tools send."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from dledger.client.bulk.group_state import GroupState, group_state
from dledger.formats.state import GROUPS, TOPICS, GroupConfig, ReplicatedState, TopicConfig
from dledger.spark import columns
from dledger.spark.live_replicas import chosen_groups
from dledger.spark.options import Options
from dledger.spark.state import rows_of
from dledger.spark.versions import InputPartition


@dataclass(frozen=True)
class GroupPart(InputPartition):
    """One broker group, read by one task."""

    group: str


@dataclass(frozen=True)
class LiveStateView:
    """Topics, groups, consumer offsets and ends of queues, once for each broker group, as its leader
    reports them."""

    options: Options
    columns: columns.Columns = columns.STATE

    def plan(self) -> list[InputPartition]:
        return [GroupPart(name) for name in chosen_groups(self.options)]

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(part, GroupPart)
        options = self.options
        said = group_state(
            options.servers, part.group, options.pull_timeout_ms / 1000, options.access.client()
        )
        rows = rows_of(_replicated(said), said.group, said.node or said.address, None)
        return columns.batches(self.columns, rows)


def _replicated(said: GroupState) -> ReplicatedState:
    """Convert the answer of a broker to the form in which a replica holds the state."""
    state = ReplicatedState()
    for name, topic in said.topics.items():
        state[TOPICS].put(
            TopicConfig(
                name,
                topic.readQueueNums,
                topic.writeQueueNums,
                topic.perm,
                topic.order,
                topic.topicSysFlag,
                tuple(sorted(topic.attributes.items())),
            )
        )
    for name, group in said.groups.items():
        state[GROUPS].put(
            GroupConfig(
                name,
                group.consumeEnable,
                group.consumeBroadcastEnable,
                group.consumeMessageOrderly,
                group.retryQueueNums,
                group.retryMaxTimes,
                group.groupSysFlag,
            )
        )
    state.offsets.update(said.offsets)
    for (name, queue_id), end in said.ends.items():
        state.bounds(name, queue_id).next = end
    return state

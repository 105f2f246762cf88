"""Consumer groups (SubscriptionGroupConfig)."""

from __future__ import annotations

from typing import ClassVar

from dledger.formats.state.table import Declared, Int32, Name, QueueCount, Row


class GroupConfig(Row, frozen=True):
    """Configuration of one consumer group."""

    operation: ClassVar[str] = "group"
    name: Name
    enable: bool = True
    broadcast: bool = True
    order: bool = False
    retry_queues: QueueCount = 1
    retry_max: Int32 = 16
    flags: Int32 = 0


GROUPS = Declared[str, GroupConfig](
    "groups", GroupConfig, key=("name",), since=1, of={"group": "name", "config": "name"}
)

"""Topics (TopicConfig)."""

from __future__ import annotations

from enum import IntFlag
from typing import Annotated, ClassVar

import msgspec

from dledger.formats.state.table import Declared, Int32, Name, QueueCount, Row


class Perm(IntFlag):
    """Bits of a topic's permissions (PermName)."""

    INHERIT = 1
    WRITE = 2
    READ = 4


class TopicConfig(Row, frozen=True, rename={"read_queues": "read", "write_queues": "write"}):
    """Configuration of a topic. `attributes` are RocketMQ 5's, as sorted pairs."""

    operation: ClassVar[str] = "topic"
    name: Name
    read_queues: QueueCount
    write_queues: QueueCount
    perm: Annotated[int, msgspec.Meta(ge=0, le=0xFF)]
    order: bool = False
    flags: Int32 = 0
    attributes: tuple[tuple[str, str], ...] = ()


TOPICS = Declared[str, TopicConfig](
    "topics", TopicConfig, key=("name",), since=1, versioned=True, topic_field="name", of={"topic": "name"}
)

"""Stores of Apache's brokers without DLedger, by the specification: CommitLog, ConsumeQueues, `config/`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dledger.formats.consume_queue import UNIT
from dledger.formats.record import BLANK_MAGIC, encode_record
from dledger.formats.store_files import segment_name

SEGMENT_SIZE = 64 * 1024
BEGAN_MS = 1_700_000_000_000


@dataclass
class CommitLog:
    """Messages as Apache's broker appends them. `begin`: physical offset at which it begins."""

    begin: int = 0
    segment_size: int = SEGMENT_SIZE
    data: bytearray = field(default_factory=bytearray)
    next: dict[tuple[str, int], int] = field(default_factory=dict)
    units: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    count: int = 0

    def put(
        self,
        topic: str,
        body: bytes = b"x",
        queue_id: int = 0,
        properties: Mapping[str, str] | None = None,
        sys_flag: int = 0,
        offset: int | None = None,
    ) -> int:
        """Append a message; its physical offset. `offset`: another queue offset than the next."""
        queue = (topic, queue_id)
        place = self.next.get(queue, 0) if offset is None else offset
        text = "".join(f"{name}\x01{value}\x02" for name, value in (properties or {}).items())
        fields = {
            "topic": topic,
            "body": body,
            "queue_id": queue_id,
            "queue_offset": place,
            "properties": text,
            "sys_flag": sys_flag,
            "store_timestamp": BEGAN_MS + self.count,
            "born_timestamp": BEGAN_MS + self.count,
        }
        size = len(encode_record(**fields))  # type: ignore[arg-type]
        room = self.segment_size - len(self.data) % self.segment_size
        if size + 8 > room:
            self.data += room.to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big", signed=True)
            self.data += bytes(room - 8)
        position = self.begin + len(self.data)
        self.data += encode_record(**fields, physical_offset=position)  # type: ignore[arg-type]
        self.count += 1
        if sys_flag & 0xC in (0, 8):
            self.next[queue] = place + 1
            self.units.setdefault(queue, []).append(UNIT.pack(position, size, 0))
        return position

    def write(self, root: Path) -> Path:
        """The store; files of `config/` are those that were given."""
        directory = root / "commitlog"
        directory.mkdir(parents=True)
        padded = self.data.ljust(len(self.data) + -len(self.data) % self.segment_size, b"\0")
        for at in range(0, len(padded), self.segment_size):
            part = padded[at : at + self.segment_size]
            (directory / segment_name(self.begin + at)).write_bytes(part)
        for (topic, queue_id), units in self.units.items():
            path = root / "consumequeue" / topic / str(queue_id)
            path.mkdir(parents=True)
            first = self.next[topic, queue_id] - len(units)
            filled = UNIT.pack(0, 0x7FFFFFFF, 0) * first + b"".join(units)
            (path / segment_name(0)).write_bytes(filled.ljust(len(filled) + 400, b"\0"))
        (root / "config").mkdir()
        for name, value in self.config.items():
            (root / "config" / name).write_bytes(
                value if isinstance(value, bytes) else json.dumps(value).encode()
            )
        return root


def topics_json(*names: str) -> dict[str, Any]:
    """topics.json with these topics, of four queues."""
    table = {
        name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "order": False}
        for name in names
    }
    return {"topicConfigTable": table}

"""The command that shows the log of compacted topics, which is a file of Apache's brokers."""

from __future__ import annotations

from pathlib import Path

from dledger.client import ClientError
from dledger.client.encoding import received
from dledger.commands.mqadmin.call import Call
from dledger.commands.mqadmin.options import WrongOptions
from dledger.formats.message_ids import host_text
from dledger.formats.record import CorruptRecord, decode_record


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ClientError(f"file {path}: {error.strerror}") from error


async def dump_compaction_log(call: Call) -> None:
    if "f" not in call.given:
        raise WrongOptions("miss dump log file name")
    path = call.given.text("f")
    data = _content(path)
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if not 0 < size <= len(data) - at:
            return
        try:
            record = decode_record(data, at)
        except CorruptRecord as error:
            raise ClientError(f"{path}, byte {at}: {error}") from error
        message = received(record, "")
        row = {
            "topic": record.topic,
            "queueId": record.queue_id,
            "queueOffset": record.queue_offset,
            "msgId": message.message_id,
            "keys": message.keys,
            "storeTimestamp": record.store_timestamp,
            "storeHost": host_text(record.store_host),
            "bodySize": len(record.body),
        }
        call.out.item("messages", row, " ".join(f"{key}={value}" for key, value in row.items()))
        at += size

"""What the columns of the views mean, for the documentation. Each column of `columns` needs a line here."""

from __future__ import annotations

from dledger.spark import columns

COLUMNS = {
    "messages": columns.MESSAGES,
    "queues": columns.QUEUES,
    "entries": columns.ENTRIES,
    "state": columns.STATE,
    "scan": columns.SCAN,
    "index": columns.INDEX,
}
"""Maps a view to all of its columns, also those that exist only when an option asks for them."""
MEANINGS = {
    "messages": {
        "key": "the KEYS of the message, separated by spaces; null without keys",
        "value": "the body, uncompressed (not with includeValue=false)",
        "topic": "the topic",
        "partition": "the queue (queue id)",
        "offset": "the offset in the queue",
        "timestamp": "when the producer made the message, by its clock (born time)",
        "storeTimestamp": "when the leader stored it; never goes back in a log of ours",
        "tags": "the tag; null without one",
        "flag": "the flag that the producer set",
        "headers": "all properties, KEYS and TAGS among them (with includeHeaders=true)",
        "logIndex": "the index of the log entry; null for live brokers",
        "logTerm": "the term in which the entry was written; null for live brokers",
        "group": "the broker group (with includeGroup=true)",
        "life": "the life of the topic: it differs from that of an earlier topic of the same name (with "
        "includeLife=true)",
        "id": "TOPIC:QUEUE:LIFE:OFFSET, which no other message ever has (with includeId=true)",
        "_corrupt": "why the entry cannot be read, null for a good message (with corruptRecords=include)",
    },
    "queues": {
        "group": "the broker group",
        "replica": "the replica whose files were read; null for live brokers, as leaders answer",
        "topic": "the topic",
        "partition": "the queue (queue id)",
        "minOffset": "the first offset that is still stored",
        "maxOffset": "the offset that the next message gets, so the queue has maxOffset - minOffset messages",
        "minTimestamp": "when the first message was stored; null for an empty queue, and for live brokers",
        "maxTimestamp": "when the last message was stored; null for an empty queue, and for live brokers",
    },
    "entries": {
        "replica": "the replica",
        "index": "the index of the entry; -1 in the row of a replica or segment that cannot be read",
        "term": "the term",
        "pos": "the position in the log, in bytes",
        "size": "the size of the entry with its header, in bytes",
        "kind": "what the entry is: 0 a message, else a record of the group (docs/reference/formats.md)",
        "channel": "the header's field of this name: kind, flags, rest of the batch",
        "crc": "the CRC computed from the body",
        "stored_crc": "the CRC in the header",
        "chain_crc": "the CRC in the header that covers all entries before, too",
        "damage": "0 for a good entry, else bits that say what is wrong",
    },
    "state": {
        "group": "the broker group",
        "replica": "the replica whose state this is; for live brokers the leader",
        "appliedIndex": "the last entry that is in the state; null for live brokers",
        "kind": "topic, group, offset or queue: what the row is about",
        "name": "the topic (kind topic) or the consumer group (kinds group and offset)",
        "topic": "the topic (kinds offset and queue)",
        "partition": "the queue id (kinds offset and queue)",
        "offset": "where the group goes on (offset), or the offset of the next message (queue)",
        "data": "the configuration as JSON (kinds topic and group)",
    },
    "scan": {
        "kind": "what the row is: finding, replica, digest, queue and others",
        "replica": "the replica",
        "segment": "the position at which the segment begins",
        "first_index": "the first entry that the row is about",
        "last_index": "the last entry that the row is about",
        "entries": "how many entries it is about",
        "mix_a": "first half of the digest of these entries",
        "mix_b": "second half of the digest",
        "code": "the code of a finding (docs/reference/audit-findings.md)",
        "severity": "how bad a finding is, as a number",
        "data": "the rest of the row as JSON",
    },
    "index": {
        "replica": "the replica",
        "number": "the number of the unit in the files",
        "index": "the index of the entry in the unit; equal to number, unless it is damaged",
        "term": "the term of the entry",
        "pos": "where the entry is in the log",
        "size": "the size of the entry",
        "magic": "the magic number of the unit",
    },
}
"""Maps a view to its columns, and a column to its meaning."""

"""Checks of transactions. The log is compared with what producers intended and with the answers to them. A
comment above each check says the rule in English.

The log shows what happens to each half message. It opens a transaction, and is stored again with each check.
The transaction ends once: the message is put into its own topic (committed), or into the topic of discarded
messages (given up), or nowhere (rolled back).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import decompress

import msgpack

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.broker_history import Send
from dledger.chaos.scenarios.broker_judge import name_of
from dledger.chaos.scenarios.broker_replay import DISCARD, HALF
from dledger.chaos.scenarios.history import ACKNOWLEDGED
from dledger.chaos.scenarios.transaction_history import CHECK_MAX, TransactionHistory
from dledger.formats.entry import HEADER_SIZE, EntryHeader, Kind
from dledger.formats.record import COMPRESSED, TRANSACTION_COMMIT, TRANSACTION_MASK, decode_record


@dataclass
class _Open:
    value: bytes
    position: int
    checks: int = 0
    ended: str = ""


class TransactionJudge:
    """Reads a log entry by entry, and then compares it with the intentions of producers and the answers to
    them."""

    def __init__(self) -> None:
        self._records: dict[int, tuple[bytes, int, int]] = {}
        """Maps the offset of a message in the half topic to its body, its log position, and its prepared
        transaction offset."""
        self._halves: dict[int, _Open] = {}
        self._by_position: dict[int, int] = {}
        self._batch: list[tuple[str, int]] = []
        """Messages of the present batch that end a transaction. Each is (way in which the transaction ends,
        position of the half message)."""
        self.ended: int = 0
        self.given_up: int = 0
        self.committed_when_asked: int = 0

    def apply(self, header: EntryHeader, data: bytes) -> None:
        """Apply one entry. Raises InvariantViolated if the log breaks a rule."""
        if header.kind == Kind.MESSAGE:
            self._message(header, data)
        elif header.kind == Kind.SYSTEM:
            op = msgpack.unpackb(decode_record(data).body, strict_map_key=False)
            if op["op"] == "transaction":
                self._put(op)
            elif op["op"] == "transaction_end":
                self._end(op["half"])
        # The message and the end of its transaction are one batch.
        if not header.batch_remaining and self._batch:
            raise InvariantViolated(f"entry {header.index}: {self._batch} without the end of its transaction")

    def _message(self, header: EntryHeader, data: bytes) -> None:
        record = decode_record(data)
        body = decompress(record.body) if record.sys_flag & COMPRESSED else record.body
        prepared = record.prepared_transaction_offset
        if record.topic == HALF:
            self._records[record.queue_offset] = body, header.pos + HEADER_SIZE, prepared
            return
        how = "given up" if record.topic == DISCARD else "committed"
        if record.topic == DISCARD or record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
            half = self._halves.get(self._by_position.get(prepared, -1))
            # A message that a transaction delivers is a half message, and has the content that was sent.
            if half is None or half.value != body:
                raise InvariantViolated(f"{name_of(body)} was {how}, but {prepared} is no half message of it")
            self._batch.append((how, prepared))

    def _put(self, op: Mapping[str, Any]) -> None:
        offset, at = op["half"], op["at"]
        value, position, prepared = self._records[at]
        known = self._halves.get(offset)
        if known is None:
            if offset != at or op["checks"]:
                raise InvariantViolated(f"{op} opens a transaction, but is none's beginning")
            self._halves[offset] = _Open(value, position)
            self._by_position[position] = offset
            return
        # A transaction that has ended is not opened again. Checks are counted one by one, across leaders.
        if known.ended or op["checks"] != known.checks + 1:
            raise InvariantViolated(f"{op} after {known}")
        # A half message that is stored again has the same content, and says where it was stored first.
        if (value, prepared) != (known.value, known.position):
            raise InvariantViolated(f"{op} put {name_of(value)} of {prepared} again for {known}")
        known.checks += 1

    def _end(self, offset: int) -> None:
        known = self._halves.get(offset)
        # A transaction ends once, and only one that was open.
        if known is None or known.ended:
            raise InvariantViolated(f"the transaction of {offset} ends, which is {known}")
        known.ended = "rolled back"
        if self._batch:
            ((known.ended, position),) = self._batch
            self._batch = []
            if position != known.position:
                raise InvariantViolated(f"the message of {position} ends the transaction of {known}")
        # A transaction is given up only after all checks were made.
        if known.ended == "given up" and known.checks < CHECK_MAX:
            raise InvariantViolated(f"{name_of(known.value)} was given up after {known.checks} checks")
        self.ended += 1
        self.given_up += known.ended == "given up"
        self.committed_when_asked += known.ended == "committed" and known.checks > 0

    def judge(self, history: TransactionHistory, sends: Sequence[Send], begun: int) -> None:
        """Compare the log with what producers intended and with the answers to them. Raises InvariantViolated
        if they do not fit."""
        told = {send.values[0]: send.offset for send in sends if send.topic == HALF and send.offset >= 0}
        for offset, half in self._halves.items():
            fate, name = history.fates[half.value], name_of(half.value)
            # Each transaction ends, even if its producer has ended.
            if not half.ended:
                raise InvariantViolated(f"the transaction of {name} is open for ever")
            # A message that its producer rolls back, or never decides about, is never delivered.
            if half.ended == "committed" and not fate.commits:
                raise InvariantViolated(f"{name} came, but its producer says: {fate.value}")
            # A message that its producer commits is not rolled back. Exceptions are copies of a repeated
            # send, and messages that retention had removed.
            lost = half.position < begun
            if half.ended == "rolled back" and fate.commits and told.get(half.value) == offset and not lost:
                raise InvariantViolated(f"{name} never came, but its producer says: {fate.value}")
        for end in history.ends:
            if end.outcome == ACKNOWLEDGED:
                # A transaction ended in the way that was acknowledged to its producer.
                wanted, found = "committed" if end.commit else "rolled back", self._halves[end.half].ended
                if found != wanted:
                    raise InvariantViolated(f"{name_of(end.value)} was told to be {wanted}, and is {found}")

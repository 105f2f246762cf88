"""Checks of transactions: the leader asks producers that neither commit nor roll back their half messages
(TransactionalMessageCheckService).

The leader examines the open transactions at intervals. When a transaction has waited long enough, its half
message is stored again. The same batch holds the row of the transaction, with the number of checks and the
position of the new copy. Then the leader asks any producer of the producer group that is connected to it (39
CHECK_TRANSACTION_STATE). The producer answers with 37 END_TRANSACTION. As in RocketMQ, a check counts even if
no producer is connected. After `transactionCheckMax` checks without an answer, the message is moved to
TRANS_CHECK_MAX_TIME_TOPIC and is not checked again. A change of leader repeats no step.
"""

from __future__ import annotations

import asyncio

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.core import Core
from dledger.broker.filter.message_filter import ALL
from dledger.broker.services import LeaderService
from dledger.broker.store.reader import GetStatus
from dledger.broker.topic.deleted_messages import is_gone
from dledger.broker.topic.topic_names import HALF_TOPIC
from dledger.broker.transaction.check_relay import Elsewhere
from dledger.broker.transaction.half_messages import again, as_asked, given_up, origin_of
from dledger.formats.message_ids import encode_message_id
from dledger.formats.properties import PGROUP, REAL_TOPIC, UNIQ_KEY, decode_properties
from dledger.formats.record import Record, decode_record
from dledger.formats.state import DELETIONS, TRANSACTION, TRANSACTIONS, Transaction
from dledger.log.reading import Rotten
from dledger.remoting.codes import RequestCode
from dledger.runtime.cooperative import PAUSE_S

SCAN_S = 1.0
"""Longest time, in seconds, between two scans of all transactions. A tenth of the shortest configured wait is
used instead if it is less."""
SHORTEST_SCAN_S = 0.02
LOOKED_AT = 2000
"""Number of rows that are examined in one turn of the loop."""
ASKED = 16
"""Largest number of messages that are stored again in one turn of the loop. It is fewer if they reach
`ASKED_BYTES` together."""
ASKED_BYTES = 1024 * 1024


class TransactionCheckService(LeaderService):
    """Runs one task while this node leads: it checks or discards transactions whose producers do not end
    them."""

    def __init__(self, core: Core, elsewhere: Elsewhere) -> None:
        self._settings = core.settings
        self._store = core.store
        self._reader = core.reader
        self._clients = core.clients
        self._log = core.env.log.child("transactions")
        self._writer: CommitLogWriter | None = None
        self._ahead: dict[int, float] = {}
        """Used for a transaction whose time was stamped by a clock that is ahead of this leader's clock. Maps
        the offset of its half message to the loop time since which this leader knows the transaction."""
        self._work = 0
        self._bytes = 0
        self._elsewhere = elsewhere
        self._asked_here = 0
        self.discarded: int = 0
        """Number of transactions that were discarded because no producer ended them."""
        self.lost: int = 0
        """Number of half messages that were lost, because retention removed them before their transactions
        ended, or because their topics were deleted."""

    @property
    def asked(self) -> int:
        """Number of checks that were sent to producers since start, by this node or by other members for
        it."""
        return self._asked_here + self._elsewhere.asked

    @property
    def open(self) -> int:
        """Number of open transactions in the applied state."""
        return len(self._store.state[TRANSACTIONS].rows)

    def begin(self, writer: CommitLogWriter) -> None:
        """See `LeaderService`."""
        self._writer = writer
        self._ahead.clear()

    def end(self, reason: str) -> None:
        """See `LeaderService`."""
        self._writer = None

    async def run(self) -> None:
        """See `LeaderService`."""
        while True:
            await self._look_at_all()
            now = self._settings.now
            shortest_s = min(now.transaction_timeout_ms, now.transaction_check_interval_ms) / 1000
            await asyncio.sleep(max(min(SCAN_S, shortest_s / 10), SHORTEST_SCAN_S))

    async def _look_at_all(self) -> None:
        rows = self._store.state[TRANSACTIONS].rows
        halves = list(rows)
        for place in range(0, len(halves), LOOKED_AT):
            if place:
                await asyncio.sleep(PAUSE_S)
            writer = self._writer
            if writer is None:
                return
            now_ms = writer.clock_ms()
            due = [
                row
                for row in map(rows.get, halves[place : place + LOOKED_AT])
                if row is not None and (row.time > now_ms or now_ms - row.time >= row.wait)
            ]
            if not await self._settle_all(due):
                return
        for half in [half for half in self._ahead if half not in rows]:
            del self._ahead[half]

    async def _settle_all(self, rows: list[Transaction]) -> bool:
        """Check or discard those of these transactions that have waited long enough. Returns False if the log
        accepts nothing now."""
        for row in rows:
            writer = self._writer
            # If a change of this row is not applied yet, the next scan examines it.
            if writer is None or writer.pending[TRANSACTIONS].rows.get(row.half) != row:
                continue
            if not self._is_due(writer, row):
                continue
            if not writer.room or not writer.may_write(TRANSACTION):
                return False
            await self._settle(writer, row)
            if self._work >= ASKED or self._bytes >= ASKED_BYTES:
                self._work = self._bytes = 0
                await asyncio.sleep(PAUSE_S)
        return True

    def _is_due(self, writer: CommitLogWriter, row: Transaction) -> bool:
        passed_ms = writer.clock_ms() - row.time
        if passed_ms >= 0:
            self._ahead.pop(row.half, None)
            return passed_ms >= row.wait
        now = asyncio.get_running_loop().time()
        return now - self._ahead.setdefault(row.half, now) >= row.wait / 1000

    async def _settle(self, writer: CommitLogWriter, row: Transaction) -> None:
        """Check one transaction, or discard it."""
        try:
            record = await self._read(row)
        except (OSError, Rotten) as error:
            self._log.warning("half message cannot be read now, trying again", half=row.half, error=error)
            return
        if (
            writer is not self._writer
            or writer.pending[TRANSACTIONS].rows.get(row.half) != row
            or not writer.room
        ):
            return
        self._work += 1
        if record is None:
            self.lost += 1
            self._log.error(
                "half message lost: it expired before its transaction ended", half=row.half, at=row.at
            )
            writer.append_op(TRANSACTIONS.removal(row.half))
            return
        self._bytes += record.size
        properties = decode_properties(record.properties)
        origin = origin_of(record, row.half)
        if is_gone(writer.pending[DELETIONS].rows, properties, origin, ()):
            self.lost += 1
            self._log.warning(
                "transaction dropped: its topic was deleted", half=row.half, topic=properties.get(REAL_TOPIC)
            )
            writer.append_op(TRANSACTIONS.removal(row.half))
            return
        if row.checks >= self._settings.now.transaction_check_max:
            self.discarded += 1
            self._log.warning(
                "transaction cancelled: its producers did not say how it ends",
                half=row.half,
                asked=row.checks,
                properties=record.properties[:200],
            )
            writer.add_together([given_up(writer, record, row.half)], [TRANSACTIONS.removal(row.half)])
            return
        copy, following = again(writer, record, row, self._settings.now.transaction_check_interval_ms)
        writer.add_together([copy], [following.op()])
        self._ask(record, row)

    def _ask(self, record: Record, row: Transaction) -> None:
        properties = decode_properties(record.properties)
        group = properties.get(PGROUP, "")
        connection = self._clients.a_producer(group)
        origin = origin_of(record, row.half)
        key = properties.get(UNIQ_KEY, "")
        header = {
            "topic": HALF_TOPIC,
            "commitLogOffset": str(origin),
            "tranStateTableOffset": str(row.half),
            "offsetMsgId": encode_message_id(record.store_host, origin),
            "msgId": key,
            "transactionId": key,
        }
        body = as_asked(record, row.half, properties)
        if connection is None:
            self._elsewhere.ask(group, header, body)
            return
        self._asked_here += 1
        connection.send_oneway(RequestCode.CHECK_TRANSACTION_STATE, header, body)

    async def _read(self, row: Transaction) -> Record | None:
        """Return the last copy of the half message, or None if it no longer exists."""
        where = HALF_TOPIC, 0, row.at, 1, 1, ALL
        result = self._reader.get(*where) or await self._reader.get_cold(*where)
        record = decode_record(bytes(result.parts[0])) if result.parts else None
        if record is None and result.status is GetStatus.OFFSET_FOUND_NULL:
            raise OSError(f"offset {row.at} of {HALF_TOPIC} has no unit in its ConsumeQueue")
        return None if record is None or record.queue_offset != row.at else record

"""37 END_TRANSACTION: a producer ends its transaction (EndTransactionProcessor).

| answer | when                                                                                            |
|--------|-------------------------------------------------------------------------------------------------|
| 0      | the transaction is committed or rolled back; or it stays open, as asked (commitOrRollback 0)    |
| 1      | no such transaction is open (it was ended or discarded before), or the request names another    |
|        | producer group or position                                                                      |
| 16     | the client that ends it may not send to its topic                                               |
| 17     | the topic of the message no longer exists                                                       |
| 604    | the request comes later than the message allows (CHECK_IMMUNITY_TIME_IN_SECONDS), and is not    |
|        | the answer to a check                                                                           |
"""

from __future__ import annotations

from dledger.broker.auth import actions, required
from dledger.broker.auth.policies import Action
from dledger.broker.auth.required import to_send
from dledger.broker.commit_log import CommitLogWriter, Outgoing
from dledger.broker.core import CheckNeeded, Core
from dledger.broker.filter.message_filter import ALL, MessageFilter
from dledger.broker.requests import LeaderCall, Needs, handles
from dledger.broker.store.reader import GetResult
from dledger.broker.topic.topic_names import HALF_TOPIC
from dledger.broker.transaction.half_messages import committed, first_wait_ms, origin_of
from dledger.formats.properties import CHECK_IMMUNITY_TIME, PGROUP, decode_properties
from dledger.formats.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, Record, decode_record
from dledger.formats.state import TRANSACTION, TRANSACTIONS
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import EndTransactionHeader

_Where = tuple[str, int, int, int, int, MessageFilter]
"""Arguments of `Reader.get`: topic, queue id, offset, count, size and filter."""
_UNKNOWN = 0
_NOT_OPEN = "the transaction is not open: it was already ended, or the broker cancelled it"


class EndTransactionProcessor:
    """Handler of request 37 END_TRANSACTION."""

    def __init__(self, core: Core, check_needed: CheckNeeded) -> None:
        self._settings = core.settings
        self._gate = core.gate
        self._store = core.store
        self._reader = core.reader
        self._background = core.background
        self._committed = core.committed
        self._check_needed = check_needed

    @handles(
        RequestCode.END_TRANSACTION,
        EndTransactionHeader,
        needs=Needs.LEADER,
        reads="applied index of the leader",
        may=required.ACCOUNT,
        does=actions.Does(Action.PUB, topics=("topic",)),
    )
    def end(self, call: LeaderCall[EndTransactionHeader]) -> None:
        """Commit the transaction, roll it back, or leave it open."""
        header, writer = call.header, call.writer
        if header.commitOrRollback == _UNKNOWN:
            call.respond()
            return
        if header.commitOrRollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"commitOrRollback={header.commitOrRollback}: use 8 to commit, 12 to roll back, 0 if "
                "it is not known",
            )
        where = self._where(writer, header)
        found = self._reader.get(*where)
        if found is not None:
            self._finish(call, writer, _only(found, where[2]))
        else:
            self._background.start(call.connection, call.request, self._cold(call, where))

    def _where(self, writer: CommitLogWriter, header: EndTransactionHeader) -> _Where:
        """Return where to read the last applied copy of the message. Raises RemotingError with code 1
        SYSTEM_ERROR if the transaction is not open."""
        half = header.tranStateTableOffset
        row = self._store.state[TRANSACTIONS].rows.get(half)
        if row is None or half not in writer.pending[TRANSACTIONS].rows:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, _NOT_OPEN)
        return HALF_TOPIC, 0, row.at, 1, 1, ALL

    async def _cold(self, call: LeaderCall[EndTransactionHeader], where: _Where) -> None:
        record = _only(await self._reader.get_cold(*where), where[2])
        writer = self._gate.writer
        if writer is None:  # leadership may have ended during the read
            self._gate.wait_or_refuse(call.connection, call.request)
            return
        self._where(writer, call.header)  # another request may have ended the transaction
        self._finish(call, writer, record)

    def _finish(
        self, call: LeaderCall[EndTransactionHeader], writer: CommitLogWriter, record: Record | None
    ) -> None:
        header = call.header
        half = header.tranStateTableOffset
        if record is None:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        self._check_needed(call.connection, call.request, to_send(record))
        properties = decode_properties(record.properties)
        if properties.get(PGROUP) != header.producerGroup:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if origin_of(record, half) != header.commitLogOffset:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
        if not header.fromTransactionCheck and properties.get(CHECK_IMMUNITY_TIME):
            self._check_late(writer, half, properties)
        if not writer.room:
            raise writer.refused
        writer.check_versions(TRANSACTION)
        messages: list[Outgoing] = []
        if header.commitOrRollback == TRANSACTION_COMMIT:
            messages.append(committed(writer, record, half))
        index = writer.add_together(messages, [TRANSACTIONS.removal(half)])
        self._committed.add(index, call.connection, call.request, call.respond)

    def _check_late(self, writer: CommitLogWriter, half: int, properties: dict[str, str]) -> None:
        """Raise RemotingError with code 604 ILLEGAL_OPERATION if the producer ends a transaction too late
        without being asked. It is too late after the immunity time of the message, which is the time before
        the first check (rejectCommitOrRollback). The time counts from the storing of the message, by the
        clocks of brokers only."""
        row = writer.pending[TRANSACTIONS].rows[half]
        wait = first_wait_ms(properties, self._settings.now.transaction_timeout_ms)
        if row.checks or writer.clock_ms() - row.time > wait:
            raise RemotingError(
                ResponseCode.ILLEGAL_OPERATION,
                f"Message commit fail, because exceeding the transaction immunity time ({wait} ms)",
            )


def _only(found: GetResult, offset: int) -> Record | None:
    """Return the message of a read at `offset`, or None if it no longer exists."""
    record = decode_record(bytes(found.parts[0])) if found.parts else None
    return None if record is None or record.queue_offset != offset else record

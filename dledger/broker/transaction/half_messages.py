"""Half messages: how they wait, are committed and are discarded (TransactionalMessageBridge).

A half message waits in RMQ_SYS_TRANS_HALF_TOPIC; its real topic and queue are among its properties. A row of
the state shows that its transaction is open (`formats.state.transactions`). Each check stores the half
message again. A commit stores the message in its real topic, and the same batch removes the row. A rollback
only removes the row.
"""

from __future__ import annotations

from dledger.broker.commit_log import CommitLogWriter, Outgoing, TopicSlot
from dledger.broker.config import BrokerConfig
from dledger.broker.topic.topic_names import DISCARD_TOPIC, HALF_TOPIC
from dledger.formats.properties import (
    CHECK_IMMUNITY_TIME,
    MAX_PROPERTIES_SIZE,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TRAN_MSG,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from dledger.formats.record import TRANSACTION_COMMIT, Record, encode_record
from dledger.formats.state import DELETIONS, MAX_WAIT_MS, TRANSACTION, TRANSACTIONS, Transaction, was_deleted
from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import RemotingError


def begin(
    writer: CommitLogWriter, config: BrokerConfig, slot: TopicSlot, queue_id: int, properties: dict[str, str]
) -> tuple[TopicSlot, Transaction]:
    """Return the slot of the topic in which a half message waits, and the row of its transaction, which must
    be appended in the same batch. The real topic and queue are added to `properties`.

    Raises RemotingError with these codes:

    * 16 NO_PERMISSION while transactions are disabled
    * 13 MESSAGE_ILLEGAL if the transaction could never be ended
    * 2 SYSTEM_BUSY while too many transactions are open
    * 14 SERVICE_NOT_AVAILABLE while a voter runs a program that does not know transactions
    """
    if config.reject_transactions:
        raise RemotingError(
            ResponseCode.NO_PERMISSION,
            "this broker refuses transactional messages (rejectTransactionMessage=true)",
        )
    if slot.is_retry or slot.is_dead_letter:
        raise RemotingError(
            ResponseCode.MESSAGE_ILLEGAL, "a message that is delivered again cannot be a half message"
        )
    if not properties.get(PGROUP):
        raise RemotingError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the half message lacks the property {PGROUP}: no producer could be asked how its "
            "transaction ends",
        )
    wait = first_wait_ms(properties, config.transaction_timeout_ms)
    if writer.pending.at_most(TRANSACTIONS) >= config.max_open_transactions:
        raise RemotingError(
            ResponseCode.SYSTEM_BUSY,
            f"TRANSACTIONS_FULL: {config.max_open_transactions} transactions are open (maxOpenTransactions)",
        )
    half = writer.slot(HALF_TOPIC)
    assert half is not None  # every broker has it
    writer.note_version(TRANSACTION)
    if properties.get(UNIQ_KEY):
        properties[TRANSACTION_ID] = properties[UNIQ_KEY]
    properties[REAL_TOPIC], properties[REAL_QID] = slot.config.name, str(queue_id)
    offset = half.next[0]
    return half, Transaction(offset, offset, max(writer.clock_ms(), 0), wait)


def first_wait_ms(properties: dict[str, str], usual_ms: int) -> int:
    """Return the milliseconds until the first check of a transaction
    (TransactionalMessageUtil.getImmunityTime). Raises RemotingError with code 13 MESSAGE_ILLEGAL if the
    message asks for more than a week."""
    text = properties.get(CHECK_IMMUNITY_TIME)
    if not text:
        return usual_ms
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or text == "-1":
        return usual_ms  # RocketMQ treats a text that is not a number like this
    wait = 0 if digits != text else int(digits[:20]) * 1000
    if wait > MAX_WAIT_MS:
        raise RemotingError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{CHECK_IMMUNITY_TIME}: {text[:20]!r} is more than {MAX_WAIT_MS // 1000} s",
        )
    return wait


def origin_of(record: Record, half: int) -> int:
    """Return the physical offset that the producer knows: that of the first copy of the half message.
    `record` may be this copy or a later one."""
    return record.physical_offset if record.queue_offset == half else record.prepared_transaction_offset


def again(
    writer: CommitLogWriter, record: Record, row: Transaction, interval_ms: int
) -> tuple[Outgoing, Transaction]:
    """Return the copy of the half message that a check stores, and the row that counts this check."""
    slot = writer.slot(HALF_TOPIC)
    assert slot is not None
    checks = row.checks + 1
    told = decode_properties(record.properties) | {TRANSACTION_CHECK_TIMES: str(checks)}
    text = encode_properties(told).encode()
    if len(text) > MAX_PROPERTIES_SIZE:  # then only the row counts the checks
        text = record.properties.encode()
    copy = Outgoing.again(record, slot, 0, text, record.reconsume_times)
    copy = copy._replace(prepared_offset=origin_of(record, row.half))
    now = max(writer.clock_ms(), 0)
    return copy, Transaction(row.half, slot.next[0], now, interval_ms, checks)


def committed(writer: CommitLogWriter, record: Record, half: int) -> Outgoing:
    """Return the message for its real queue (EndTransactionProcessor.endMessageTransaction). Raises
    RemotingError with code 17 TOPIC_NOT_EXIST if the topic no longer exists."""
    properties = decode_properties(record.properties)
    topic, queue = properties.pop(REAL_TOPIC, ""), properties.pop(REAL_QID, "")
    properties.pop(TRAN_MSG, None)
    slot = (
        None
        if was_deleted(writer.pending[DELETIONS].rows, topic, origin_of(record, half))
        else writer.open_slot(topic)
    )
    if slot is None or not slot.queues or not queue.isdecimal():
        raise RemotingError(
            ResponseCode.TOPIC_NOT_EXIST, f"the topic {topic!r} of the message does not exist"
        )
    text = encode_properties(properties).encode()
    message = Outgoing.again(record, slot, int(queue) % slot.queues, text, record.reconsume_times)
    return message._replace(
        sys_flag=message.sys_flag | TRANSACTION_COMMIT, prepared_offset=origin_of(record, half)
    )


def given_up(writer: CommitLogWriter, record: Record, half: int) -> Outgoing:
    """Return the half message, unchanged, as a message for the topic of discarded transactions."""
    slot = writer.slot(DISCARD_TOPIC)
    assert slot is not None
    message = Outgoing.again(record, slot, 0, record.properties.encode(), record.reconsume_times)
    return message._replace(prepared_offset=origin_of(record, half))


def as_asked(record: Record, half: int, properties: dict[str, str]) -> bytes:
    """Return the message in the form in which its producer is asked about it: with its real topic and
    queue."""
    queue = properties.get(REAL_QID, "")
    return encode_record(
        topic=properties.get(REAL_TOPIC, ""),
        body=record.body,
        properties=record.properties,
        queue_id=int(queue) if queue.isdecimal() else 0,
        flag=record.flag,
        queue_offset=half,
        physical_offset=origin_of(record, half),
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_timestamp=record.store_timestamp,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
    )

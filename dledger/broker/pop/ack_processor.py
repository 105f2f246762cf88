"""Acknowledgements of popped messages: 200051 ACK_MESSAGE, 200151 BATCH_ACK_MESSAGE, and 200053
CHANGE_MESSAGE_INVISIBLETIME (AckMessageProcessor, ChangeInvisibleTimeProcessor).

Each request appends an operation to the log, and is answered when the operation is committed. A late
acknowledgement, for a message that was already acknowledged or delivered again, changes nothing and is
answered with 0, as in RocketMQ. Its answer, too, waits until the state on which it is based is committed, and
until a quorum has confirmed that this node leads.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Any

from dledger.broker.auth import required
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.core import Core
from dledger.broker.offset.pending_offsets import PendingOffsets
from dledger.broker.pop import pop_order
from dledger.broker.pop.pop_ledger import PopLedger, order_wait_s
from dledger.broker.requests import LeaderCall, Needs, handles
from dledger.formats.pop_handles import ORDER_QUEUE, Handle, decode_handle, real_topic
from dledger.formats.state import (
    MAX_INVISIBLE_MS,
    POP,
    POP_ORDER,
    POP_ORDERS,
    POPS,
    CheckpointKey,
    OrderKey,
    PopCheckpoint,
    done_op,
    offsets_op,
)
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.pop_bodies import BatchAck, decode_batch_ack
from dledger.remoting.pop_headers import AckMessageHeader, ChangeInvisibleTimeHeader

MAX_BATCH_ACKS = 256
"""Largest number of checkpoints (sets of messages that one pop took from one queue) in one batch of
acknowledgements; a batch with more is refused."""
MAX_BATCH_ACK_BODY = 64 * 1024


class AckProcessor:
    """Handlers of the requests that acknowledge messages or keep them invisible for longer."""

    def __init__(self, core: Core, offsets: PendingOffsets, pops: PopLedger) -> None:
        self._store = core.store
        self._offsets = offsets
        self._committed = core.committed
        self._ledger = pops
        self._gate = core.gate

    @handles(RequestCode.ACK_MESSAGE, AckMessageHeader, needs=Needs.LEADER, may=required.CONSUME)
    def ack(self, call: LeaderCall[AckMessageHeader]) -> None:
        """Acknowledge one message."""
        header = call.header
        handle = self._handle(call.writer, header, beyond=1)
        if handle.in_order:
            key = (header.consumerGroup, header.topic, header.queueId)
            index = self._ack_in_order(call.writer, key, handle.time, (header.offset,), strict=True)
        else:
            checkpoint = (*_place(header), handle.start, handle.time)
            index = self._take_out(call.writer, {checkpoint: (header.offset,)}, [])
        self._answer(call, index)

    @handles(
        RequestCode.BATCH_ACK_MESSAGE,
        needs=Needs.LEADER,
        max_body=MAX_BATCH_ACK_BODY,
        may=required.Rule(special=required.of_batch_ack),
    )
    def batch_ack(self, call: LeaderCall[None]) -> None:
        """Acknowledge many messages, either all of them or none. Messages that were popped in order are an
        exception: they are acknowledged queue by queue."""
        body = decode_batch_ack(call.request.body)
        if not body.acks:
            raise RemotingError(ResponseCode.NO_MESSAGE, "the body holds no acknowledgement")
        if len(body.acks) > MAX_BATCH_ACKS:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"the request has {len(body.acks)} acknowledgements; the limit is {MAX_BATCH_ACKS}",
            )
        self._check_room(call.writer)
        done: dict[CheckpointKey, tuple[int, ...]] = {}
        index = None
        for one in body.acks:
            bits = _bits(one)
            topic = _real_topic(one.t, one.c, one.r)
            if one.rq == ORDER_QUEUE:
                order = (one.c, topic, one.q)
                row = call.writer.pending[POP_ORDERS].rows.get(order)
                offsets = () if row is None else _chosen(row.offsets, one.so, bits)
                index = self._ack_in_order(call.writer, order, one.pt, offsets, strict=False) or index
                continue
            key = (one.c, topic, one.q, one.so, one.pt)
            checkpoint = call.writer.pending[POPS].rows.get(key)
            if checkpoint is not None:
                done[key] = done.get(key, ()) + _chosen(checkpoint.offsets, one.so, bits)
        self._answer(call, self._take_out(call.writer, done, []) or index)

    @handles(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        ChangeInvisibleTimeHeader,
        needs=Needs.LEADER,
        may=required.CONSUME,
    )
    def change(self, call: LeaderCall[ChangeInvisibleTimeHeader]) -> None:
        """Keep a message invisible for a new time, which begins now, and return a new handle for it. If the
        message was already acknowledged or delivered again, the request is refused with NO_MESSAGE, because a
        new handle would deliver the message once more. For a message that was popped in order, the request is
        not refused in this case; it changes nothing and is answered with success."""
        header, writer = call.header, call.writer
        handle = self._handle(writer, header, beyond=0)
        if not 0 <= header.invisibleTime <= MAX_INVISIBLE_MS:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime is {header.invisibleTime} ms; it must be from 0 to {MAX_INVISIBLE_MS} ms",
            )
        if handle.in_order:
            self._change_in_order(call, handle)
            return
        place = _place(header)
        key = (*place, handle.start, handle.time)
        row = writer.pending[POPS].rows.get(key)
        if row is None or header.offset not in row.offsets:
            raise RemotingError(
                ResponseCode.NO_MESSAGE,
                f"the handle of {header.topic}@{header.queueId} offset {header.offset} is stale: the "
                "message was acknowledged, or was delivered again with another handle",
            )
        rows, time_ms = writer.pending[POPS].rows, writer.clock_ms()
        while (*place, header.offset, time_ms) in rows:
            time_ms += 1  # a handle belongs to one checkpoint
        new = PopCheckpoint(*place, header.offset, time_ms, header.invisibleTime, (header.offset,))
        index = self._take_out(writer, {key: (header.offset,)}, [new])
        ext = _changed(time_ms, header.invisibleTime, handle.revive_queue)
        self._answer(call, index, ext)

    # -- in order ---------------------------------------------------------------------------------------

    def _ack_in_order(
        self, writer: CommitLogWriter, key: OrderKey, time_ms: int, offsets: tuple[int, ...], *, strict: bool
    ) -> int | None:
        """Acknowledge messages that were popped in order. The group's offset moves to the first message that
        is not acknowledged. Returns the index of the entry, or None if nothing changed. With `strict`, raises
        RemotingError if an offset does not belong to the pop."""
        row = before = writer.pending[POP_ORDERS].rows.get(key)
        if row is None or row.time != time_ms:
            return None  # it was popped again meanwhile
        for offset in offsets:
            after = pop_order.acked(row, offset)
            if after is not None:
                row = after
            elif strict and offset >= pop_order.next_offset(row):
                raise RemotingError(
                    ResponseCode.MESSAGE_ILLEGAL, f"no message of this pop has the offset {offset}"
                )
        if row is before:
            return None
        self._check_room(writer)
        group, topic, queue_id = key
        following = pop_order.next_offset(row)
        ops: list[dict[str, Any]] = [offsets_op(group, [(topic, queue_id, following)])]
        if pop_order.all_acked(row):
            ops.append(POP_ORDERS.removal(key))
            self._ledger.order_ended(key)
        else:
            ops.append(row.op())
            self._wait_in_order(writer, key, row)
        index = writer.add_together([], ops)
        self._ledger.logged(index)
        self._offsets.logged(index, group, {(topic, queue_id): following})
        if self._ledger.due_s(key) is None:
            self._ledger.on_room(group, topic)
        return index

    def _change_in_order(self, call: LeaderCall[ChangeInvisibleTimeHeader], handle: Handle) -> None:
        header, writer = call.header, call.writer
        key = _place(header)
        row = writer.pending[POP_ORDERS].rows.get(key)
        at_ms = writer.clock_ms() + header.invisibleTime
        index = None
        if row is not None and row.time == handle.time and header.offset in row.offsets:
            self._check_room(writer)
            row = pop_order.made_visible(row, header.offset, at_ms)
            index = writer.append_op(row.op())
            self._ledger.logged(index)
            self._wait_in_order(writer, key, row)
        self._answer(call, index, _changed(handle.time, at_ms - handle.time, handle.revive_queue))

    def _wait_in_order(self, writer: CommitLogWriter, key: OrderKey, row: Any) -> None:
        loop_s = asyncio.get_running_loop().time()
        self._ledger.ordered(row, loop_s + order_wait_s(row, writer.clock_ms()))

    # -- one way to change checkpoints --------------------------------------------------------------------

    def _take_out(
        self,
        writer: CommitLogWriter,
        done: dict[CheckpointKey, tuple[int, ...]],
        new: list[PopCheckpoint],
    ) -> int | None:
        """Remove messages from their checkpoints and add the checkpoints `new`, in one batch. Returns the
        index of the last entry, or None if nothing changes."""
        ops: list[dict[str, Any]] = []
        counts: list[tuple[CheckpointKey, int, bool]] = []
        for key, offsets in done.items():
            row = writer.pending[POPS].rows.get(key)
            left = () if row is None else row.offsets
            found = tuple(offset for offset in left if offset in offsets)
            if found:
                ops.append(done_op(key, found))
                counts.append((key, len(found), len(found) == len(left)))
        if not ops:
            return None
        self._check_room(writer)
        ops += [row.op() for row in new]
        index = writer.add_together([], ops)
        self._ledger.logged(index)
        loop_s = asyncio.get_running_loop().time()
        for row in new:
            self._ledger.gave(row, loop_s + row.invisible / 1000)
        for key, count, gone in counts:
            self._ledger.done(key, count, gone=gone)
        return index

    def _answer(self, call: LeaderCall[Any], index: int | None, ext: dict[str, str] | None = None) -> None:
        if index is None:
            index = self._ledger.unapplied  # an earlier operation may not be committed yet
        if index is None:
            self._gate.confirm(call.connection, call.request, lambda: call.respond(ext=ext))
        else:
            self._committed.add(index, call.connection, call.request, lambda: call.respond(ext=ext))

    # -- checks -----------------------------------------------------------------------------------------

    def _check_room(self, writer: CommitLogWriter) -> None:
        if not writer.room:
            raise writer.refused
        writer.check_versions(POP, POP_ORDER)

    def _handle(self, writer: CommitLogWriter, header: AckMessageHeader, *, beyond: int) -> Handle:
        topic = writer.topic(header.topic)
        if topic is None:
            raise RemotingError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!"
            )
        if not 0 <= header.queueId < topic.read_queues:
            raise RemotingError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{header.queueId}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}]",
            )
        low, high = self._store.queues.range_of(header.topic, header.queueId)
        if not low <= header.offset < high + beyond:
            raise RemotingError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{header.topic}@{header.queueId}, commit:{header.offset}, "
                f"store:{low}~{high}",
            )
        try:
            return decode_handle(header.extraInfo)
        except ValueError as error:
            raise RemotingError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None


def _place(header: AckMessageHeader) -> OrderKey:
    return (header.consumerGroup, header.topic, header.queueId)


def _changed(time_ms: int, invisible_ms: int, revive_queue: int) -> dict[str, str]:
    return {
        "popTime": str(time_ms),
        "invisibleTime": str(invisible_ms),
        "reviveQid": str(revive_queue),
    }


def _real_topic(topic: str, group: str, mark: str) -> str:
    try:
        return real_topic(topic, group, mark)
    except ValueError as error:
        raise RemotingError(ResponseCode.MESSAGE_ILLEGAL, f"retry mark {error}") from None


def _bits(one: BatchAck) -> bytes:
    """Return the bits of a batch acknowledgement, in the form of java.util.BitSet.toByteArray. They are sent
    in base64. Bit i stands for the offset `so + i`."""
    try:
        return base64.b64decode(one.b, validate=True)
    except (binascii.Error, ValueError):
        raise RemotingError(ResponseCode.MESSAGE_ILLEGAL, f"{one.b[:40]!r} is not a set of bits") from None


def _chosen(offsets: tuple[int, ...], start: int, bits: bytes) -> tuple[int, ...]:
    chosen = []
    for offset in offsets:
        at = offset - start
        if 0 <= at < len(bits) * 8 and bits[at >> 3] >> (at & 7) & 1:
            chosen.append(offset)
    return tuple(chosen)

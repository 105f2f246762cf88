"""The fast path of sends. For each read of a connection, one loop handles all plain sends, from the bytes of
their frames to sealed entries (encoded entries of the log) and encoded answers.

A plain send has nothing special: it is one message, encoded as JSON, not one-way, to an existing topic, for
immediate delivery. Nearly all sends are plain. On the general path each of them takes about fifty calls (a
command, its header, a handler's checks, a record, an entry, an answer that waits). The function `seal_sends`
does the same in one loop. Conditions that are the same for the whole read are checked once: whether this node
leads, whether the log has room, and what time it is. The loop stops at the first frame that is not a plain
send or would be refused. This frame and all frames behind it in the read take the general path. So all rules,
refusals and rare kinds of messages are defined only in `send_processor`. This module only recognizes the
messages to which none of them applies. Answers, stored bytes and counters are the same on both paths, byte by
byte. `tests/broker/test_plain_sends.py` gives the same bytes to both paths and compares the results.

If the compiled twin (`dledger._fast`) is available, it runs first, and `seal_sends` in this module handles
the sends that the twin has left over. `seal_sends` is also the specification of the twin. If requests must be
signed, only the compiled twin works. It handles the sends that have a valid signature of an account that may
send to the topic (`Access.key_of`), and all other sends take the general path.

One read is one call of `PlainSends.take`.

* Its entries are one run of the log's open batch (`dledger.log.appender.Run`).
* Its answers are one run of the answers that wait for the commit (`broker.pending_responses.AnswerRun`).
* It takes at most one turn of the event loop: a read has at most 256 KiB, or one frame that is larger.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Mapping
from functools import partial
from types import ModuleType
from typing import NamedTuple

import msgspec

from dledger._fast import FAST
from dledger.broker.auth.access_control import Access
from dledger.broker.commit_log import TopicSlot
from dledger.broker.config import BrokerConfig
from dledger.broker.core import Core
from dledger.broker.intake.resends import Resends
from dledger.broker.intake.send_answers import SendAnswers, added_properties, quoted
from dledger.broker.intake.send_checks import SendChecks
from dledger.broker.pending_responses import AnswerRun
from dledger.formats.checksum import crc32
from dledger.formats.entry import CHAIN, HEADER, HEADER_SIZE, MAGIC, Kind
from dledger.formats.plain_messages import SPECIAL_FLAGS, is_plain, unique_key_at
from dledger.formats.properties import MAX_PROPERTIES_SIZE
from dledger.formats.record import CRC_MASK, FIXED, FIXED_SIZE, MAGIC_V1
from dledger.log.appender import Run
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import DECODE_ERRORS, FLAG_REDIRECT
from dledger.remoting.frames import HEAD, HEAD_SIZE, JSON_TAIL
from dledger.remoting.headers import SendMessageHeader, SendMessageV2Header
from dledger.remoting.limits import MAX_REQUEST_HEADER, REQUEST_OVERHEAD
from dledger.remoting.server import Connection

BEGIN_V2 = b'{"code":%d,' % RequestCode.SEND_MESSAGE_V2
BEGIN_V1 = b'{"code":%d,' % RequestCode.SEND_MESSAGE
_BEGINNINGS = (BEGIN_V2, BEGIN_V1)
"""The bytes with which the headers of sends begin, for all known clients. A request that begins differently
takes the general path."""
_SHORT = struct.Struct(">h")
_ANSWER = b'%b%b%016X","queueId":"%d","queueOffset":"%d"%b},"flag":1,"language":"JAVA","opaque":%d%b'
"""Format of the answer. It gives the same bytes as `SendAnswers`."""
_NOTHING = (0, 0, 0)


class _Send(msgspec.Struct, eq=False, gc=False):
    """The envelope of a request (`remoting.commands.Request`) together with the fields of its header."""

    code: int
    opaque: int = 0
    flag: int = 0
    language: str = ""
    version: int = 0
    remark: str | None = None


class _SendV1(_Send, eq=False, gc=False, kw_only=True):
    fields: SendMessageHeader = msgspec.field(name="extFields")


class _SendV2(_Send, eq=False, gc=False, kw_only=True):
    fields: SendMessageV2Header = msgspec.field(name="extFields")


_decode_v1 = msgspec.json.Decoder(_SendV1, strict=False).decode
_decode_v2 = msgspec.json.Decoder(_SendV2, strict=False).decode


class Terms(NamedTuple):
    """Values that are the same for all sends until the settings change."""

    max_frame: int
    max_body: int
    added: bytes
    """Encoded properties that the broker adds to each message."""
    answer_head: bytes
    host_hex: bytes
    answer_tail: bytes
    store_host: bytes
    stored_again: Container[bytes]
    looked_for: Container[bytes]
    """Unique ids of messages that are being looked up before they are stored (`resends`)."""


def seal_sends(
    buffer: bytearray,
    at: int,
    end: int,
    born_host: bytes,
    terms: Terms,
    slots: Mapping[str, TopicSlot],
    run: Run,
    answers: AnswerRun,
) -> int:
    """Seal the plain sends at the beginning of `buffer[at:end]`. This puts their entries into `run` and their
    answers into `answers`. Returns the position of the first frame that is incomplete, is not a plain send,
    or finds no room in the log. Nothing is done for this frame."""
    max_frame, max_body, added, answer_head, host_hex, answer_tail, store_host, stored_again, looked_for = (
        terms
    )
    term, covered, now, max_entry = run.term, run.covered, run.now_ms, run.max_entry
    room_index, room_pos, stop_pos = run.room_index, run.room_pos, run.stop_pos
    index, pos, chain = run.index, run.pos, run.chain
    channel = covered | Kind.MESSAGE << 24
    begin = channel if covered else 0
    parts, sizes = run.parts, run.sizes
    frames, opaques, costs = answers.frames, answers.opaques, answers.sizes
    unpack_head, pack_fixed, pack_entry = HEAD.unpack_from, FIXED.pack, HEADER.pack
    view = memoryview(buffer)
    send: _SendV1 | _SendV2
    try:
        while end - at >= HEAD_SIZE:
            # The frame: complete, JSON, one of the two codes.
            length, header_size = unpack_head(buffer, at)
            header_at = at + HEAD_SIZE
            body_at, stop = header_at + header_size, at + 4 + length
            if stop > end or length > max_frame or header_size > MAX_REQUEST_HEADER or body_at > stop:
                break
            try:
                if buffer.startswith(BEGIN_V2, header_at):
                    send, code = _decode_v2(view[header_at:body_at]), 310
                elif buffer.startswith(BEGIN_V1, header_at):
                    send, code = _decode_v1(view[header_at:body_at]), 10
                else:
                    break
            except DECODE_ERRORS:
                break
            # The message: nothing about it is special, and nothing is refused.
            header, body_size = send.fields, stop - body_at
            text, topic, queue_id = header.properties, header.topic, header.queueId
            if (
                send.code != code
                or send.flag & ~FLAG_REDIRECT
                or text is None
                or header.batch
                or header.sysFlag & SPECIAL_FLAGS
                or body_size > max_body
            ):
                break
            slot = slots.get(topic)
            if slot is None or not slot.writable or slot.is_retry or not 0 <= queue_id < slot.queues:
                break
            properties = text.encode()
            key_at = unique_key_at(properties)
            if key_at < 0 or not is_plain(properties):
                break
            if properties[-1] != 2:
                properties += b"\x02"
            key = properties[key_at : properties.find(b"\x02", key_at)]
            properties += added
            if len(properties) > MAX_PROPERTIES_SIZE or key in stored_again or key in looked_for:
                break
            tail = slot.field + _SHORT.pack(len(properties)) + properties
            size = FIXED_SIZE + body_size + len(tail)
            entry_size = HEADER_SIZE + size
            if pos >= room_pos or index > room_index or pos + entry_size > stop_pos or entry_size > max_entry:
                break
            # The record and its entry.
            body = bytes(view[body_at:stop])
            queue_offset, position = slot.next[queue_id], pos + HEADER_SIZE
            fixed = pack_fixed(
                size,
                MAGIC_V1,
                crc32(body) & CRC_MASK,
                queue_id,
                header.flag,
                queue_offset,
                position,
                header.sysFlag,
                header.bornTimestamp,
                born_host,
                now,
                store_host,
                header.reconsumeTimes or 0,
                0,
                body_size,
            )
            body_crc = crc32(tail, crc32(body, crc32(fixed, begin)))
            chain = crc32(CHAIN.pack(index, term, body_crc), chain)
            entry = pack_entry(MAGIC, entry_size, index, term, pos, channel, chain, body_crc, size)
            # Its answer.
            answer = _ANSWER % (
                answer_head,
                host_hex,
                position,
                queue_id,
                queue_offset,
                b',"transactionId":' + quoted(key) if key else b"",
                send.opaque,
                answer_tail,
            )
            # Nothing can fail from here on, so a send is done completely or not at all.
            parts += (entry, fixed, body, tail)
            sizes.append(entry_size)
            frames.append(HEAD.pack(4 + len(answer), len(answer)) + answer)
            opaques.append(send.opaque)
            costs.append(length + REQUEST_OVERHEAD)
            slot.next[queue_id] = queue_offset + 1
            puts = slot.puts
            puts.messages += 1
            puts.size += size
            index += 1
            pos += entry_size
            at = stop
            run.index, run.pos, run.chain = index, pos, chain
    finally:
        view.release()
    return at


class PlainSends:
    """Handles the plain sends at the beginning of each read of each connection
    (`remoting.connection.Bulk`)."""

    def __init__(
        self,
        core: Core,
        send_checks: SendChecks,
        resends: Resends,
        answers: SendAnswers,
        access: Access | None,
    ) -> None:
        """`access` checks which accounts may send; None if requests need no signature."""
        self._access = access
        self._gate = core.gate
        self._checks = send_checks
        self._committed = core.committed
        self._resends = resends
        self._answers = answers
        self.fast: ModuleType | None = FAST
        self._settings_changed(core.settings.now)
        core.settings.listen(self._settings_changed)

    def _settings_changed(self, config: BrokerConfig) -> None:
        answers = self._answers
        self._usual = not config.duplicate_check_topics
        self._terms = Terms(
            config.server.max_frame_size,
            config.max_message_size,
            added_properties(config),
            answers.head,
            answers.host_hex.encode(),
            JSON_TAIL,
            config.store_host,
            self._resends.stored,
            self._resends.looking,
        )

    def take(self, connection: Connection, buffer: bytearray, end: int) -> tuple[int, int, int]:
        """See `Bulk`."""
        if end < HEAD_SIZE or not buffer.startswith(_BEGINNINGS, HEAD_SIZE):
            return _NOTHING
        writer = self._gate.writer
        if writer is None or not self._usual or self._checks.active:
            return _NOTHING
        if self._access is not None and self.fast is None:
            return _NOTHING
        if HEAD.unpack_from(buffer)[0] + 4 > end:
            return _NOTHING
        run = writer.open_run()
        if run is None:
            return _NOTHING
        answers = AnswerRun()
        host, terms, slots, at = connection.peer_host, self._terms, writer.slots, 0
        access = self._access
        key_of = None if access is None else partial(access.key_of, connection)
        try:
            if self.fast is not None:
                at = self.fast.seal_sends(buffer, at, end, host, terms, slots, run, answers, key_of)
            if access is None:
                at = seal_sends(buffer, at, end, host, terms, slots, run, answers)
        finally:
            writer.close_run(run)
            if len(run):
                self._committed.add_run(run.first, connection, answers)
        return at, len(run), sum(answers.sizes)

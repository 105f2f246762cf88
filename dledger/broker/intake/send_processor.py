"""Requests that send messages: 10 SEND_MESSAGE, 310 SEND_MESSAGE_V2, 320 SEND_BATCH_MESSAGE
(SendMessageProcessor).

All checks that can refuse a message come first. Then the message is sealed (encoded as an entry of the log),
which cannot fail. The encoded answer waits until the entry is committed (safety.md S12, S24).

The codes of the answers:

* 0: The message is durable on a majority. If the send created the topic, the NameServers know the topic.
* 1: The outcome is unknown, because leadership was lost while the message was in the log. With another
  remark, the message was not executed, because timers are disabled or too many timer messages wait.
* 2: Not executed. Too much is pending in the log ([REJECTREQUEST], LEADER_PENDING_FULL), the log is stalled
  ([PCBUSY_CLEAN_QUEUE]), the broker does not know yet whether this message was sent before
  ([TIMEOUT_CLEAN_QUEUE]), or too many transactions are open (TRANSACTIONS_FULL).
* 13: The message is too large, or its delivery time is invalid or too far ahead.
* 14: Not executed. This node does not lead, and `leaderAddr` names the leader; or the disk is full
  (DISK_FULL).
* 16: The topic is a system topic or not writable, or transactions are switched off.
* 17: The topic does not exist and may not be created.
* 29: The topic name is illegal, or the queue id is out of range.
* 215: Not executed. The topic or the producer group has reached its limit for one second.
* 604: Not executed. The idempotency key of a message is stored with another body, or cannot be looked up.
* 28010: Not executed. Some messages of a batch with idempotency keys are stored already.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from dledger._fast import FAST
from dledger.broker.auth import required
from dledger.broker.auth.plain_acl import PUB
from dledger.broker.commit_log import CommitLogWriter, TopicSlot
from dledger.broker.config import BrokerConfig
from dledger.broker.core import Core
from dledger.broker.forwarding import Origins
from dledger.broker.intake.disposition import (
    Disposition,
    check_disposition,
    delay_level_of,
)
from dledger.broker.intake.resends import (
    RESEND_BYTES,
    RESEND_TEXT,
    Found,
    Resends,
    Sent,
    keyed,
)
from dledger.broker.intake.send_answers import SendAnswers, added_properties
from dledger.broker.intake.send_back_processor import HONOURS_MAX_RECONSUME
from dledger.broker.intake.send_checks import Offered, SendChecks
from dledger.broker.pending_responses import PendingResponses
from dledger.broker.requests import LeaderCall, Needs, handles
from dledger.broker.schedule.waiting import wait_in
from dledger.broker.timer.timer_claims import TimerClaims
from dledger.broker.timer.waiting import due_time
from dledger.broker.topic.announcements import TopicAnnouncements
from dledger.broker.topic.topic_creation import TopicCreation
from dledger.broker.topic.topic_names import DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC
from dledger.broker.transaction import half_messages
from dledger.formats.checksum import crc32
from dledger.formats.entry import HEADER_SIZE, MAX_ENTRY_SIZE
from dledger.formats.message_ids import encode_unique_id
from dledger.formats.plain_messages import (
    OF_A_BROKER,
    SPECIAL_FLAGS,
    is_plain,
    may_wait,
    unique_key_at,
    was_sent_on,
)
from dledger.formats.properties import (
    DELAY,
    IDEMPOTENT,
    MAX_PROPERTIES_SIZE,
    REAL_QID,
    REAL_TOPIC,
    RESEND,
    TIMER_OUT_MS,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
    find_property,
)
from dledger.formats.record import CRC_MASK, FIXED_SIZE, TRANSACTION_MASK
from dledger.formats.state import DelayProgress, Op
from dledger.formats.timers import TIMER_TOPIC, RecallHandle
from dledger.log.appender import Run
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import FLAG_FORWARDED, Request
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import SendMessageHeader, SendMessageV2Header
from dledger.remoting.limits import MAX_FRAME_SIZE

_BATCH_HEAD = struct.Struct(">iiiii")
"""Header of one message in a batch body: total size, magic (0), CRC (0), flag, body size."""
_SHORT = struct.Struct(">h")
_UNIQ_KEY = UNIQ_KEY.encode()
_KEY_MARK = f"{IDEMPOTENT}\x01".encode()
MAX_BATCH_MESSAGES = 1000
"""Largest number of messages in one batch; a larger batch is refused. There is a limit because a batch is
encoded in one step, which takes about 8 microseconds a message."""


_WAITS_IN = {
    Disposition.DELAYED: SCHEDULE_TOPIC,
    Disposition.TIMED: TIMER_TOPIC,
    Disposition.HALF: HALF_TOPIC,
}
"""Maps a kind of message to the system topic in which messages of this kind wait."""


class _Placed(msgspec.Struct, eq=False, gc=False):
    """The topic and queue in which a message will be stored, and those parts of the message that the broker
    changes before it stores the message."""

    slot: TopicSlot
    queue_id: int
    sys_flag: int
    properties: bytes
    unique_key: bytes
    due: int = 0
    """Due time of a timer message, in ms since the epoch; 0 for other messages."""
    ops: tuple[Op, ...] = ()
    """Operations that are appended in the same batch as the message."""


SendCall = LeaderCall[SendMessageHeader] | LeaderCall[SendMessageV2Header]


class SendProcessor:
    """Handlers of the requests that send messages."""

    def __init__(
        self,
        core: Core,
        creation: TopicCreation,
        announcements: TopicAnnouncements,
        timers: TimerClaims,
        origins: Origins,
        resends: Resends,
        send_checks: SendChecks,
    ) -> None:
        self._env = core.env
        self._settings = core.settings
        self._creation = creation
        self._announcements = announcements
        self._timers = timers
        self._committed = core.committed
        self._applied = core.applied
        self._origins = origins
        self._resends = resends
        self._stored_again = resends.stored
        self._looked_for = resends.looking
        self._checks = send_checks
        config = core.settings.now
        self.answers: SendAnswers = SendAnswers(core.settings)
        self._settings_changed(config)
        core.settings.listen(self._settings_changed)
        self._salt = core.env.random.getrandbits(32)
        self._counter = 0
        self._log = core.env.log.child("intake")
        self._ip = config.store_host[:4]

    def _settings_changed(self, config: BrokerConfig) -> None:
        """Note the settings that apply to every message."""
        self._max_message_size = config.max_message_size
        self._checks_topics = bool(config.duplicate_check_topics)
        self._added = added_properties(config)

    @handles(
        RequestCode.SEND_MESSAGE,
        SendMessageHeader,
        needs=Needs.LEADER,
        max_body=MAX_FRAME_SIZE,
        may=required.Rule(topic="topic", perm=PUB),
    )
    def send_v1(self, call: LeaderCall[SendMessageHeader]) -> None:
        """Handle request 10 SEND_MESSAGE."""
        if call.header.batch:
            self._batch(call)
        else:
            self._single(call)

    @handles(
        RequestCode.SEND_MESSAGE_V2,
        SendMessageV2Header,
        needs=Needs.LEADER,
        max_body=MAX_FRAME_SIZE,
        may=required.Rule(topic="b", perm=PUB),
    )
    def send_v2(self, call: LeaderCall[SendMessageV2Header]) -> None:
        """Handle request 310 SEND_MESSAGE_V2."""
        if call.header.batch:
            self._batch(call)
        else:
            self._single(call)

    @handles(
        RequestCode.SEND_BATCH_MESSAGE,
        SendMessageV2Header,
        needs=Needs.LEADER,
        max_body=MAX_FRAME_SIZE,
        may=required.Rule(topic="b", perm=PUB),
    )
    def send_batch(self, call: LeaderCall[SendMessageV2Header]) -> None:
        """Handle request 320 SEND_BATCH_MESSAGE."""
        self._batch(call)

    # -- one message ----------------------------------------------------------------------------------

    def _single(self, call: SendCall, looked_for: bool = False) -> None:
        connection, request, header, writer = call.connection, call.request, call.header, call.writer
        if not writer.room:
            raise writer.refused
        offered = self._offered(call) if self._checks.active else None
        if offered is not None:
            self._checks.check(offered, again=looked_for)
        body = request.body
        if len(body) > self._max_message_size:
            raise _too_large("message body", len(body), self._max_message_size)
        text = header.properties or ""
        kind = Disposition.ORDINARY
        if header.sysFlag or may_wait(text):
            kind = check_disposition(header.topic, header.sysFlag, text)
        level = delay_level_of(text) if kind is Disposition.DELAYED else 0
        reconsume_times = header.reconsumeTimes or 0
        properties, unique_key = self._properties(text)
        if offered is not None:
            self._checks.check_message(offered, len(body), properties, again=looked_for)
        if (
            RESEND in text
            or unique_key in self._stored_again
            or unique_key in self._looked_for
            or self._checks_topics
        ) and not looked_for:
            topic = _WAITS_IN.get(kind, header.topic)
            sent = Sent(topic, [unique_key], [crc32(body) & CRC_MASK], len(text))
            sent = sent._replace(idempotent=keyed(text.encode()))
            if kind is Disposition.TIMED:
                sent = sent._replace(or_topic=header.topic)
            if self._look_for(call, text, sent):
                return
        slot, queue_id = writer.slots.get(header.topic), header.queueId
        if slot is None or not slot.writable or not 0 <= queue_id < slot.queues:
            slot, queue_id = self._target(writer, header)
        if slot.is_retry:
            slot, queue_id = self._dead_letter(writer, slot, queue_id, header, request, reconsume_times)
        placed = _Placed(slot, queue_id, header.sysFlag, properties, unique_key)
        if kind in _WAITS_IN:
            self._put_where_it_waits(writer, placed, kind, text, level)
        if offered is not None:
            self._checks.stored(offered, 1)
        if looked_for and not keyed(text.encode()):
            placed.ops = (*placed.ops, *self._resends.remember(writer, header.topic, placed.unique_key))
        index, queue_offset, position = writer.add_message(
            placed.slot,
            placed.queue_id,
            header.flag,
            placed.sys_flag,
            header.bornTimestamp,
            self._origins.host(connection, request)
            if request.flag & FLAG_FORWARDED
            else connection.peer_host,
            reconsume_times,
            body,
            placed.properties,
            placed.ops,
        )
        if request.flag & 2 and not writer.unannounced:
            return
        handle = self._handle(slot.config.name, placed.due, placed.unique_key) if placed.due else ""
        answer = self.answers.encode(request, (position,), queue_id, queue_offset, placed.unique_key, handle)
        # A producer may end its transaction right after the answer, and then the half message is read.
        when = self._applied if kind is Disposition.HALF else self._committed
        self._answer(call, slot, index, answer, when)

    def _put_where_it_waits(
        self, writer: CommitLogWriter, placed: _Placed, kind: Disposition, text: str, level: int
    ) -> None:
        """Change the topic, the queue and the properties of a message that is not delivered at once, so that
        it waits in a system topic."""
        slot, queue_id = placed.slot, placed.queue_id
        if kind is Disposition.DELAYED:
            placed.slot, placed.queue_id, text = self._delayed(writer, slot, queue_id, text, level)
        elif kind is Disposition.TIMED:
            placed.slot, placed.queue_id, text, placed.due = self._timed(writer, slot, queue_id, text)
        else:
            values = decode_properties(text)
            placed.slot, row = half_messages.begin(writer, self._settings.now, slot, queue_id, values)
            placed.queue_id, placed.ops = 0, (row.op(),)
            placed.sys_flag &= ~TRANSACTION_MASK
            text = encode_properties(values)
        placed.properties, placed.unique_key = self._properties(text)

    def _answer(
        self, call: SendCall, slot: TopicSlot, index: int, answer: bytes, when: PendingResponses
    ) -> None:
        """Answer a send. If a send created the topic, the answer waits until the NameServers know it."""
        connection, request = call.connection, call.request
        if slot.config.name in call.writer.unannounced:

            def respond() -> None:
                connection.respond_parts(request, (answer,))

            self._announcements.add(call.writer, slot, index, connection, request, respond)
        elif not request.oneway:
            when.add(index, connection, request, answer)

    def _look_for(self, call: SendCall, text: str, sent: Sent) -> bool:
        """Return whether the send is looked up before it is stored; if so, the caller must not store it.
        `text` are the properties of the message, or of the first message of a batch."""
        resent = text.endswith(RESEND_TEXT)
        topic, ids = call.header.topic, sent.ids
        known = resent or ids[0] in self._stored_again or ids[0] in self._looked_for
        if not known and not (self._resends.checks(topic) and "UNIQ_KEY\x01" in text):
            return False  # an id that this broker creates was never sent before
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return False  # equal copies from consumers are intended
        batch = sent.batch

        def answer(found: Found) -> None:
            unique_key = b"" if batch else ids[0]
            handle = self._handle(topic, found.due, unique_key)
            result = self.answers.encode(
                call.request,
                found.positions,
                found.queue_id,
                found.queue_offset,
                unique_key,
                handle,
                found.store_host,
            )
            call.connection.respond_parts(call.request, (result,))

        def again(writer: CommitLogWriter) -> None:
            now = msgspec.structs.replace(call, writer=writer)
            (self._batch if batch else self._single)(now, looked_for=True)

        return self._resends.take(
            call.connection, call.request, sent, patient=not resent, answer=answer, again=again
        )

    def _delayed(
        self, writer: CommitLogWriter, slot: TopicSlot, queue_id: int, text: str, level: int
    ) -> tuple[TopicSlot, int, str]:
        """Return the topic and queue in which a message with a delay level waits, and the properties with
        which it is stored in them (PutMessage hook). A dead letter is not delayed. While a member of the
        group runs a version that cannot deliver delayed messages, a retry is delivered at once, and other
        delayed messages are refused with code 14 SERVICE_NOT_AVAILABLE."""
        values = decode_properties(text)
        retry = slot.is_retry
        if slot.is_dead_letter or (retry and not writer.may_write(DelayProgress.operation)):
            values.pop(DELAY, None)
            return slot, queue_id, encode_properties(values)
        levels = len(self._settings.now.delay_levels)
        slot, queue_id = wait_in(writer, slot, queue_id, values, level, levels)
        return slot, queue_id, encode_properties(values)

    def _timed(
        self, writer: CommitLogWriter, slot: TopicSlot, queue_id: int, text: str
    ) -> tuple[TopicSlot, int, str, int]:
        """Return the topic and queue in which a timer message waits, the properties with which it is stored
        in them, and its due time in ms since the epoch. If the time has already passed, the due time is 0 and
        the message is delivered at once."""
        values = decode_properties(text)
        due = due_time(values, writer.clock_ms(), self._settings.now)
        if due is None:
            return slot, queue_id, text, 0
        due = self._timers.place(writer, due)
        values[TIMER_OUT_MS] = str(due)
        values[REAL_TOPIC], values[REAL_QID] = slot.config.name, str(queue_id)
        waiting = writer.slot(TIMER_TOPIC)
        assert waiting is not None  # every broker has this topic
        return waiting, 0, encode_properties(values), due

    def _handle(self, topic: str, due: int, unique_key: bytes) -> str:
        """Return the handle by which a timer message can be recalled; empty for other messages."""
        if not (due and self._settings.now.recall_enable):
            return ""
        name, key = self._settings.now.broker_name, unique_key.decode(errors="replace")
        return RecallHandle(topic, name, due, key).encode()

    def _properties(self, text: str) -> tuple[bytes, bytes]:
        """Return the properties to store, and the unique key of the message. Raises RemotingError 13
        MESSAGE_ILLEGAL if the properties are too long."""
        raw = text.encode()
        if was_sent_on(raw):
            values = decode_properties(text)
            for name in OF_A_BROKER:
                values.pop(name, None)
            raw = encode_properties(values).encode()
        if raw and raw[-1] != 2:
            raw += b"\x02"
        at = unique_key_at(raw)
        if at < 0:
            at, raw = self._with_unique_key(raw)
        key = raw[at : raw.find(b"\x02", at)]
        raw += self._added
        if len(raw) > MAX_PROPERTIES_SIZE:
            raise _too_large("properties", len(raw), MAX_PROPERTIES_SIZE)
        return raw, key

    def _with_unique_key(self, raw: bytes) -> tuple[int, bytes]:
        """Add a unique key to the properties of a message whose client gave none. Returns the position of the
        key and the new properties."""
        self._counter = (self._counter + 1) & 0xFFFF
        millis = self._env.wall.now_ms() & 0xFFFFFFFF
        key = encode_unique_id(self._ip, self._env.pid, self._salt, millis, self._counter)
        name = f"{UNIQ_KEY}\x01".encode()
        return len(raw) + len(name), raw + name + key.encode() + b"\x02"

    # -- a batch --------------------------------------------------------------------------------------

    def _batch(self, call: SendCall, looked_for: bool = False) -> None:
        connection, request, header, writer = call.connection, call.request, call.header, call.writer
        if not writer.room:
            raise writer.refused
        offered = self._offered(call) if self._checks.active else None
        if offered is not None:
            self._checks.check(offered, again=looked_for)
        if len(request.body) > self._max_message_size:
            raise _too_large("batch body", len(request.body), self._max_message_size)
        if header.topic.startswith(RETRY_PREFIX):
            raise RemotingError(
                ResponseCode.MESSAGE_ILLEGAL, "batch request does not support retry group " + header.topic
            )
        named = _KEY_MARK in request.body  # in its properties, or by chance in a body
        if FAST is not None and not (
            looked_for
            or named
            or self._checks_topics
            or header.sysFlag & SPECIAL_FLAGS
            or self._checks.looks_at_messages
        ):
            plain = FAST.measure_batch(request.body, MAX_BATCH_MESSAGES, len(self._added))
            if plain and plain[2] not in self._stored_again and plain[2] not in self._looked_for:
                self._plain_batch(call, offered, plain[0], plain[1])
                return
        messages, size = self._split(header.topic, header.sysFlag, request.body)
        if offered is not None:
            for _, body, properties in messages:
                self._checks.check_message(offered, len(body), properties, again=looked_for)
        first_properties = messages[0][2]
        unique_key = find_property(first_properties, _UNIQ_KEY) or b""
        keys = named and any(map(self._keyed, messages))
        if (
            unique_key in self._stored_again
            or unique_key in self._looked_for
            or RESEND_BYTES in first_properties
            or keys
            or self._checks_topics
        ) and not looked_for:
            ids = [find_property(properties, _UNIQ_KEY) or b"" for _, _, properties in messages]
            crcs = [crc32(body) & CRC_MASK for _, body, _ in messages]
            first_sent = first_properties.removesuffix(self._added)
            sent = Sent(header.topic, ids, crcs, 0, idempotent=keys, batch=True)
            if sent.idempotent:
                self._check_keys(sent, messages)
            if self._look_for(call, first_sent.decode(), sent):
                return
        slot, queue_id = self._target(writer, header)
        total = _stored_size(slot, len(messages), size)
        if offered is not None:
            self._checks.stored(offered, len(messages))
        remembered = looked_for and not keys
        index, first, positions = writer.add_batch(
            slot,
            queue_id,
            header.sysFlag,
            header.bornTimestamp,
            self._origins.host(connection, request),
            messages,
            total,
            self._resends.remember(writer, header.topic, unique_key) if remembered else (),
        )
        looked_up = len(messages) if keys and looked_for else 0
        answer = self.answers.encode(request, positions, queue_id, first, keys=looked_up)
        self._answer(call, slot, index, answer, self._committed)

    def _keyed(self, message: tuple[int, bytes, bytes]) -> bool:
        return keyed(message[2].removesuffix(self._added))

    def _check_keys(self, sent: Sent, messages: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Raise RemotingError 13 MESSAGE_ILLEGAL unless each message of a batch has an idempotency key of its
        own."""
        if not all(map(self._keyed, messages)) or len(set(sent.ids)) < len(sent.ids):
            raise RemotingError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the batch has messages with and without the properties {IDEMPOTENT} and {RESEND}, or two "
                "with the same unique id; nothing was stored",
            )

    def _plain_batch(self, call: SendCall, offered: Offered | None, messages: int, size: int) -> None:
        """Store a batch of plain messages with the compiled twin."""
        connection, request, header, writer = call.connection, call.request, call.header, call.writer
        slot, queue_id = self._target(writer, header)
        total = _stored_size(slot, messages, size)
        if offered is not None:
            self._checks.stored(offered, messages)
        host, added, host_hex = self._origins.host(connection, request), self._added, self.answers.host_hex

        def seal(run: Run, store_host: bytes) -> bytes:
            assert FAST is not None
            ids: bytes = FAST.seal_batch(
                request.body,
                added,
                host,
                store_host,
                host_hex.encode(),
                slot,
                queue_id,
                header.sysFlag,
                header.bornTimestamp,
                messages,
                size,
                0,
                run,
            )
            return ids

        index, first, ids = writer.add_sealed(slot, queue_id, messages, total, seal)
        answer = self.answers.of_batch(request, ids, queue_id, first)
        self._answer(call, slot, index, answer, self._committed)

    def _split(self, topic: str, sys_flag: int, body: bytes) -> tuple[list[tuple[int, bytes, bytes]], int]:
        """Return flag, body and stored properties of each message in a batch, and the size of all bodies and
        properties together.

        Raises RemotingError 13 MESSAGE_ILLEGAL if the body is not a valid batch.
        """
        check_disposition(topic, sys_flag, "")
        messages: list[tuple[int, bytes, bytes]] = []
        total = 0
        at = 0
        end = len(body)
        try:
            while at < end:
                if len(messages) == MAX_BATCH_MESSAGES:
                    raise RemotingError(
                        ResponseCode.MESSAGE_ILLEGAL,
                        f"the batch has more than {MAX_BATCH_MESSAGES} messages: send it in parts",
                    )
                size, _, _, flag, body_size = _BATCH_HEAD.unpack_from(body, at)
                body_at = at + 20
                properties_at = body_at + body_size + 2
                (properties_size,) = _SHORT.unpack_from(body, properties_at - 2)
                stop = properties_at + properties_size
                if body_size < 0 or properties_size < 0 or stop - at != size or stop > end:
                    raise _bad_batch(at)
                properties = body[properties_at:stop]
                text = properties.decode()
                if may_wait(text):
                    kind = check_disposition(topic, sys_flag, text)
                    if kind in (Disposition.DELAYED, Disposition.HALF, Disposition.TIMED):
                        raise RemotingError(
                            ResponseCode.MESSAGE_ILLEGAL, f"{kind.value} messages are not sent in batches"
                        )
                if is_plain(properties) and unique_key_at(properties) >= 0:
                    if properties[-1] != 2:
                        properties += b"\x02"
                    properties += self._added
                else:
                    properties = self._properties(text)[0]
                if len(properties) > MAX_PROPERTIES_SIZE:
                    raise _too_large("properties", len(properties), MAX_PROPERTIES_SIZE)
                messages.append((flag, body[body_at : body_at + body_size], properties))
                total += body_size + len(properties)
                at = stop
        except (struct.error, UnicodeDecodeError) as error:
            raise _bad_batch(at) from error
        if not messages:
            raise _bad_batch(0)
        return messages, total

    # -- checks ---------------------------------------------------------------------------------------

    def _offered(self, call: SendCall) -> Offered:
        request, header = call.request, call.header
        return Offered(header.topic, header.producerGroup, request.version, len(request.body))

    def _target(
        self, writer: CommitLogWriter, header: SendMessageHeader | SendMessageV2Header
    ) -> tuple[TopicSlot, int]:
        slot = writer.slots.get(header.topic)
        if slot is None:
            # Only a known topic gets a slot, so its name is checked once in each leadership.
            slot = self._creation.topic_for_send(
                writer, header.topic, header.defaultTopic, header.defaultTopicQueueNums
            )
        if not slot.writable:
            raise RemotingError(
                ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] is not writable on this broker"
            )
        queue_id = header.queueId
        if queue_id < 0:
            queue_id = self._env.random.randrange(max(1, slot.config.write_queues))
        if queue_id >= slot.queues:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, topic[{header.topic}] has {slot.queues} queues",
            )
        return slot, queue_id

    def _dead_letter(
        self,
        writer: CommitLogWriter,
        slot: TopicSlot,
        queue_id: int,
        header: SendMessageHeader | SendMessageV2Header,
        request: Request,
        reconsume_times: int,
    ) -> tuple[TopicSlot, int]:
        """Return the topic and queue for a message that was sent to a retry topic (handleRetryAndDLQ). After
        too many tries, the message goes to the dead letter topic `%DLQ%group`. Otherwise it goes to the queue
        that the client named."""
        name = slot.config.name[len(RETRY_PREFIX) :]
        group = writer.group(name)
        limit = 16 if group is None else group.retry_max
        if request.version >= HONOURS_MAX_RECONSUME and header.maxReconsumeTimes is not None:
            limit = header.maxReconsumeTimes
        if reconsume_times <= limit:
            return slot, queue_id
        return self._creation.dead_letters(writer, name), 0


def _stored_size(slot: TopicSlot, messages: int, size: int) -> int:
    """Return the size, in bytes, of the entries of a batch. `size` is the size, in bytes, of its bodies and
    properties. Raises RemotingError 13 MESSAGE_ILLEGAL if the entries are too large."""
    total = size + messages * (HEADER_SIZE + FIXED_SIZE + len(slot.field) + _SHORT.size)
    if total > MAX_ENTRY_SIZE:
        raise _too_large(f"batch of {messages} messages as stored", total, MAX_ENTRY_SIZE)
    return total


def _too_large(what: str, size: int, limit: int) -> RemotingError:
    return RemotingError(ResponseCode.MESSAGE_ILLEGAL, f"the {what} has {size} bytes; the limit is {limit}")


def _bad_batch(at: int) -> RemotingError:
    return RemotingError(ResponseCode.MESSAGE_ILLEGAL, f"the batch body is malformed at byte {at}")

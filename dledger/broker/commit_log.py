"""Turns requests into log entries (CommitLog.asyncPutMessage), for the time of one leadership.

To seal an entry is to give it its index, position and checksums, and to add it to the log. Sealing is
synchronous and cannot fail (safety.md S12), so the processors check everything before. A run is a series of
messages that are sealed one directly after the other.

A `CommitLogWriter` is made when a term opens. It starts from the applied state, which then contains
everything committed. After that it counts by itself: the next offsets of queues, and topics and groups that
are appended but not applied yet. It is discarded when leadership ends (architecture rule 6).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from dledger.broker.ports import Appender
from dledger.broker.stats.stats_item import Puts
from dledger.broker.topic.topic_names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from dledger.broker.topic.topic_table import encode_topic
from dledger.formats.checksum import crc32
from dledger.formats.entry import HEADER_SIZE, Kind
from dledger.formats.record import (
    BORN_HOST_V6,
    CRC_MASK,
    FIXED,
    FIXED_SIZE,
    MAGIC_V1,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    Record,
    system_record_size,
)
from dledger.formats.state import (
    GROUPS,
    MAX_OFFSET,
    TOPIC_DELETE,
    TOPICS,
    VERSIONS,
    Birth,
    GroupBirth,
    GroupConfig,
    Op,
    Pending,
    Perm,
    ReplicatedState,
    TopicBirth,
    TopicConfig,
    TopicDeletion,
    VersionNote,
    pack_op,
)
from dledger.log.appender import Run
from dledger.messages import Code
from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import RemotingError

if TYPE_CHECKING:
    from dledger._fast.compiled import Restored

_SHORT = struct.Struct(">h")
_KEPT_FLAGS = ~(TRANSACTION_MASK | BORN_HOST_V6 | STORE_HOST_V6)
_TEXT_LENGTH = tuple(bytes([length]) for length in range(256))


class TopicSlot:
    """One topic as the leader uses it to append messages, with the parts that all records of the topic have
    in common."""

    __slots__ = ("config", "field", "is_dead_letter", "is_retry", "next", "puts", "queues", "writable")

    def __init__(self, config: TopicConfig, next_offsets: list[int], puts: Puts) -> None:
        raw = config.name.encode()
        self.field: bytes = _TEXT_LENGTH[len(raw)] + raw
        """Length and name of the topic, as in a record of version 1."""
        self.is_retry: bool = config.name.startswith(RETRY_PREFIX)
        self.is_dead_letter: bool = config.name.startswith(DLQ_PREFIX)
        self.next: list[int] = next_offsets
        """Next offset of each queue. Messages that are appended and not applied yet count."""
        self.puts: Puts = puts
        self.set_config(config)

    def set_config(self, config: TopicConfig) -> None:
        """Set a changed configuration of the topic. The offsets stay."""
        self.config: TopicConfig = config
        self.queues: int = max(config.read_queues, config.write_queues)
        self.writable: bool = bool(config.perm & 2)


class Outgoing(NamedTuple):
    """One message to be appended. All its values were checked before."""

    slot: TopicSlot
    queue_id: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int
    body: bytes
    properties: bytes
    prepared_offset: int = 0
    """Physical offset of the half message that this message comes from (preparedTransactionOffset)."""

    @classmethod
    def again(
        cls, record: Record, slot: TopicSlot, queue_id: int, properties: bytes, reconsume_times: int
    ) -> Outgoing:
        """Return the content of a record as a message for another queue. An IPv6 host becomes zeros, because
        the new record has no room for it."""
        return cls(
            slot,
            queue_id,
            record.flag,
            record.sys_flag & _KEPT_FLAGS,
            record.born_timestamp,
            bytes(8) if record.sys_flag & BORN_HOST_V6 else record.born_host,
            reconsume_times,
            record.body,
            properties,
        )

    @property
    def size(self) -> int:
        """Size, in bytes, of the entry of this message."""
        texts = len(self.slot.field) + _SHORT.size + len(self.properties)
        return HEADER_SIZE + FIXED_SIZE + len(self.body) + texts


class CommitLogWriter:
    """Appends messages and operations, and assigns their offsets, positions and store times."""

    def __init__(
        self,
        appender: Appender,
        state: ReplicatedState,
        system_topics: Mapping[str, TopicConfig],
        store_host: bytes,
        table_bytes: int,
        puts: Callable[[str], Puts],
    ) -> None:
        """`puts`: a function that returns the statistics counters of a topic."""
        self._appender = appender
        self._state = state
        self._system_topics = system_topics
        self._store_host = store_host
        self._puts = puts
        self.slots: dict[str, TopicSlot] = {}
        """Slots of topics that clients may send to. A name that is found here needs no further check."""
        self._own_slots: dict[str, TopicSlot] = {}
        """Slots of topics that only the broker writes to."""
        self.unannounced: dict[str, TopicSlot] = {}
        """Slots of topics that sends created and that the NameServers may not know yet
        (`topic.announcements`)."""
        self.pending: Pending = Pending(state)
        """The tables of the state, including what is appended and not applied yet."""
        self.fresh: dict[str, int] = {}
        """Maps a topic whose deletion is not applied yet to the index of the deletion's entry. Until that
        entry is applied, the applied state under the name of the topic belongs to the deleted topic."""
        self.term: int = appender.term
        self.messages: int = 0
        """Number of messages sealed in this leadership."""
        self.last_index: int = -1
        """Index of the last entry of the newest message or batch that this leadership appended; -1 before the
        first."""
        self.topics: int = len(state.topics) - sum(name in state.topics for name in system_topics)
        """Number of topics, without those that exist from the start on every broker."""
        self.table_bytes: int = table_bytes
        """Size, in bytes, of the encoded table of all topics (`TopicTable.size`)."""

    @property
    def room(self) -> bool:
        """Whether entries may be added now. If not, the request is refused with `refused`."""
        return self._appender.refusal is None

    @property
    def refused(self) -> RemotingError:
        """The error for requests while `room` is False: code 14 SERVICE_NOT_AVAILABLE if the disk is full, as
        in RocketMQ, otherwise code 2 SYSTEM_BUSY."""
        if self._appender.refusal is Code.DISK_FULL:
            return RemotingError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "DISK_FULL: the disk of the leader is full; nothing was stored",
            )
        return RemotingError(
            ResponseCode.SYSTEM_BUSY,
            "[REJECTREQUEST]system busy, start flow control for a while: LEADER_PENDING_FULL, too "
            "many bytes wait for their commit",
        )

    # -- views: applied and pending -------------------------------------------------------------------

    def topic(self, name: str) -> TopicConfig | None:
        """Return a topic, even if its creation is not applied yet; None if there is no such topic."""
        return self.pending[TOPICS].rows.get(name) or self._system_topics.get(name)

    def slot(self, name: str) -> TopicSlot | None:
        """Return the slot of an existing topic, or None if there is no such topic."""
        slot = self._slot(name)
        if slot is None:
            config = self.topic(name)
            if config is None:
                return None
            slot = self._make_slot(config)
        return slot

    def open_slot(self, name: str) -> TopicSlot | None:
        """Return the slot of an existing topic that clients may send to, otherwise None. Used for stored
        messages that name their topic in a property."""
        return None if is_system_topic(name) else self.slot(name)

    def group(self, name: str) -> GroupConfig | None:
        """Return a group, even if its creation is not applied yet; None if there is no such group."""
        return self.pending[GROUPS].rows.get(name)

    def may_consume(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a request that waited would still pass the checks that it passed when it came. The group
        and the topic may have changed, or been deleted, since then. Queue id -1 stands for any queue."""
        reader, read = self.group(group), self.topic(topic)
        if reader is None or not reader.enable or read is None:
            return False
        return bool(read.perm & Perm.READ) and queue_id < read.read_queues

    def growth(self, config: TopicConfig) -> int:
        """Return the number of bytes by which the encoded topic table grows if this topic is created or
        changed."""
        existing = self.topic(config.name)
        if existing is None:
            return len(encode_topic(config)) + 1  # 1 for the comma
        return len(encode_topic(config)) - len(encode_topic(existing))

    # -- appending ------------------------------------------------------------------------------------

    def put_topic(self, config: TopicConfig, *, by_send: bool = False) -> int:
        """Create or replace a topic. Returns the index of the entry; the topic can be used at once.

        `by_send`: a send creates the topic. Its acknowledgement waits until the NameServers know the topic.
        """
        growth, new = self.growth(config), self.topic(config.name) is None
        index = (
            self._born(config, TopicBirth(config.name, MAX_OFFSET)) if new else self.append_op(config.op())
        )
        self.table_bytes += growth
        self.topics += new
        slot = self._slot(config.name)
        if slot is None:
            self._make_slot(config, by_send=by_send)
        else:
            slot.set_config(config)
            self._extend(slot)
        return index

    def delete(self, topics: Sequence[str], group: Op | None = None, after: Sequence[Op] = ()) -> int:
        """Append a batch of operations, all or nothing: delete these topics, delete a group (`group`), and
        the operations `after`. Returns the index of the last entry. Raises RemotingError 14 as
        `check_versions` does.

        Code that has the slot of a deleted topic must drop it in this turn of the loop.
        """
        self.note_version(TOPIC_DELETE)
        groups = () if group is None else (group,)
        ops = [*groups, *(TopicDeletion(name, MAX_OFFSET).op() for name in topics), *after]
        at = self._appender.reserve(sum(HEADER_SIZE + system_record_size(len(pack_op(op))) for op in ops))
        ops = [*groups, *(TopicDeletion(name, at).op() for name in topics), *after]
        gone = [self.topic(name) for name in topics]
        index = self.add_together((), ops)
        for name, config in zip(topics, gone, strict=True):
            self.slots.pop(name, None)
            self._own_slots.pop(name, None)
            self.unannounced.pop(name, None)
            self.fresh[name] = index
            if config is not None:
                self.topics -= 1
                self.table_bytes -= len(encode_topic(config)) + 1
        return index

    def announced(self, slot: TopicSlot) -> None:
        """Use the normal slot of a topic that a send created, if the topic still exists. The NameServers know
        the topic now."""
        name = slot.config.name
        if self.unannounced.get(name) is slot:
            self.slots[name] = self.unannounced.pop(name)

    def put_group(self, config: GroupConfig) -> int:
        """Create or replace a group. Returns the index of the entry."""
        if self.group(config.name) is not None:
            return self.append_op(config.op())
        return self._born(config, GroupBirth(config.name, MAX_OFFSET))

    def _born(self, config: TopicConfig | GroupConfig, birth: Birth) -> int:
        """Create a topic or a group. If all voters know the operation, also record the log position of the
        creation. Returns the index of the last entry. Retry and dead letter topics have no such record,
        because they live as long as their group."""
        if config.name.startswith((RETRY_PREFIX, DLQ_PREFIX)) or not self.may_write(birth.operation):
            return self.append_op(config.op())
        self.note_version(birth.operation)
        packed = (pack_op(config.op()), pack_op(birth.op()))  # MAX_OFFSET takes the most room
        at = self._appender.reserve(sum(HEADER_SIZE + system_record_size(len(one)) for one in packed))
        return self.add_together((), [config.op(), structs.replace(birth, at=at).op()])

    def may_write(self, op: str) -> bool:
        """Whether all voters know this operation. A voter that is not connected may know none, except the
        operations that the log already contains, because without those it could not run."""
        return self._state.since(op) <= self._appender.state_version or self._state.holds(op)

    def check_versions(self, *ops: str) -> None:
        """Raise RemotingError with code 14 SERVICE_NOT_AVAILABLE if the program of a voter does not know one
        of these operations. Nothing was stored then.

        It is called before anything is sealed, because sealing cannot fail (safety.md S12).
        """
        known = self._appender.state_version
        for op in ops:
            if not self.may_write(op):
                raise RemotingError(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"{op} needs state version {self._state.since(op)} on all brokers of the group, "
                    f"and the oldest broker knows only {known}: upgrade it first",
                )

    def note_version(self, op: str) -> None:
        """Record in the log that it contains operations of the version of `op`. From then on such operations
        may be written whichever voters are connected. Raises RemotingError 14 as `check_versions` does."""
        self.check_versions(op)
        version = self._state.since(op)
        if version not in self.pending[VERSIONS].rows:
            self.append_op(VersionNote(version).op())

    def append_op(self, op: Op) -> int:
        """Append one operation of `formats.state`. Returns its index. Raises RemotingError 14 as
        `check_versions` does."""
        self.check_versions(op["op"])
        index = self._appender.add_system(pack_op(op))
        self.pending.appended(index, op)
        return index

    def applied(self, index: int) -> None:
        """Note that the state now contains everything up to the entry `index`."""
        self.pending.applied(index)
        if self.fresh:
            self.fresh = {name: at for name, at in self.fresh.items() if at > index}

    def next_applied(self, topic: str, queue_id: int) -> int:
        """Return the offset just after the last applied message of a queue. It is 0 if an earlier topic of
        that name was deleted and the deletion is not applied yet."""
        return 0 if topic in self.fresh else self._state.next_offset(topic, queue_id)

    def add_message(
        self,
        slot: TopicSlot,
        queue_id: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        body: bytes,
        properties: bytes,
        ops: Sequence[Op] = (),
    ) -> tuple[int, int, int]:
        """Append one message, whose values were checked before. Returns index, queue offset and physical
        offset.

        `ops`: operations that are applied with the message, all or nothing (safety.md S11). The caller has
        called `check_versions` for them. With operations, the index returned is that of the last entry.
        """
        packed = [pack_op(op) for op in ops] if ops else ()
        tail = slot.field + _SHORT.pack(len(properties)) + properties
        body_size = len(body)
        size = FIXED_SIZE + body_size + len(tail)
        queue_offset = slot.next[queue_id]
        appender = self._appender
        now = appender.now_ms()
        wanted = HEADER_SIZE + size
        if packed:
            wanted += sum(HEADER_SIZE + system_record_size(len(operation)) for operation in packed)
        position = appender.reserve(wanted) + HEADER_SIZE
        fixed = FIXED.pack(
            size,
            MAGIC_V1,
            crc32(body) & CRC_MASK,
            queue_id,
            flag,
            queue_offset,
            position,
            sys_flag,
            born_timestamp,
            born_host,
            now,
            self._store_host,
            reconsume_times,
            0,
            body_size,
        )
        index = appender.add((fixed, body, tail), size, Kind.MESSAGE, len(packed))
        if packed:
            for number, operation in enumerate(packed, 1):
                index = appender.add_reserved(operation, Kind.SYSTEM, len(packed) - number)
                self.pending.appended(index, ops[number - 1])
        slot.next[queue_id] = queue_offset + 1
        self.messages += 1
        self.last_index = index
        puts = slot.puts
        puts.messages += 1
        puts.size += size
        return index, queue_offset, position

    @property
    def max_batch(self) -> int:
        """Largest size, in bytes, of entries that are appended together, including their headers."""
        return self._appender.max_batch

    def clock_ms(self) -> int:
        """Return the current time in ms. Unlike store time it may go back."""
        return self._appender.clock_ms()

    def open_run(self) -> Run | None:
        """Begin a run. Returns None if a message would be refused now. The caller updates `next` and `puts`
        of the slots."""
        return self._appender.open_run()

    def close_run(self, run: Run) -> None:
        """End a run, which appends its messages."""
        self._appender.close_run(run)
        if len(run):
            self.messages += len(run)
            self.last_index = run.index - 1

    def add_together(self, messages: Sequence[Outgoing], ops: Sequence[Op]) -> int:
        """Append messages for any queues, and operations, all or nothing (safety.md S11). Returns the index
        of the last entry. Raises RemotingError 14 as `check_versions` does."""
        self.check_versions(*(op["op"] for op in ops))
        packed = [pack_op(op) for op in ops]
        wanted = sum(message.size for message in messages)
        wanted += sum(HEADER_SIZE + system_record_size(len(operation)) for operation in packed)
        appender = self._appender
        position = appender.reserve(wanted) + HEADER_SIZE
        remaining = len(messages) + len(packed)
        now = appender.now_ms()
        index = -1
        for message in messages:
            slot, queue_id, body = message.slot, message.queue_id, message.body
            remaining -= 1
            size = message.size - HEADER_SIZE
            fixed = FIXED.pack(
                size,
                MAGIC_V1,
                crc32(body) & CRC_MASK,
                queue_id,
                message.flag,
                slot.next[queue_id],
                position,
                message.sys_flag,
                message.born_timestamp,
                message.born_host,
                now,
                self._store_host,
                message.reconsume_times,
                message.prepared_offset,
                len(body),
            )
            tail = slot.field + _SHORT.pack(len(message.properties)) + message.properties
            index = appender.add((fixed, body, tail), size, Kind.MESSAGE, remaining)
            slot.next[queue_id] += 1
            slot.puts.messages += 1
            slot.puts.size += size
            position += HEADER_SIZE + size
        self.messages += len(messages)
        for operation, op in zip(packed, ops, strict=True):
            remaining -= 1
            index = appender.add_reserved(operation, Kind.SYSTEM, remaining)
            self.pending.appended(index, op)
        self.last_index = index
        return index

    def add_restored(self, restored: Restored, ops: Sequence[Op]) -> int:
        """Append as `add_together` does, but take messages that waited in the log and were converted by
        `dledger._fast`."""
        self.check_versions(*(op["op"] for op in ops))
        packed = [pack_op(op) for op in ops]
        wanted = restored.size + sum(HEADER_SIZE + system_record_size(len(one)) for one in packed)
        run = self._appender.open_batch(wanted)
        restored.seal(run, self._store_host, len(packed))
        self._appender.close_batch(run, len(packed))
        self.messages += len(run)
        index = run.index - 1
        for number, (operation, op) in enumerate(zip(packed, ops, strict=True), 1):
            index = self._appender.add_reserved(operation, Kind.SYSTEM, len(packed) - number)
            self.pending.appended(index, op)
        self.last_index = index
        return index

    def add_sealed(
        self,
        slot: TopicSlot,
        queue_id: int,
        messages: int,
        total_size: int,
        seal: Callable[[Run, bytes], bytes],
    ) -> tuple[int, int, bytes]:
        """Append a batch as `add_batch` does. The function `seal` puts the messages into a run; it is called
        with the run and the store host. Returns the last index, the first queue offset and the result of
        `seal`."""
        run = self._appender.open_batch(total_size)
        first = slot.next[queue_id]
        sealed = seal(run, self._store_host)
        self._appender.close_batch(run, 0)
        slot.next[queue_id] = first + messages
        slot.puts.messages += messages
        slot.puts.batched += messages - 1
        slot.puts.size += total_size - messages * HEADER_SIZE
        self.messages += messages
        self.last_index = run.index - 1
        return self.last_index, first, sealed

    def add_batch(
        self,
        slot: TopicSlot,
        queue_id: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        messages: list[tuple[int, bytes, bytes]],
        total_size: int,
        ops: Sequence[Op] = (),
    ) -> tuple[int, int, list[int]]:
        """Append a batch of messages, all or nothing (safety.md S11). Returns the last index, the first queue
        offset and the physical offsets.

        `messages`: flag, body and properties of each message; `total_size`: bytes of their entries with
        headers; `ops`: operations, as for `add_message`.
        """
        now = self._appender.now_ms()
        add = self._appender.add
        field = slot.field
        pack_length = _SHORT.pack
        packed = [pack_op(op) for op in ops]
        wanted = total_size + sum(HEADER_SIZE + system_record_size(len(one)) for one in packed)
        position = self._appender.reserve(wanted) + HEADER_SIZE
        first = queue_offset = slot.next[queue_id]
        remaining = len(messages) + len(packed)
        positions = []
        index = -1
        for flag, body, properties in messages:
            tail = field + pack_length(len(properties)) + properties
            body_size = len(body)
            size = FIXED_SIZE + body_size + len(tail)
            remaining -= 1
            fixed = FIXED.pack(
                size,
                MAGIC_V1,
                crc32(body) & CRC_MASK,
                queue_id,
                flag,
                queue_offset,
                position,
                sys_flag,
                born_timestamp,
                born_host,
                now,
                self._store_host,
                0,
                0,
                body_size,
            )
            index = add((fixed, body, tail), size, 0, remaining)
            positions.append(position)
            position += HEADER_SIZE + size
            queue_offset += 1
        slot.next[queue_id] = queue_offset
        self.messages += len(messages)
        for operation, op in zip(packed, ops, strict=True):
            remaining -= 1
            index = self._appender.add_reserved(operation, Kind.SYSTEM, remaining)
            self.pending.appended(index, op)
        self.last_index = index
        slot.puts.messages += len(messages)
        slot.puts.batched += len(messages) - 1
        slot.puts.size += total_size - len(messages) * HEADER_SIZE
        return index, first, positions

    def _slot(self, name: str) -> TopicSlot | None:
        return self.slots.get(name) or self._own_slots.get(name) or self.unannounced.get(name)

    def _make_slot(self, config: TopicConfig, *, by_send: bool = False) -> TopicSlot:
        slots = self.unannounced if by_send else self.slots
        if is_system_topic(config.name):
            slots = self._own_slots
        slot = slots[config.name] = TopicSlot(config, [], self._puts(config.name))
        self._extend(slot)
        return slot

    def _extend(self, slot: TopicSlot) -> None:
        """Add the missing next offsets of new queues. Nothing of these queues is pending, so the applied
        state has their exact values."""
        for queue_id in range(len(slot.next), slot.queues):
            slot.next.append(self.next_applied(slot.config.name, queue_id))

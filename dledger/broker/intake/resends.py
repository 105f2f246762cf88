"""Recognition of messages that are sent again. Such a message is stored once, and the second send is answered
with the result of the first.

A send is looked up before it is stored in four cases:

* Its producer marks it as sent again (property `__RESEND`, set by the client of this project).
* A send with the same unique id was stored before, and was marked as sent again (`formats.state.resends`).
  This happens if the first send arrives after the second one.
* Its topic is listed in `duplicateCheckTopics`.

* The unique id of its messages is an idempotency key: its producer marks each of them as sent again, in every
  attempt, and with the property `__IDEMPOTENT`. See below.

All other sends are not delayed. They cost two look-ups in tables that are nearly always empty.

Sends are looked up in the index by key, which contains the unique id of every message in the log. So a send
is compared with all messages of the log, on every leader, and this takes no extra memory. Three rules make
the result certain:

* *All entries that were appended before the look-up are applied first*, so that the index contains them.
  Before its term is open, a new leader has applied everything that can ever be committed.
* *Sends with the same id are looked up one after the other*.
* *A message that is found is committed*, so its result can be answered at once. A send that is not found is
  sealed (encoded as an entry of the log) in the same turn of the event loop, together with the row that
  remembers its id.

Two sends are the same if their topic, unique id and body are equal. Copies that consumers send back (%RETRY%)
are also equal in all three, but they are intended. So sends to retry topics and dead letter topics are not
looked up.

**Idempotency keys.** An application gives such an id to a message, and all processes that send the message
give it the same one. Three rules are stricter for these sends:

* *Each message of a batch is looked up.* If none is stored, the batch is stored as a whole. Otherwise nothing
  is stored, and the answer says which messages are stored (code 28010 ALREADY_STORED). The producer sends the
  others again.
* *A key names one body.* If a message with the key and another body is stored in the topic, the send is
  refused. The text names both.
* *A send that cannot be looked up is refused*, for example with `messageIndexEnable=false`.

Their ids are not remembered in the table, because no send of them is without a mark.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.config import BrokerConfig
from dledger.broker.leader_gate import LeaderGate
from dledger.broker.services import LeaderService
from dledger.broker.store.index_service import IndexBehind, IndexService
from dledger.broker.store.key_files import NOT_WHOLE
from dledger.broker.store.message_store import MessageStore
from dledger.broker.store.reader import Reader
from dledger.broker.topic.topic_names import HALF_TOPIC, SCHEDULE_TOPIC
from dledger.errors import OUT_OF_MEANS, refused_by_system
from dledger.formats.entry import HEADER_SIZE
from dledger.formats.properties import (
    IDEMPOTENT,
    REAL_QID,
    RESEND,
    TIMER_OUT_MS,
    UNIQ_KEY,
    decode_properties,
    find_property,
)
from dledger.formats.record import Record
from dledger.formats.state import MAX_NAME, MAX_RESENDS, RESEND_LIVE_MS, RESENDS, Op, Resend
from dledger.formats.timers import TIMER_TOPIC
from dledger.log.reading import Rotten
from dledger.remoting.codes import STORED_NUMBERS, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.errors import RemotingError
from dledger.remoting.limits import REQUEST_OVERHEAD
from dledger.remoting.server import Connection
from dledger.runtime.cooperative import Pace
from dledger.runtime.live_settings import LiveSettings

RESEND_TEXT = f"{RESEND}\x011\x02"
"""The last property of a message that is marked as sent again, in encoded form."""
RESEND_BYTES = RESEND_TEXT.encode()
_UNIQ_KEY, _IDEMPOTENT = UNIQ_KEY.encode(), IDEMPOTENT.encode()
ALL_TOPICS = "*"
MAX_WAITING = 20_000
"""Largest number of sends that wait for their look-up; one more is refused with SYSTEM_BUSY."""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Limit, in bytes, of all sends that are being looked up, with their properties and an overhead for each.
Beyond it, further sends are refused with SYSTEM_BUSY."""
MAX_TOGETHER = 128
"""Largest number of sends that are looked up together. They take about 3 ms in a worker, and as much on the
event loop."""
MAX_COPIES = 1024
"""Largest number of messages with the same topic and unique id that are compared with a send; if there are
more, the newest ones are compared. There can be several because each check of a transaction stores another
copy of its half message. All checks of a transaction together store at most this many copies."""
PATIENCE_OF_OTHERS_S = 2.0
"""Seconds that a send waits for the index if it is not marked as sent again. Its producer would regard
SYSTEM_BUSY as final. A send that is marked waits for `waitTimeMillsInSendQueue` instead, because its producer
tries again."""
RETRY_S = 0.01
"""Seconds after which an index that could not answer is searched again."""
COST_A_TURN, COST_OF_ONE = 512 * 1024, 8 * 1024
"""Limit of the work in one turn of the event loop (about 3 ms), and the fixed cost of one message. Both are
in bytes of messages that are compared or stored. The cost of a message is its size plus the fixed cost."""
ID_BYTES = 256
"""Size, in bytes, of what is kept of a message of a batch while the batch is looked up by its keys."""
COST_OF_TEXT = 8
"""Cost of one byte of properties, as a multiple of the cost of one byte of a body."""


class Found(NamedTuple):
    """The result of the first send, which is the answer to the second one. `positions` has the physical
    offset of each message of the send."""

    store_host: bytes
    positions: list[int]
    queue_id: int
    queue_offset: int
    due: int = 0
    """Due time of a timer message in ms since the epoch; 0 for other messages."""


class Sent(NamedTuple):
    """The values that identify a send. `ids` and `crcs` have the unique id and the CRC of the body for each
    message of the send."""

    topic: str
    """The topic in which the first copy is stored, if there is one."""
    ids: list[bytes]
    crcs: list[int]
    text_size: int
    """Number of characters of the properties."""
    or_topic: str = ""
    """A second topic in which the first copy may be stored, or an empty text. It is used for a timer message,
    whose copy is in its own topic if it was due at once or has been delivered."""

    idempotent: bool = False
    """Whether the ids are idempotency keys."""
    batch: bool = False
    """Whether the messages were sent as a batch, which may be a batch of one."""

    @property
    def looked_up(self) -> list[bytes]:
        """The unique ids that are looked up: of a batch only the first, unless the ids are idempotency
        keys."""
        return self.ids if self.idempotent else self.ids[:1]

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in which the first copy may be stored."""
        return (self.topic, self.or_topic) if self.or_topic else (self.topic,)


class _OtherBody(Exception):
    """A message with the same topic and idempotency key, and another body, is stored. The text names both."""


class _Repeated:
    """One send that is being looked up."""

    __slots__ = ("again", "answer", "came", "connection", "cost", "deadline", "request", "sent", "size")

    def __init__(
        self,
        connection: Connection,
        request: Request,
        sent: Sent,
        came: float,
        deadline: float,
        answer: Callable[[Found], None],
        again: Callable[[CommitLogWriter], None],
    ) -> None:
        self.connection = connection
        self.request = request
        self.sent = sent
        self.came = came
        self.deadline = deadline
        self.answer = answer
        self.again = again
        self.size = len(request.body) + sent.text_size + REQUEST_OVERHEAD + ID_BYTES * len(sent.looked_up)
        self.cost = (
            len(request.body) + COST_OF_TEXT * sent.text_size + COST_OF_ONE * (len(sent.looked_up) - 1)
        )


class Resends(LeaderService):
    """Looks up sends in the log before they are stored, while this node leads."""

    def __init__(
        self,
        store: MessageStore,
        index: IndexService,
        reader: Reader,
        gate: LeaderGate,
        settings: LiveSettings[BrokerConfig],
    ) -> None:
        self._store = store
        self._index = index
        self._reader = reader
        self._gate = gate
        self._settings = settings
        self._writer: CommitLogWriter | None = None
        self.stored: dict[bytes, int] = {}
        """Maps the unique ids of sends that were looked up and then stored to the times at which they were
        stored, the oldest first. These are the rows of the table in the replicated state."""
        self.looking: dict[bytes, int] = {}
        """Maps each unique id that is being looked up to the number of sends that have it."""
        self._waiting: deque[_Repeated] = deque()
        self._under_way: deque[_Repeated] = deque()
        """Sends that were taken from `_waiting` and are not answered yet."""
        self._bytes = 0
        self._pace = Pace(COST_A_TURN)
        self._wanted = asyncio.Event()
        self._barrier: tuple[int, asyncio.Future[None]] | None = None
        self.recognized: int = 0
        """Number of sends since the start that were answered with the result of an earlier send."""
        self.looked: int = 0
        """Number of sends since the start that were looked up."""

    # -- what the send processor asks -----------------------------------------------------------------

    def checks(self, topic: str) -> bool:
        """Return whether all sends to this topic are looked up (`duplicateCheckTopics`)."""
        topics = self._settings.now.duplicate_check_topics
        return topic in topics or ALL_TOPICS in topics

    def take(
        self,
        connection: Connection,
        request: Request,
        sent: Sent,
        *,
        patient: bool,
        answer: Callable[[Found], None],
        again: Callable[[CommitLogWriter], None],
    ) -> bool:
        """Look up a send. The result of the look-up decides what happens then:

        * If there was a first send, `answer` is called with its result.
        * If there was none, `again` is called, which seals the send in the same turn of the event loop.
        * If the look-up failed, the request is answered with an error.

        Returns False if the send is not looked up, because the index is off, the unique id is empty or too
        long, or the request is one-way. Raises RemotingError 604 ILLEGAL_OPERATION in these cases if the ids
        are idempotency keys, and 2 SYSTEM_BUSY if too many sends wait.
        """
        usable = all(0 < len(one) <= MAX_NAME for one in sent.looked_up)
        if not self._index.enabled or not usable or request.oneway:
            if sent.idempotent:
                raise RemotingError(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"messages with the property {IDEMPOTENT} cannot be looked up here, and nothing was "
                    f"stored: set messageIndexEnable=true, give ids of 1 to {MAX_NAME} bytes, and wait for "
                    "the answer",
                )
            return False
        now = asyncio.get_running_loop().time()
        patience = PATIENCE_OF_OTHERS_S if patient else self._settings.now.queue_wait_s
        item = _Repeated(connection, request, sent, now, now + patience, answer, again)
        if len(self._waiting) >= MAX_WAITING or self._bytes + item.size > MAX_WAITING_BYTES:
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]system busy, start flow control for a while: too many repeated sends wait "
                "to be checked",
            )
        self.looked += 1
        for one in sent.looked_up:
            self.looking[one] = self.looking.get(one, 0) + 1
        self._bytes += item.size
        self._waiting.append(item)
        self._wanted.set()
        return True

    def remember(self, writer: CommitLogWriter, topic: str, unique_id: bytes) -> tuple[Op, ...]:
        """Return the operations that remember the unique id of a send. They are appended together with the
        message, which was looked up and not found. There are none if all sends to the topic are looked up
        anyway, or while a voter does not know the table of these ids."""
        if self.checks(topic) or not writer.may_write(Resend.operation):
            return ()
        now = max(writer.clock_ms(), 0)
        ops: list[Op] = [Resend(unique_id.decode(), now).op()]
        self.stored.pop(unique_id, None)
        for oldest in list(_first(self.stored, 2)):
            if len(self.stored) >= MAX_RESENDS or self.stored[oldest] + RESEND_LIVE_MS < now:
                del self.stored[oldest]
                ops.append(RESENDS.removal(oldest.decode()))
        self.stored[unique_id] = now
        return tuple(ops)

    # -- one leadership -------------------------------------------------------------------------------

    def begin(self, writer: CommitLogWriter) -> None:
        """Load the stored ids. At this time the term is open, and everything that may be committed is
        applied."""
        self._writer = writer
        rows = sorted(self._store.state[RESENDS].rows.values(), key=lambda row: (row.time, row.id))
        self.stored.clear()
        self.stored.update((row.id.encode(), row.time) for row in rows)

    def applied(self, index: int) -> None:
        """Note that the state contains everything up to this entry."""
        if self._barrier is not None and self._barrier[0] <= index and not self._barrier[1].done():
            self._barrier[1].set_result(None)

    async def run(self) -> None:
        """Look up the waiting sends in the order in which they came."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._waiting:
                await self._look()

    def end(self, reason: str) -> None:
        """Handle the sends that are still being looked up as if they had just arrived, because none of them
        was executed."""
        left = [*self._under_way, *self._waiting]
        self._under_way.clear()
        self._waiting.clear()
        self.looking.clear()
        self.stored.clear()
        self._bytes = 0
        self._writer = self._barrier = None
        for item in left:
            self._gate.wait_or_refuse(item.connection, item.request)

    # -- looking --------------------------------------------------------------------------------------

    async def _look(self) -> None:
        batch = self._under_way
        ids: set[bytes] = set()
        while self._waiting and len(ids) < MAX_TOGETHER and ids.isdisjoint(self._waiting[0].sent.looked_up):
            ids.update(self._waiting[0].sent.looked_up)  # a second one with an id waits for the first
            batch.append(self._waiting.popleft())
        loop = asyncio.get_running_loop()
        try:
            await self._all_applied()
            patience = min(item.deadline for item in batch) - loop.time()
            wanted = [
                (topic, one.decode())
                for item in batch
                for one in item.sent.looked_up
                for topic in item.sent.topics
            ]
            found_of = iter(await self._index.find(wanted, MAX_COPIES, max(patience, 0.01)))
            places = [
                [[at for _ in item.sent.topics for at in next(found_of)] for _ in item.sent.looked_up]
                for item in batch
            ]
        except (IndexBehind, OSError) as error:
            if isinstance(error, OSError) and error.errno not in OUT_OF_MEANS:
                raise refused_by_system("cannot read the index of messages by key", error) from error
            self._too_late(loop.time(), f"{error}: it is not known yet whether this message is a repetition")
            await asyncio.sleep(RETRY_S)
            return
        for positions in places:
            item = batch[0]
            try:
                await self._pace.step(COST_OF_ONE + item.cost)
                whole = all(one[-1:] != [NOT_WHOLE] for one in positions)
                if item.sent.idempotent and not whole:
                    self._done(item)
                    text = (
                        "it cannot be known whether a message of this send is stored, because too many "
                        "messages share a slot of the index with it; nothing was stored"
                    )
                    item.connection.respond(item.request, ResponseCode.ILLEGAL_OPERATION, remark=text)
                    continue
                positions = [[at for at in one if at != NOT_WHOLE] for one in positions]
                if item.sent.idempotent:
                    each = [await self._copy(item.sent, *one) for one in enumerate(positions)]
                else:
                    each = [await self._first_copy(item.sent, positions[0])]
            except _OtherBody as error:
                self._done(item)
                item.connection.respond(item.request, ResponseCode.ILLEGAL_OPERATION, remark=str(error))
                continue
            except Rotten as error:
                self._done(item)
                self._refuse(item, f"{error}; they wait for repair")
                continue
            except OSError as error:
                if error.errno not in OUT_OF_MEANS:
                    raise refused_by_system("cannot read the store", error) from error
                self._done(item)
                self._refuse(item, f"cannot be read now: {error}")
                continue
            self._settle(item, each)

    async def _all_applied(self) -> None:
        """Wait until everything that was appended so far is applied."""
        assert self._writer is not None
        last = self._writer.last_index
        if self._store.applied_index < last:
            self._barrier = last, asyncio.get_running_loop().create_future()
            await self._barrier[1]
            self._barrier = None

    async def _first_copy(self, sent: Sent, positions: list[int]) -> Found | None:
        for position in sorted(set(positions)):
            first = await self._message(sent, 0, position)
            if first is None or first.prepared_transaction_offset:
                continue  # a copy that a transaction check stored; only the first one counts
            places = [position]
            size = first.size
            for number in range(1, len(sent.ids)):
                position += size + HEADER_SIZE
                record = await self._message(sent, number, position)
                if record is None:
                    break
                places.append(position)
                size = record.size
            if len(places) < len(sent.ids):
                continue
            return _found(first, places)
        return None

    async def _copy(self, sent: Sent, number: int, positions: list[int]) -> Found | None:
        """Return the first copy of message `number` of a send whose ids are idempotency keys. Raises
        _OtherBody if the key names another message."""
        other: Record | None = None
        for position in sorted(set(positions)):
            record = await self._with_id(sent, number, position)
            if record is None or record.prepared_transaction_offset:
                continue
            if record.body_crc == sent.crcs[number]:
                return _found(record, [position])
            other = other or record
        if other is not None:
            raise _OtherBody(
                f"the message with the id {sent.ids[number].decode(errors='replace')} is stored with another "
                f"body: topic {other.topic}, queue {other.queue_id}, offset {other.queue_offset}, CRC32 of "
                f"the body {other.body_crc:08x}, and {sent.crcs[number]:08x} in this send. An id with the "
                f"property {IDEMPOTENT} names one body, so nothing was stored"
            )
        return None

    async def _message(self, sent: Sent, number: int, position: int) -> Record | None:
        """Return the message at a position if it is message `number` of the send, otherwise None."""
        record = await self._with_id(sent, number, position)
        return record if record is not None and record.body_crc == sent.crcs[number] else None

    async def _with_id(self, sent: Sent, number: int, position: int) -> Record | None:
        """Return the message at a position if it has the topic and the id of message `number` of the send,
        otherwise None."""
        message = await self._reader.message_at(position)
        if message is None:
            return None
        record = message[1]
        await self._pace.step(record.size + COST_OF_ONE)
        if record.topic not in sent.topics:
            return None
        key = find_property(record.properties.encode(), _UNIQ_KEY)
        return record if key == sent.ids[number] else None

    def _settle(self, item: _Repeated, each: list[Found | None]) -> None:
        """Answer a send or store it. `each`: the first copies of its messages, or of the whole batch."""
        self._done(item)
        connection, request = item.connection, item.request
        stored = [number for number, found in enumerate(each) if found is not None]
        if stored:
            self.recognized += len(stored)
            if item.sent.idempotent and item.sent.batch:
                connection.respond(
                    request,
                    ResponseCode.ALREADY_STORED,
                    ext={STORED_NUMBERS: ",".join(map(str, stored))},
                    remark=f"{len(stored)} of {len(each)} messages are stored already; the others are not",
                )
                return
            found = each[0]
            assert found is not None
            item.answer(found)
            return
        writer = self._gate.writer
        if writer is None:  # leadership is about to be handed over
            self._gate.wait_or_refuse(connection, request)
            return
        if connection.closed:
            return  # not stored: nobody gets the answer, and the producer tries again
        try:
            item.again(writer)
        except RemotingError as error:
            code = ResponseCode.SYSTEM_ERROR if error.code is None else error.code
            connection.respond(request, code, remark=error.remark)

    def _too_late(self, now: float, why: str) -> None:
        """Refuse the sends whose deadline has passed, because the index is behind the log. The other sends
        continue to wait."""
        left = list(self._under_way)
        self._under_way.clear()
        for item in reversed(left):
            if item.deadline > now:
                self._waiting.appendleft(item)
        for item in left:
            if item.deadline <= now:
                self._forget(item)
                self._refuse(
                    item,
                    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
                    f"{(now - item.came) * 1000:.0f}ms, size of queue: {len(self._waiting)}: {why}",
                )

    def _refuse(self, item: _Repeated, why: str) -> None:
        item.connection.respond(item.request, ResponseCode.SYSTEM_BUSY, remark=f"{why}; nothing was stored")

    def _done(self, item: _Repeated) -> None:
        first = self._under_way.popleft()
        assert first is item
        self._forget(item)

    def _forget(self, item: _Repeated) -> None:
        self._bytes -= item.size
        for one in item.sent.looked_up:
            left = self.looking[one] - 1
            if left:
                self.looking[one] = left
            else:
                del self.looking[one]


def keyed(properties: bytes) -> bool:
    """Whether the unique id of a message is an idempotency key, by its encoded properties as they were
    sent."""
    return properties.endswith(RESEND_BYTES) and find_property(properties, _IDEMPOTENT) == b"1"


def _found(first: Record, places: list[int]) -> Found:
    """Return what the answer to a send needs of the first copy. `places`: the positions of its messages."""
    queue_id, due = first.queue_id, "0"
    if first.topic in (HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC):
        properties = decode_properties(first.properties)
        real, due = properties.get(REAL_QID, ""), properties.get(TIMER_OUT_MS, "0")
        queue_id = int(real) if real.isdecimal() else queue_id
    due_ms = int(due) if due.isdecimal() else 0
    return Found(first.store_host, places, queue_id, first.queue_offset, due_ms)


def _first(values: dict[bytes, int], count: int) -> list[bytes]:
    return [key for key, _ in zip(values, range(count), strict=False)]

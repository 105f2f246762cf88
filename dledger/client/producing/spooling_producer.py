"""A producer for programs that must not lose a message while their cluster cannot be reached.

`deliver` sends as `send` does. When the cluster cannot be reached, the message is kept in a file on this
machine (the *spool*), and sent from there, in order, when the cluster is back. Until the spool is empty all
messages go through it, so that none overtakes another. The spool survives the end of the program.

Messages with the same `ordering_key` always keep their order, because the next one is sent only when the
previous one is stored by a broker or kept in the spool. A message whose outcome was unknown is sent from the
spool under the same unique id, marked as a copy, and our brokers store it once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from dledger.client.core import NOT_OPEN
from dledger.client.encoding import properties_text
from dledger.client.errors import (
    ClientClosed,
    ClientError,
    NoBroker,
    NoNameServer,
    OutcomeUnknown,
    Overflow,
    SendFailed,
    TopicNotFound,
)
from dledger.client.message import (
    Message,
    SendResult,
    check_body,
    check_ordering_key,
    check_topic,
    joined_keys,
)
from dledger.client.options import ClientOptions
from dledger.client.producing.preset_ids import MessageWithId, with_unique_id
from dledger.client.producing.producer import AsyncProducer
from dledger.client.producing.producer_options import ProducerOptions
from dledger.client.producing.send_kernel import BUSY
from dledger.client.producing.spool_file import Kept, Row, Spool, SpoolFailed
from dledger.runtime import Env, Lane

REPLAY_MESSAGES = 256
"""Largest number of messages that are taken from the spool and sent at a time. Those that were sent are
removed from it together."""
WRITE_MESSAGES = 1000
"""Largest number of messages that one transaction of the spool writes."""


@dataclass(frozen=True)
class SpoolOptions:
    """Settings of a spool: where messages wait for their cluster, and how. Raises ValueError for impossible
    values."""

    path: str
    """The file. It belongs to one producer of one process, and its directory must exist."""
    max_messages: int = 1_000_000
    max_bytes: int = 1 << 30
    """Largest size of the spool in bytes; beyond it `deliver` raises Overflow."""
    keep_unknown_topics: bool = False
    """Whether to keep messages of topics that no broker serves and that this producer has not sent to before.
    Such a topic may be unavailable with all its brokers, or misspelt. With False `deliver` raises
    TopicNotFound."""
    retry_s: float = 1.0
    """Pause between two attempts to send messages from the spool. After failures it doubles, up to ten times
    this value."""

    def __post_init__(self) -> None:
        if not self.path or self.max_messages < 1 or self.max_bytes < 1 or self.retry_s <= 0:
            raise ValueError("SpoolOptions needs a path, and limits and a pause above 0")


def spool_of(given: str | SpoolOptions) -> SpoolOptions:
    """The options of a spool; `given` may be just its path. Raises ClientError for anything else."""
    if isinstance(given, str):
        return SpoolOptions(given)
    if not isinstance(given, SpoolOptions) or not isinstance(given.path, str):
        raise ClientError(f"spool={given!r}: give a path as text, or SpoolOptions with one")
    return given


class Spooled(NamedTuple):
    """The result of `deliver` for a message that is on this machine's disk and will be sent."""

    message_id: str
    """The unique id of the message, which consumers will see."""


class AsyncSpoolingProducer(AsyncProducer):
    """An `AsyncProducer` whose `deliver` keeps messages on disk while the cluster cannot be reached; see the
    module. `send` does not use the spool.

    >>> async with AsyncSpoolingProducer("orders", spool="orders.spool") as producer:    # doctest: +SKIP
    ...     await producer.deliver(Message("orders", b"17"), ordering_key="customer-7")
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        options: ProducerOptions | None = None,
        client: ClientOptions | None = None,
        env: Env | None = None,
        *,
        spool: str | SpoolOptions,
    ) -> None:
        super().__init__(group, namesrv, options, client, env)
        self.spool_options: SpoolOptions = spool_of(spool)
        self.spooled: int = 0
        """Number of messages in the spool."""
        self.spooled_bytes: int = 0
        self.refused: int = 0
        """Number of messages that the cluster refused when they were sent from the spool. They were moved to
        the spool's table `refused`, and logged."""
        self._spool = Spool(self.spool_options.path)
        self._to_keep: list[tuple[Kept, asyncio.Future[None]]] = []
        self._keep_wake = asyncio.Event()
        self._kept = asyncio.Event()
        self._empty = asyncio.Event()
        self._locks: dict[tuple[str, str], tuple[asyncio.Lock, list[None]]] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._replayer: asyncio.Task[None] | None = None
        self._disk = asyncio.Lock()

    async def _begin(self) -> None:
        await super()._begin()
        opened = await self._env.workers.run(Lane.DISK, self._spool.open)
        self.spooled, self.spooled_bytes, self.refused = opened
        (self._kept if self.spooled else self._empty).set()
        self._keeper = self._core.spawn(self._keep_all(), "keep messages")
        self._replayer = self._core.spawn(self._replay_all(), "send kept messages")

    async def _finish(self, drain: bool) -> None:
        if self._replayer is not None:
            self._replayer.cancel()
        try:
            await super()._finish(drain)
        finally:
            await self._settle()
            if self._keeper is not None:
                self._keeper.cancel()
            async with self._disk:
                await self._env.workers.run(Lane.DISK, self._spool.close)

    async def _settle(self) -> None:
        """Wait until every running call of `deliver` has returned or raised, so that messages that could not
        be sent are kept. Called before the producer ends."""
        try:
            async with asyncio.timeout(self.options.close_timeout_s):
                while self._entering:
                    self._entry.clear()
                    await self._entry.wait()
        except TimeoutError:
            self._core.log.warning(
                "messages were neither stored nor kept before close", calls=len(self._entering)
            )

    async def deliver(self, message: Message, ordering_key: str | None = None) -> SendResult | Spooled:
        """Send a message and wait for the acknowledgement, or until the message is kept on this machine.

        The message is kept if no broker acknowledged it within `ProducerOptions.timeout_s`. While other
        messages wait in the spool it is kept at once. Raises InvalidMessage, TopicNotFound, SendFailed (a
        broker refused the message), Overflow (the spool is full) or SpoolFailed; after all of these the
        message is neither stored nor kept.
        """
        self._core.check_open()
        if self._replayer is None:
            raise ClientClosed(NOT_OPEN)  # the spool is not open yet
        if self._namespace:
            message = self._named(message)
        check_topic(message.topic)
        check_body(message.body, self._max_size)
        check_ordering_key(ordering_key)
        named = message if isinstance(message, MessageWithId) else with_unique_id(message, self._ids.next())
        properties_text(message, named.unique_id)  # a message that cannot be encoded is refused now
        with self._on_the_way():
            async with self._in_turn(message.topic, ordering_key):
                if self.spooled:
                    return await self._keep(named, ordering_key)
                try:
                    return await self.send(named, None, ordering_key)
                except ClientError as error:
                    if not (_is_away(error) or self._was_there(error, message.topic)):
                        raise
                return await self._keep(named, ordering_key)

    def _was_there(self, error: ClientError, topic: str) -> bool:
        """Whether the topic is unknown and the message is to be kept nevertheless. It is kept if this
        producer has used the topic before (so that only the topic's brokers are missing), or if
        `keep_unknown_topics` is set."""
        return isinstance(error, TopicNotFound) and (
            topic in self._topics or self.spool_options.keep_unknown_topics
        )

    async def delivered(self, timeout_s: float | None = None) -> bool:
        """Wait until the spool is empty. Returns False if `timeout_s` is over first."""
        self._core.check_loop()
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    # --- one message ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _in_turn(self, topic: str, ordering_key: str | None) -> AsyncIterator[None]:
        """Context manager. Its block begins when all earlier messages with the same topic and key have
        ended."""
        if ordering_key is None:
            yield
            return
        key = (topic, ordering_key)
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[key]

    # --- into the spool -------------------------------------------------------------------------------

    async def _keep(self, named: MessageWithId, ordering_key: str | None) -> Spooled:
        limits = self.spool_options
        if self.spooled >= limits.max_messages or self.spooled_bytes >= limits.max_bytes:
            raise Overflow(
                f"the spool {limits.path} is full; it holds {self.spooled} messages with "
                f"{self.spooled_bytes} bytes"
            )
        now = self._env.wall.now_ms()
        deliver_at = named.deliver_at
        if named.delay is not None:
            deliver_at = datetime.fromtimestamp(now / 1000, UTC) + named.delay  # it counts from now
        kept = Kept(
            named.unique_id,
            named.topic,
            named.body,
            named.tags or None,
            joined_keys(named.keys) if named.keys else None,
            dict(named.properties or {}),
            int(named.flag),
            int(named.delay_level),
            None if deliver_at is None else round(deliver_at.timestamp() * 1000),
            ordering_key,
            now,
        )
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._to_keep.append((kept, future))
        self.spooled += 1  # from now on later messages go to the spool, too
        self._empty.clear()
        self._keep_wake.set()
        await future
        return Spooled(named.unique_id)

    async def _keep_all(self) -> None:
        while True:
            await self._keep_wake.wait()
            self._keep_wake.clear()
            while self._to_keep:
                some = self._to_keep[:WRITE_MESSAGES]
                failure: SpoolFailed | None = None
                try:
                    async with self._disk:
                        messages = [kept for kept, _ in some]
                        sizes = await self._env.workers.run(Lane.DISK, self._spool.put, messages)
                    self.spooled_bytes += sum(sizes)
                    self._kept.set()
                except SpoolFailed as error:
                    failure = error
                    self._gone(len(some), 0)
                del self._to_keep[: len(some)]
                for _, future in some:
                    if future.done():
                        continue  # its caller was cancelled: it may be kept
                    if failure is None:
                        future.set_result(None)
                    else:
                        future.set_exception(failure)

    def _gone(self, messages: int, size: int) -> None:
        self.spooled -= messages
        self.spooled_bytes -= size
        if not self.spooled:
            self._empty.set()

    # --- out of the spool -----------------------------------------------------------------------------

    async def _replay_all(self) -> None:
        pause_s = self.spool_options.retry_s
        while True:
            await self._kept.wait()
            self._kept.clear()
            while self.spooled:
                try:
                    failure = await self._replay_once()
                except SpoolFailed as error:
                    failure = error
                if failure is None:
                    pause_s = self.spool_options.retry_s
                    continue
                longest_s = 10 * self.spool_options.retry_s
                if pause_s < longest_s:  # said a few times, not for as long as it lasts
                    self._core.log.warning(
                        "messages in the spool cannot be sent now, trying again",
                        messages=self.spooled,
                        error=failure,
                    )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)

    async def _replay_once(self) -> ClientError | None:
        """Try once to send every message in the spool. Returns an error if some messages could not be sent
        now."""
        failure: ClientError | None = None
        held: set[tuple[str, str]] = set()
        after = 0
        while True:
            async with self._disk:
                rows = await self._env.workers.run(Lane.DISK, self._spool.next, after, REPLAY_MESSAGES)
            if not rows:
                return failure
            after = rows[-1].number
            failures, done = await self._replay(rows, held)
            failure = failure or next(iter(failures), None)
            if not done and any(not isinstance(error, TopicNotFound) for error in failures):
                return failure  # the cluster cannot be reached: the rest would fail, too

    async def _replay(
        self, rows: Sequence[Row], held: set[tuple[str, str]]
    ) -> tuple[list[ClientError], bool]:
        """Send some messages of the spool. Returns the errors of the messages that stay in the spool, and
        whether any message has left it.

        `held` holds pairs of a topic and a key. Messages with such a pair are not sent, because an earlier
        one still waits.
        """
        lines: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            key = row.message.ordering_key
            line = (row.message.topic, str(row.number) if key is None else "=" + key)
            if line not in held:
                lines.setdefault(line, []).append(row)
        stored: list[Row] = []
        refused: list[tuple[int, str]] = []
        failures: list[ClientError] = []

        async def send(line: tuple[str, str]) -> None:
            for row in lines[line]:
                try:
                    await self.send(_again(row.message), None, row.message.ordering_key)
                    stored.append(row)
                except ClientError as error:
                    if _is_away(error) or isinstance(error, ClientClosed | TopicNotFound):
                        failures.append(error)
                        held.add(line)
                        return  # later messages of this line wait, too
                    told = {"topic": row.message.topic, "id": row.message.unique_id}
                    self._core.log.error("a message from the spool was refused", **told, error=error)
                    refused.append((row.number, f"{type(error).__name__}: {error}"))

        await asyncio.gather(*(send(line) for line in lines))
        gone = {row.number for row in stored} | {number for number, _ in refused}
        async with self._disk:
            await self._env.workers.run(Lane.DISK, self._spool.remove, [row.number for row in stored])
            if refused:
                await self._env.workers.run(Lane.DISK, self._spool.refuse, refused)
        self.refused += len(refused)
        size_of = self._spool.size_of
        self._gone(len(gone), sum(size_of(row.message) for row in rows if row.number in gone))
        return failures, bool(gone)


def _is_away(error: ClientError) -> bool:
    """Whether the error says that the cluster cannot be reached or is too busy, so that a later attempt to
    send may succeed."""
    return isinstance(error, NoNameServer | NoBroker | OutcomeUnknown | Overflow) or (
        isinstance(error, SendFailed) and error.code in BUSY
    )


def _again(kept: Kept) -> MessageWithId:
    deliver_at = kept.deliver_at_ms
    message = Message(
        kept.topic,
        kept.body,
        None,
        kept.keys,
        kept.properties,
        kept.flag,
        kept.delay_level,
        None,
        None if deliver_at is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=deliver_at),
    )
    message.tags = kept.tags  # as it was, also where no subscription can name it
    return with_unique_id(message, kept.unique_id, again=True)

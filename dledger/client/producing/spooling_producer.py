"""A producer for programs that must not lose a message while their cluster is away.

`deliver` sends as `send` does. When the cluster cannot be reached, the message is kept in a file on this
machine (the *spool*), and sent from there, in order, when the cluster is back; until the spool is empty
everything goes through it, so that nothing overtakes. What is in it survives the program.

Messages with the same `ordering_key` keep their order throughout: the next is tried when the one before is
stored, or kept. A message whose outcome was unknown goes out of the spool under the same unique id, marked as
a repetition: our brokers store it once.
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
"""Kept messages that are sent at a time, and leave the spool together."""
WRITE_MESSAGES = 1000
"""Messages that one transaction of the spool keeps at most."""


@dataclass(frozen=True)
class SpoolOptions:
    """Where messages wait for their cluster. ValueError for what cannot be."""

    path: str
    """File of one producer of one process; its directory must be there."""
    max_messages: int = 1_000_000
    max_bytes: int = 1 << 30
    """With more in the spool `deliver` raises Overflow."""
    keep_unknown_topics: bool = False
    """Keep messages of topics that no broker serves and that this producer has not sent to before: they may
    be away with all their brokers, or misspelt. Otherwise TopicNotFound."""
    retry_s: float = 1.0
    """Pause between two tries to send what is kept; it grows to ten times as much."""

    def __post_init__(self) -> None:
        if not self.path or self.max_messages < 1 or self.max_bytes < 1 or self.retry_s <= 0:
            raise ValueError("a spool needs a path, and limits and a pause above 0")


def spool_of(given: str | SpoolOptions) -> SpoolOptions:
    """The options of a spool that may be given as its path. ClientError when it is neither."""
    if isinstance(given, str):
        return SpoolOptions(given)
    if not isinstance(given, SpoolOptions) or not isinstance(given.path, str):
        raise ClientError(f"spool={given!r}: give a path as text, or SpoolOptions with one")
    return given


class Spooled(NamedTuple):
    """The message is on this machine's disk, and will be sent."""

    message_id: str
    """Its unique id, which consumers will see."""


class AsyncSpoolingProducer(AsyncProducer):
    """See the module. All else is as with `AsyncProducer`; `send` does not use the spool.

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
        """Messages in the spool."""
        self.spooled_bytes: int = 0
        self.refused: int = 0
        """Messages that the cluster refused when they were sent from the spool: put aside in its table
        `refused`, and logged."""
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
        """What could not be sent is kept before the end: each call of `deliver` hears what became of it."""
        try:
            async with asyncio.timeout(self.options.close_timeout_s):
                while self._entering:
                    self._entry.clear()
                    await self._entry.wait()
        except TimeoutError:
            self._core.log.warning("messages neither stored nor kept at close", calls=len(self._entering))

    async def deliver(self, message: Message, ordering_key: str | None = None) -> SendResult | Spooled:
        """Send and wait for the acknowledgement, or until the message is kept on this machine.

        It is kept when no broker acknowledged it within `ProducerOptions.timeout_s`, or at once while others
        wait in the spool. InvalidMessage, TopicNotFound, SendFailed (refused), Overflow (the spool is full),
        SpoolFailed: it is neither stored nor kept.
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
        properties_text(message, named.unique_id)  # what cannot travel is refused now
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
        """Whether the topic is gone with its brokers."""
        return isinstance(error, TopicNotFound) and (
            topic in self._topics or self.spool_options.keep_unknown_topics
        )

    async def delivered(self, timeout_s: float | None = None) -> bool:
        """Wait until the spool is empty; False when the time was over first."""
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
        """Behind those with the same key that came before."""
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
                f"the spool {limits.path} is full: {self.spooled} messages, {self.spooled_bytes} bytes"
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
        self.spooled += 1  # from here on the next ones go behind it
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
                    self._core.log.warning("kept messages wait", messages=self.spooled, error=failure)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)

    async def _replay_once(self) -> ClientError | None:
        """Send what is in the spool, once; why some of it, or all, could not be sent now."""
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
                return failure  # the cluster is away: the rest would fare no better

    async def _replay(
        self, rows: Sequence[Row], held: set[tuple[str, str]]
    ) -> tuple[list[ClientError], bool]:
        """Send some of them; what kept others from it, and whether any has left the spool. `held`: topics and
        keys of which an earlier one still waits."""
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
                        return  # those behind it wait as well
                    told = {"topic": row.message.topic, "id": row.message.unique_id}
                    self._core.log.error("refused from the spool", **told, error=error)
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
    """Whether a later try may do: the cluster is not there, or too busy."""
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

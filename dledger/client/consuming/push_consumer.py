"""The push consumer on an event loop: it pulls, divides queues among the group, and calls a listener."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dledger.client.consuming.concurrent_service import ConcurrentService
from dledger.client.consuming.consume_service import Assigned, ConsumeService
from dledger.client.consuming.consume_trace import traced_hooks
from dledger.client.consuming.consumer_options import ConsumerOptions
from dledger.client.consuming.group_consumer import GroupConsumer, MessageModel
from dledger.client.consuming.listener_calls import ListenerCalls
from dledger.client.consuming.offsets import FromWhere, start_of
from dledger.client.consuming.orderly_service import OrderlyService
from dledger.client.consuming.queue_locks import QueueLocks
from dledger.client.consuming.subscription import ALL
from dledger.client.errors import ClientError, ended_by
from dledger.client.listeners import BatchListener, Listener
from dledger.client.message import MessageQueue
from dledger.client.options import ClientOptions, check_group_of, member_of, namesrv_addresses
from dledger.client.producing.producer import tracing_of
from dledger.runtime import Env
from dledger.runtime.signals import TERMINATED, Interrupted, on_interruption, on_termination


class AsyncPushConsumer(GroupConsumer):
    """Calls a listener with the messages of some topics; the consumers of a group share the queues.

    >>> async def handle(message): print(message.topic, message.body)
    >>> consumer = AsyncPushConsumer("billing", "127.0.0.1:9876", handle, topic="orders")  # doctest: +SKIP
    >>> async with consumer: await consumer.wait()                                         # doctest: +SKIP

    A listener that is a plain function runs in the DISK threads of `env.workers`, whose number limits how
    many calls run at once. A message is delivered at least once: it may come again after a crash, a rebalance
    or a failover, so listeners have to be idempotent. A message is consumed when the listener returned None
    or `ConsumeStatus.SUCCESS`; an awaitable result is awaited first. Any other result, and any exception, is
    logged, and the message is delivered again.

    With `orderly` the messages of a queue are delivered one after the other, in their order, to one consumer
    of the group at a time. A message that failed comes again after `ConsumerOptions.suspend_s`, and until
    then no other message of its queue is delivered. The listener returns `ConsumeOrderlyStatus`, or None for
    SUCCESS. The consumer holds a lock for each queue at the brokers. SystemExit and KeyboardInterrupt end the
    consumer.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        listener: Listener | None = None,
        *,
        topic: str | None = None,
        expression: str = ALL,
        batch_listener: BatchListener | None = None,
        orderly: bool = False,
        model: MessageModel | str = MessageModel.CLUSTERING,
        from_where: FromWhere | str = FromWhere.LAST,
        from_timestamp_ms: int = 0,
        options: ConsumerOptions | None = None,
        client: ClientOptions | None = None,
        env: Env | None = None,
    ) -> None:
        namesrv = namesrv_addresses(namesrv, client)
        model, from_where = check_consumer(
            group, listener, batch_listener, model, from_where, from_timestamp_ms, client
        )
        super().__init__(group, namesrv, model, from_where, options, client, env)
        broadcasting = model is MessageModel.BROADCASTING
        self._tracing = tracing_of(self._core)
        hooks = traced_hooks(
            self._core, self.group, self.options.hooks, self.options.consume_timeout_s, self._tracing
        )
        calls = ListenerCalls(self._core, listener, batch_listener, orderly, hooks)
        how = (
            self._core,
            calls,
            self.options,
            self.group,
            broadcasting,
            self._fatal,
            self._statistics,
        )
        self._locks = (
            QueueLocks(self._core, self.group, self.options) if orderly and not broadcasting else None
        )
        """Locks of the queues; None unless the consumer works in order and shares its queues. In broadcasting
        mode every consumer receives all messages, so queues are not locked."""
        self._dispatcher: ConsumeService
        if orderly:
            self._dispatcher = OrderlyService(*how, may_call=self._may_call)
        else:
            self._dispatcher = ConcurrentService(*how)
        self._consume_now = self._dispatcher.consume_now
        self._begin_with(self._dispatcher, from_timestamp_ms, self._locks)
        if self._locks is not None:
            self._locks.on_lost = self._lock_lost
        if topic is not None:
            self.subscribe(topic, expression)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the consumer ends (True), or `timeout_s` is over (False).

        In an `async with` block it returns as soon as the end is requested, for example by `close`. Raises
        ClientError if the consumer ended because of an error, for example because its listener raised
        SystemExit or KeyboardInterrupt.

        On the main thread Ctrl-C and SIGTERM request the end, too, unless the program has its own handler.
        After Ctrl-C it raises `Interrupted`. `except KeyboardInterrupt` catches it; a program that does not
        catch it ends with exit code 130 and without a traceback. After SIGTERM it raises SystemExit(143).
        """
        if self._failure is not None:
            raise ended_by(self._failure) from self._failure
        self._core.check_open()
        ends: list[SystemExit] = []

        def end_with(error: SystemExit) -> None:
            ends.append(error)
            self._stop_soon()

        with (
            on_termination(lambda: end_with(SystemExit(TERMINATED))),
            on_interruption(lambda: end_with(Interrupted())),
        ):
            try:
                async with asyncio.timeout(timeout_s):
                    await (self._stop if self._hosting is None else self._over).wait()
            except TimeoutError:
                return False
        if ends:
            raise ends[0]
        if self._failure is not None:
            raise ended_by(self._failure) from self._failure
        return True

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this consumer has now."""
        return self._share.queues

    def _stop_soon(self, drain: bool = True) -> None:
        """Request the end: no further message is handed out. Call it on the loop."""
        self._stop_handing_out()
        super()._stop_soon(drain)

    def _stop_handing_out(self) -> None:
        """Stop calling the listener from now on. May be called from any thread."""
        self._dispatcher.stop_soon()

    @property
    def _inside(self) -> bool:
        return self._dispatcher.inside

    async def _begin(self) -> None:
        if self._tracing is not None:
            await self._tracing.start()
        self._dispatcher.start()
        await super()._begin()
        if self._locks is not None:
            self._core.spawn(self._locks.renew_periodically(), f"renew locks {self.group}")

    async def _finish(self, drain: bool) -> None:
        self._dispatcher.stop_soon()
        try:
            await super()._finish(drain)
        finally:
            if self._tracing is not None:
                await self._tracing.close(drain)

    async def _finish_calls(self) -> None:
        await self._dispatcher.stop()

    def _may_call(self, assigned: Assigned) -> bool:
        """Whether this consumer may work on a queue that is consumed in order at this moment."""
        if self._locks is None or self._locks.holds(assigned.process.queue):
            return True
        self._locks.drop_expired()
        self._lock_lost(assigned.process.queue)  # also one that was lost before the queue was begun
        return False

    def _lock_lost(self, queue: MessageQueue) -> None:
        self._share.lost(queue)
        self._rebalancer.soon()

    def _fatal(self, error: BaseException) -> None:
        """End the consumer: a listener raised an exception that does not concern its message."""
        self._end_by(error)


def check_consumer(
    group: str,
    listener: Listener | None,
    batch_listener: BatchListener | None,
    model: MessageModel | str,
    from_where: FromWhere | str,
    from_timestamp_ms: int,
    client: ClientOptions | None,
) -> tuple[MessageModel, FromWhere]:
    """Check the arguments of a push consumer. Raises ClientError, which names the bad one."""
    check_group_of(group, client)
    if (listener is None) == (batch_listener is None):
        raise ClientError("give either listener= or batch_listener=, not both or neither")
    call = batch_listener if listener is None else listener
    if not callable(call):
        raise ClientError(
            f"the listener is {type(call).__name__}: give a function, or an object with __call__"
        )
    where = start_of(from_where, from_timestamp_ms, "from_where", "from_timestamp_ms")
    return member_of(MessageModel, model, "model"), where

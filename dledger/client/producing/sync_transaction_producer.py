"""Transactions for programs without an event loop; see `transaction_producer`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, cast

from dledger.client.message import Message, MessageQueue, SendResult
from dledger.client.options import ClientOptions
from dledger.client.producing.producer import AsyncProducer
from dledger.client.producing.producer_options import ProducerOptions
from dledger.client.producing.sync_producer import Producer
from dledger.client.producing.transaction_producer import (
    AsyncTransaction,
    AsyncTransactionProducer,
    Check,
    LocalTransactionState,
    TransactionListener,
    TransactionSendResult,
)


class Transaction:
    """One transaction; see `AsyncTransaction`."""

    def __init__(self, producer: TransactionProducer, inner: AsyncTransaction) -> None:
        self._producer = producer
        self._inner = inner

    @property
    def message(self) -> Message:
        """The message as it was given."""
        return self._inner.message

    @property
    def transaction_id(self) -> str:
        """Unique id of the message; empty until it is sent."""
        return self._inner.transaction_id

    @property
    def state(self) -> LocalTransactionState:
        """The state that this program decided on; UNKNOWN until then."""
        return self._inner.state

    @property
    def result(self) -> SendResult | None:
        """The acknowledgement of the half message; None until it is stored."""
        return self._inner.result

    def begin(self) -> Self:
        """Send the half message."""
        self._producer._do(self._inner.begin)
        return self

    def commit(self) -> None:
        """Deliver the message to its topic; see `AsyncTransaction.commit`."""
        self._producer._do(self._inner.commit)

    def rollback(self) -> None:
        """Drop the message: it is never delivered."""
        self._producer._do(self._inner.rollback)

    def leave_open(self) -> None:
        """Leave the transaction undecided. A broker will later ask a producer of the group how it ended, and
        that producer's `check` decides."""
        self._producer._on_loop(self._inner.leave_open)

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer._do(lambda: self._inner.__aexit__(kind, error, trace))


class TransactionProducer(Producer):
    """Sends messages in transactions, and ordinary messages; see `AsyncTransactionProducer`.

    >>> with TransactionProducer("orders", check=how_it_ended) as producer:  # doctest: +SKIP
    ...     with producer.transaction(Message("orders", b"17")):
    ...         database.execute("...")                          # an exception here rolls the message back
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        listener: TransactionListener | None = None,
        check: Check | None = None,
        options: ProducerOptions | None = None,
        client: ClientOptions | None = None,
    ) -> None:
        super().__init__(group, namesrv, options, client)
        self._listener = listener
        self._check_state = check

    def _make(self) -> AsyncProducer:
        self._begin_anew()
        return AsyncTransactionProducer(
            self.group, self._namesrv, self._listener, self._check_state, self.options, self._client
        )

    def transaction(self, message: Message, queue: MessageQueue | None = None) -> Transaction:
        """Make a transaction for this message, to be used with `with`."""
        inner = cast(AsyncTransactionProducer, self._open()[0])
        return Transaction(self, inner.transaction(message, queue))

    def _on_loop(self, step: Callable[[], None]) -> None:
        async def run() -> None:
            step()

        self._do(run)

    def _do(self, step: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._run(lambda _: step())

    # Generated from AsyncTransactionProducer by scripts/blocking_methods.py: change it there.

    def send_in_transaction(
        self, message: Message, arg: Any = None, queue: MessageQueue | None = None
    ) -> TransactionSendResult:
        """Send a half message, call the listener to execute the local transaction, and report to the broker
        how that ended (sendMessageInTransaction). Raises what `send` and `AsyncTransaction.commit` raise. If
        the call is cancelled while the listener works, the transaction stays open, and the listener's check
        decides it later."""
        return self._run(
            lambda inner: cast(AsyncTransactionProducer, inner).send_in_transaction(message, arg, queue)
        )

"""Transactions: consumers see a message only when its producer commits it.

A *half message* is stored first. Then the application does the work that the message is about (the *local
transaction*), and reports how it ended. Depending on that, the message is delivered to its topic, or never.
If no report arrives, for example because the producer died, the broker asks a producer of the same group how
the transaction ended (request 39 CHECK_TRANSACTION_STATE).

This producer answers by itself where it can. About a transaction of its own that is still open, it answers
that the transaction is not decided yet. About one that has ended, it answers how it ended. If the broker's
answer to a half message was lost and the half message was sent again, there are two of them. When a broker
asks about the first, this producer answers that it is rolled back. For all other transactions, such as those
of a process that is gone, it asks the application (`check`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from types import TracebackType
from typing import Any, NamedTuple, Self

from dledger.client.callback_failures import Failures
from dledger.client.encoding import received
from dledger.client.errors import (
    BrokerRefused,
    ClientClosed,
    ClientError,
    InvalidMessage,
    NoBroker,
    OutcomeUnknown,
    outcome_unknown,
    refused_text,
)
from dledger.client.message import Message, MessageQueue, ReceivedMessage, SendResult, comes_later
from dledger.client.options import ClientOptions
from dledger.client.producing.pending_sends import OnSent, PendingSend, Target
from dledger.client.producing.producer import AsyncProducer
from dledger.client.producing.producer_options import ProducerOptions
from dledger.formats.message_ids import decode_message_id
from dledger.formats.properties import PGROUP, TRAN_MSG
from dledger.formats.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    CorruptRecord,
    decode_record,
)
from dledger.remoting.client import ClientHandler
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request, Response
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import CheckTransactionStateHeader, EndTransactionHeader
from dledger.runtime import Env, Lane

MAX_CHECKS = 2000
"""Largest number of brokers' questions about transactions that are worked on at the same time
(checkRequestHoldMax). Further questions are ignored; brokers repeat them."""
MAX_ENDED = 10_000
"""Largest number of ended transactions that are remembered. With them the producer can answer brokers that
ask how a transaction ended."""
END_TRIES = 3
"""How often the end of a transaction is sent if the broker answers each time that the outcome of the request
is unknown."""

_NOWHERE = (-1, -1)


class LocalTransactionState(Enum):
    """How a local transaction ended."""

    COMMIT_MESSAGE = TRANSACTION_COMMIT
    ROLLBACK_MESSAGE = TRANSACTION_ROLLBACK
    UNKNOWN = 0
    """The result is not known yet: the broker asks again later."""


State = LocalTransactionState


class TransactionListener:
    """The code of an application that takes part in transactions (TransactionListener of the Java client).

    Coroutine functions run on the loop, others in worker threads. An exception counts as UNKNOWN, and is
    logged.
    """

    def execute_local_transaction(self, message: Message, arg: Any) -> State | Awaitable[State]:
        """Execute the local transaction. The half message is already stored. `arg` is the argument of
        `send_in_transaction`."""
        raise NotImplementedError

    def check_local_transaction(self, message: ReceivedMessage) -> State | Awaitable[State]:
        """Return how the transaction of this message ended, because a broker asks. It may be a transaction of
        another process."""
        raise NotImplementedError


Check = Callable[[ReceivedMessage], State | Awaitable[State]]


class _Half(Message):
    """A half message in flight."""

    __slots__ = ("transaction",)
    transaction: AsyncTransaction


class TransactionSendResult(NamedTuple):
    """The result of `send_in_transaction`."""

    send_result: SendResult
    """The acknowledgement of the half message."""
    state: State
    """The state that the listener returned."""


class AsyncTransaction:
    """One transaction, open until `commit` or `rollback`. Used as an `async with` block, it commits at the
    end of the block, and rolls back after an exception."""

    def __init__(
        self, producer: AsyncTransactionProducer, message: Message, queue: MessageQueue | None
    ) -> None:
        self._producer = producer
        self._queue = queue
        self.message = message
        self.transaction_id = ""
        """Unique id of the message; empty until it is sent."""
        self.state: LocalTransactionState = State.UNKNOWN
        """The state that this program decided on; UNKNOWN until then."""
        self.result: SendResult | None = None
        """The acknowledgement of the half message; None until it is stored."""
        self._left_open: bool = False
        """Whether the transaction was left undecided. If so, a broker that asks gets the answer of the
        application's check."""

    @property
    def _place(self) -> tuple[int, int] | None:
        """Queue offset and physical offset of the half message; None before it is acknowledged."""
        if self.result is None:
            return _NOWHERE if self.state is State.ROLLBACK_MESSAGE else None
        return self.result.queue_offset, decode_message_id(self.result.offset_message_id).physical_offset

    async def begin(self) -> Self:
        """Send the half message. Raises what `AsyncProducer.send` raises."""
        await self._producer._begin_transaction(self, self._queue)
        return self

    async def commit(self) -> None:
        """Deliver the message to its topic. Raises BrokerRefused if the transaction had ended before.

        Raises OutcomeUnknown if no broker confirmed the commit. If a broker asks later, this producer still
        answers that the transaction is committed, for as long as it is open.
        """
        await self._decide(State.COMMIT_MESSAGE)

    async def rollback(self) -> None:
        """Drop the message: it is never delivered. Raises the errors of `commit`."""
        await self._decide(State.ROLLBACK_MESSAGE)

    def leave_open(self) -> None:
        """Leave the transaction undecided. A broker will later ask a producer of the group how it ended, and
        that producer's `check` decides."""
        self._left_open = True
        self._producer._forget(self)

    async def _decide(self, state: State) -> None:
        if self.result is None:
            raise ClientError("the transaction has not begun: use it in a `with` block, or call begin()")
        if self.state is not State.UNKNOWN and self.state is not state:
            raise ClientError(f"the transaction was already decided: {self.state.name}")
        self.state = state
        await self._producer._end_transaction(self)

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state is not State.UNKNOWN or self._left_open:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except ClientError as failure:  # the broker will ask; the caller's own error is raised
            self._producer._core.log.warning(
                "rollback not acknowledged", message_id=self.transaction_id, error=failure
            )


class AsyncTransactionProducer(AsyncProducer):
    """Sends messages in transactions, and ordinary messages.

    >>> async with AsyncTransactionProducer("orders", check=how_it_ended) as producer:  # doctest: +SKIP
    ...     async with producer.transaction(Message("orders", b"17")):
    ...         await database.execute("...")                   # an exception here rolls the message back

    A broker may ask about a transaction that this producer does not know. Then `check` is called with the
    message; see `TransactionListener`. If `check` is not given, the listener's own method is used. Without
    either, the transaction stays undecided until the broker stops asking.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        listener: TransactionListener | None = None,
        check: Check | None = None,
        options: ProducerOptions | None = None,
        client: ClientOptions | None = None,
        env: Env | None = None,
    ) -> None:
        super().__init__(group, namesrv, options, client, env)
        self._compress_lane = Lane.SCAN  # listeners may occupy every thread of the other lane, and send
        self._listener = listener
        self._check_state: Check | None = check
        if check is None and listener is not None:
            self._check_state = listener.check_local_transaction
        self._open_ones: dict[str, AsyncTransaction] = {}
        self._ended: dict[str, AsyncTransaction] = {}
        self._checks = 0
        self._check_failures = Failures(self._core.log)

    @property
    def _disk_threads(self) -> int:
        return self.options.listener_threads

    def _handlers(self) -> dict[int, ClientHandler]:
        return {**super()._handlers(), RequestCode.CHECK_TRANSACTION_STATE: self._asked_for}

    async def _begin(self) -> None:
        await super()._begin()
        self._core.spawn(self._be_known(), "be known to brokers")

    async def _be_known(self) -> None:
        """Fetch the list of all brokers every `route_poll_s`, so that heartbeats reach each broker. Any
        broker may have transactions of this group, even if this producer never sends to it."""
        while True:
            await self._core.refresh_quietly(None)
            await asyncio.sleep(self._core.options.route_poll_s)

    def transaction(self, message: Message, queue: MessageQueue | None = None) -> AsyncTransaction:
        """Make a transaction for this message, to be used with `async with`."""
        return AsyncTransaction(self, message, queue)

    async def send_in_transaction(
        self, message: Message, arg: Any = None, queue: MessageQueue | None = None
    ) -> TransactionSendResult:
        """Send a half message, call the listener to execute the local transaction, and report to the broker
        how that ended (sendMessageInTransaction). Raises what `send` and `AsyncTransaction.commit` raise. If
        the call is cancelled while the listener works, the transaction stays open, and the listener's check
        decides it later."""
        if self._listener is None:
            raise ClientError("give the producer a listener=, or use `transaction(message)`")
        transaction = await AsyncTransaction(self, message, queue).begin()
        assert transaction.result is not None
        try:
            state = await self._ask_application(self._listener.execute_local_transaction, message, arg)
        except BaseException:  # cancelled: the listener's thread goes on, and may still commit its work
            transaction.leave_open()
            raise
        if state is State.UNKNOWN:
            transaction.leave_open()
        else:
            await transaction._decide(state)
        return TransactionSendResult(transaction.result, state)

    # --- the way of a transaction ---------------------------------------------------------------------

    async def _begin_transaction(self, transaction: AsyncTransaction, queue: MessageQueue | None) -> None:
        message = transaction.message
        if transaction.transaction_id:
            raise ClientError("the transaction has already begun")
        if comes_later(message):
            raise InvalidMessage("a transactional message cannot be delayed: leave out its delay")
        half = _Half(
            message.topic,
            message.body,
            message.tags,
            message.keys,
            {**(message.properties or {}), TRAN_MSG: "true", PGROUP: self.group},
            message.flag,
        )
        half.transaction = transaction
        try:
            transaction.result = await self.send(half, queue)
        except BaseException:  # if a broker has stored it nevertheless, it is rolled back
            transaction.state = State.ROLLBACK_MESSAGE
            self._forget(transaction)
            raise

    def _pending(
        self, message: Message, target: Target, on_done: OnSent, compressed: tuple[bytes, int] | None
    ) -> PendingSend:
        send = super()._pending(message, target, on_done, compressed)
        if isinstance(message, _Half):
            transaction = message.transaction
            send.sys_flag |= TRANSACTION_PREPARED
            transaction.transaction_id = send.unique_id
            self._open_ones[send.unique_id] = transaction
        return send

    async def _end_transaction(self, transaction: AsyncTransaction) -> None:
        result = transaction.result
        assert result is not None
        self._forget(transaction)
        group = self._core.group(result.queue.broker_name)
        place = transaction._place
        header = self._end_header(transaction.transaction_id, result.queue.topic, place, transaction.state)
        lost_before = self._core.unanswered
        unknown = ""
        for _ in range(END_TRIES):
            try:
                answer = await self._core.invoke_leader(
                    group, result.queue.topic, RequestCode.END_TRANSACTION, header
                )
            except NoBroker as error:
                unknown = str(error)
                break
            if answer.code == ResponseCode.SUCCESS:
                return
            text = refused_text(answer.code, answer.remark)
            if outcome_unknown(answer):
                unknown = text
            elif unknown or (
                answer.code == ResponseCode.SYSTEM_ERROR and self._core.unanswered > lost_before
            ):
                unknown = f"an attempt was not answered, and the next one was refused: {text}"
                break
            else:
                raise BrokerRefused(f"the broker refused to end the transaction: {text}", answer.code)
        raise OutcomeUnknown(
            f"{transaction.state.name} of {transaction.transaction_id} was not acknowledged "
            f"({unknown}); as long as this producer runs, it gives the same answer to a broker that "
            "checks the transaction"
        )

    def _end_header(
        self,
        unique_id: str,
        topic: str | None,
        place: tuple[int, int] | None,
        state: State,
        asked: bool = False,
    ) -> EndTransactionHeader:
        half, position = place or _NOWHERE
        return EndTransactionHeader(
            producerGroup=self.group,
            tranStateTableOffset=half,
            commitLogOffset=position,
            commitOrRollback=state.value,
            msgId=unique_id,
            fromTransactionCheck=asked,
            transactionId=unique_id,
            topic=topic,
        )

    def _forget(self, transaction: AsyncTransaction) -> None:
        """Note that a transaction is no longer open, and remember for a while how it ended."""
        name = transaction.transaction_id
        if self._open_ones.pop(name, None) is not None:
            self._ended[name] = transaction
            if len(self._ended) > MAX_ENDED:
                del self._ended[next(iter(self._ended))]

    # --- asked by brokers -----------------------------------------------------------------------------

    def _asked_for(self, address: str, request: Request) -> Response | None:
        """Handle request 39 CHECK_TRANSACTION_STATE. The answer is sent as another request (37
        END_TRANSACTION)."""
        if self._checks < MAX_CHECKS:
            header = request.header(CheckTransactionStateHeader)
            try:
                message = received(decode_record(request.body), "")
            except CorruptRecord as error:
                self._core.log.warning(
                    "transaction check ignored: its body is not a message", address=address, error=error
                )
                return None
            try:
                self._core.spawn(self._answer(address, header, message), "check transaction")
            except ClientClosed:
                return None
            self._checks += 1
        return None

    async def _answer(
        self, address: str, header: CheckTransactionStateHeader, message: ReceivedMessage
    ) -> None:
        try:
            place = header.tranStateTableOffset, header.commitLogOffset
            state = await self._state_of(message, place)
            told = self._end_header(message.message_id, header.topic, place, state, asked=True)
            await self._core.remoting.invoke_oneway(address, RequestCode.END_TRANSACTION, told)
        except RemotingError as error:  # it asks again
            self._core.log.debug("answer to a transaction check not sent", address=address, error=error)
        finally:
            self._checks -= 1

    async def _state_of(self, message: ReceivedMessage, place: tuple[int, int]) -> State:
        name = message.message_id
        known = self._open_ones.get(name) or self._ended.get(name)
        if known is not None:
            if known._place is None:
                return State.UNKNOWN  # it is not acknowledged yet
            if known._place != place:
                return State.ROLLBACK_MESSAGE  # an earlier attempt of the same send: this one does not count
            if not known._left_open:
                return known.state
        if self._check_state is None:
            return State.UNKNOWN
        return await self._ask_application(self._check_state, message)

    async def _ask_application(
        self, function: Callable[..., State | Awaitable[State]], *arguments: Any
    ) -> State:
        """Call a function of the application and return the state that it reports."""
        try:
            if inspect.iscoroutinefunction(function):
                said: Any = await function(*arguments)
            else:
                said = await self._env.workers.run(Lane.DISK, function, *arguments)
                if inspect.isawaitable(said):
                    said = await said
        except Exception as error:
            self._check_failures.log_raised("transaction listener failed", error)
            return State.UNKNOWN
        if isinstance(said, State):
            return said
        self._check_failures.log_returned(
            "transaction listener returned a value that is not a LocalTransactionState",
            said,
            wanted="a LocalTransactionState",
            listener=getattr(function, "__qualname__", repr(function)),
        )
        return State.UNKNOWN

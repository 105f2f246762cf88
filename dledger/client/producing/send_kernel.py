"""Carries each message until its acknowledgement: makes attempts, handles failover, keeps the order. There is
one `PendingSend` per message.

Each broker group has a *lane*. While its leader is known, messages are sent at once, many at the same time. A
message needs no task, future or timer: `RemotingClient.invoke_nowait` calls back. When the leader is lost,
the lane parks its messages (those in flight come back as failed, in their order). One task looks for the new
leader by sending the oldest parked message. A follower answers that it is not the leader (code 14: certainly
not executed, perhaps with the leader's address); the leader answers with the acknowledgement. Then the parked
messages are sent in their order, as fast as the leader's connection accepts them. Messages that the
connection refuses (`ClientLimits.max_outbound`) are parked again for a short while. Meanwhile a smaller
message may still find room, and overtakes them. Only ordered messages keep their order in this case.

The outcome of a failed attempt decides how it is repeated. If it was *not executed*, the message is sent
again unchanged. If the outcome is *unknown* (connection lost after the write, time-out, code 1), it is sent
again under the same unique id, marked with the property `__RESEND`, to the same broker group. Our brokers
then return the first result if there is one. RocketMQ's brokers do not check for copies, and may store the
message twice.

*Ordered* messages of one queue are sent one by one: the next is sent when the previous one has its result.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from dledger.client.broker_group import LEADER_HINT, BrokerGroup
from dledger.client.callback_failures import Failures
from dledger.client.core import NOT_OPEN, ClientCore
from dledger.client.errors import (
    ClientClosed,
    ClientError,
    InvalidMessage,
    NoBroker,
    OutcomeUnknown,
    Overflow,
    SendFailed,
    refused_send,
    refused_text,
)
from dledger.client.message import MessageQueue, SendResult, SendStatus
from dledger.client.producing.latency import LatencyFaultTolerance
from dledger.client.producing.leader_search import LeaderSearch
from dledger.client.producing.pending_sends import Lane, OnSent, Outcome, PendingSend, Target, by_serial
from dledger.client.producing.producer_options import ProducerOptions
from dledger.formats.properties import MSG_REGION, TRACE_ON
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import (
    BadHeader,
    ConnectFailed,
    ConnectionLost,
    Overloaded,
    RemotingError,
    RequestTimeout,
    TooLarge,
    WrongTls,
)
from dledger.remoting.headers import Header
from dledger.runtime.loops import next_turn

CROWDED_PAUSE_S = 0.01
"""Pause before checking again whether a full connection has room, in seconds."""
MAX_HINTS = 3
"""How many hints a message follows at once. After that, its lane looks for the leader, with pauses."""

STORED = {
    int(ResponseCode.SUCCESS): SendStatus.OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL)
ELSEWHERE = (
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.NO_PERMISSION,
    ResponseCode.NO_BUYER_ID,
    ResponseCode.NOT_IN_CURRENT_UNIT,
    ResponseCode.GO_AWAY,
)
"""Codes of refusals after which another broker may accept the message (RocketMQ's retryResponseCodes)."""


class _Stored(Header):
    """The fields of SendMessageResponseHeader that the client needs."""

    msgId: str
    queueId: int
    queueOffset: int
    recallHandle: str | None = None
    keysLookedUp: int = 0


class _Flush:
    """A call of `flush` that waits for the messages that were sent so far."""

    def __init__(self, newest: int, left: int) -> None:
        self.newest = newest
        """Serial number of the last message that this call waits for."""
        self.left = left
        self.done = asyncio.Event()


class SendKernel:
    """Sends the messages of one producer. `retarget` is a function that finds a usable queue of the topic at
    another broker, or returns None."""

    def __init__(
        self, core: ClientCore, options: ProducerOptions, retarget: Callable[[PendingSend], Target | None]
    ) -> None:
        self.options = options
        self.pending: int = 0
        """Number of messages without an acknowledgement."""
        self._loop = asyncio.get_running_loop()
        self._core = core
        # Bound once, because they are used for every message.
        self._invoke = core.remoting.invoke_nowait
        self._now_ms = core.env.wall.now_ms
        self._timeout_s = options.timeout_s
        self._attempt_timeout_s = min(options.attempt_timeout_s, options.timeout_s)
        self._max_pending = options.max_pending
        self._retarget = retarget
        self._serial = 0
        self._lanes: dict[str, Lane] = {}
        self._chains: dict[MessageQueue, deque[PendingSend]] = {}
        self._room = asyncio.Event()
        self._room.set()
        self._pausing: dict[int, PendingSend] = {}  # by serial number: wait before they are sent again
        self._flushes: list[_Flush] = []
        self._failures = Failures(core.log)
        self.regions: dict[str, tuple[str, bool]] | None = None
        """Maps a broker group to (its region, whether it wants traces). None if the producer does not need
        this."""
        self.faults: LatencyFaultTolerance | None = None
        """The latencies of the broker groups; None if messages do not avoid slow groups."""
        if options.send_latency_fault:
            self.faults = LatencyFaultTolerance(options.latency_steps_s, self._loop.time)
        self._closed = False
        self._watching: asyncio.TimerHandle | None = None

    def lane(self, group: BrokerGroup) -> Lane:
        """The lane of a broker group."""
        lane = self._lanes.get(group.name)
        if lane is None:
            lane = self._lanes[group.name] = Lane(group)
        return lane

    # --- in -------------------------------------------------------------------------------------------

    def submit(self, send: PendingSend) -> None:
        """Take over a message. From now on the kernel reports the message's result to its `on_done`."""
        self._serial = send.serial = self._serial + 1
        send.sent_at = now = self._loop.time()
        send.deadline = now + self._timeout_s
        send.born_ms = self._now_ms()
        self.pending += 1
        if self.pending >= self._max_pending:
            self._room.clear()
        if send.ordered:
            chain = self._chains.get(send.target.queue)
            if chain is not None:
                chain.append(send)
                return
            self._chains[send.target.queue] = deque()
        lane = send.target.lane
        leader = lane.group.leader
        if lane.searching or leader is None:
            self._park(send)
            return
        send.addr = leader
        lane.in_flight[send.serial] = send
        self._invoke(leader, send.code, send.header(), send.body, self._attempt_timeout_s, send.answered)
        if self._watching is None:
            self._watching = self._loop.call_later(self.options.suspicion_s, self._watch)

    @property
    def resent(self) -> int:
        """How many attempts were repeated because the outcome of an earlier one was unknown."""
        return sum(lane.resent for lane in self._lanes.values())

    async def room(self) -> None:
        """Wait until another message may be submitted."""
        while not self._room.is_set():
            await self._room.wait()

    async def flush(self) -> None:
        """Wait until every message that was submitted so far has ended. It does not wait for messages that
        are submitted after the call."""
        if self.pending:
            flush = _Flush(self._serial, self.pending)
            self._flushes.append(flush)
            try:
                await flush.done.wait()
            finally:
                self._flushes.remove(flush)

    @property
    def full(self) -> bool:
        """Whether `max_pending` is reached. Raises ClientClosed if the producer is closed."""
        if self._closed:
            raise ClientClosed(NOT_OPEN)
        return self.pending >= self._max_pending

    def _go(self, send: PendingSend) -> None:
        lane = send.target.lane
        leader = lane.group.leader
        if lane.searching or leader is None:
            self._park(send)
        else:
            self._transmit(send, leader)

    def _transmit(self, send: PendingSend, addr: str) -> None:
        """Send the next attempt of a message. It may be the first attempt, if the message had to wait."""
        send.addr = addr
        send.target.lane.in_flight[send.serial] = send
        send.sent_at = now = self._loop.time()
        timeout = min(self._attempt_timeout_s, max(send.deadline - now, 0.001))
        send.target.lane.resent += send.unknown
        done = partial(self.answered, send, send.attempt)
        self._invoke(addr, send.code, send.header(), send.body, timeout, done)
        if self._watching is None:
            self._watching = self._loop.call_later(self.options.suspicion_s, self._watch)

    # --- out ------------------------------------------------------------------------------------------

    def answered(self, send: PendingSend, attempt: int, outcome: Outcome) -> None:
        """Handle the result of an attempt. The first success counts, whichever attempt it belongs to."""
        if send.finished:
            return
        if type(outcome) is Response and outcome.code in STORED:
            self._stored(send, outcome)
        elif attempt == send.attempt:
            send.target.lane.in_flight.pop(send.serial, None)
            send.attempt += 1
            self._failed(send, outcome)

    def _stored(self, send: PendingSend, response: Response) -> None:
        queue = send.target.queue
        try:
            header = response.header(_Stored)
        except BadHeader as error:
            self._finish(
                send,
                OutcomeUnknown(
                    f"the message is stored, but the response of the broker cannot be read: {error}"
                ),
            )
            return
        if header.queueId != queue.queue_id:
            queue = queue._replace(queue_id=header.queueId)
        status = STORED[response.code]
        if self.faults is not None:
            self.faults.update(send.target.queue.broker_name, self._loop.time() - send.sent_at)
        if self.regions is not None:
            ext = response.ext
            region_id = ext.get(MSG_REGION, "")
            self.regions[queue.broker_name] = region_id, bool(region_id) and ext.get(TRACE_ON) != "false"
        stored = SendResult(
            status,
            send.unique_id,
            header.msgId,
            queue,
            header.queueOffset,
            header.recallHandle,
            header.keysLookedUp,
        )
        self._finish(send, stored)

    def _finish(self, send: PendingSend, result: SendResult | ClientError) -> None:
        if send.finished:
            return  # an earlier attempt was answered after all
        send.finished = True
        send.target.lane.parked.pop(send.serial, None)
        send.target.lane.in_flight.pop(send.serial, None)
        self.pending = pending = self.pending - 1
        if pending == self._max_pending - 1:
            self._room.set()
        try:
            send.on_done(result)
        except Exception as error:
            self._failures.log_raised(
                "send callback failed", error, message_id=send.unique_id, queue=send.target.queue
            )
        finally:  # also after SystemExit: later messages have to be sent
            if send.ordered:
                self._next_of_chain(send.target.queue)
            if self._flushes:
                self._tell_flushes(send)

    def tell(self, on_done: OnSent, result: SendResult | ClientError, topic: str) -> None:
        """Report the result of a message that ended before it was submitted to the kernel."""
        try:
            on_done(result)
        except Exception as failure:
            self._failures.log_raised("send callback failed", failure, topic=topic)

    def _tell_flushes(self, ended: PendingSend) -> None:
        for flush in self._flushes:
            if ended.serial <= flush.newest:
                flush.left -= 1
                if not flush.left:
                    flush.done.set()

    def _next_of_chain(self, queue: MessageQueue) -> None:
        chain = self._chains.get(queue)
        if chain is None:
            return
        if not chain:
            del self._chains[queue]
            return
        following = chain.popleft()
        if self._closed or self._loop.time() >= following.deadline:
            # The loop calls it: here, a chain of a thousand overdue messages would be a deep recursion.
            self._loop.call_soon(self._give_up, following)
        else:
            self._go(following)

    def _give_up(self, send: PendingSend) -> None:
        """End a message with an error, because its time is over or the producer closes."""
        if send.finished:
            return
        broker = send.target.queue.broker_name
        detail = f"; last: {send.last_error}" if send.last_error else ""
        if send.unknown:
            error: ClientError = OutcomeUnknown(
                f"no acknowledgement from {broker} after {send.attempt} attempts; the message "
                f"{send.unique_id} may be stored. The attempts of this client have the same id and "
                f"are stored once; another send() has a new id and would store it again{detail}"
            )
        elif self._closed:
            error = ClientClosed(
                f"the producer was closed before this message was sent; it is not stored{detail}"
            )
        else:
            error = NoBroker(
                f"no leader of {broker} took the message within {self.options.timeout_s:g} s; it is not "
                f"stored: look at the brokers' /health, then send it again{detail}"
            )
        self._finish(send, error)

    # --- failures -------------------------------------------------------------------------------------

    def _failed(self, send: PendingSend, outcome: Outcome) -> None:
        """Decide what to do after a failed attempt."""
        if send.finished:
            return  # an earlier attempt was answered after all, before the loop came here
        if self._closed:
            send.unknown = send.unknown or not isinstance(outcome, ConnectFailed | Response)
            self._give_up(send)
        elif isinstance(outcome, Response):
            send.last_error = f"{outcome.code} {outcome.remark or ''} from {send.addr}"
            self._refused(send, outcome)
        else:
            send.last_error = outcome.remark
            self._unanswered(send, outcome)

    def _unanswered(self, send: PendingSend, error: RemotingError) -> None:
        if isinstance(error, TooLarge):
            self._finish(send, InvalidMessage(f"{error.remark}; send fewer messages in one batch"))
        elif isinstance(error, Overloaded):
            limit = self._core.options.limits.max_outbound
            if len(send.body) > limit:  # never: nothing waits behind it
                why = f"the body has {len(send.body)} bytes, and max_outbound is {limit}"
                self._finish(send, Overflow(f"{why}; it is not stored: send less at a time"))
                return
            send.target.lane.crowded = True
            self._park(send)
        elif isinstance(error, WrongTls) and not send.unknown:
            self._finish(send, NoBroker(f"{error.remark}; it is not stored"))
        elif isinstance(error, ConnectFailed):
            self._leader_lost(send)
        elif isinstance(error, ConnectionLost):
            send.mark_unknown()
            self._leader_lost(send)
        else:
            if isinstance(error, RequestTimeout):
                self._core.refresh_soon(send.target.queue.topic)
            send.mark_unknown()
            self._retry(send)

    def _refused(self, send: PendingSend, answer: Response) -> None:
        code = answer.code
        if code == ResponseCode.SERVICE_NOT_AVAILABLE:
            self._not_leader(send, answer.ext.get(LEADER_HINT))
        elif code == ResponseCode.SYSTEM_ERROR:  # may have been stored (safety.md S24: outcome unknown)
            send.mark_unknown()
            self._retry(send)
        elif code in BUSY:
            if send.unknown:
                self._wait_for_the_broker(send)
            else:
                self._retry(send, self.options.busy_pause_s * 2**send.tries, answer)
        elif code in ELSEWHERE:
            self._core.refresh_soon(send.target.queue.topic)
            self._retry(send, self.options.busy_pause_s, answer)
        else:
            self._finish(send, refused_send(answer))

    def _retry(self, send: PendingSend, pause_s: float = 0.0, refusal: Response | None = None) -> None:
        """Try again, at another broker if possible. If the attempts or the time are used up, end the message.

        If latencies are recorded, the broker group is marked as failed. A lost leader is not handled in this
        function: its group is skipped while it has no leader, and afterwards it counts as no slower than
        before.
        """
        if self.faults is not None:
            self.faults.update(
                send.target.queue.broker_name, self._loop.time() - send.sent_at, isolation=True
            )
        send.tries += 1
        if send.tries > self.options.retry_times or self._loop.time() + pause_s >= send.deadline:
            if refusal is not None and not send.unknown:
                self._finish(send, SendFailed(refused_text(refusal.code, refusal.remark), refusal.code))
            else:
                self._give_up(send)
        elif self._move(send) or not pause_s:
            self._again(send)
        else:
            self._pausing[send.serial] = send
            self._loop.call_later(pause_s, self._again, send)

    def _wait_for_the_broker(self, send: PendingSend) -> None:
        """Send a message to the same broker again after a pause. Its outcome is unknown, and the broker is
        too busy to say whether it already has the message. This does not count as a failed attempt. It is
        repeated until the time of the message is over, because only this broker group knows the outcome."""
        if self._loop.time() + self.options.busy_pause_s >= send.deadline:
            self._give_up(send)
        else:
            self._pausing[send.serial] = send
            self._loop.call_later(self.options.busy_pause_s, self._again, send)

    def _move(self, send: PendingSend) -> bool:
        """Choose a queue of another broker for a message. Returns False if there is none, or if the
        application chose the queue. Also False if the outcome is unknown (unless `resend_elsewhere` is set),
        because only its own group knows whether it has the message."""
        stays = send.pinned or (send.unknown and not self.options.resend_elsewhere)
        other = None if stays else self._retarget(send)
        if other is None:
            return False
        send.target = other
        return True

    def _again(self, send: PendingSend) -> None:
        self._pausing.pop(send.serial, None)
        if send.finished:
            return
        if self._closed:
            self._give_up(send)
        else:
            self._go(send)

    def _not_leader(self, send: PendingSend, hint: str | None) -> None:
        """Handle a broker's answer that it is not the leader, so that the message is not stored. Its hint is
        followed, at most `MAX_HINTS` times."""
        lane = send.target.lane
        if hint and hint != send.addr and send.hints < MAX_HINTS and not lane.searching:
            send.hints += 1
            if lane.group.leader in (None, send.addr):
                self._core.leader_is(lane.group, hint)
            self._again(send)
        else:
            self._leader_lost(send)

    def _leader_lost(self, send: PendingSend) -> None:
        lane = send.target.lane
        self._core.leader_failed(lane.group, send.addr, send.target.queue.topic)
        if send.tries < self.options.retry_times and self._move(send):
            send.tries += 1
            self._again(send)
        elif lane.usable:  # the leader changed meanwhile
            self._again(send)
        else:
            self._park(send)

    # --- waiting for a leader, or its connection ------------------------------------------------------

    def _park(self, send: PendingSend) -> None:
        lane = send.target.lane
        lane.parked[send.serial] = send
        if not lane.searching:
            lane.searching = True
            self._core.spawn(self._search(lane), f"find the leader of {lane.group.name}")

    async def _search(self, lane: Lane) -> None:
        """Find a leader, and go on until every parked message was sent or has ended."""
        try:
            while lane.parked and not lane.closed:
                if lane.group.leader is None:
                    lane.crowded = False
                    await LeaderSearch(self._core, lane, self._give_up, self._settle).run()
                elif lane.crowded:
                    await asyncio.sleep(CROWDED_PAUSE_S)
                self._let_out(lane)
        finally:
            lane.searching = False
            ready, lane.parked = sorted(lane.parked.values(), key=by_serial), {}
            for send in ready:
                self._again(send)

    def _let_out(self, lane: Lane) -> None:
        """Send parked messages, in order, for as long as the leader's connection accepts them."""
        crowded, lane.crowded = lane.crowded, False
        leader = lane.group.leader
        if leader is None or lane.closed:
            return
        now = self._loop.time()
        for serial in sorted(lane.parked):
            send = lane.parked[serial]
            if send.deadline <= now:  # the oldest come first
                if not crowded or send.unknown:
                    self._give_up(send)
                    continue
                limit_s = self.options.timeout_s
                why = f"the connection to {leader} did not take the message within {limit_s:g} s"
                self._finish(send, Overflow(f"{why}; it is not stored: send less at a time"))
            elif self._core.remoting.has_room(leader, len(send.body)):
                del lane.parked[serial]
                self._transmit(send, leader)
            else:
                lane.crowded = True
                return

    def _settle(self, send: PendingSend, outcome: Outcome) -> None:
        """Handle the answer to the message that the search for the leader sent."""
        if isinstance(outcome, Response) and outcome.code in STORED:
            self._stored(send, outcome)
        else:  # after the search, so that it is sent with the parked messages
            self._loop.call_soon(self._failed, send, outcome)

    # --- suspicion ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look for messages that have waited too long for an answer. The host of their broker may be down
        without anybody having noticed."""
        self._watching = None
        now = self._loop.time()
        busy = False
        for lane in self._lanes.values():
            if not lane.in_flight:
                continue
            busy = True
            oldest = next(iter(lane.in_flight.values()))
            if now - oldest.sent_at < self.options.suspicion_s:
                continue
            if lane.group.leader in (None, oldest.addr):
                self._core.refresh_soon(oldest.target.queue.topic)
            else:
                self._abandon(lane, now)
        if busy:
            self._watching = self._loop.call_later(self.options.suspicion_s / 2, self._watch)

    def _abandon(self, lane: Lane, now: float) -> None:
        """After a leader change, send again those messages that the old leader has not answered for long.
        They go to the new leader, marked as copies."""
        stale = [
            send
            for send in lane.in_flight.values()
            if send.addr != lane.group.leader and now - send.sent_at >= self.options.suspicion_s
        ]
        for send in sorted(stale, key=by_serial):
            del lane.in_flight[send.serial]
            send.attempt += 1
            send.last_error = f"{send.addr} did not answer, {lane.group.leader} is the leader now"
            send.mark_unknown()
            self._again(send)

    async def close(self) -> None:
        """End every message in flight with an error. A second call does nothing.

        A message that has not left this process is certainly not stored, and its error says so. A message
        that was sent and not answered has an unknown outcome.
        """
        if self._closed:
            return
        self._closed = True
        self._max_pending = 0  # no further message is accepted
        self._room.set()
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        for lane in self._lanes.values():
            lane.closed = True
        self._core.remoting.drop_unsent("the producer was closed")
        try:
            await next_turn()  # a search learns that its message was not sent
        finally:
            self._give_up_all()

    def _give_up_all(self) -> None:
        for lane in self._lanes.values():
            asked = [*lane.in_flight.values(), *([lane.probe] if lane.probe is not None else [])]
            for send in asked:
                send.unknown = True
            parked, lane.parked, lane.probe = lane.parked, {}, None
            for send in sorted([*asked, *parked.values()], key=by_serial):
                self._give_up(send)
        for send in [*self._pausing.values()]:
            self._give_up(send)
        chained = [send for chain in self._chains.values() for send in chain]
        for send in sorted(chained, key=by_serial):
            self._give_up(send)

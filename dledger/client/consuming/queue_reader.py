"""Reading one queue by long polling, from the leader, across leader changes."""

from __future__ import annotations

import asyncio
from typing import Protocol

from dledger.client.broker_group import LEADER_HINT, LEADER_ID, BrokerGroup
from dledger.client.callback_failures import Failures
from dledger.client.consuming.consume_hooks import filtered
from dledger.client.consuming.consumer_options import PullOptions
from dledger.client.consuming.subscription import Subscription
from dledger.client.core import ClientCore
from dledger.client.encoding import received_all
from dledger.client.errors import LibraryMissing, refused_text
from dledger.client.message import MessageQueue, ReceivedMessage
from dledger.formats.record import CorruptRecord
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import BadHeader, RemotingError, RequestTimeout
from dledger.remoting.headers import (
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageHeader,
    PullMessageResponseHeader,
)

OFFSET_RESET = "OFFSET_RESET"
"""Remark of a broker when somebody else set the offset of the group (GetMessageStatus)."""


class Sink(Protocol):
    """Receives pulled messages."""

    async def room(self) -> None:
        """Wait until more may be pulled."""

    def put(self, messages: list[ReceivedMessage], next_offset: int) -> None:
        """Take pulled messages that match the subscription, in order; there may be none. The next pull begins
        at `next_offset`."""

    def moved(self, next_offset: int) -> None:
        """Continue at `next_offset`, which the broker named because the requested offset was outside of the
        queue."""

    def reset(self, next_offset: int) -> None:
        """Continue at `next_offset` because somebody else (such as an operator) has set the group's offset.
        Messages that were pulled before no longer count."""


class QueueReader:
    """Pulls one queue for one group until cancelled; `next_offset` is where the next pull begins.

    A pull goes to the leader (or to the broker that an answer suggests). When the leader is lost, the
    NameServers and the other brokers of the group are asked at once, and again after short pauses. A pull
    that an old leader still holds is cancelled as soon as a new leader is known.
    """

    def __init__(
        self,
        core: ClientCore,
        consumer_group: str,
        queue: MessageQueue,
        subscription: Subscription,
        options: PullOptions,
        start: int,
        sink: Sink,
    ) -> None:
        self.queue = queue
        self.next_offset: int = start
        self.pull_s: float = 0.0
        """How long the last pull took, in seconds. This includes the time for which the broker waited for
        messages."""
        self._core = core
        self._consumer_group = consumer_group
        self.subscription: Subscription = subscription
        """The messages that are wanted. Code that changes it while `run` is running must restart `run`."""
        self._options = options
        self._sink = sink
        self._group: BrokerGroup = core.group(queue.broker_name)
        self._broker_id = LEADER_ID
        self._turn = 0
        self._pause = core.options.search_first_s
        self._last_refusal: int | None = None
        self._failures = Failures(core.log)

    async def run(self) -> None:
        """Pull until cancelled."""
        while True:
            await self._sink.room()
            address = self._where()
            if address is None:
                await self._look_for_leader()
                continue
            outcome = await self._pull(address)
            if outcome is None:
                self._broker_id = LEADER_ID
                continue
            if isinstance(outcome, RemotingError):
                self._core.log.debug("pull failed", queue=self.queue, error=outcome)
                self._broker_id = LEADER_ID
                if not isinstance(outcome, RequestTimeout):
                    self._core.leader_failed(self._group, address, self.queue.topic)
                await self._look_for_leader()
            else:
                await self._answered(outcome, address)

    def _where(self) -> str | None:
        """The broker to pull from. While no leader is known, the group's addresses are used in turn."""
        group = self._group
        if group.leader is not None:
            return group.address_of(self._broker_id)
        candidates = group.candidates()
        return candidates[self._turn % len(candidates)] if candidates else None

    async def _pull(self, address: str) -> Response | RemotingError | None:
        options, subscription = self._options, self.subscription
        header = PullMessageHeader(
            consumerGroup=self._consumer_group,
            topic=self.queue.topic,
            queueId=self.queue.queue_id,
            queueOffset=self.next_offset,
            maxMsgNums=options.batch_size,
            sysFlag=PULL_SUSPEND | PULL_SUBSCRIPTION,
            commitOffset=0,
            suspendTimeoutMillis=int(options.suspend_s * 1000),
            subVersion=subscription.version,
            subscription=subscription.expression,
            expressionType=subscription.kind,
        )
        began = self._core.now()
        try:
            return await self._core.long_poll(
                self._group, address, RequestCode.PULL_MESSAGE, header, options.timeout_s
            )
        except RemotingError as error:
            return error
        finally:
            self.pull_s = self._core.now() - began

    async def _look_for_leader(self) -> None:
        self._turn += 1
        await self._core.refresh_quietly(self.queue.topic)
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, self._core.options.search_longest_s)

    async def _answered(self, answer: Response, address: str) -> None:
        code = answer.code
        if code == ResponseCode.SERVICE_NOT_AVAILABLE:
            self._broker_id = LEADER_ID
            hint = answer.ext.get(LEADER_HINT)
            if hint and hint != address:
                self._core.leader_is(self._group, hint)
                await asyncio.sleep(self._pause)
            else:
                self._core.leader_failed(self._group, address, self.queue.topic)
                await self._look_for_leader()
            return
        if code not in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            await self._refused(code, answer.remark)
            return
        try:
            header = answer.header(PullMessageResponseHeader)
            messages = self._decode(answer.body) if code == ResponseCode.SUCCESS else []
        except (BadHeader, CorruptRecord) as error:
            await self._refused(code, f"the response cannot be read: {error}")
            return
        except LibraryMissing as error:  # wait, and deliver nothing that the application cannot read
            await self._unreadable(error)
            return
        self._pause = self._core.options.search_first_s
        self._last_refusal = None
        from_leader = address == self._group.leader or LEADER_HINT in answer.ext  # it was forwarded
        self._broker_id = header.suggestWhichBrokerId
        if code == ResponseCode.PULL_OFFSET_MOVED:
            if answer.remark == OFFSET_RESET:  # only a leader says so, and maybe only once
                self.next_offset = header.nextBeginOffset
                self._sink.reset(self.next_offset)
                return
            if not from_leader:  # a follower may be behind: only the leader knows the queue's range
                self._broker_id = LEADER_ID
                await self._look_for_leader()
                return
            self._core.log.warning(
                "offset is outside of the queue",
                queue=self.queue,
                wanted=self.next_offset,
                now=header.nextBeginOffset,
            )
            self.next_offset = header.nextBeginOffset
            self._sink.moved(self.next_offset)
        else:
            if code == ResponseCode.PULL_RETRY_IMMEDIATELY and not self.subscription.selective:
                # Everything is wanted, so nothing can have been filtered: the messages are gone.
                self._core.log.warning(
                    "messages skipped by the broker",
                    queue=self.queue,
                    start=self.next_offset,
                    end=header.nextBeginOffset,
                    reason=answer.remark,
                )
            self.next_offset = header.nextBeginOffset
            self._sink.put(messages, self.next_offset)

    def _decode(self, body: bytes) -> list[ReceivedMessage]:
        subscription = self.subscription
        wanted = received_all(body, self.queue.broker_name, self._core.options.namespace)
        if subscription.tags:
            wanted = [message for message in wanted if subscription.matches(message.tags)]
        return filtered(self._options.filters, wanted, self._failures) if self._options.filters else wanted

    async def _unreadable(self, error: LibraryMissing) -> None:
        if self._last_refusal is None:
            self._core.log.error(
                "messages wait until a library is installed", queue=self.queue, reason=str(error)
            )
        self._last_refusal = int(ResponseCode.SUCCESS)
        await asyncio.sleep(self._options.error_pause_s)

    async def _refused(self, code: int, remark: str | None) -> None:
        """Handle an error that has nothing to do with a leader change: log it once, and pause."""
        if code != self._last_refusal:
            self._last_refusal = code
            self._core.log.warning("pull refused", queue=self.queue, reason=refused_text(code, remark))
        self._core.refresh_soon(self.queue.topic)
        await asyncio.sleep(self._options.error_pause_s)

"""Reads ranges of queues from offset to offset, without a group's offsets: for jobs that keep track of their
position themselves.

Unlike a consumer it reports which messages exist (`bounds`), reads exactly what it is asked for, returns
records undecoded, and raises an error when messages are gone instead of skipping them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from dledger.client.broker_group import BrokerGroup
from dledger.client.bulk.patient_core import PatientCore
from dledger.client.consuming.offsets import QueueOffsets
from dledger.client.consuming.subscription import ALL
from dledger.client.errors import BrokerRefused, ClientError, NoBroker, refused_text
from dledger.client.lifecycle import AsyncClient
from dledger.client.message import MessageQueue
from dledger.client.name_servers import successful
from dledger.client.options import ClientOptions
from dledger.client.routes import subscribe_queues, topics_in_list
from dledger.formats import life
from dledger.remoting.bodies import KvTable, TopicList, decode_body
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import BadBody, BadHeader, RemotingError
from dledger.remoting.headers import (
    PULL_SUBSCRIPTION,
    PullMessageHeader,
    PullMessageResponseHeader,
    TopicConfigHeader,
)
from dledger.runtime import Env

K = TypeVar("K")
V = TypeVar("V")
CONCURRENT_ASKS = 64
"""At most this many offset requests are in flight at once."""
_NOT_YET_PAUSE_S = 0.02
_REMOVED = "MESSAGE_WAS_REMOVING"
_OURS = "raftTerm"
"""The name of a figure in the runtime info of brokers (request 28 GET_BROKER_RUNTIME_INFO). Only our brokers
report it."""

INDEX_ON = "messageIndexEnable=true"
"""Line of the settings of a broker that keeps an index of keys."""
OLDEST_TIME = "earliestMessageTimeStamp"
"""Runtime figure: the store time of the oldest entry of a broker's log, in ms since the epoch."""
KEYS_ON = "idempotencyKeys=true"
"""Line of the settings of a broker that looks up each message of a batch with idempotency keys."""


class OffsetsGone(ClientError):
    """The messages asked for are gone. `next_offset` is the offset of the oldest message that is still
    stored."""

    def __init__(self, text: str, next_offset: int) -> None:
        super().__init__(text)
        self.next_offset = next_offset


@dataclass(frozen=True)
class RangeOptions:
    """How ranges are pulled. Times are in seconds."""

    consumer_group: str
    """Consumer group that the requests name, because brokers need one. Its offsets are neither read nor
    changed."""
    batch_size: int = 1024
    """Largest number of messages in one pull; brokers have limits of their own."""
    timeout_s: float = 30.0
    """How long one pull may look for a leader, or wait for messages that should exist."""
    client: ClientOptions | None = None
    """Settings of the client, such as its account and TLS. None means those of the environment."""
    skip_removed: bool = False
    """Whether to skip messages that retention deleted. If it is False, a pull raises OffsetsGone in this
    case."""


class RangeReader(AsyncClient):
    """Lists queues and pulls from them; `async with` opens and closes its connections."""

    def __init__(self, namesrv: str | Sequence[str], options: RangeOptions, env: Env | None = None) -> None:
        self.options = options
        client = replace(options.client or ClientOptions(), failover_timeout_s=options.timeout_s)
        super().__init__(PatientCore(env, namesrv, client), "range reader")
        self.offsets: QueueOffsets = QueueOffsets(self._core)

    async def broker_groups(self) -> list[str]:
        """The names of all broker groups that a NameServer knows, sorted. Raises NoNameServer."""
        return sorted(await self._core.cluster())

    async def topics(self) -> list[str]:
        """All topics that any NameServer knows, sorted. Raises NoNameServer or BrokerRefused."""
        return await self._topic_list(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)

    async def system_topics(self) -> list[str]:
        """Topics that brokers create for themselves, according to the NameServers; the list also contains the
        names of clusters and brokers."""
        return await self._topic_list(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic. Raises TopicNotFound or NoNameServer."""
        return subscribe_queues(topic, await self._core.route(topic))

    async def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        """For each queue: the offset of its oldest message, and the offset that its next message will get."""
        lowest = await self._each(queues, self.offsets.lowest)
        highest = await self._each(queues, self.offsets.highest)
        return {queue: (low, highest[queue]) for queue, low in lowest.items()}

    async def at_time(self, queues: Iterable[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        """For each queue: the offset of the first message stored at or after a time, in ms since the
        epoch."""
        return await self._each(queues, lambda queue: self.offsets.search(queue, timestamp_ms))

    async def lives(self, queues: Iterable[MessageQueue]) -> dict[tuple[str, str], str]:
        """Ask the leaders which lives the topics of these queues have (`formats.life`): (topic, broker group)
        -> life. It changes when the topic is deleted and made again.

        A topic is missing in the result if its group does not have it, or if the broker does not report
        lives, as Apache's brokers. Raises NoBroker, BrokerRefused.
        """

        async def ask(place: tuple[str, str]) -> str | None:
            topic, group = place
            header = TopicConfigHeader(topic, byLeader=True)
            code = RequestCode.GET_TOPIC_CONFIG
            answer = await self._core.invoke_leader(self._core.group(group), topic, code, header)
            if answer.code not in _LIFE_ANSWERS:
                text = refused_text(answer.code, answer.remark)
                raise BrokerRefused(f"life of topic {topic} in {group}: {text}", answer.code)
            return answer.ext.get(life.FIELD)

        answers = await self._each({(queue.topic, queue.broker_name): None for queue in queues}, ask)
        return {place: found for place, found in answers.items() if found is not None}

    async def keeps_order(self, group: str) -> bool:
        """Whether store times never decrease in the queues of a broker group. True for our brokers, whose log
        guarantees this.

        Other brokers take store times from their own clock, which may be behind the clock of the leader
        before them. Raises NoBroker or BrokerRefused.
        """
        found = self._core.group(group)
        answer = await self._core.invoke_leader(found, None, RequestCode.GET_BROKER_RUNTIME_INFO, None)
        if answer.code != ResponseCode.SUCCESS:
            return False
        try:
            return _OURS in decode_body(answer.body, KvTable, "table of runtime figures").table
        except BadBody as error:
            raise BrokerRefused(f"runtime figures of {group}: {error.remark}") from error

    async def recognise_resends(self, groups: Iterable[str]) -> dict[str, bool | None]:
        """Ask all registered brokers of these broker groups whether they recognise each message that is sent
        again with an idempotency key: address -> answer. They do if they are brokers of this project, not of
        an older version, and keep an index of keys (`messageIndexEnable`).

        The answer is None for a broker that cannot be reached, or that refuses to show its settings. Raises
        NoNameServer.
        """

        def read(answer: Response) -> bool | None:
            if answer.code != ResponseCode.SUCCESS:
                return None
            lines = answer.body.decode("utf-8", "replace").splitlines()
            return INDEX_ON in lines and KEYS_ON in lines

        return await self._each_broker(groups, RequestCode.GET_BROKER_CONFIG, read)

    async def oldest_times(self, groups: Iterable[str]) -> dict[str, int | None]:
        """Ask all registered brokers of these broker groups for the store time of the oldest entry of their
        log, in ms since the epoch: address -> answer. What was stored later is still in the log.

        The answer is None for a broker that cannot be reached, or that does not say it. Raises NoNameServer.
        """

        def read(answer: Response) -> int | None:
            if answer.code != ResponseCode.SUCCESS:
                return None
            try:
                table = decode_body(answer.body, KvTable, "table of runtime figures").table
            except BadBody:
                return None
            text = table.get(OLDEST_TIME, "")
            return int(text) if text.isdecimal() else None

        return await self._each_broker(groups, RequestCode.GET_BROKER_RUNTIME_INFO, read)

    async def _each_broker(
        self, groups: Iterable[str], code: RequestCode, read: Callable[[Response], V | None]
    ) -> dict[str, V | None]:
        """Send a request without a header to all registered brokers of these groups, and return what `read`
        makes of the answers: None for brokers that cannot be reached. Raises NoNameServer."""
        known = await self._core.cluster()

        async def ask(address: str) -> V | None:
            timeout = self._core.options.request_timeout_s
            try:
                return read(await self._core.remoting.invoke(address, code, None, b"", timeout))
            except RemotingError:
                return None

        wanted = [known[group].brokerAddrs.values() for group in dict.fromkeys(groups) if group in known]
        return await self._each(list(dict.fromkeys(chain.from_iterable(wanted))), ask)

    async def _each(self, places: Iterable[K], ask: Callable[[K], Awaitable[V]]) -> dict[K, V]:
        """Ask for each place, at most `CONCURRENT_ASKS` at a time. Return the answers by place."""
        free = asyncio.Semaphore(CONCURRENT_ASKS)

        async def one(place: K) -> V:
            async with free:
                return await ask(place)

        known = list(places)
        return dict(zip(known, await asyncio.gather(*map(one, known)), strict=True))

    async def _topic_list(self, code: RequestCode) -> list[str]:
        answers = successful(await self._core.ask_namesrvs(code, None, topics_in_list))
        try:
            lists = [decode_body(answer.body, TopicList, "list of topics").topicList for answer in answers]
            return sorted(set(chain.from_iterable(lists)))
        except BadBody as error:
            raise BrokerRefused(f"the list of topics from the NameServer cannot be read: {error}") from error

    async def pull(
        self, queue: MessageQueue, start: int, end: int, expression: str = ALL
    ) -> AsyncIterator[bytes]:
        """Pull the records of the messages with offsets [start, end) and with these tags. Each yielded value
        is the body of one answer, with its records one after the other.

        The last body may also hold messages after `end`. Raises OffsetsGone if retention deleted some of the
        messages, NoBroker or BrokerRefused.
        """
        core = self._core
        group = core.group(queue.broker_name)
        at = start
        deadline = core.now() + self.options.timeout_s
        while at < end:
            answer = await self._ask(group, queue, at, end, expression)
            if answer.code not in _PULL_ANSWERS:
                text = refused_text(answer.code, answer.remark)
                raise BrokerRefused(f"pull of {queue} at {at}: {text}", answer.code)
            try:
                header = answer.header(PullMessageResponseHeader)
            except BadHeader as error:
                raise BrokerRefused(f"pull of {queue} at {at}: {error.remark}") from error
            removed = answer.remark == _REMOVED or (
                answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and expression == ALL
            )
            if removed or answer.code == ResponseCode.PULL_OFFSET_MOVED:
                behind = max(header.nextBeginOffset, header.minOffset)
                if not self.options.skip_removed or behind <= at:
                    has = f"the broker has {header.minOffset} to {header.maxOffset}"
                    raise OffsetsGone(f"{queue}: offset {at} does not exist; {has}", behind)
                at = behind
                continue
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                if core.now() > deadline:
                    raise NoBroker(
                        f"{queue}: no message with offset {at} within {self.options.timeout_s:g} s"
                    )
                await asyncio.sleep(_NOT_YET_PAUSE_S)
                continue
            at = header.nextBeginOffset
            deadline = core.now() + self.options.timeout_s
            if answer.code == ResponseCode.SUCCESS:
                yield answer.body

    async def _ask(
        self, group: BrokerGroup, queue: MessageQueue, at: int, end: int, expression: str
    ) -> Response:
        header = PullMessageHeader(
            consumerGroup=self.options.consumer_group,
            topic=queue.topic,
            queueId=queue.queue_id,
            queueOffset=at,
            maxMsgNums=min(self.options.batch_size, end - at),
            sysFlag=PULL_SUBSCRIPTION,
            commitOffset=0,
            suspendTimeoutMillis=0,
            subVersion=0,
            subscription=expression,
            expressionType="TAG",
        )
        return await self._core.invoke_leader(group, queue.topic, RequestCode.PULL_MESSAGE, header)


_LIFE_ANSWERS = (
    ResponseCode.SUCCESS,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    ResponseCode.NO_PERMISSION,
)
_PULL_ANSWERS = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)

"""Asks the leader of a broker group for its state: its topics, its consumer groups with their offsets, and
the ends of its queues.

The whole state comes from one broker, which was the leader before and after the reading. It is not a snapshot
of one moment, because the module asks for the topics and groups first, and then for the offsets queue by
queue. Our brokers do not know request 43 GET_ALL_CONSUMER_OFFSET. So the module asks for the offset of each
group in each queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from dledger.client.bulk.patient_core import PatientCore
from dledger.client.bulk.ranges import CONCURRENT_ASKS
from dledger.client.core import ClientCore
from dledger.client.errors import BrokerRefused, ClientError, NoBroker, refused_text
from dledger.client.options import ClientOptions
from dledger.remoting.bodies import SubscriptionGroupConfig, SubscriptionGroupTable, decode_body
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import BadBody, BadHeader, RemotingError
from dledger.remoting.frames import Fields
from dledger.remoting.headers import (
    GetAllSubscriptionGroupHeader,
    GetAllTopicConfigHeader,
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
)
from dledger.remoting.registration import TopicConfig, decode_topic_table
from dledger.runtime.loops import LoopThread

T = TypeVar("T")

_NODE = "dLegerSelfId="
"""Prefix of the line with the node id in the properties of a broker."""


@dataclass
class GroupState:
    """The state of a broker group. `address` is the address of the broker that answered, and `node` is that
    broker's node id (empty if the broker does not report one).

    `ends` maps (topic, queue id) to the offset of the next message, for queues that ever had a message.
    `offsets` maps a consumer group to a dict from (topic, queue id) to the group's committed offset.
    """

    group: str
    address: str
    node: str
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    groups: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    offsets: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)


def group_state(
    namesrv: str | Sequence[str], group: str, timeout_s: float, client: ClientOptions | None = None
) -> GroupState:
    """Read the state of one broker group, blocking. Raises NoBroker if no leader is found within `timeout_s`,
    ClientError for an unknown group, NoNameServer or BrokerRefused."""
    thread = LoopThread(f"state of {group}")
    try:
        return thread.run(
            _state(namesrv, group, replace(client or ClientOptions(), failover_timeout_s=timeout_s))
        )
    finally:
        thread.close()


async def _state(namesrv: str | Sequence[str], group: str, options: ClientOptions) -> GroupState:
    async with PatientCore(None, namesrv, options) as core:
        return await ask_state(core, group)


async def ask_state(core: ClientCore, name: str) -> GroupState:
    """Read the state of one broker group, as a coroutine. If the leader changes during the reading, the
    reading starts again at the new leader."""
    known = await core.cluster()
    if name not in known:
        raise ClientError(
            f"no broker group {name!r} is registered; registered are {', '.join(known) or 'none'}"
        )
    group = core.group(name)
    deadline = core.now() + core.options.failover_timeout_s
    while True:
        await core.invoke_leader(group, None, RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(name, 0))
        address = group.leader
        if address is not None:
            try:
                return await _Asking(core, name, address).all()
            except _Moved as moved:
                core.leader_failed(group, address, None)
                last = str(moved)
        else:
            last = "the NameServers know no leader of it"  # another broker answered: they will
        if core.now() >= deadline:
            raise NoBroker(
                f"no broker of {name} kept leadership long enough to be read ({last}): "
                "look at /health of the brokers"
            )
        await asyncio.sleep(core.options.search_longest_s)
        await core.refresh_quietly(None)


class _Moved(Exception):
    """The broker does not answer, or is no longer the leader."""


class _Asking:
    """One attempt to read the state from one broker."""

    def __init__(self, core: ClientCore, group: str, address: str) -> None:
        self._core = core
        self._group = group
        self._address = address

    async def all(self) -> GroupState:
        """Read the whole state. Raises _Moved or BrokerRefused."""
        await self._check_leads()
        found = GroupState(self._group, self._address, await self._node())
        found.topics = await self._topics()
        found.groups = await self._groups()
        queues = [
            (topic, queue_id)
            for topic, config in sorted(found.topics.items())
            for queue_id in range(max(config.readQueueNums, config.writeQueueNums))
        ]
        ends = await _each(queues, self._end)
        found.ends = {queue: end for queue, end in ends if end}
        # Also for queues without messages, because somebody may have set the group's offset there.
        wanted = ((consumer, *queue) for consumer in sorted(found.groups) for queue in queues)
        for (consumer, topic, queue_id), offset in await _each(wanted, self._offset):
            found.offsets.setdefault(consumer, {})[topic, queue_id] = offset
        await self._check_leads()
        return found

    async def _check_leads(self) -> None:
        """Raise _Moved if the broker is not the leader, or does not answer. For this it sends a request that
        only a leader answers, and ignores the content of the answer."""
        await self._answer(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(self._group, 0))

    async def _node(self) -> str:
        answer = await self._answer(RequestCode.GET_BROKER_CONFIG, None)
        lines = answer.body.decode("utf-8", "replace").splitlines() if answer.code == 0 else []
        return next((line.removeprefix(_NODE) for line in lines if line.startswith(_NODE)), "")

    async def _topics(self) -> dict[str, TopicConfig]:
        answer = await self._done(RequestCode.GET_ALL_TOPIC_CONFIG, GetAllTopicConfigHeader())
        try:
            table = decode_topic_table(answer.body).topicConfigTable
        except BadBody as error:
            raise BrokerRefused(f"{self._address}: topics: {error.remark}") from error
        return self._whole(table, answer, "totalTopicNum")

    async def _groups(self) -> dict[str, SubscriptionGroupConfig]:
        answer = await self._done(
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GetAllSubscriptionGroupHeader()
        )
        try:
            table = decode_body(answer.body, SubscriptionGroupTable, "table of consumer groups")
        except BadBody as error:
            raise BrokerRefused(f"{self._address}: {error.remark}") from error
        return self._whole(table.subscriptionGroupTable, answer, "totalGroupNum")

    def _whole(self, table: dict[str, T], answer: Response, counted: str) -> dict[str, T]:
        """Return the table of an answer. `counted` is the header field with the total number of entries.
        Raises BrokerRefused if the table has fewer, because newer brokers return large tables in parts."""
        total = answer.ext.get(counted, "")
        if total.isdecimal() and int(total) > len(table):
            raise BrokerRefused(f"{self._address}: {counted} is {total}, but {len(table)} were received")
        return table

    async def _end(self, queue: tuple[str, int]) -> int | None:
        return self._number(await self._done(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(*queue)))

    async def _offset(self, place: tuple[str, str, int]) -> int | None:
        header = QueryConsumerOffsetHeader(*place, setZeroIfNotFound=False)
        answer = await self._answer(RequestCode.QUERY_CONSUMER_OFFSET, header)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return self._number(self._checked(answer, RequestCode.QUERY_CONSUMER_OFFSET))

    def _number(self, answer: Response) -> int:
        try:
            return answer.header(OffsetResponseHeader).offset
        except BadHeader as error:
            raise BrokerRefused(f"{self._address}: {error.remark}") from error

    async def _done(self, code: RequestCode, header: Fields) -> Response:
        return self._checked(await self._answer(code, header), code)

    def _checked(self, answer: Response, code: RequestCode) -> Response:
        if answer.code != ResponseCode.SUCCESS:
            text = refused_text(answer.code, answer.remark)
            raise BrokerRefused(f"{code.name} of {self._address}: {text}", answer.code)
        return answer

    async def _answer(self, code: RequestCode, header: Fields) -> Response:
        timeout = self._core.options.request_timeout_s
        try:
            answer = await self._core.remoting.invoke(self._address, code, header, b"", timeout)
        except RemotingError as error:
            raise _Moved(error.remark) from error
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            raise _Moved(f"14 {answer.remark or ''} from {self._address}")
        return answer


async def _each(places: Iterable[T], ask: Callable[[T], Awaitable[int | None]]) -> list[tuple[T, int]]:
    """Call `ask` for each place; returns the pairs (place, answer), without the answers that are None."""
    found: list[tuple[T, int]] = []
    waiting: Iterator[T] = iter(places)
    while some := list(islice(waiting, CONCURRENT_ASKS)):
        answers = await asyncio.gather(*map(ask, some))
        found += [(place, answer) for place, answer in zip(some, answers, strict=True) if answer is not None]
    return found

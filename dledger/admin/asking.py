"""Sends one request to one server and checks the answer; lists the brokers of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from dledger.client.core import ClientCore
from dledger.client.errors import (
    BrokerRefused,
    ClientError,
    NoBroker,
    TopicNotFound,
    outcome_unknown,
    refused_text,
)
from dledger.client.name_servers import Size
from dledger.client.routes import groups_in_cluster, merge_clusters, topics_in_list
from dledger.formats import life
from dledger.remoting.bodies import MASTER_ID, BrokerData, ClusterInfo, TopicList, TopicRoute
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import BadBody, ConnectFailed, RemotingError, WrongTls
from dledger.remoting.frames import Fields
from dledger.remoting.operator_bodies import decode_plain

T = TypeVar("T")

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LOOK_S = 0.1
"""Pause between two attempts to find a master, in seconds."""


NO_REMARK = "not set any response code"
"""The remark that Apache's brokers send when they have nothing to report."""


class Refused(BrokerRefused):
    """A server answered with an error. `code` is the response code, `remark` is the server's own text,
    `address` is its address, and `what` names the request."""

    def __init__(self, what: str, address: str, code: int, remark: str | None) -> None:
        super().__init__(f"{what}: {address}: {refused_text(code, remark)}", code)
        self.what = what
        self.address = address
        self.remark: str = remark or ""


class NotReached(ClientError):
    """A server did not answer. If the request changes something, it may be carried out now or later."""


@dataclass(frozen=True)
class ClusterView:
    """The brokers that a NameServer knows."""

    info: ClusterInfo

    def clusters(self) -> list[str]:
        """Names of the clusters, sorted."""
        return sorted(self.info.clusterAddrTable)

    def groups(self, cluster: str | None = None) -> list[BrokerData]:
        """The broker groups of one cluster, or of all clusters. Raises ClientError for an unknown cluster."""
        known = self.info.clusterAddrTable
        if cluster is not None and cluster not in known:
            raise ClientError(
                f"there is no cluster {cluster!r}; the NameServer knows "
                f"{', '.join(self.clusters()) or 'none'}"
            )
        names = known[cluster] if cluster is not None else self.info.brokerAddrTable
        return [
            self.info.brokerAddrTable[name] for name in sorted(names) if name in self.info.brokerAddrTable
        ]

    def masters(self, cluster: str | None = None, broker_name: str | None = None) -> dict[str, str]:
        """Maps the name of a broker group to the address of its master: for one cluster, for one group, or
        for all groups. Raises NoBroker if one of these groups has no master at the moment."""
        found = [group for group in self.groups(cluster) if broker_name in (None, group.brokerName)]
        without = [group.brokerName for group in found if MASTER_ID not in group.brokerAddrs]
        if without or not found:
            what = ", ".join(without) or broker_name or "any broker"
            raise NoBroker(f"no master of {what} is registered: look at /health of its brokers")
        return {group.brokerName: group.brokerAddrs[MASTER_ID] for group in found}

    def addresses(self, cluster: str | None = None) -> list[str]:
        """Addresses of all brokers, masters before their slaves."""
        return [address for group in self.groups(cluster) for _, address in sorted(group.brokerAddrs.items())]

    def name_of(self, address: str) -> str:
        """Name of the broker group that an address belongs to. Raises ClientError if it is not registered."""
        for group in self.groups():
            if address in group.brokerAddrs.values():
                return group.brokerName
        raise ClientError(f"no broker is registered with the address {address}")

    def group(self, name: str) -> BrokerData:
        """One broker group. Raises ClientError if it is unknown."""
        found = self.info.brokerAddrTable.get(name)
        if found is None:
            known = ", ".join(sorted(self.info.brokerAddrTable)) or "none"
            raise ClientError(f"there is no broker {name!r}; the NameServer knows {known}")
        return found


class Asking:
    """Sends the requests of an operator. While the group of a broker has no leader, a request is repeated for
    up to `failover_timeout_s`."""

    def __init__(self, core: ClientCore) -> None:
        self.core = core
        self._known: dict[str, dict[str, None]] = {}
        """Maps the name of a broker group to all addresses that it has had so far."""

    async def broker(
        self,
        address: str,
        code: RequestCode,
        header: Fields = None,
        body: bytes = b"",
        *,
        accept: tuple[int, ...] = (),
        timeout_s: float | None = None,
    ) -> Response:
        """Ask one broker. Returns an answer with code 0 or with a code in `accept`. Raises Refused or
        NotReached."""
        core, options = self.core, self.core.options
        core.check_open()
        deadline = core.now() + options.failover_timeout_s
        pause = options.search_first_s
        while True:
            try:
                answer = await core.remoting.invoke(
                    address, code, header, body, timeout_s or options.request_timeout_s
                )
            except RemotingError as error:
                raise NotReached(f"{code.name}: {error.remark}") from error
            waits = answer.code == ResponseCode.SERVICE_NOT_AVAILABLE and core.now() + pause < deadline
            if not waits:
                return checked(code.name, address, answer, accept)
            await asyncio.sleep(pause)
            pause = min(2 * pause, options.search_longest_s)

    async def leader(
        self,
        address: str,
        code: RequestCode,
        header: Fields = None,
        body: bytes = b"",
        *,
        accept: tuple[int, ...] = (),
        timeout_s: float | None = None,
    ) -> Response:
        """Ask the leader of the group that this address belongs to. If no broker listens at the address any
        more, the NameServers are asked for the new master, for up to `failover_timeout_s`. Raises Refused or
        NotReached."""
        core = self.core
        deadline = core.now() + core.options.failover_timeout_s
        while True:
            try:
                return await self.broker(address, code, header, body, accept=accept, timeout_s=timeout_s)
            except NotReached as error:
                gone = isinstance(error.__cause__, ConnectFailed) and not isinstance(
                    error.__cause__, WrongTls
                )
                if not gone or core.now() + LOOK_S >= deadline:
                    raise
                address = await self._successor(address, deadline) or address
            await asyncio.sleep(LOOK_S)

    async def life(self, address: str, code: RequestCode, header: Fields) -> str | None:
        """The *life* of a topic or group: an id that distinguishes it from earlier and later topics or groups
        of the same name (`formats.life`). It comes from the leader's answer to the request `code`.

        A deletion that carries the life never deletes a later topic or group, however late it arrives. None
        if the name is unknown, or the broker does not report a life.
        """
        unsaid = (
            ResponseCode.TOPIC_NOT_EXIST,
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            ResponseCode.NO_PERMISSION,
        )
        answer = await self.leader(address, code, header, accept=unsaid)
        return answer.ext.get(life.FIELD)

    async def _successor(self, address: str, deadline: float) -> str | None:
        """Another master of the group that this address belongs to; None if none appears before
        `deadline`."""
        while self.core.now() + LOOK_S < deadline:
            for group in (await self.cluster()).groups():
                master = group.brokerAddrs.get(MASTER_ID)
                if address in self._known.get(group.brokerName, ()) and master not in (None, address):
                    return master
            await asyncio.sleep(LOOK_S)
        return None

    async def namesrvs(
        self, code: RequestCode, header: Fields, size: Size, *, accept: tuple[int, ...] = ()
    ) -> list[Response]:
        """Ask all NameServers and return the successful answers. Raises Refused if no answer is successful
        and one has a code that is not in `accept`. Raises NoNameServer if none answers."""
        answers = await self.core.ask_namesrvs(code, header, size)
        good = [answer for answer in answers if answer.code == ResponseCode.SUCCESS]
        if not good:
            for answer in answers:
                checked(code.name, "NameServer", answer, accept)
        return good

    async def topics(self) -> list[str]:
        """All topics that any NameServer knows (request 206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER), sorted."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        answers = await self.namesrvs(code, None, topics_in_list)
        lists = [read_body("topics", TopicList, answer.body).topicList for answer in answers]
        return sorted(set(chain.from_iterable(lists)))

    async def cluster(self) -> ClusterView:
        """The brokers that the NameServers know."""
        answers = await self.namesrvs(RequestCode.GET_BROKER_CLUSTER_INFO, None, groups_in_cluster)
        found = [read_body("cluster info", ClusterInfo, answer.body) for answer in answers]
        view = ClusterView(merge_clusters(found))
        for group in view.info.brokerAddrTable.values():
            self._known.setdefault(group.brokerName, {}).update(dict.fromkeys(group.brokerAddrs.values()))
        return view

    async def route(self, topic: str) -> TopicRoute:
        """The route of a topic. Raises TopicNotFound."""
        found = await self.core.refresh(topic)
        for group in found.brokerDatas:
            self._known.setdefault(group.brokerName, {}).update(dict.fromkeys(group.brokerAddrs.values()))
        return found

    async def places_of_group(self, group: str, topic: str | None = None) -> list[tuple[str, str]]:
        """Names of the broker groups that have a consumer group, each with the address to ask.

        They are the broker groups of the consumer group's retry topic, which is created with its first
        consumer. If there is no retry topic, they are those of `topic`; if that does not exist either, all
        broker groups.
        """
        for name in (RETRY_PREFIX + group, topic):
            if name is None:
                continue
            try:
                return list(masters_of(await self.route(name)))
            except TopicNotFound:
                continue
        found = (await self.cluster()).groups()
        return [(data.brokerName, at) for data in found for at in [master_of(data)] if at is not None]


def checked(what: str, address: str, answer: Response, accept: tuple[int, ...] = ()) -> Response:
    """Return the answer if its code is 0 or in `accept`. Raises Refused otherwise, and NotReached if the
    answer says that the outcome is unknown."""
    if outcome_unknown(answer):
        raise NotReached(f"{what}: {address}: {answer.remark}: it may be carried out, now or later")
    if answer.code != ResponseCode.SUCCESS and answer.code not in accept:
        raise Refused(what, address, answer.code, answer.remark)
    return answer


@contextmanager
def passing_over(*codes: int) -> Iterator[None]:
    """Context manager that ignores refusals with one of these codes, for example 206 CONSUMER_NOT_ONLINE."""
    try:
        yield
    except BrokerRefused as error:
        if error.code not in codes:
            raise


def read(what: str, decode: Callable[[bytes], T], data: bytes) -> T:
    """Decode a body. Raises BrokerRefused if it cannot be read."""
    try:
        return decode(data)
    except BadBody as error:
        raise BrokerRefused(f"{what}: the response cannot be read: {error.remark}") from error


def read_body(what: str, type_: type[T], data: bytes) -> T:
    """Decode a body of this type. Null may stand in place of a missing value. Raises BrokerRefused if it
    cannot be read."""
    return read(what, lambda body: decode_plain(body, type_, what), data)


def said(answer: Response) -> str:
    """The remark with which a server reports what it did; empty if there is nothing to report."""
    return "" if answer.remark in (None, NO_REMARK) else str(answer.remark)


def master_of(group: BrokerData) -> str | None:
    """The address at which to ask a broker group: its master's, or that of any broker if it has no master
    (BrokerData.selectBrokerAddr)."""
    return group.brokerAddrs.get(MASTER_ID) or next(iter(sorted(group.brokerAddrs.values())), None)


def masters_of(route: TopicRoute) -> Iterator[tuple[str, str]]:
    """Names of the broker groups of a route, each with the address to ask (`master_of`)."""
    for group in route.brokerDatas:
        address = master_of(group)
        if address is not None:
            yield group.brokerName, address

"""Pulls that arrive before their client's heartbeat. They wait a moment for this heartbeat.

A client pulls with a new subscription before each broker has received the heartbeat that contains the
subscription. If such a pull were refused at once (with 24 SUBSCRIPTION_NOT_EXIST or 25
SUBSCRIPTION_NOT_LATEST), Java clients would pull again only after 3 s. Then a consumer whose heartbeat goes
to many addresses would get nothing for a long time after its start.

Besides, Java clients never send two heartbeats at the same time. So it may happen that a new version of a
subscription is sent only with the next rebalance, 20 s later. Meanwhile the broker serves pulls that filter
by tags. A client that filters by properties is asked to rebalance (request 40 NOTIFY_CONSUMER_IDS_CHANGED),
so that it sends its heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dledger.broker.clients.client_table import Clients
from dledger.broker.filter.message_filter import TAG
from dledger.broker.requests import Call, LeaderCall
from dledger.remoting.bodies import Subscription
from dledger.remoting.codes import LanguageCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import PULL_CLASS_FILTER, PullMessageHeader

WAIT_S = 2.0
"""Seconds that a pull waits for the heartbeat. After this time it is refused because its subscription is
missing or old."""
MAX_WAITING = 10_000
"""Largest number of waiting pulls; one more is refused at once."""

_JAVA = LanguageCode.JAVA.name

PullCall = LeaderCall[PullMessageHeader]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    call: PullCall
    otherwise: RemotingError
    timer: asyncio.TimerHandle


def _compares(call: Call[PullMessageHeader], known: Subscription) -> bool:
    """Return whether a pull may be served although the broker knows only an older subscription of the client.

    It may be served if the pull and the known subscription both filter by tags and the client is written in
    Java, because Java clients compare the tags again themselves. Other clients may not do that. For example,
    ali-ons accepts every message that has no tags.
    """
    by_class = call.header.sysFlag & PULL_CLASS_FILTER or known.classFilterMode
    kinds = {call.header.expressionType or TAG, known.expressionType or TAG}
    return call.request.language == _JAVA and not by_class and kinds == {TAG}


class SubscriptionWait:
    """The pulls that wait for a heartbeat, by consumer group. `retry` is called for a pull when its group has
    sent the subscription."""

    def __init__(self, clients: Clients, retry: Callable[[PullCall], None]) -> None:
        self._clients = clients
        self._retry = retry
        self._waiting: dict[str, dict[int, _Waiting]] = {}
        self._serial = 0
        self.count: int = 0
        """Number of pulls that wait now."""
        clients.on_subscribed = self._heard

    def missing(self, call: Call[PullMessageHeader]) -> RemotingError | None:
        """Return an error if the heartbeats of the group do not contain the subscription of this pull, or
        contain only an older version of it. Returns None if the pull can be served."""
        header = call.header
        group = self._clients.consumers.get(header.consumerGroup)
        subscription = None if group is None else group.subscriptions.get(header.topic)
        if subscription is None:
            return RemotingError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
        if subscription.subVersion < header.subVersion and not _compares(call, subscription):
            return RemotingError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return None

    def wait(self, call: PullCall, otherwise: RemotingError) -> None:
        """Let a pull wait until its group has sent the subscription. After `WAIT_S` the pull is answered with
        the error `otherwise`. Raises this error at once if too many pulls wait."""
        if self.count >= MAX_WAITING:
            raise otherwise
        group, self._serial = call.header.consumerGroup, self._serial + 1
        if group not in self._waiting:
            self._clients.notify_over(group, call.connection)
        timer = asyncio.get_running_loop().call_later(WAIT_S, self._expired, group, self._serial)
        self._waiting.setdefault(group, {})[self._serial] = _Waiting(call, otherwise, timer)
        self.count += 1

    def take_all(self) -> list[PullCall]:
        """Remove and return all waiting pulls."""
        found = [(group, serial) for group, waiting in self._waiting.items() for serial in waiting]
        return [self._take(group, serial).call for group, serial in found]

    def _heard(self, group: str) -> None:
        waiting = self._waiting.get(group, {})
        ready = [serial for serial, one in waiting.items() if self.missing(one.call) is None]
        for serial in ready:
            self._retry(self._take(group, serial).call)

    def _expired(self, group: str, serial: int) -> None:
        late = self._take(group, serial)
        late.call.respond(late.otherwise.code or ResponseCode.SYSTEM_ERROR, remark=late.otherwise.remark)

    def _take(self, group: str, serial: int) -> _Waiting:
        waiting = self._waiting[group]
        one = waiting.pop(serial)
        if not waiting:
            del self._waiting[group]
        one.timer.cancel()
        self.count -= 1
        return one

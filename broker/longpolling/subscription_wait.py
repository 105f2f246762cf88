"""Pulls that are ahead of their client's heartbeat: they wait for it for a moment.

A client pulls by its new subscription before each broker has heard of it. Answered at once (24, 25), Java
clients pull again after 3 s, and a consumer whose heartbeat goes to many addresses gets nothing for long
after its start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dledger.broker.client.clients import Clients
from dledger.broker.requests import LeaderCall
from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import PullMessageHeader

WAIT_S = 2.0
"""How long a pull waits for the heartbeat; then it is answered that there was none."""
MAX_WAITING = 10_000
"""Pulls that wait; one more is answered at once."""

PullCall = LeaderCall[PullMessageHeader]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    call: PullCall
    otherwise: RemotingError
    timer: asyncio.TimerHandle


class SubscriptionWait:
    """Pulls by consumer group. `retry` gets those whose group has said what they ask by."""

    def __init__(self, clients: Clients, retry: Callable[[PullCall], None]) -> None:
        self._clients = clients
        self._retry = retry
        self._waiting: dict[str, dict[int, _Waiting]] = {}
        self._serial = 0
        self.count: int = 0
        """Pulls that wait now."""
        clients.on_subscribed = self._heard

    def missing(self, header: PullMessageHeader) -> RemotingError | None:
        """What the group's heartbeats have not said yet; None when they have."""
        group = self._clients.consumers.get(header.consumerGroup)
        subscription = None if group is None else group.subscriptions.get(header.topic)
        if subscription is None:
            return RemotingError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
        if subscription.subVersion < header.subVersion:
            return RemotingError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return None

    def wait(self, call: PullCall, otherwise: RemotingError) -> None:
        """Keep a pull until its group has said it; raises `otherwise` where too many wait."""
        if self.count >= MAX_WAITING:
            raise otherwise
        group, self._serial = call.header.consumerGroup, self._serial + 1
        timer = asyncio.get_running_loop().call_later(WAIT_S, self._expired, group, self._serial)
        self._waiting.setdefault(group, {})[self._serial] = _Waiting(call, otherwise, timer)
        self.count += 1

    def take_all(self) -> list[PullCall]:
        """Nothing waits any more; what did."""
        found = [(group, serial) for group, waiting in self._waiting.items() for serial in waiting]
        return [self._take(group, serial).call for group, serial in found]

    def _heard(self, group: str) -> None:
        waiting = self._waiting.get(group, {})
        ready = [serial for serial, one in waiting.items() if self.missing(one.call.header) is None]
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

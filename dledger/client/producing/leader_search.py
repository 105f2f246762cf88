"""Finds the leader of a broker group by sending it a message that has to be sent anyway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dledger.client.broker_group import LEADER_HINT
from dledger.client.core import ClientCore
from dledger.client.producing.pending_sends import Lane, Outcome, PendingSend, by_serial
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import (
    ConnectFailed,
    Overloaded,
    RemotingError,
    RequestTimeout,
    TooLarge,
    WrongTls,
)


class LeaderSearch:
    """One search for the leader of a broker group. It goes in rounds: each asks all addresses of the group
    once, and then the NameServers. Between rounds there are short pauses.

    `give_up` ends a message whose time is over. `settle` takes the leader's answer to a message, also an
    error that has nothing to do with leadership.
    """

    def __init__(
        self,
        core: ClientCore,
        lane: Lane,
        give_up: Callable[[PendingSend], None],
        settle: Callable[[PendingSend, Outcome], None],
    ) -> None:
        self._core = core
        self._lane = lane
        self._give_up = give_up
        self._settle = settle
        self._silent: dict[str, float] = {}  # address -> loop time until which it is not asked again

    async def run(self) -> None:
        """Search until the leader has answered, or no message is waiting."""
        options = self._core.options
        pause = options.search_first_s
        while self._expire() and not self._lane.closed and not await self._round():
            if self._lane.parked:
                oldest = self._lane.parked[min(self._lane.parked)]
                await self._core.refresh_quietly(oldest.target.queue.topic)
            await asyncio.sleep(pause * (0.75 + 0.5 * self._core.env.random.random()))
            pause = min(2 * pause, options.search_longest_s)

    def _expire(self) -> bool:
        """End messages whose time is over. Returns False if no message is waiting any more."""
        lane = self._lane
        now = self._core.now()
        overdue = [send for send in lane.parked.values() if send.deadline <= now]
        for send in sorted(overdue, key=by_serial):
            del lane.parked[send.serial]
            self._give_up(send)
        return bool(lane.parked)

    async def _round(self) -> bool:
        """Ask each address once; an address that an answer names as the leader is asked within the same
        round. Returns True if one of them is the leader."""
        lane = self._lane
        asked: list[str] = []
        while lane.parked and not lane.closed:
            addr = self._next_candidate(asked)
            if addr is None:
                return False
            asked.append(addr)
            send = lane.parked.pop(min(lane.parked))
            lane.probe = send
            outcome = await self._ask(send, addr)
            lane.probe = None
            if self._is_leader(send, addr, outcome):
                return True
        return False

    def _next_candidate(self, asked: list[str]) -> str | None:
        now = self._core.now()
        for addr in self._lane.group.candidates():
            if addr not in asked and self._silent.get(addr, 0.0) <= now:
                return addr
        return None

    async def _ask(self, send: PendingSend, addr: str) -> Outcome:
        send.addr = addr
        self._lane.resent += send.unknown
        longest = self._core.options.probe_timeout_s
        timeout = min(longest, max(send.deadline - self._core.now(), 0.001))
        try:
            return await self._core.remoting.invoke(addr, send.code, send.header(), send.body, timeout)
        except RemotingError as error:
            if isinstance(error, RequestTimeout) or (isinstance(error, ConnectFailed) and not error.refused):
                self._silent[addr] = self._core.now() + 2 * longest
            return error

    def _is_leader(self, send: PendingSend, addr: str, outcome: Outcome) -> bool:
        """Handle an answer, and return whether it came from the leader. Every answer except "not the leader"
        comes from the leader."""
        send.attempt += 1
        group = self._lane.group
        if isinstance(outcome, Response) and outcome.code != ResponseCode.SERVICE_NOT_AVAILABLE:
            self._core.leader_is(group, addr)
            self._settle(send, outcome)
            return True
        group.failed(addr)
        if isinstance(outcome, Response):
            send.last_error = f"{outcome.code} {outcome.remark or ''} from {addr}"
            hint = outcome.ext.get(LEADER_HINT)
            if hint and hint != addr:
                group.leader = hint
        elif isinstance(outcome, TooLarge | Overloaded | WrongTls):
            self._settle(send, outcome)
            return False
        else:
            send.last_error = outcome.remark
            if not isinstance(outcome, ConnectFailed):
                send.mark_unknown()
        if not send.finished:  # an abandoned attempt may have been answered meanwhile
            self._lane.parked[send.serial] = send
        return False

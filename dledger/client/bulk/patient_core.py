"""A client core that says when it waits for the leader of a broker group, so that no long read is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dledger.client.broker_group import BrokerGroup
from dledger.client.core import ClientCore
from dledger.client.options import ClientOptions
from dledger.remoting.commands import Response
from dledger.remoting.frames import Fields
from dledger.runtime import Env

SAID_AFTER_S = 2.5
"""How long no answer of a group's leader may come, in seconds, before the first line about it."""
SAID_EVERY_S = 10.0
"""Seconds between further lines."""


class PatientCore(ClientCore):
    """A core whose log has a warning while no leader of a group answers. Python writes warnings to standard
    error, unless the program has set up logging."""

    def __init__(self, env: Env | None, namesrv: str | Sequence[str] | None, options: ClientOptions) -> None:
        super().__init__(env, namesrv, options)
        self._waits: dict[str, _Wait] = {}

    async def invoke_leader(
        self,
        group: BrokerGroup,
        topic: str | None,
        code: int,
        header: Fields,
        body: bytes = b"",
        timeout_s: float | None = None,
        *,
        poll_s: float = 0.0,
        lost: list[str] | None = None,
    ) -> Response:
        """Send a request to the group's leader; see `ClientCore.invoke_leader`."""
        with self._waiting(group):
            return await super().invoke_leader(
                group, topic, code, header, body, timeout_s, poll_s=poll_s, lost=lost
            )

    @contextmanager
    def _waiting(self, group: BrokerGroup) -> Iterator[None]:
        wait = self._waits.setdefault(group.name, _Wait(self, group))
        wait.begin()
        answered = False
        try:
            yield
            answered = True
        finally:
            wait.end(answered)


class _Wait:
    """The open requests to the leader of one group, and the timer of the next line about them."""

    def __init__(self, core: PatientCore, group: BrokerGroup) -> None:
        self._core = core
        self._group = group
        self._open = 0
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._said = False

    def begin(self) -> None:
        """Count a request."""
        self._open += 1
        if self._timer is None:
            self._start(SAID_AFTER_S)

    def end(self, answered: bool) -> None:
        """Count the end of a request. After an answer the time begins anew for those that are still open."""
        self._open -= 1
        if answered and self._said:
            self._core.log.warning(
                "the leader answers again", group=self._group.name, waited_s=self._waited_s()
            )
        if answered or not self._open:
            self._stop()
        if self._open and self._timer is None:
            self._start(SAID_AFTER_S)

    def _start(self, after_s: float) -> None:
        self._since = self._core.now()
        self._timer = asyncio.get_running_loop().call_later(after_s, self._say)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._said = None, False

    def _say(self) -> None:
        self._core.log.warning(
            "no leader answers: waiting until a majority of the group's brokers runs",
            group=self._group.name,
            brokers=",".join(self._group.addresses.values()) or "none registered",
            waited_s=self._waited_s(),
            given_up_after_s=f"{self._core.options.failover_timeout_s:g}",
        )
        self._said = True
        self._timer = asyncio.get_running_loop().call_later(SAID_EVERY_S, self._say)

    def _waited_s(self) -> str:
        return f"{self._core.now() - self._since:.0f}"

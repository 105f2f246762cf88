"""Requests to NameServers: to one of them, or to all where the answer of one is not enough.

Each NameServer knows what brokers have told it. One that was started a moment ago knows nothing, and one
that a broker does not reach knows less than the others. So a topic, group or broker is unknown only when
every NameServer that answers says so, and lists are what all of them know together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dledger.client.address_hints import identify
from dledger.client.errors import BrokerRefused, NoNameServer, refused_text
from dledger.remoting.address_server import CLIENT_INTERVAL_S, NoAddresses, fetch_addresses
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import ConnectFailed, ConnectionLost, RemotingError, WrongTls
from dledger.remoting.frames import Fields
from dledger.runtime import Env
from dledger.runtime.log import Log

FURTHER_S = 0.2
"""How long further NameServers may take to answer when one of them has told something already."""

Size = Callable[[Response], int]
"""How much an answer tells, such as a number of broker groups; 0 when it says that nothing is known."""


class NameServers:
    """The NameServers of one client. The *current* one is asked first: whichever answered last."""

    def __init__(
        self,
        env: Env,
        remoting: RemotingClient,
        log: Log,
        addresses: tuple[str, ...],
        address_server: str,
        timeout_s: float,
    ) -> None:
        """`timeout_s`: what one NameServer has to answer."""
        self._env = env
        self._remoting = remoting
        self._log = log
        self.addresses: tuple[str, ...] = addresses
        self._address_server = address_server
        self._timeout_s = timeout_s
        self.current: int = env.random.randrange(len(addresses)) if addresses else 0
        """Index in `addresses`."""
        self._asking = asyncio.Lock()
        self._found = False
        """Whether any has ever answered."""
        self._silent: dict[str, None] = {}
        """Those that gave no answer when they were asked last."""
        self._hints: dict[str, str | None] = {}

    async def ask(self, code: int, header: Fields) -> Response:
        """An answer from the current NameServer, or from the next one that answers; NoNameServer."""
        if not self.addresses:
            await self._first_addresses()
        failures: dict[str, RemotingError] = {}
        addresses, first = self.addresses, self.current
        for turn in range(len(addresses)):
            at = (first + turn) % len(addresses)
            try:
                return await self._ask_at(addresses[at], code, header)
            except RemotingError as error:
                failures[addresses[at]] = error
            if self.addresses is addresses and self.current == at:  # else another call has gone on already
                self.current = (at + 1) % len(addresses)
        raise NoNameServer(await self._why_none(failures))

    async def ask_all(self, code: int, header: Fields, size: Size) -> list[Response]:
        """The answers of all NameServers that answer, that of the current one first; NoNameServer.

        As long as no answer tells anything, every NameServer has its whole time. After that the others have
        `FURTHER_S`. The one that tells most becomes the current one.
        """
        if len(self.addresses) == 1:
            return [await self.ask(code, header)]
        if not self.addresses:
            await self._first_addresses()
        addresses, first = self.addresses, self.current
        order = [*addresses[first:], *addresses[:first]]
        answers: dict[str, Response] = {}
        failures: dict[str, RemotingError] = {}

        async def one(address: str) -> None:
            try:
                answers[address] = await self._ask_at(address, code, header)
            except RemotingError as error:
                failures[address] = error

        async with asyncio.TaskGroup() as group:
            tasks = {
                address: group.create_task(one(address), name=f"ask NameServer {address}")
                for address in order
            }
            while (left := _left(tasks)) and not any(map(size, answers.values())):
                await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            expected = {address: task for address, task in tasks.items() if address not in self._silent}
            if left := _left(expected):
                await asyncio.wait(left, timeout=FURTHER_S)
            for address, task in tasks.items():
                if not task.done():
                    self._silent[address] = None
                    task.cancel()
        if not answers:
            raise NoNameServer(await self._why_none(failures))
        found = [address for address in order if address in answers]
        best = max(found, key=lambda address: size(answers[address]))
        if self.addresses is addresses and (self.current == first or addresses[self.current] not in answers):
            self.current = addresses.index(best)
        return [answers[address] for address in found]

    async def _ask_at(self, address: str, code: int, header: Fields) -> Response:
        """RemotingError also where something else than a NameServer answers."""
        try:
            answer = await self._remoting.invoke(address, code, header, timeout_s=self._timeout_s)
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and await self._hint(address):
                raise ConnectionLost(f"{address}: no NameServer")
        except RemotingError:
            self._silent[address] = None
            raise
        self._silent.pop(address, None)
        self._found = True
        return answer

    async def _first_addresses(self) -> None:
        """Ask the address server now; NoNameServer when it does not say. Those who wait ask once."""
        async with self._asking:
            if self.addresses:
                return
            try:
                self._take(await fetch_addresses(self._address_server))
            except NoAddresses as failure:
                raise NoNameServer(
                    f"the address server {self._address_server} does not tell the NameServers: {failure}"
                ) from None

    async def poll_address_server(self) -> None:
        """Ask it again and again, until cancelled."""
        said = ""
        while True:
            await asyncio.sleep(CLIENT_INTERVAL_S)
            try:
                self._take(await fetch_addresses(self._address_server))
                said = ""
            except NoAddresses as failure:
                if str(failure) != said:
                    said = str(failure)
                    known = ";".join(self.addresses)
                    self._log.warning("address server: the NameServers known stay", why=failure, known=known)

    def _take(self, addresses: tuple[str, ...]) -> None:
        if addresses != self.addresses:
            self._log.info("NameServers", now=";".join(addresses), before=";".join(self.addresses))
            self.addresses = addresses
            self._silent.clear()
            self.current = self._env.random.randrange(len(addresses))

    async def _why_none(self, failures: dict[str, RemotingError]) -> str:
        """Why none answered; what else lives at the addresses, as far as that can be told."""
        if not self._found:
            there = [address for address, error in failures.items() if not isinstance(error, ConnectFailed)]
            found = {address: await self._hint(address) for address in there}
            told = "; ".join(f"{address} is {hint}" for address, hint in found.items() if hint)
            if told:
                return f"no NameServer answers ({told}): give the NameServer's address (its port: often 9876)"
        reasons = "; ".join(error.remark for error in failures.values())
        if any(isinstance(error, WrongTls) for error in failures.values()):
            return f"no NameServer answers ({reasons})"
        return f"no NameServer answers ({reasons}): is it running, is the address right?"

    async def _hint(self, address: str) -> str | None:
        """What answers there instead of a NameServer; looked at once."""
        if address not in self._hints:
            self._hints[address] = await identify(self._remoting, address)
        return self._hints[address]


def _left(tasks: dict[str, asyncio.Task[None]]) -> list[asyncio.Task[None]]:
    return [task for task in tasks.values() if not task.done()]


def successful(answers: Sequence[Response]) -> list[Response]:
    """The answers that are not refusals. BrokerRefused when all are."""
    good = [answer for answer in answers if answer.code == ResponseCode.SUCCESS]
    if not good:
        first = answers[0]
        raise BrokerRefused(f"NameServer: {refused_text(first.code, first.remark)}", first.code)
    return good

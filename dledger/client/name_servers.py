"""Requests to NameServers: to one of them, or to all where one answer is not enough.

Each NameServer knows only what brokers have reported to it. One that was just started knows nothing, and one
that a broker does not reach knows less than the others. So a topic, group or broker counts as unknown only if
every NameServer that answers reports it as unknown. Lists are merged from all answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dledger.client.address_hints import identify
from dledger.client.errors import BrokerRefused, ClientError, NoNameServer, refused_text
from dledger.client.options import ClientOptions, namesrv_addresses
from dledger.remoting.address_server import CLIENT_INTERVAL_S, NoAddresses, fetch_addresses, load_http, url_of
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import ConnectFailed, ConnectionLost, RemotingError, WrongTls
from dledger.remoting.frames import Fields
from dledger.runtime import Env
from dledger.runtime.log import Log

FURTHER_S = 0.2
"""How long, in seconds, the client waits for the other NameServers once one has returned a non-empty
answer."""

Size = Callable[[Response], int]
"""A function that returns how much an answer contains, such as the number of broker groups; 0 if it contains
nothing."""


def where_name_servers_are(
    namesrv: str | Sequence[str] | None, options: ClientOptions
) -> tuple[tuple[str, ...], str]:
    """Return the addresses of NameServers that were given, or the URL of the address server that knows them.

    One of the two is empty. Raises ClientError if neither is given, or if the address server cannot be asked
    because aiohttp is not installed.
    """
    addresses = namesrv_addresses(namesrv, options)
    if addresses:
        return addresses, ""
    try:
        load_http()
    except NoAddresses as failure:
        raise ClientError(f"ClientOptions: address_server: {failure}") from None
    return (), url_of(options.address_server)


class NameServers:
    """The NameServers of one client. The *current* one is asked first; it is the one that last proved
    useful."""

    def __init__(
        self,
        env: Env,
        remoting: RemotingClient,
        log: Log,
        addresses: tuple[str, ...],
        address_server: str,
        timeout_s: float,
    ) -> None:
        """`timeout_s`: how long one NameServer may take to answer."""
        self._env = env
        self._remoting = remoting
        self._log = log
        self.addresses: tuple[str, ...] = addresses
        self.address_server: str = address_server
        """URL that returns the addresses; empty if they were given."""
        self._timeout_s = timeout_s
        self.current: int = env.random.randrange(len(addresses)) if addresses else 0
        """Index of the current NameServer in `addresses`."""
        self._asking = asyncio.Lock()
        self._found = False
        """Whether any NameServer has ever answered."""
        self._silent: dict[str, None] = {}
        """NameServers that did not answer the last request to them."""
        self._hints: dict[str, str | None] = {}

    async def ask(self, code: int, header: Fields) -> Response:
        """Ask the current NameServer, and then the others until one answers. Raises NoNameServer if none
        answers."""
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
        """Ask all NameServers; returns the answers, that of the current one first. Raises NoNameServer if
        none answers.

        Every NameServer has the full time-out until the first non-empty answer arrives. From then on the call
        waits `FURTHER_S` for the other NameServers. The one with the largest answer becomes the current one.
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
        """Ask one NameServer. Raises RemotingError, also if the server at this address is not a
        NameServer."""
        try:
            answer = await self._remoting.invoke(address, code, header, timeout_s=self._timeout_s)
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and await self._hint(address):
                raise ConnectionLost(f"{address}: this is not a NameServer")
        except RemotingError:
            self._silent[address] = None
            raise
        self._silent.pop(address, None)
        self._found = True
        return answer

    async def _first_addresses(self) -> None:
        """Ask the address server for the addresses of the NameServers now. Raises NoNameServer if it returns
        none. Concurrent callers share one request."""
        async with self._asking:
            if self.addresses:
                return
            try:
                self._take(await fetch_addresses(self.address_server))
            except NoAddresses as failure:
                raise NoNameServer(
                    f"the address server {self.address_server} named no NameServers: {failure}"
                ) from None

    async def poll_address_server(self) -> None:
        """Ask the address server periodically until cancelled."""
        said = ""
        while True:
            await asyncio.sleep(CLIENT_INTERVAL_S)
            try:
                self._take(await fetch_addresses(self.address_server))
                said = ""
            except NoAddresses as failure:
                if str(failure) != said:
                    said = str(failure)
                    known = ";".join(self.addresses)
                    self._log.warning(
                        "address server failed: the known NameServers stay in use", why=failure, known=known
                    )

    def _take(self, addresses: tuple[str, ...]) -> None:
        if addresses != self.addresses:
            self._log.info("NameServers", now=";".join(addresses), before=";".join(self.addresses))
            self.addresses = addresses
            self._silent.clear()
            self.current = self._env.random.randrange(len(addresses))

    async def _why_none(self, failures: dict[str, RemotingError]) -> str:
        """Explain why no NameServer answered. If servers of another kind were recognised at the addresses,
        name them."""
        if not self._found:
            there = [address for address, error in failures.items() if not isinstance(error, ConnectFailed)]
            found = {address: await self._hint(address) for address in there}
            told = "; ".join(f"{address} is {hint}" for address, hint in found.items() if hint)
            if told:
                return (
                    f"no NameServer answers ({told}): give the address of a NameServer (its port "
                    "is usually 9876)"
                )
        reasons = "; ".join(error.remark for error in failures.values())
        if any(isinstance(error, WrongTls) for error in failures.values()):
            return f"no NameServer answers ({reasons})"
        return f"no NameServer answers ({reasons}): check that it runs, and that the address is right"

    async def _hint(self, address: str) -> str | None:
        """Describe the server that runs at this address instead of a NameServer; None if it is not
        recognised. Each address is examined only once."""
        if address not in self._hints:
            self._hints[address] = await identify(self._remoting, address)
        return self._hints[address]


def _left(tasks: dict[str, asyncio.Task[None]]) -> list[asyncio.Task[None]]:
    return [task for task in tasks.values() if not task.done()]


def successful(answers: Sequence[Response]) -> list[Response]:
    """Return the answers that are successful. Raises BrokerRefused if no answer is."""
    good = [answer for answer in answers if answer.code == ResponseCode.SUCCESS]
    if not good:
        first = answers[0]
        raise BrokerRefused(f"NameServer: {refused_text(first.code, first.remark)}", first.code)
    return good

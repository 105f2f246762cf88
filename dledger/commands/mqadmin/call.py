"""The argument that each command gets: the network client, the values of the options, and the output. The
module also formats times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from dledger.admin import AsyncAdminClient, Refused
from dledger.client import AsyncProducer, ClientError, ClientOptions, ProducerOptions
from dledger.client.times import check_time
from dledger.commands.mqadmin.options import Given, WrongOptions
from dledger.commands.mqadmin.output import Output


@dataclass
class Call:
    """One run of one of RocketMQ's commands. `namesrv` is the value of -n."""

    admin: AsyncAdminClient
    given: Given
    out: Output
    namesrv: str
    client: ClientOptions = field(default_factory=ClientOptions)
    failed: bool = False

    async def masters(self) -> list[str]:
        """Return the broker that -b names; without -b, the masters of the cluster that -c names. Raises
        WrongOptions if neither is given."""
        address = self.given.maybe("b")
        if address is not None:
            return [address]
        if "c" not in self.given:
            raise WrongOptions("Missing required option: [-b,--brokerAddr, -c,--clusterName]")
        return list((await self.admin.brokers.masters(self.given.text("c"))).values())

    async def brokers(self) -> list[str]:
        """Return the broker that -b names; without -b, all brokers of the cluster that -c names, masters
        first. Raises WrongOptions if neither is given."""
        address = self.given.maybe("b")
        if address is not None:
            return [address]
        if "c" not in self.given:
            raise WrongOptions("Missing required option: [-b,--brokerAddr, -c,--clusterName]")
        return (await self.admin.brokers.cluster()).addresses(self.given.text("c"))

    async def each(self, addresses: Iterable[str], do: Callable[[str], Awaitable[None]]) -> bool:
        """Call `do` for each broker. If a call fails, the error is reported and the other brokers are
        still called. Returns whether all calls succeeded."""
        before, self.failed = self.failed, False
        for address in addresses:
            try:
                await do(address)
            except ClientError as error:
                self.fail(error)
        worked, self.failed = not self.failed, self.failed or before
        return worked

    def fail(self, error: ClientError) -> None:
        """Report an error. The command continues, and at the end returns the exit code of a failure."""
        self.failed = True
        self.out.fail(error_text(error))

    def producer(self, group: str) -> AsyncProducer:
        """Make a producer, to be used with `async with`."""
        options = ProducerOptions(timeout_s=5.0, compress_over=0)
        return AsyncProducer(group, self.namesrv or None, options, self.client)


Run = Callable[[Call], Awaitable[None]]


def error_text(error: ClientError) -> str:
    """Return an error text in the form of Apache's exceptions. If a server refused, it has the server's
    response code and text."""
    if isinstance(error, Refused):
        return f"CODE: {error.code}  DESC: {error.remark} ({error.what}, {error.address})"
    return f"CODE: {error.code}  DESC: {error}" if error.code is not None else str(error)


def millis(text: str) -> int:
    """Parse a time in ms since the epoch, or a local time of the form `yyyy-MM-dd#HH:mm:ss:SSS`. Raises
    WrongOptions for any other text."""
    if text.removeprefix("-").isdecimal():
        try:
            return check_time(int(text), "the time")
        except ClientError as error:
            raise WrongOptions(str(error)) from None
    try:
        found = datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f")
    except ValueError as error:
        raise WrongOptions(f"{text!r}: give ms since the epoch, or yyyy-MM-dd#HH:mm:ss:SSS") from error
    return int(found.astimezone().timestamp() * 1000)


def human(timestamp_ms: int) -> str:
    """Format a time in this machine's time zone, with ms (UtilAll.timeMillisToHumanString2)."""
    return f"{_local(timestamp_ms):%Y-%m-%d %H:%M:%S},{timestamp_ms % 1000:03d}"


def seconds(timestamp_ms: int) -> str:
    """Format a time in this machine's time zone, without ms."""
    return f"{_local(timestamp_ms):%Y-%m-%d %H:%M:%S}"


def _local(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(timestamp_ms // 1000).astimezone()


def table_text(properties: dict[str, str]) -> str:
    """Return a map as Java prints it."""
    return "{" + ", ".join(f"{key}={value}" for key, value in properties.items()) + "}"

"""The client's part of auditing running brokers: finds the brokers of a group, and fetches the rows of the
scans that those brokers do themselves.

This module does not interpret the rows: it passes them to the auditor as pages of bytes. Only our brokers
know the requests (`remoting.audit_headers`). All calls block, and must not be made on an event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from dledger.client.core import ClientCore
from dledger.client.errors import BrokerRefused, ClientError, NoBroker, refused_text
from dledger.client.options import ClientOptions
from dledger.remoting.audit_headers import (
    AuditAnswerHeader,
    AuditDescribeHeader,
    AuditDrillHeader,
    AuditLogAnswer,
    AuditLogHeader,
    AuditPageHeader,
    AuditSegmentHeader,
    AuditSideHeader,
    AuditStampHeader,
    AuditUnitsHeader,
)
from dledger.remoting.bodies import BrokerData
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import BadHeader, RemotingError
from dledger.remoting.frames import Fields
from dledger.runtime import Env
from dledger.runtime.env import production_env
from dledger.runtime.loops import LoopThread


class GroupAddresses(NamedTuple):
    """A broker group as NameServers know it. `addresses` are those of the brokers that are registered now,
    the leader first."""

    cluster: str
    group: str
    addresses: tuple[str, ...]


class LogBytes(NamedTuple):
    """Bytes of a broker's log. `header` says where they are, and what else the log holds."""

    header: AuditLogAnswer
    data: bytes


@dataclass(frozen=True)
class AuditOptions:
    """Time-outs of an auditor. Times are in seconds."""

    answer_timeout_s: float = 15.0
    """Time-out of one answer. A broker that is still working reports that at least every 5 s."""
    attempts: int = 3
    """How many connections are tried, one after the other, to get one answer."""
    busy_pause_s: float = 0.5
    """Pause before a request to a broker that is busy with other audits is repeated."""
    busy_timeout_s: float = 120.0
    """How long to repeat a request to a busy broker. After that the call fails."""
    max_age_ms: int = 0
    """Limit, in ms, of the age of rows that a broker read earlier for another client. Older rows are read
    anew; 0 means always."""
    client: Callable[[], ClientOptions] = ClientOptions
    """Returns the settings of the client, such as its account and TLS. It is a function because these options
    are sent to other processes, which read the secret themselves."""


def find_groups(
    namesrv: str | Sequence[str],
    cluster: str | None = None,
    group: str | None = None,
    client: ClientOptions | None = None,
) -> list[GroupAddresses]:
    """Return the broker groups of a cluster (all clusters if none is given), sorted by name. With `group`,
    return only the group of this name.

    Raises NoNameServer, or ClientError if the cluster or the group does not exist; the error text suggests a
    similar name.
    """
    thread = LoopThread("find groups")
    env = production_env("audit")
    try:
        known = thread.run(_cluster(env, namesrv, client or ClientOptions()))
    finally:
        thread.close()
        env.workers.close()
    clusters = sorted({data.cluster for data in known.values()})
    if cluster is not None and cluster not in clusters:
        raise ClientError(f"no cluster {cluster!r} is registered{_near(cluster, clusters)}")
    found = {name: data for name, data in known.items() if cluster is None or data.cluster == cluster}
    if group is not None and group not in found:
        raise ClientError(f"no broker group {group!r} is registered{_near(group, list(found))}")
    return [
        GroupAddresses(data.cluster, name, tuple(data.brokerAddrs[key] for key in sorted(data.brokerAddrs)))
        for name, data in sorted(found.items())
        if group is None or name == group
    ]


async def _cluster(env: Env, namesrv: str | Sequence[str], client: ClientOptions) -> dict[str, BrokerData]:
    async with ClientCore(env, namesrv, client) as core:
        return await core.cluster()


def _near(word: str, known: list[str]) -> str:
    close = get_close_matches(word, known, n=1)
    if close:
        return f": did you mean {close[0]!r}?"
    return f"; registered are {', '.join(known)}" if known else ": no broker is registered at all"


class ReplicaClient:
    """Asks one broker for rows of its replica. Use it inside its `with` block.

    Raises NoBroker if the broker does not answer, and BrokerRefused if it refuses. The methods that return an
    iterator request the pages while the caller iterates.
    """

    def __init__(self, address: str, options: AuditOptions | None = None) -> None:
        self.address = address
        self._options = options or AuditOptions()
        self._env = production_env("audit")
        client = self._options.client()
        self._remoting = RemotingClient(
            self._env,
            limits=client.limits,
            credentials=client.credentials,
            tls=None if client.tls is None else client.tls.context(),
        )
        self._thread: LoopThread | None = None

    def __enter__(self) -> Self:
        self._thread = LoopThread(f"audit {self.address}")
        self._thread.submit(self._remoting.run())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.run(self._remoting.close())
            self._thread.close()
            self._thread = None

    def describe(self, version: int) -> tuple[str, list[bytes]]:
        """Ask the broker to describe its replica. Returns the id of this description, which later calls need,
        and its rows. `version` is the version of the digests that this program can compare."""
        answer = self._first(RequestCode.AUDIT_DESCRIBE, AuditDescribeHeader(version))
        return self._state(answer)[0], list(self._pages(answer))

    def segment(self, description: str, start: int, block_entries: int) -> Iterator[bytes]:
        """Scan one segment."""
        header = AuditSegmentHeader(description, start, block_entries, self._options.max_age_ms)
        return self._pages(self._first(RequestCode.AUDIT_SEGMENT, header))

    def side(self, description: str) -> Iterator[bytes]:
        """Scan the data that belongs to no segment."""
        return self._pages(self._first(RequestCode.AUDIT_SIDE, AuditSideHeader(description)))

    def drill(self, description: str, start: int, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Scan entries of one segment. The index ranges are inclusive, ascending and do not overlap."""
        header = AuditDrillHeader(description, start)
        return self._pages(self._first(RequestCode.AUDIT_DRILL, header, msgspec.json.encode(ranges)))

    def entries(self, description: str, start: int, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Scan entries as `drill` does, but return their complete headers, as columns."""
        header = AuditDrillHeader(description, start)
        return self._pages(self._first(RequestCode.AUDIT_ENTRIES, header, msgspec.json.encode(ranges)))

    def units(self, description: str, first: int, count: int) -> Iterator[bytes]:
        """Read the units [first, first + count) of the log's index files; a unit is the record of one
        entry."""
        return self._pages(self._first(RequestCode.AUDIT_UNITS, AuditUnitsHeader(description, first, count)))

    def stamp(
        self, description: str, start: int, queues: Sequence[tuple[str, int, int, int]] | None
    ) -> Iterator[bytes]:
        """Read a fingerprint of one segment and of the data that is derived from it, to find out whether they
        have been replaced. `queues` lists (topic, queue id, first offset, last offset) of its messages; None
        looks only at the segment's file."""
        body = b"" if queues is None else msgspec.json.encode(queues)
        return self._pages(self._first(RequestCode.AUDIT_STAMP, AuditStampHeader(description, start), body))

    def log(self, first: int, max_bytes: int) -> LogBytes:
        """Read the log from entry `first` on, byte for byte (`AuditLogAnswer`)."""
        answer = self._ask(RequestCode.AUDIT_LOG, AuditLogHeader(first, max_bytes))
        try:
            return LogBytes(answer.header(AuditLogAnswer), answer.body)
        except BadHeader as error:
            raise BrokerRefused(f"{self.address}: its response cannot be read: {error}") from error

    def _pages(self, answer: Response) -> Iterator[bytes]:
        job, pages = self._state(answer)
        yield answer.body
        for number in range(1, pages):
            yield self._ask(RequestCode.AUDIT_PAGE, AuditPageHeader(job, number)).body

    def _first(self, code: int, header: Fields, body: bytes = b"") -> Response:
        """Wait until the job is done; returns the answer with its first page."""
        answer = self._ask(code, header, body)
        while not (state := self._state(answer))[1]:
            answer = self._ask(RequestCode.AUDIT_PAGE, AuditPageHeader(state[0]))
        return answer

    def _ask(self, code: int, header: Fields, body: bytes = b"") -> Response:
        if self._thread is None:
            raise ClientError("this reader is not open: use it inside its `with` block")
        return self._thread.run(self._answer(code, header, body))

    async def _answer(self, code: int, header: Fields, body: bytes) -> Response:
        options = self._options
        loop = asyncio.get_running_loop()
        patience_ends = loop.time() + options.busy_timeout_s
        failures = 0
        while True:
            try:
                answer = await self._remoting.invoke(
                    self.address, code, header, body, options.answer_timeout_s
                )
            except RemotingError as error:
                failures += 1
                if failures >= options.attempts:
                    raise NoBroker(f"the broker at {self.address} does not answer: {error.remark}") from error
                await asyncio.sleep(options.busy_pause_s)
                continue
            if answer.code == ResponseCode.SUCCESS:
                return answer
            if answer.code != ResponseCode.SYSTEM_BUSY or loop.time() >= patience_ends:
                raise BrokerRefused(
                    f"{self.address}: {refused_text(answer.code, answer.remark)}", answer.code
                )
            await asyncio.sleep(options.busy_pause_s)

    def _state(self, answer: Response) -> tuple[str, int]:
        """The id of the job that the broker runs for this request, and its number of pages (0 while it is
        running)."""
        try:
            header = answer.header(AuditAnswerHeader)
        except BadHeader as error:
            raise BrokerRefused(f"{self.address}: its response cannot be read: {error}") from error
        return header.job, header.pages

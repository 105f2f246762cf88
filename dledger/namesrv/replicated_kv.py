"""The key-value table, kept equal on several NameServers by PySyncObj, a library for Raft (`kvPeers`).

PySyncObj has its own thread. What it applies is passed to the event loop, which has a copy of the table for
readers. A change is answered when a majority has it and this member has applied it. The journal is in the
system's page cache until the system writes it. So a killed process loses nothing, but if a majority of the
members lose power, changes may be lost.

A new member, whose directory is empty, cannot be distinguished from one that has lost its disk. A member that
has lost its disk must not vote, because it may have acknowledged changes that no other member has yet. So
every member with an empty directory begins as an observer, which PySyncObj does not count. It becomes a voter
when, for longer than an election lasts, it has had everything that one leader committed. So no election is
still running in which it may have voted before. A new group has no leader; for this case only, `kvFound`
makes all members begin as voters.

PySyncObj's messages are pickles, so anybody who can send them can run any code. Addresses of members must
therefore be IP addresses of loopback or of private networks. Beyond loopback a password is required, which
encrypts the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from posixpath import join
from typing import TYPE_CHECKING, Annotated, Any

from dledger.formats.addresses import split_address
from dledger.namesrv.kv import Done, KvTable, Table, check_entry
from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.runtime.env import Env
from dledger.runtime.settings import ConfigError, Setting, parts
from dledger.runtime.workers import Lane

if TYPE_CHECKING:
    from dledger.namesrv.kv_member import KvMember

CHANGE_WITHIN_S = 5.0
"""Time, in seconds, after which a change without an outcome is answered with "outcome unknown"."""
MAX_CHANGES = 10_000
"""Largest number of changes in flight; one more is refused (SYSTEM_BUSY)."""
OBSERVE_S = 5.0
"""Time, in seconds, for which an observer must have had everything that one leader committed, before it
votes. It is longer than any election in which the observer may have voted before it lost its disk."""
LOOK_INTERVAL_S = 0.1
TOLD_AFTER_S = 10.0
"""Time, in seconds, after which an observer that has found no leader logs what to do."""
MAX_PEERS = 9
MEMBER_FILE = "member"
"""Name of a file in the directory. If it exists, this node votes."""


def _peers(text: str) -> tuple[str, ...]:
    found = tuple(parts(text))
    if len(found) > MAX_PEERS:
        raise ValueError(f"{len(found)} addresses; the limit is {MAX_PEERS}")
    for address in found:
        _ip(address)
    return found


def _peer(text: str) -> str:
    if text:
        _ip(text)
    return text


def _ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    host, _ = split_address(address)
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"{address}: expected an IP address and a port, not a host name") from None
    if not found.is_private and not found.is_loopback:
        raise ValueError(
            f"{address} is a public address: everyone who can connect to it could run code here. Use "
            "an address of a private network"
        )
    return found


@dataclass(frozen=True)
class KvPeers:
    """The NameServers that share a replicated key-value table."""

    peers: Annotated[tuple[str, ...], Setting("kvPeers", parse=_peers, format=";".join)] = ()
    """Addresses of the NameServers that share one key-value table: `ip:port;ip:port;ip:port`. They must be
    loopback or private addresses, with ports that nothing else uses. If it is empty, each NameServer has its
    own table."""
    self_address: Annotated[str, Setting("kvSelfAddress", parse=_peer)] = ""
    """The address of this NameServer in `kvPeers`."""
    directory: Annotated[str, Setting("kvDirectory")] = ""
    """Directory of the journal of the shared key-value table. If it is empty, the directory is beside the
    file of the table and named after this file, for example `kvConfig-kv`."""
    password: Annotated[str, Setting("kvPassword", secret=True)] = ""
    """Password that encrypts the messages between the NameServers of `kvPeers`; it must be equal on all of
    them. Required unless all addresses are loopback."""
    found: Annotated[bool, Setting("kvFound")] = False
    """To be set on all members for the first start of a new group, and removed after that. Otherwise a member
    that loses its directory would vote again without knowing its earlier votes."""

    def __post_init__(self) -> None:
        if not self.peers:
            return
        if self.self_address not in self.peers:
            raise ValueError(
                f"kvSelfAddress={self.self_address} is not one of kvPeers={';'.join(self.peers)}"
            )
        if not self.password and not all(_ip(address).is_loopback for address in self.peers):
            raise ValueError("kvPeers beyond loopback need kvPassword")


class ReplicatedKv(KvTable):
    """A `KvTable` whose changes need a majority of the NameServers. The file of the table is only an export,
    and the initial content of a new group."""

    def __init__(self, env: Env, path: str | None, peers: KvPeers) -> None:
        super().__init__(env, path)
        try:
            from dledger.namesrv.kv_member import KvMember
        except ImportError as error:
            raise ConfigError(f"kvPeers needs `pip install 'dledger[kv]'` ({error})") from error
        self._peers = peers
        self._directory = peers.directory or f"{(path or 'kvConfig.json').removesuffix('.json')}-kv"
        self._kind = KvMember
        self._member: KvMember | None = None
        self._under_way: dict[int, tuple[Done, asyncio.TimerHandle]] = {}
        self._serial = 0
        self._changed = asyncio.Event()
        self._from_file: Table = {}
        self.problem: str = "this NameServer has not read the key-value table yet"

    def change(self, namespace: str, key: str, value: str | None, done: Done) -> None:
        """Set a value, or delete it if `value` is None. `done` is called when a majority has the change, or
        with an error."""
        check_entry(namespace, key, value)
        member = self._member
        if member is None or self.problem:
            raise RemotingError(ResponseCode.SYSTEM_BUSY, self.problem)
        if len(self._under_way) >= MAX_CHANGES:
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY,
                f"{MAX_CHANGES} changes are in flight, and that is the limit: try again later",
            )
        self._serial = serial = self._serial + 1
        loop = asyncio.get_running_loop()
        late = _unknown(f"no result within {CHANGE_WITHIN_S:g} s")
        self._under_way[serial] = done, loop.call_later(CHANGE_WITHIN_S, self._answer, serial, late)

        def outcome(refused: str | None, failure: str | None, executed: bool) -> None:
            loop.call_soon_threadsafe(self._done, serial, refused, failure, executed)

        member.change(namespace, key, value, outcome)

    def _done(self, serial: int, refused: str | None, failure: str | None, executed: bool) -> None:
        if failure is None:
            error = None if not refused else RemotingError(ResponseCode.SYSTEM_ERROR, refused)
        elif executed:
            error = _unknown(failure)
        else:
            error = RemotingError(ResponseCode.SYSTEM_BUSY, f"not changed: {failure}")
        self._answer(serial, error)

    def _answer(self, serial: int, error: RemotingError | None) -> None:
        under_way = self._under_way.pop(serial, None)
        if under_way is not None:
            done, timer = under_way
            timer.cancel()
            done(error)

    # -- what PySyncObj's thread says, on the loop ------------------------------------------------------

    def _applied(self, namespace: str, key: str, value: str | None) -> None:
        entries = self._table.setdefault(namespace, {})
        if value is None:
            entries.pop(key, None)
        else:
            entries[key] = value
        if not entries:
            del self._table[namespace]
        self._changed.set()

    def _replaced(self, table: Table) -> None:
        self._table = table
        self._changed.set()

    # -- life -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part in the group until cancelled."""
        run, files = self._env.workers.run, self._env.files
        await run(Lane.DISK, files.mkdir, self._directory)
        votes = await run(Lane.DISK, files.exists, join(self._directory, MEMBER_FILE))
        founding = not votes and self._peers.found
        if self._peers.found and votes:
            self._log.warning("kvFound is set, but this member already has its directory: remove kvFound")
        try:
            if not votes and not founding:
                await self._observe()
            await run(Lane.DISK, self._mark)
            self._member = self._start(votes=True)
            await self._until(lambda member: member.ready)
            self.problem = ""
            if founding:
                await self._import()
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._export()
        finally:
            if self._member is not None:
                self._member.stop()

    def _start(self, votes: bool) -> KvMember:
        loop = asyncio.get_running_loop()

        def tell(call: Callable[..., None]) -> Callable[..., None]:
            def told(*values: Any) -> None:
                with contextlib.suppress(RuntimeError):  # the loop has ended before PySyncObj's thread
                    loop.call_soon_threadsafe(call, *values)

            return told

        peers = self._peers
        others = [address for address in peers.peers if address != peers.self_address]
        try:
            return self._kind(
                peers.self_address if votes else None,
                others,
                self._directory,
                peers.password or None,
                tell(self._applied),
                tell(self._replaced),
            )
        except OSError as error:
            raise ConfigError(f"kvSelfAddress={peers.self_address}: {error}") from error

    def _mark(self) -> None:
        self._env.files.open(join(self._directory, MEMBER_FILE), create=True).close()
        self._env.files.sync_dir(self._directory)

    async def _observe(self) -> None:
        """Observe until this member has had everything that a leader committed for long enough."""
        self._log.info(
            "this member begins as an observer, because its directory is empty", directory=self._directory
        )
        self._member = self._start(votes=False)
        leader: object = None
        since = 0.0
        loop = asyncio.get_running_loop()

        def settled(member: KvMember) -> bool:
            nonlocal leader, since
            found = member.leader if member.caught_up else None
            if found is None or found != leader:
                leader, since = found, loop.time()
            return found is not None and loop.time() - since >= OBSERVE_S

        await self._until(settled)
        await self._env.workers.run(Lane.DISK, self._member.stop)
        self._member = None
        self._log.info("this member has caught up and votes from now on")

    async def _until(self, reached: Callable[[KvMember], bool]) -> None:
        loop = asyncio.get_running_loop()
        told_at = loop.time() + TOLD_AFTER_S
        assert self._member is not None
        while not reached(self._member):
            await asyncio.sleep(LOOK_INTERVAL_S)
            if loop.time() >= told_at:
                told_at += 60.0
                self._log.warning(
                    "no leader among kvPeers yet: start the others. For the first start of a new "
                    "group, set kvFound=true on all of them",
                    peers=";".join(self._peers.peers),
                )

    async def _import(self) -> None:
        """Enter the content of this member's file into a new group. If another member has entered a key
        first, the value of that member stays."""
        for namespace, entries in self._from_file.items():
            for key, value in entries.items():
                if self.get(namespace, key) is None:
                    self.change(namespace, key, value, self._imported)

    def _imported(self, error: RemotingError | None) -> None:
        if error is not None:
            self._log.warning("an entry of the key-value file was not imported", reason=error.remark)

    async def load(self) -> None:
        """Read the file, whose content is used if the group is new."""
        await super().load()
        self._from_file, self._table = self._table, {}

    async def _export(self) -> None:
        error = await self._publish(self._table)
        if error is not None:
            self._log.warning("the key-value table was not exported", reason=error.remark)


def _unknown(reason: str) -> RemotingError:
    return RemotingError(
        ResponseCode.SYSTEM_ERROR, f"outcome unknown: {reason}. Read the entry to see whether it was changed"
    )

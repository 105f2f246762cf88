"""A group beyond its faults: the acknowledged entries, and an oracle over all later answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256

from disk_group import NAMES, DiskGroup

from dledger.chaos.machine.disk import Disk
from dledger.messages import Code
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.env import Env

ADDRESSES = {name: f"{name}:40911" for name in NAMES}
REFUSALS = {Code.INCONSISTENT_STATE, Code.WAIT_QUORUM_ACK_TIMEOUT, None}
"""How a read may be refused: the entry is rotten, there is no read point, or there is no leader. "There is no
such entry" is not allowed."""


class BeyondGroup(DiskGroup):
    """Clients append and read through `DLedgerClient`, each on a machine of its own.

    `acknowledged`: body by index. `history`: (index, term, kind, body) of all entries that were committed and
    applied at the last acknowledgement. `digests`: the digest of the host's state after each of these
    entries.
    """

    def __init__(self, *arguments: object) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.history: list[tuple[int, int, int, bytes]] = []
        self.digests: list[bytes] = []
        self._clients = 0
        super().__init__(*arguments)  # type: ignore[arg-type]

    def ask(self, work: Callable[[DLedgerClient], Awaitable[None]]) -> None:
        """Run a client program to its end."""
        done: list[bool] = []

        async def main(env: Env) -> None:
            async with DLedgerClient(env, ADDRESSES, 1.0) as client:
                await work(client)
            done.append(True)

        self._clients += 1
        self.world.node(f"client{self._clients}")
        self.world.spawn(f"client{self._clients}", main)
        self.world.run_until(lambda: done, 60)

    def write(self, count: int, tag: str) -> None:
        """Append entries until they are acknowledged. Afterwards all running nodes have applied them and know
        that they are committed."""

        async def work(client: DLedgerClient) -> None:
            for number in range(count):
                body = b"%s %d " % (tag.encode(), number) + bytes([number % 251]) * 400
                index = await client.append(body)
                assert index not in self.acknowledged, f"{index} was acknowledged before"
                self.acknowledged[index] = body

        self.ask(work)
        self.await_applied(tuple(filter(self.alive, NAMES)), max(self.acknowledged))
        self._note()
        self.world.run_for(2)  # all index units and checkpoints are on the disks

    def _note(self) -> None:
        """Take the applied entries as the history."""
        known = len(self.history)
        entries = self.hosts[self.await_leader()].entries
        assert entries[:known] == self.history
        digest = self.digests[-1] if known else b""
        for index, term, kind, body in entries[known:]:
            digest = sha256(digest + b"%d %d %d " % (index, term, kind) + body).digest()
            self.digests.append(digest)
        self.history = list(entries)

    # The oracle

    def judge(self) -> tuple[set[int], int]:
        """Ask all nodes for all entries. Returns the indexes that were answered, and the number of read
        points.

        Each answer must be right. An entry that is not answered must be refused, and never denied.
        """
        self._judge_nodes()
        answered: set[int] = set()
        points = 0

        async def entries(client: DLedgerClient) -> None:
            for index, body in sorted(self.acknowledged.items()):
                try:
                    entry = await client.get(index)
                except RequestFailed as refused:
                    assert refused.code in REFUSALS, f"{index} is denied: {refused}"
                    if refused.code is None:
                        return  # nobody leads
                else:
                    assert (entry.index, entry.body) == (index, body), f"{index} is another entry"
                    answered.add(index)

        async def read_points(client: DLedgerClient) -> None:
            nonlocal points
            for name in filter(self.alive, NAMES):
                try:
                    point = await client.read_index(ADDRESSES[name])
                except RequestFailed as refused:
                    assert refused.code is Code.WAIT_QUORUM_ACK_TIMEOUT, refused
                except TimeoutError:
                    pass
                else:
                    assert point >= max(self.acknowledged), f"{name} is behind what was acknowledged"
                    points += 1

        self.ask(entries)
        self.ask(read_points)
        self._judge_nodes()
        return answered, points

    def _judge_nodes(self) -> None:
        """Check that the logs and the hosts have only what was committed at each index."""
        for name in NAMES:
            host = self.hosts[name]
            for entry in host.entries:
                if entry[0] < len(self.history):
                    assert entry == self.history[entry[0]], f"{name} applied another entry {entry[0]}"
            if 0 <= self.applied(name) < len(self.history):
                assert host.digest == self.digests[self.applied(name)], f"the state of {name} is another"
            log = self.nodes[name].log
            last = min(log.last_index, len(self.history) - 1) if self.alive(name) else -1
            for index in range(log.first_index, last + 1):
                held = log.term_of(index)
                assert held == self.history[index][1], f"{name} has an entry {index} of term {held}"

    def takes(self) -> bool:
        """Whether a new entry is acknowledged. It must not replace another entry."""
        taken: list[int] = []

        async def work(client: DLedgerClient) -> None:
            try:
                taken.append(await client.append(b"something new"))
            except RequestFailed as refused:
                assert refused.code is None, refused

        self.ask(work)
        for index in taken:
            assert index not in self.acknowledged, f"what was acknowledged at {index} is replaced"
            self.acknowledged[index] = b"something new"
        return bool(taken)

    def assert_waits(self) -> set[int]:
        """Check that there is no leader, no append succeeds, and no read point is given. Returns the answered
        indexes."""
        assert self.leader() is None and not self.takes()
        answered, points = self.judge()
        assert points == 0
        return answered

    def assert_whole(self) -> None:
        """Check that the group goes on after the damage is undone, and that all three nodes have every
        acknowledged entry."""
        self.settle()
        assert self.judge() == (set(self.acknowledged), 3)
        assert all(self.applied(name) >= max(self.acknowledged) for name in NAMES)
        self._note()
        assert self.takes()

    def says(self, name: str) -> str:
        """The reasons that a node shows to operators."""
        status = self.nodes[name].status()
        reasons = status["reasons"]
        assert isinstance(reasons, list)
        return "; ".join(reasons)

    # Damage

    def all_down(self, power: str = "") -> None:
        """End all nodes at once. `power`: the mode in which the machines lose power; empty for a kill."""
        for name in NAMES:
            if power:
                self.world.power_cut(name, power)
            else:
                self.world.kill(name)

    def up(self, names: Iterable[str] = NAMES, seconds: float = 5.0) -> None:
        """Start these nodes, and give them time for several elections and rounds of repair."""
        for name in names:
            self.start(name)
        self.world.run_for(seconds)

    def rot(self, names: Iterable[str], indexes: Iterable[int], what: str = "body") -> None:
        """Flip the same bits on several nodes. A second call undoes it."""
        for name in names:
            for index in indexes:
                self.damage(name, index, what)

    def device(self, name: str, *under: str) -> dict[str, bytes]:
        """The durable content of the files whose path contains one of these texts."""
        disk = self.disk(name)
        paths = [path for path in disk.files("/store") if any(part in path for part in under)]
        return {path: bytes(disk.inode(path).durable) for path in paths}

    def put_device(self, name: str, before: dict[str, bytes], *under: str) -> None:
        """Let the device hold its earlier content, with zeros where there was none, as if it had not written
        anything since."""
        assert not self.alive(name)
        for path in self.device(name, *under):
            inode = self.disk(name).inode(path)
            length = len(inode.durable)
            held = before.get(path, b"")[:length].ljust(length, b"\0")
            inode.durable, inode.content = bytearray(held), bytearray(held)
            inode.pending.clear()

    def wipe(self, name: str) -> Disk:
        """Cut the power of a machine and give it a new disk. Returns the old disk."""
        old = self.disk(name)
        assert isinstance(old, Disk)
        self.world.power_cut(name)
        machine = self.world.nodes[name]
        machine.disk = Disk(self.world, f"{name}/{machine.boots}")
        return old

    def put_back(self, name: str, disk: Disk) -> None:
        """Put the old disk of a machine back."""
        self.world.power_cut(name)
        self.world.nodes[name].disk = disk

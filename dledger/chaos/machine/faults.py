"""Faults of machines and processes that `World` can inject. Faults of the network are methods of
`world.network` (network.py); faults of a disk are methods of `node.disk` (disk.py).

Each fault writes one line of kind `fault` to the trace, and is counted by its name in `world.faults`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.chaos.machine.node import Exit, Node, Process
from dledger.chaos.machine.settings import MS, SECOND

if TYPE_CHECKING:
    from dledger.chaos.machine.network import Network


class Faults:
    """The faults of machines and processes, as a base class of `World`."""

    now: int
    nodes: dict[str, Node]
    network: Network
    faults: dict[str, int]

    def note(self, node: str, kind: str, detail: str) -> None:
        """Write one line to the trace."""
        raise NotImplementedError

    def ended(self, process: Process, how: Exit) -> None:
        """Note that a process has ended."""
        raise NotImplementedError

    def fault(self, node: str, kind: str, detail: str = "") -> None:
        """Count and trace one injected fault."""
        self.faults[kind] = self.faults.get(kind, 0) + 1
        self.note(node, "fault", f"{kind} {detail}".rstrip())

    def _resolve(self, node: Node | str) -> Node:
        return self.nodes[node] if isinstance(node, str) else node

    def _process(self, node: Node | str) -> Process:
        process = self._resolve(node).process
        if process is None:
            raise RuntimeError("no process runs there")
        return process

    # -- the end of a process or a machine -----------------------------------------------------------

    def kill(self, node: Node | str) -> None:
        """Kill the process (kill -9). Its code gets no chance to clean up, the kernel closes its sockets, and
        the page cache stays."""
        process = self._resolve(node).process
        if process is not None:
            self.fault(process.name, "kill")
            self.ended(process, Exit("killed"))

    def power_cut(self, node: Node | str, mode: str = "prefix") -> None:
        """Switch the machine off without notice to its peers. `mode` says which unsynced writes and names
        survive.

        * "prefix": of each file the first writes in order, and of the whole disk the first names in order.
        * "torn": any of them; a write may survive in parts, which are cut at multiples of 512 bytes.
        * "none": no pending operation.
        * "all": all pending operations.
        """
        node = self._resolve(node)
        if not node.powered:
            return
        node.powered = False
        if node.process is not None:
            self.ended(node.process, Exit("power cut"))
        self.network.power_cut(node)
        files, names = node.disk.power_cut(mode)
        self.fault(node.name, f"power_cut_{mode}", f"lost {files} writes, {names} names")

    def crash_before(
        self, node: Node | str, effect: int, *, power: bool = False, mode: str = "prefix"
    ) -> None:
        """Kill the running process just before its n-th effect from now (`effect` is n; 1 is the next one).
        If `power` is set, cut the power instead, in this `mode`.

        Effects are sends, closes, and changes of the disk. The rest of the running callback has no effects.
        """
        process = self._process(node)
        process.crash_at = process.effects + effect
        process.crash_power = mode if power else None

    def kill_in_write(self, node: Node | str, path: str) -> None:
        """Kill the running process in the middle of a write: the next one that is larger than a page and goes
        to a file whose path contains `path`."""
        self._process(node).dies_below = path

    def crash(self, process: Process) -> None:
        """Kill the process, or cut the power. Called when the effect for which `crash_before` waited is about
        to happen."""
        if process.crash_power is None:
            self.kill(process.node)
        else:
            self.power_cut(process.node, process.crash_power)

    # -- time that a process does not get ------------------------------------------------------------

    def stop(self, node: Node | str) -> None:
        """Stop the process (SIGSTOP). Its kernel still talks TCP, and the disk finishes its current
        operations."""
        process = self._process(node)
        if not process.stopped:
            process.stopped = True
            process.loop.suspend()
            self.fault(process.name, "stop")

    def cont(self, node: Node | str) -> None:
        """Continue the process (SIGCONT). Its clocks went on while it was stopped, so all timers that became
        due run together."""
        process = self._resolve(node).process
        if process is not None and process.stopped:
            process.stopped = False
            process.workers.resume()
            process.loop.resume()
            self.note(process.name, "cont", "")

    def stall_before(self, node: Node | str, effect: int, seconds: float) -> None:
        """Stop the event loop for `seconds` just before its n-th effect from now (see `crash_before`).

        This simulates a garbage collection, a page fault or a busy machine. The event loop stands still
        inside a callback, while its worker threads go on.
        """
        process = self._process(node)
        process.stall_at = process.effects + effect
        process.stall_ns = round(seconds * SECOND)

    def stall(self, process: Process) -> None:
        """Stall the loop. Called when the effect for which `stall_before` waited is about to happen."""
        process.stall_at = None
        self.fault(process.name, "stall", f"{process.stall_ns / MS:g} ms")
        process.loop.stall(process.stall_ns)

    def slow(self, node: Node | str, factor: float) -> None:
        """Let callbacks cost `factor` times as much time, in later processes of this machine too. A factor of
        1 ends the slowness."""
        node = self._resolve(node)
        if factor != 1:
            self.fault(node.name, "slow", f"{factor:g}")
        else:
            self.note(node.name, "normal", "")
        node.slowness = factor
        if node.process is not None:
            node.process.loop.set_slowness(factor)

    # -- clocks --------------------------------------------------------------------------------------

    def clock_jump(self, node: Node | str, ms: int) -> None:
        """Set the wall clock forward by `ms` milliseconds, or back if `ms` is negative."""
        node = self._resolve(node)
        self.fault(node.name, "clock_jump", f"{ms} ms")
        node.clock.wall_skew_ms += ms

    def clock_drift(self, node: Node | str, rate: float) -> None:
        """Let the monotonic clock run at another rate from now on, also after later boots. At rate 0 it
        stands still."""
        if rate < 0:
            raise ValueError(f"a monotonic clock does not run backward: {rate}")
        node = self._resolve(node)
        if rate != 1:
            self.fault(node.name, "clock_drift", f"{rate:g}")
        else:
            self.note(node.name, "steady", "")
        loop = None if node.process is None else node.process.loop
        node.clock.drift(self.now if loop is None else loop.now_ns(), rate)
        if loop is not None:
            loop.clock_changed()

    # -- partitions ----------------------------------------------------------------------------------

    def partition(self, a: Node | str, b: Node | str, *, directed: bool = False) -> None:
        """Hold everything that `a` sends to `b` and, unless `directed` is set, everything that `b` sends to
        `a`."""
        a, b = self._resolve(a), self._resolve(b)
        if directed:
            self.fault(a.name, "partition_one_way", f"{a.name}>{b.name}")
        else:
            self.fault(a.name, "partition", f"{a.name}<>{b.name}")
            self.network.partition(b.name, a.name)
        self.network.partition(a.name, b.name)

    def isolate(self, node: Node | str) -> None:
        """Partition a machine from all others."""
        node = self._resolve(node)
        self.fault(node.name, "isolate")
        for other in self.nodes.values():
            if other is not node:
                self.network.partition(node.name, other.name)
                self.network.partition(other.name, node.name)

    def heal(self, a: Node | str | None = None, b: Node | str | None = None) -> None:
        """End partitions and silence between two machines, of one machine with all others, or everywhere."""
        ends = [self._resolve(end).name for end in (a, b) if end is not None]
        for source, target in self.network.cuts:
            if all(end in (source, target) for end in ends):
                self.note(source, "heal", f"{source}>{target}")
                self.network.heal(source, target)

"""Injects the faults of a plan, and undoes each of them.

A fault that cannot happen at its time is retried a little later. This is so if no node runs, or if the atlas
(which limits the damage to stores) refuses the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dledger.chaos.machine import Process
from dledger.chaos.machine.settings import MS
from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.scenarios.rot_faults import RotFaults
from dledger.chaos.scenarios.stage import Stage
from dledger.formats.store_files import DATA_DIR

AGAIN_MS = 700
POWER_MODES = ("prefix", "torn", "none", "all", "torn")


class Injector(RotFaults):
    """Injects the faults of a plan at their times, and undoes each after its time. `finish` ends all of
    them."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.injected: dict[str, int] = {}
        self._kinds: dict[str, Callable[[Fault], bool]] = {
            "kill": self._kill,
            "kill-all": self._kill_all,
            "crash": self._crash,
            "install-crash": self._install_crash,
            "cut-crash": self._cut_crash,
            "save-crash": self._save_crash,
            "kill-in-write": self._kill_in_write,
            "snapshot-crash": self._snapshot_crash,
            "change-crash": self._change_crash,
            "power": self._power,
            "power-crash": self._crash,
            "power-all": self._power_all,
            "restarts": self._restarts,
            "terminate": self._terminate,
            "transfer": self._transfer,
            "retire": self._delete_old,
            "stop": self._stop,
            "stall": self._stall,
            "slow": self._slow,
            "clock-jump": self._clock_jump,
            "clock-drift": self._clock_drift,
            "clock-still": self._clock_still,
            "disk-slow": self._disk_slow,
            "disk-hang": self._disk_hang,
            "disk-room": self._disk_room,
            "short-memory": self._short_memory,
            "eio-write": self._disk_error,
            "eio-fsync": self._disk_error,
            "wipe": self._wipe,
            **self.link_kinds(),
            **self.member_kinds(),
            **self.rot_kinds(),
        }

    def schedule(self, faults: tuple[Fault, ...]) -> None:
        """Schedule all faults at their times."""
        for fault in faults:
            self._world.push(fault.at_ms * MS, self._begin, fault)

    def finish(self) -> None:
        """Undo all faults. After this the network and the disks are good, clocks run at the right rate, and
        all nodes run."""
        self.over = True
        stage = self._stage
        stage.at_install = stage.at_cut = stage.at_saved = stage.at_snapshot = stage.at_change = None
        self.mend_links()
        world = self._world
        for name in self._stage.names:
            machine = world.nodes[name]
            if machine.process is not None:
                machine.process.crash_at = machine.process.stall_at = machine.process.dies_below = None
            world.cont(name)
            world.slow(name, 1)
            world.clock_drift(name, 1)
            machine.disk.mend()
            self._stage.machines[name].armed = False
            self._stage.start(name)

    def _begin(self, fault: Fault) -> None:
        if self.over:
            return
        changing, taking = self._stage.changing_members(), self._stage.taking_snapshots()
        if self._kinds[fault.kind](fault):
            if changing:
                self._stage.marks.reach("a fault during a membership change")
            if taking:
                self._stage.marks.reach("a fault while a state snapshot is taken")
            self.injected[fault.kind] = self.injected.get(fault.kind, 0) + 1
        else:
            self._world.push(self._world.now + AGAIN_MS * MS, self._begin, fault)

    # Processes and power

    def _kill(self, fault: Fault) -> bool:
        return self._end(fault, self._world.kill)

    def _power(self, fault: Fault) -> bool:
        return self._end(fault, partial(self._world.power_cut, mode=self._mode(fault)))

    def _mode(self, fault: Fault) -> str:
        return POWER_MODES[fault.pick % len(POWER_MODES)]

    def _victim(self, fault: Fault) -> str | None:
        """The node whose process the fault ends, or None. Under ASYNC_FLUSH a power cut takes acknowledged
        entries, so the atlas has to allow it as damage."""
        if self._stage.profile.sync_flush or not fault.kind.startswith("power"):
            return self._target(fault)
        return self._damages(fault)

    def _end(self, fault: Fault, end: Callable[[str], None]) -> bool:
        target = self._victim(fault)
        if target is None:
            return False
        end(target)
        self._start_later(fault.lasting_ms, target)
        return True

    def _start_later(self, delay_ms: int, target: str) -> None:
        self._later(delay_ms, partial(self._stage.start, target))

    def _start_when_ended(self, delay_ms: int, target: str) -> None:
        """Start a node again some time after its process has ended. The process may end at once, or only at
        its next effect."""
        process = self._world.nodes[target].process
        assert process is not None
        self._stage.when_ended(process, lambda: self._start_later(delay_ms, target))

    def _crash(self, fault: Fault) -> bool:
        target = self._victim(fault)
        if target is None:
            return False
        power = fault.kind == "power-crash"
        self._world.crash_before(target, fault.amount, power=power, mode=self._mode(fault))
        self._start_when_ended(fault.lasting_ms, target)
        return True

    def _install_crash(self, fault: Fault) -> bool:
        """Crash the next node that replaces its log. It crashes before its n-th effect after it has begun (n
        is `fault.amount`)."""
        self._stage.at_install = partial(self._crash_soon, fault)
        return True

    def _cut_crash(self, fault: Fault) -> bool:
        """Crash the next node that cuts its log. It crashes before its n-th effect after it has begun (n is
        `fault.amount`)."""
        self._stage.at_cut = partial(self._crash_soon, fault)
        return True

    def _snapshot_crash(self, fault: Fault) -> bool:
        """Crash the next node that takes a snapshot of its state. It crashes before its n-th effect after it
        has begun (n is `fault.amount`)."""
        self._stage.at_snapshot = partial(self._crash_soon, fault)
        return True

    def _change_crash(self, fault: Fault) -> bool:
        """Wait until a leader appends a configuration. Then crash this leader, or another node, before its
        n-th effect (n is `fault.amount`)."""

        def end(leader: str) -> None:
            other = self._other(fault, leader)
            lives = other in self._stage.alive()
            self._crash_soon(fault, other if lives and fault.pick % 3 == 0 else leader)

        self._stage.at_change = end
        return True

    def _save_crash(self, fault: Fault) -> bool:
        """Crash the next node that has saved a term, before it sends this term in a message."""

        def end(name: str) -> None:
            self._start_when_ended(fault.lasting_ms, name)
            if fault.pick % 2:
                self._world.power_cut(name, self._mode(fault))
            else:
                self._world.kill(name)

        self._stage.at_saved = end
        return True

    def _crash_soon(self, fault: Fault, name: str) -> None:
        self._world.crash_before(name, fault.amount, power=fault.pick % 2 > 0, mode=self._mode(fault))
        self._start_when_ended(fault.lasting_ms, name)

    def _kill_in_write(self, fault: Fault) -> bool:
        """Kill each node in the middle of its next write to the log."""
        alive = self._stage.alive()
        for name in alive:
            self._world.kill_in_write(name, f"/{DATA_DIR}/")
            self._start_when_ended(fault.lasting_ms, name)
        return bool(alive)

    def _kill_all(self, fault: Fault) -> bool:
        return self._end_all(fault, self._world.kill)

    def _power_all(self, fault: Fault) -> bool:
        """Cut the power of all machines at one moment: now, or at the n-th effect of the target (which is the
        leader most of the time)."""
        cut = partial(self._world.power_cut, mode=self._mode(fault))
        target = self._target(fault)
        if target is None or not fault.amount:
            return self._end_all(fault, cut)
        process = self._world.nodes[target].process
        assert process is not None
        self._world.crash_before(target, fault.amount, power=True, mode=self._mode(fault))

        def rest() -> None:
            if not self.over:
                self._end_all(fault, cut)

        self._stage.when_ended(process, rest)
        self._later(fault.lasting_ms + AGAIN_MS, partial(self._had_no_effect, process, target))
        return True

    def _had_no_effect(self, process: Process, target: str) -> None:
        """Cut the target's power if its n-th effect has not happened yet, so that all machines lose power
        now."""
        if self._world.nodes[target].process is process:  # nobody would start a later one again
            self._world.power_cut(target)

    def _end_all(self, fault: Fault, end: Callable[[str], None]) -> bool:
        for place, name in enumerate(self._stage.names):
            end(name)
            # The nodes start again one after another, in an order that `pick` decides.
            turn = (place + fault.pick) % len(self._stage.names)
            self._start_later(fault.lasting_ms + turn * (fault.pick % 300), name)
        return True

    def _restarts(self, fault: Fault) -> bool:
        target = self._target(fault)
        if target is None:
            return False
        pause = fault.lasting_ms
        for turn in range(fault.amount):
            self._later(2 * turn * pause, partial(self._world.kill, target))
            self._start_later((2 * turn + 1) * pause, target)
        return True

    def _terminate(self, fault: Fault) -> bool:
        """Cancel the program, as the outer shell does on SIGTERM, so that it ends in order."""
        target = self._target(fault)
        process = None if target is None else self._world.nodes[target].process
        if target is None or process is None:
            return False
        process.cancel()
        self._start_later(fault.lasting_ms, target)
        return True

    def _transfer(self, fault: Fault) -> bool:
        """Let an operator ask the leader to hand leadership over."""
        leader = self._stage.leader()
        return leader is not None and self.hand_over(leader, self._other(fault, leader)) is not None

    def hand_over(self, leader: str, target: str | None) -> list[bool] | None:
        """Start a hand-over of leadership. Returns a list which will hold whether leadership moved, or None
        if the leader does not run."""
        process, node = self._world.nodes[leader].process, self._stage.machines[leader].node
        if process is None or node is None:
            return None
        moved: list[bool] = []

        async def transfer() -> None:
            moved.append(await node.leadership.transfer(target))

        process.loop.call_soon(lambda: process.loop.create_task(transfer(), name="transfer"))
        return moved

    def _delete_old(self, fault: Fault) -> bool:
        """Let an operator delete old entries, on one node or on all nodes."""
        nodes = [machine.node for machine in self._stage.machines.values() if machine.node is not None]
        if fault.pick % 2:
            nodes = nodes[fault.pick // 2 % len(nodes) :][:1] if nodes else []
        for node in nodes:
            index = node.log.last_index - fault.pick % 64
            node._loop.call_soon(node.snapshots.retainer.delete_before, index)
        return bool(nodes)

    # Time

    def _stop(self, fault: Fault) -> bool:
        target = self._target(fault)
        if target is None:
            return False
        self._world.stop(target)
        self._later(fault.lasting_ms, partial(self._world.cont, target))
        return True

    def _stall(self, fault: Fault) -> bool:
        target = self._target(fault)
        if target is None:
            return False
        self._world.stall_before(target, fault.amount, fault.lasting_ms / 1000)
        return True

    def _slow(self, fault: Fault) -> bool:
        target = self._target(fault) or self._stage.names[0]
        self._world.slow(target, fault.amount)
        self._later(fault.lasting_ms, partial(self._world.slow, target, 1))
        return True

    def _clock_jump(self, fault: Fault) -> bool:
        target = self._target(fault) or self._stage.names[0]
        self._world.clock_jump(target, fault.amount if fault.pick % 2 else -fault.amount)
        return True

    def _clock_drift(self, fault: Fault) -> bool:
        target = self._target(fault) or self._stage.names[0]
        part = fault.amount / 100
        self._world.clock_drift(target, 1 + part if fault.pick % 2 else 1 - part)
        self._later(fault.lasting_ms, partial(self._world.clock_drift, target, 1))
        return True

    def _clock_still(self, fault: Fault) -> bool:
        """Let the monotonic clock stand still. Then no timer is due, but incoming messages are handled."""
        target = self._target(fault) or self._stage.names[0]
        self._world.clock_drift(target, 0)
        self._later(fault.lasting_ms, partial(self._world.clock_drift, target, 1))
        return True

    # Disks

    def _disk_slow(self, fault: Fault) -> bool:
        target = self._target(fault) or self._stage.names[0]
        disk = self._world.nodes[target].disk
        disk.slow(fault.amount)
        self._later(fault.lasting_ms, partial(disk.slow, 1))
        return True

    def _disk_hang(self, fault: Fault) -> bool:
        target = self._target(fault) or self._stage.names[0]
        disk = self._world.nodes[target].disk
        disk.hang()
        self._later(fault.lasting_ms, disk.resume)
        return True

    def _disk_room(self, fault: Fault) -> bool:
        target = self._target(fault) or self._stage.names[0]
        disk = self._world.nodes[target].disk
        disk.room(disk.used() + fault.amount)
        self._later(fault.lasting_ms, partial(disk.room, None))
        return True

    def _short_memory(self, fault: Fault) -> bool:
        """Simulate a shortage of memory: file content leaves the page cache again and again, so reads wait
        for the disk."""
        disk = self._world.nodes[self._target(fault) or self._stage.names[0]].disk
        disk.evict()
        disk.forget(fault.amount / 100)
        self._later(fault.lasting_ms, partial(disk.forget, 0))
        return True

    def _disk_error(self, fault: Fault) -> bool:
        """Let the next writes or fsyncs of the log fail. The node then ends, and an operator starts it again
        later."""
        target = self._damages(fault)
        if target is None:
            return False
        disk = self._world.nodes[target].disk
        disk.fail(fault.kind.removeprefix("eio-"), fault.amount, self._stage.machines[target].node_dir)

        def again() -> None:
            disk.mend()
            # The node must end: if its store has not failed by now, it counts as damaged no longer.
            self._world.kill(target)
            self._stage.start(target)

        self._later(fault.lasting_ms, again)
        return True

    def _wipe(self, fault: Fault) -> bool:
        """Give the machine a new, empty disk."""
        target = self._damages(fault)
        if target is None:
            return False
        self._world.kill(target)
        self._stage.machines[target].wipe()
        self._start_later(fault.lasting_ms, target)
        return True

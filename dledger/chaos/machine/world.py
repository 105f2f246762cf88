"""The simulated world: one heap of events, the machines, and everything that the seed decides.

    with World(seed=7) as world:
        a, b = world.node("a"), world.node("b")
        world.spawn(a, server_main)             # async def server_main(env: Env) -> None
        world.spawn(b, client_main)
        world.run_for(2.0)
        world.power_cut(a)
        world.restart(a, server_main)
        world.run_until(lambda: done(), limit_s=10)

Events are ordered by time in ns. Events of the same time run in an order that the seed decides. All random
numbers come from streams that depend on the seed and a name. There is one stream for each purpose, so a
change in one part does not reshuffle the others. An error that nothing handles fails the run at once. Such
errors are an exception in a callback, a program that raises, or a broken rule of the disk.

Python itself has two more sources of chance. Hashes of tasks are memory addresses (see futures.py). Garbage
collection runs finalizers at moments that depend on the heap, so automatic collection is off during a run,
and the world collects after every `collect_every` events.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
import sys
import warnings
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from dledger.chaos.machine.faults import Faults
from dledger.chaos.machine.guard import Guard
from dledger.chaos.machine.network import Network
from dledger.chaos.machine.node import Exit, Main, Node, Process
from dledger.chaos.machine.settings import SECOND, Settings
from dledger.chaos.machine.trace import Trace

if TYPE_CHECKING:
    from dledger.chaos.machine.loop import SimLoop
    from dledger.chaos.machine.workers import Job

_CLOSE_ATTEMPTS = 100


class RunFailed(Exception):
    """Raised when nothing handled an error inside a node. The text has the last log lines."""


class RunTimeout(Exception):
    """Raised when `run_until` reaches its limit, or when there are no more events."""


class World(Faults):
    """A deterministic world: the same seed gives the same course of events."""

    _frozen: ClassVar[bool] = False
    """Whether the objects that existed before the first world of this interpreter were frozen (`gc.freeze`).
    """

    def __init__(
        self,
        seed: int,
        *,
        settings: Settings | None = None,
        trace: Trace | None = None,
        guard: Guard | None = None,
    ) -> None:
        if not World._frozen:
            # Garbage collections need not look at objects that existed before the first world. They are
            # frozen only once, because freezing again would keep for good what a dead world has left. A flag
            # is used, because asking the collector counts all objects: that takes 8 ms, a tenth of the life
            # of some worlds.
            World._frozen = True
            gc.collect()
            gc.freeze()
        self.seed = seed
        self.settings: Settings = settings or Settings()
        self.trace = trace
        self.guard: Guard = guard or Guard()
        self.now: int = 0
        self.events: int = 0
        self.cold_reads = 0
        """How many reads on an event loop would have waited for a device. Such reads should be jobs of a
        worker."""
        self.current: Process | None = None
        self.loop: SimLoop | None = None  # the loop of this thread that had the last turn
        self.job: Job | None = None
        self.nodes: dict[str, Node] = {}
        self.faults: dict[str, int] = {}  # maps a kind of fault to how many were injected
        self.recent_log: deque[str] = deque(maxlen=self.settings.recent_log_lines)
        self._heap: list[tuple[int, float, Callable[[Any], None], Any]] = []
        self.tie: Callable[[], float] = self.stream(
            "schedule"
        ).random  # orders events of one instant; two numbers of 53 bits are never equal in practice
        self.schedule_random: Callable[[], float] = self.stream("turns").random
        self.network: Network = Network(self)
        self._failure: tuple[str, BaseException | None] | None = None
        self._graveyard: list[tuple[Process, list[asyncio.Task[Any]]]] = []
        self._processes: list[Process] = []
        self._next_collection = self.settings.collect_every

    # -- chance and events ---------------------------------------------------------------------------

    def stream(self, name: str) -> random.Random:
        """A random generator that depends only on the seed and the name."""
        return random.Random(f"{self.seed}/{name}")

    def push(self, when: int, action: Callable[[Any], None], argument: Any) -> None:
        """Plan an event: `action(argument)` is called at world time `when` (ns)."""
        heapq.heappush(self._heap, (when, self.tie(), action, argument))

    def enter(self, process: Process) -> None:
        """Mark that code of a process runs now, outside of the turns of its loop."""
        self.loop = None
        _set_running_loop(None)
        self.current = process
        self.guard.inside = True

    @property
    def time(self) -> float:
        """World time in seconds."""
        return self.now / SECOND

    @property
    def callbacks(self) -> int:
        """How many callbacks all loops have run so far."""
        return sum(process.loop.callbacks for process in self._processes)

    # -- machines and processes ----------------------------------------------------------------------

    def node(self, name: str) -> Node:
        """The machine with this name. The first call makes it."""
        if name not in self.nodes:
            self.nodes[name] = Node(self, name, len(self.nodes) + 1)
        return self.nodes[name]

    def spawn(
        self, node: Node | str, main: Main, *, may_raise: tuple[type[BaseException], ...] = ()
    ) -> Process:
        """Start the program `main(env)` on a machine that runs none.

        The process ends when the program ends (see `Process.exit`). An exception of the program fails the
        run, unless its class is in `may_raise`.
        """
        node = self._resolve(node)
        if node.process is not None:
            raise RuntimeError(f"{node.name} runs a process already")
        if not node.powered:
            raise RuntimeError(f"{node.name} is off: use restart")
        node.process = Process(node, main, may_raise)
        self._processes.append(node.process)
        self.note(node.name, "start", f"pid {node.process.pid}")
        return node.process

    def foreign_node(self, name: str, number: int) -> Node:
        """Make a machine that is not in `nodes`. No program finds it by name, and no fault hits it."""
        return Node(self, name, number)

    def run_beside(self, node: Node, main: Main, may_raise: tuple[type[BaseException], ...]) -> None:
        """Start a program on a foreign machine. Other programs may run on the same machine."""
        self._processes.append(Process(node, main, may_raise))

    def restart(
        self, node: Node | str, main: Main, *, may_raise: tuple[type[BaseException], ...] = ()
    ) -> Process:
        """Start a program on a machine whose process has ended. Switches the power on if necessary."""
        node = self._resolve(node)
        if not node.powered:
            node.boot()
            self.note(node.name, "boot", str(node.boots))
            self.network.power_on(node)
        return self.spawn(node, main, may_raise=may_raise)

    def ended(self, process: Process, how: Exit) -> None:
        """Note that a process has ended. None of its code runs again, and none of its objects is freed before
        `dispose`."""
        if process.exit is not None:
            return
        process.exit = how
        node = process.node
        node.process = None
        text = how.reason if how.error is None else f"{how.reason} {type(how.error).__name__}: {how.error}"
        self.note(node.name, "end", text)
        loop = process.loop
        tasks = list(asyncio.all_tasks(loop))
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._graveyard.append((process, tasks))
        for listener in list(node.listeners.values()):
            if node.powered:
                listener.close()
        for endpoint in list(process.endpoints.values()):
            if node.powered:
                endpoint.close()
            else:
                endpoint.gone = True
        if not node.powered:
            node.listeners.clear()
        loop.die()
        process.workers.abandon()
        process.files.killed()
        if how.reason == "killed" and node.powered:
            process.workers.tear()

    # -- what happened -------------------------------------------------------------------------------

    def note(self, node: str, kind: str, detail: str) -> None:
        """Write one line to the trace."""
        if self.trace is not None:
            now = self.now if self.current is None else self.current.loop.now_ns()
            self.trace.add(now, node, kind, detail)

    def log(self, process: Process, level: str, text: str) -> None:
        """Note a log line of a program."""
        now = process.loop.now_ns()
        self.recent_log.append(f"{now / SECOND:14.6f} {process.name:<8} {level:<7} {text}")
        if self.trace is not None:
            self.trace.add(now, process.name, level, text)

    def fail(self, process: Process, message: str, error: BaseException | None) -> None:
        """Remember an error that fails the run. Only the first is kept, and the run ends after the current
        event."""
        text = f"{process.name}: {message}"
        leaf = error
        while isinstance(leaf, BaseExceptionGroup):
            leaf = leaf.exceptions[0]
        if leaf is not None:
            text += f": {type(leaf).__name__}: {leaf}"
        self.note(process.name, "fail", text)
        if self._failure is None:
            self._failure = (text, error)

    def _raise_failure(self) -> None:
        assert self._failure is not None
        text, error = self._failure
        log = "\n".join(self.recent_log)
        raise RunFailed(f"seed {self.seed}, {self.time:.6f} s: {text}\nlast log lines:\n{log}") from error

    # -- running -------------------------------------------------------------------------------------

    def run_for(self, seconds: float) -> None:
        """Run the world for this many seconds of virtual time."""
        limit = self.now + round(seconds * SECOND)
        self._run(limit, None)
        self.now = limit

    def run_until(self, predicate: Callable[[], object], limit_s: float) -> None:
        """Run until the predicate holds. It is checked after every event. Raises RunTimeout after `limit_s`
        seconds of virtual time."""
        if predicate():
            return
        limit = self.now + round(limit_s * SECOND)
        if not self._run(limit, predicate):
            self.now = limit
            log = "\n".join(self.recent_log)
            raise RunTimeout(
                f"seed {self.seed}: not within {limit_s} s of virtual time; last log lines:\n{log}"
            )

    def _run(self, limit: int, predicate: Callable[[], object] | None) -> bool:
        own_guard = not self.guard.installed
        if own_guard:
            self.guard.__enter__()
        collecting = gc.isenabled()
        gc.disable()
        outer, hooks = _get_running_loop(), sys.get_asyncgen_hooks()
        try:
            return self._steps(limit, predicate)
        finally:
            self.loop = None
            _set_running_loop(outer)
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()
            if own_guard:
                self.guard.__exit__(None, None, None)

    def _steps(self, limit: int, predicate: Callable[[], object] | None) -> bool:
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= limit:
            self.now, _, action, argument = pop(heap)
            self.events += 1
            action(argument)
            if self._failure is not None:
                self._raise_failure()
            if predicate is not None and predicate():
                return True
            if self.events >= self._next_collection:
                self._next_collection += self.settings.collect_every
                gc.collect(1)
        return False

    # -- the end -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Collect garbage. Raises RunFailed if something failed, for example a task whose error nobody
        awaited."""
        gc.collect()
        if self._failure is not None:
            self._raise_failure()

    def dispose(self) -> None:
        """Free everything. Suspended coroutines are closed now, and what they do while they are closed has no
        effect.

        If this were left to the garbage collector, it would happen at any time, with a warning for each
        coroutine.
        """
        for process in self._processes:
            if process.exit is None:
                process.node.powered = False
                self.ended(process, Exit("killed"))
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for process, tasks in self._graveyard:
                    for task in tasks:
                        _close(task)
                    for task in asyncio.all_tasks(process.loop):  # tasks that began while others were closed
                        _close(task)
                self._heap.clear()
                self._processes.clear()
                self._graveyard.clear()
                self.nodes.clear()
                self.current = self.job = None
                gc.collect()
        finally:
            sys.unraisablehook = hook

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.check()
        finally:
            self.dispose()


def _close(task: asyncio.Task[Any]) -> None:
    """Close the coroutine of a task whose process has ended. Its `finally` blocks may await again or fail, so
    the close is tried several times."""
    coroutine: Any = task.get_coro()
    for _ in range(_CLOSE_ATTEMPTS):
        try:
            coroutine.close()
        except (Exception, BaseExceptionGroup):  # a TaskGroup turns GeneratorExit into a group
            continue
        return

"""An asyncio event loop that runs in virtual time. Each run of a process has an object of its own.

The world (world.py) owns one heap of events and calls `turn` when this loop has something to do. A turn does
what `BaseEventLoop._run_once` does. It handles ready sockets first, then due timers, then every callback that
is ready *now*, first in, first out. Callbacks that become ready during the turn wait for the next turn.
During the turn this loop is *the running loop*. So tasks, TaskGroup, timeouts, queues and streams of the
standard library run unmodified, and `get_running_loop()` identifies the node.

World time is an integer number of nanoseconds. Each callback moves the process's own time (`now_ns`) forward
by its processor cost. The process is busy until that time, whatever arrives, and its packets leave at that
time. So a turn runs a little ahead of the world, but its effects always lie in the world's future.

The code of a killed process gets no chance to clean up. `dead` is set, the world keeps the objects of the
process alive in a list, and none of its callbacks runs again.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import socket
import sys
from asyncio import base_events
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple

from dledger.chaos.machine.futures import SimFuture, SimHandle, SimTask, SimTimer, new_handle
from dledger.chaos.machine.settings import SECOND
from dledger.chaos.machine.transport import SimTransport

if TYPE_CHECKING:
    from dledger.chaos.machine.node import Process
    from dledger.chaos.machine.tcp import Listener
    from dledger.chaos.machine.world import World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Cancelled timers are removed when there are this many and they are the majority.
_MIN_CANCELLED_TIMERS = 100


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated process."""

    _in_turn = False  # BaseEventLoop.__init__ asks is_running()
    get_debug: Any = staticmethod(bool)  # False. Every future asks for it, so it is not a Python function.

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.set_debug(False)
        self.process = process
        self.world: World = process.world
        self._closed = False
        self.dead: bool = False
        self._no_turns = False  # dead or stopped
        self.callbacks: int = 0
        self._clock = process.node.clock
        self._now = self.world.now
        self._wake: int | None = None  # time of the next turn, for which the world has an event
        self._parked: int | None = None  # time of a later event that the world still has; a turn may use it
        self._ready: deque[Any] = deque()  # handles
        self._io: list[Any] = []
        self._timers: list[tuple[int, float, SimTimer]] = []
        self._cancelled_timers = 0
        self._numbers = 0
        self._task_numbers = 0
        self._close_agen = self._asyncgen_dropped
        self._own_turn = self.turn
        self.set_slowness(process.node.slowness)

    # -- faults: called by the world only -----------------------------------------------------------

    def set_slowness(self, factor: float) -> None:
        """Let all processor work take `factor` times as long as in the settings."""
        settings = self.world.settings
        self._callback_ns = round(settings.callback_ns * factor)
        self._turn_ns = round(settings.turn_ns * factor)
        self._turn_jitter_ns = round(settings.turn_jitter_ns * factor)

    def stall(self, duration_ns: int) -> None:
        """Let the callback that is running take `duration_ns` longer."""
        self._now += duration_ns

    def suspend(self) -> None:
        """Stop the loop (SIGSTOP): there is no turn until `resume`, whatever becomes ready."""
        self._wake = None
        self._no_turns = True

    def resume(self) -> None:
        """Continue the loop (SIGCONT). Everything that became ready or due while it was stopped is done at
        once."""
        self._no_turns = False
        self._now = max(self._now, self.world.now)
        self._sleep()

    def die(self) -> None:
        """Kill the process. No callback runs after this, and the callback that is running has no more
        effects."""
        self.dead = self._no_turns = True
        self._wake = None

    def clock_changed(self) -> None:
        """Compute anew when timers are due, because the machine's clock was changed. A timer stays due at the
        same time of that clock, which now is another world time."""
        now = self.now_ns()
        self._timers = [(max(self._due(timer.when()), now), key, timer) for _, key, timer in self._timers]
        heapq.heapify(self._timers)
        if not self._no_turns:
            self._wake = None
            self._sleep()

    # -- time ---------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        """World time as this process sees it, which is ahead of the world's own time during a turn."""
        return self._now if self._in_turn else max(self._now, self.world.now)

    def time(self) -> float:
        """Seconds on this machine's monotonic clock, which is unrelated to the clocks of other machines."""
        now = self._now
        if not self._in_turn and now < self.world.now:
            now = self.world.now
        clock = self._clock
        return (now + clock.ahead if clock.steady else clock.local_ns(now)) / SECOND

    def next_number(self) -> int:
        """The next number for a hash: 1, 2, 3 ..."""
        self._numbers += 1
        return self._numbers

    # -- scheduling ---------------------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run the callback in the next turn; callbacks run first in, first out."""
        handle: SimHandle = new_handle(SimHandle)
        handle._context = contextvars.copy_context() if context is None else context
        handle._callback = callback
        handle._args = args
        handle._cancelled = False
        self._ready.append(handle)
        if not self._in_turn:
            self.wake(self.world.now)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Works like `call_soon`, because no other thread ever runs at the same time."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run the callback in `delay` seconds of this machine's clock."""
        if delay is None:
            raise TypeError("delay must not be None")
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run the callback at time `when` of this machine's clock. Timers of the same instant run in an order
        that the seed decides."""
        if when is None:
            raise TypeError("when cannot be None")
        timer = SimTimer(when, callback, args, self, context)
        due = max(self._due(when), self.now_ns())
        heapq.heappush(self._timers, (due, self.world.tie(), timer))
        if not self._in_turn:
            self.wake(due)
        return timer

    def _due(self, when: float) -> int:
        return self._clock.world_ns(math.ceil(when * SECOND))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if not handle._scheduled:  # type: ignore[attr-defined]
            return
        self._cancelled_timers += 1
        count = self._cancelled_timers
        if count > _MIN_CANCELLED_TIMERS and count * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def post_io(self, handle: asyncio.Handle) -> None:
        """Let the callback of a socket that became ready run in the next turn, as after a `select`."""
        self._io.append(handle)
        if not self._in_turn:
            self.wake(self.world.now)

    def wake(self, when: int) -> None:
        """Schedule a turn at world time `when`. If the process is still busy then, the turn begins as soon as
        it is no longer busy."""
        if self._no_turns:
            return
        if when < self._now:
            when = self._now
        wake = self._wake
        if wake is None or when < wake:
            self._wake = when
            if when == self._parked:
                self._parked = wake
                return
            if wake is not None:
                self._parked = wake
            self.world.push(when, self._own_turn, when)

    def turn(self, when: int) -> None:
        """Run one iteration of the loop. Called by the world only."""
        if when != self._wake:
            if when == self._parked:
                self._parked = None
            return  # an earlier wake-up replaced this one, or the process is dead or stopped
        self._wake = None
        self._now = when
        ready = self._ready
        if self._io:
            ready.extend(self._io)
            self._io.clear()
        timers = self._timers
        while timers and timers[0][0] <= when:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False
            if timer._cancelled:
                self._cancelled_timers -= 1
            else:
                ready.append(timer)
        if ready:
            self._run_ready(len(ready))
            if self._no_turns:
                return
        self._sleep()

    def _run_ready(self, count: int) -> None:
        world = self.world
        if world.trace is not None:
            world.trace.add(self._now, self.process.name, "turn", str(count))
        if world.loop is not self:
            world.loop = self
            _set_running_loop(self)
            sys.set_asyncgen_hooks(None, self._close_agen)
        popleft = self._ready.popleft
        cost = self._callback_ns
        self._in_turn = True
        world.current = self.process
        guard = world.guard
        guard.inside = True
        try:
            while count:
                count -= 1
                handle = popleft()
                if handle._cancelled:
                    continue
                self.callbacks += 1
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    context = {
                        "message": f"Exception in callback {_name_of(handle._callback)}",
                        "exception": error,
                        "handle": handle,
                    }
                    self.call_exception_handler(context)
                self._now += cost
                if self.dead:
                    break
        finally:
            del handle  # a traceback may keep this frame, which must not keep the tasks
            world.current = None
            guard.inside = False
            self._in_turn = False
        self._now += self._turn_ns + int(world.schedule_random() * self._turn_jitter_ns)

    def _sleep(self) -> None:
        """Plan the next turn, if none is planned. Every turn calls this method; it does the same as `wake`
        without its checks."""
        when = self._now
        if not self._ready and not self._io:
            timers = self._timers
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
                self._cancelled_timers -= 1
            if not timers:
                return
            when = max(when, timers[0][0])
        self._wake = when
        if when == self._parked:
            self._parked = None
        else:
            self.world.push(when, self._own_turn, when)

    # -- tasks and futures --------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        """Make a future whose hash is a number (see `futures`)."""
        return SimFuture(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[Any]:
        """Make a task whose hash is a number (see `futures`). A task without a name gets one from this loop's
        own count, not from the interpreter's."""
        if name is None:
            self._task_numbers += 1
            name = f"task-{self._task_numbers}"
        return SimTask(coro, loop=self, name=str(name), context=context, **options)

    def _asyncgen_dropped(self, generator: Any) -> None:
        if not self.dead and not self._closed:
            self.call_soon(self.create_task, generator.aclose())

    # -- errors -------------------------------------------------------------------------------------

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail the run for an error that nothing handled. A handler that the program set is called as
        well."""
        if self.dead:
            return
        error = context.get("exception")
        self.world.fail(self.process, str(context.get("message")), error)
        handler = self.get_exception_handler()
        if handler is not None:
            handler(self, context)

    # -- what a simulated process may not do, or does elsewhere --------------------------------------

    def is_running(self) -> bool:
        """Whether a turn of this loop is running."""
        return self._in_turn

    def run_forever(self) -> NoReturn:
        """Not supported, because the world drives this loop. Raises RuntimeError."""
        raise RuntimeError("the world drives this loop: use World.run_for or World.run_until")

    def run_until_complete(self, future: Any) -> NoReturn:
        """Not supported, because the world drives this loop. Raises RuntimeError."""
        self.run_forever()

    def stop(self) -> None:
        """Not supported, because a program ends when its main coroutine returns. Raises RuntimeError."""
        raise RuntimeError("a simulated loop is not stopped: return from main, or cancel its task")

    def __del__(self, *_: object) -> None:
        # The standard one warns of loops that nobody closed, and dead processes are never closed.
        return

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Start a job whose duration the seed decides. `executor` is ignored."""
        return self.process.workers.submit("executor", func, args, {})

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Does nothing, because there is no executor to shut down."""

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[tuple[Any, ...]]:
        """Resolve names and addresses of the simulated machines only."""
        address = self.world.network.resolve(self.process.node, host)
        return [(socket.AF_INET, type or socket.SOCK_STREAM, proto, "", (address, int(port or 0)))]

    # -- network ------------------------------------------------------------------------------------

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        **options: object,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to a simulated machine. Raises ConnectionRefusedError or TimeoutError (both are OSErrors),
        as on Linux."""
        if ssl or sock is not None or host is None or port is None:
            raise NotImplementedError("simulated connections: host and port, no TLS, no ready-made socket")
        endpoint = await self.world.network.connect(self.process, host, port)
        protocol = protocol_factory()
        waiter = self.create_future()
        transport = SimTransport(self, endpoint, protocol, waiter)
        try:
            await waiter
        except BaseException:
            transport.close()
            raise
        return transport, protocol

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: Any = None,
        port: int | None = None,
        *,
        sock: object = None,
        backlog: int = 100,
        ssl: object = None,
        start_serving: bool = True,
        **options: object,
    ) -> asyncio.Server:
        """Listen on a port of this machine; port 0 takes a free one. Raises OSError EADDRINUSE if the port is
        taken."""
        if ssl or sock is not None:
            raise NotImplementedError("simulated servers: no TLS, no ready-made socket")
        if host is not None and not isinstance(host, str):
            raise NotImplementedError("simulated servers: one address each")
        listeners = [self.world.network.bind(self.process, host, port or 0)]
        arguments: list[Any] = [self, listeners, protocol_factory, None, backlog, None, None]
        server = base_events.Server(*arguments)
        if start_serving:
            server._start_serving()  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        return server

    def _start_serving(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        sock: Listener,
        tls: object,
        server: Any,
        *_: object,
    ) -> None:
        handle = SimHandle(self._accept, (sock, factory, server), None)
        sock.start(handle)

    def _stop_serving(self, sock: Listener) -> None:
        sock.close()

    def _accept(self, listener: Listener, factory: Callable[[], asyncio.BaseProtocol], server: Any) -> None:
        for endpoint in listener.accept():
            try:
                SimTransport(self, endpoint, factory(), None, server)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                endpoint.close()
                message = "Error on transport creation for incoming connection"
                self.call_exception_handler({"message": message, "exception": error})


def _name_of(callback: object) -> str:
    """The name of a callback without its memory address, because the name may be written to a trace."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {owner.get_name()}"
    return str(getattr(callback, "__qualname__", type(callback).__name__))

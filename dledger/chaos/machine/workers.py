"""Worker threads, as jobs whose duration the seed decides.

A job waits in a *lane*, which has a fixed number of threads. It runs in one piece when a thread of its lane
takes it. As in a real thread, no loop is running then. Its future is completed when its duration is over. An
fsync in a job covers what was written before the job began. The data becomes durable at the end of the job; a
power cut before that loses it. With `Settings.spread_chance` some jobs are spread instead: the loop has turns
between their effects, and the process can be killed in such a turn.

The simulator enforces that a job has at most one durable action, and that only plain writes follow it in the
job (`dledger.runtime.workers`). So a crash can happen between any two durable actions.

A kill may cut off what a running job writes. On Linux, too, a fatal signal ends a write between two pages.
"""

from __future__ import annotations

import asyncio
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dledger.chaos.machine.inode import FileOp, Inode, page_ends
from dledger.chaos.machine.job_thread import JobThread
from dledger.runtime.workers import Lane

if TYPE_CHECKING:
    from dledger.chaos.machine.node import Process

P = ParamSpec("P")
T = TypeVar("T")

_PAUSE_CHANCE = 0.5  # probability that a spread job is paused at an effect or read
_TEAR_CHANCE = 0.5  # probability that writes of a running job are cut off by a kill


class Job:
    """One call that waits in a lane, or runs."""

    __slots__ = (
        "commits",
        "done",
        "error",
        "function",
        "future",
        "lane",
        "result",
        "synced",
        "thread",
        "touched",
        "writes",
    )

    def __init__(self, lane: _Lane, future: asyncio.Future[Any], function: Callable[[], Any]) -> None:
        self.lane: _Lane = lane
        self.future: asyncio.Future[Any] = future
        self.function: Callable[[], Any] = function
        self.done: Callable[[Any, BaseException | None], None] | None = None
        # called at the job's end, to make durable what it has synced
        self.commits: list[Callable[[], None]] = []
        self.synced: bool = False  # only plain writes may follow in this job
        # (file, write, content before it, number of commits before it)
        self.writes: list[tuple[Inode, FileOp, bytes, int]] = []
        self.thread: JobThread | None = None  # only if the job is spread
        self.touched: bool = False  # whether it uses the disk, and so waits for it
        self.result: Any = None
        self.error: Exception | None = None


class _Lane:
    __slots__ = ("free", "name", "queue")

    def __init__(self, name: str, threads: int) -> None:
        self.name: str = name
        self.free: int = threads
        self.queue: deque[Job] = deque()


class SimWorkers:
    """The worker threads of one process (see `runtime.workers.Workers`), which are also the executor of its
    loop."""

    def __init__(self, process: Process) -> None:
        settings = process.world.settings
        self._process = process
        self._world = process.world
        self._settings = settings
        self._random = process.world.stream(f"workers/{process.name}/{process.number}")
        self._lanes = {
            Lane.FLUSH: _Lane("flush", 1),
            Lane.DISK: _Lane("disk", settings.disk_threads),
            Lane.SCAN: _Lane("scan", 1),
            "executor": _Lane("executor", settings.executor_threads),
        }
        self._started: list[Job] = []  # jobs that have a thread and have not run to their end
        self._running: list[Job] = []  # jobs that have run, but whose duration is not over
        self._held: list[Job] = []  # jobs that could not continue because the process is stopped
        self._closed = False

    def run(self, lane: Lane, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Start a job. The future gets its result or its exception."""
        return self.submit(lane, job, args, kwargs)

    def start(
        self, lane: Lane, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Start a job and call `done` at its end; see `Workers.start`."""
        self._submit(lane, job).done = done

    def submit(
        self, lane: Lane | str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> asyncio.Future[Any]:
        """Start a job like `run`, in a lane or in the executor."""
        call = (lambda: function(*args, **kwargs)) if args or kwargs else function
        return self._submit(lane, call).future

    def _submit(self, lane: Lane | str, call: Callable[[], Any]) -> Job:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        place = self._lanes[lane]
        job = Job(place, self._process.loop.create_future(), call)
        if place.free:
            self._take(job)
        else:
            place.queue.append(job)
        return job

    def close(self) -> None:
        """Run all queued jobs to their end now. New jobs are refused. (In production this is a blocking
        wait.)"""
        self._closed = True
        running, self._running = self._running, []
        for job in running:
            self._finish_now(job)
        for lane in self._lanes.values():
            waiting = [job for job in self._started if job.lane is lane] + list(lane.queue)
            lane.queue.clear()
            for job in waiting:
                self._execute(job)
                self._finish_now(job)
        self._started.clear()

    def _finish_now(self, job: Job) -> None:
        node = self._process.node
        if node.disk.hung and job.touched:  # in production the process would wait for ever
            self._running.append(job)
            node.disk.wait(self._finish, (job, node.boots))
        else:
            self._complete(job)

    def resume(self) -> None:
        """Let the threads of a stopped process continue (SIGCONT)."""
        held, self._held = self._held, []
        for job in held:
            if job.thread is None:
                self._hand_over(job, self._world.now)
            else:
                self._world.push(self._world.now, self._slice, job)

    def _take(self, job: Job) -> None:
        job.lane.free -= 1
        self._started.append(job)
        self._hand_over(job, self._process.loop.now_ns())

    def _hand_over(self, job: Job, now: int) -> None:
        when = now + self._between(self._settings.handoff_ns)
        self._world.push(when, self._begin, job)

    def _between(self, bounds: tuple[int, int]) -> int:
        low, high = bounds
        return low + int(self._random.random() * (high - low))

    def _begin(self, job: Job) -> None:
        if self._process.loop.dead or job not in self._started:
            return  # killed, or `close` was quicker
        if self._process.stopped:
            self._held.append(job)
            return
        if job.future.cancelled():
            self._started.remove(job)
            self._next(job.lane)
            return
        chance = self._settings.spread_chance
        if chance and self._random.random() < chance:
            job.thread = JobThread(partial(self._call, job))
            self._slice(job)
        else:
            self._execute(job)
            self._executed(job)

    def _slice(self, job: Job) -> None:
        assert job.thread is not None
        if self._process.loop.dead or job not in self._started:
            return  # killed, or `close` was quicker
        if self._process.stopped:
            self._held.append(job)
            return
        self._execute(job)
        if job.thread.done:
            self._executed(job)
        else:
            self._world.push(self._world.now + self._between(self._settings.job_ns), self._slice, job)

    def pause(self) -> None:
        """Pause the running job, if it is spread, so that other code can run. Called when the job is about to
        have an effect."""
        job = self._world.job
        if job is None or job.thread is None or self._closed or self._process.loop.dead:
            return
        if self._random.random() < _PAUSE_CHANCE:
            job.thread.park()

    def abandon(self) -> None:
        """Clean up after the process has died: its spread jobs that are paused run to their end now, so that
        their threads end. What these jobs do has no effect."""
        for job in self._started:
            if job.thread is not None and job is not self._world.job:
                self._execute(job)

    def tear(self) -> None:
        """Cut off some writes of the jobs that were running, because the process was killed in the middle of
        them."""
        for job in self._running:
            if job.writes and self._random.random() < _TEAR_CHANCE:
                self._tear(job)

    def _tear(self, job: Job) -> None:
        last = self._random.randrange(len(job.writes))
        for number in range(len(job.writes) - 1, last - 1, -1):
            inode, op, before, commits = job.writes[number]
            offset, data = op
            size = len(data or b"")
            kept = self._random.choice([0, size, *page_ends(offset, size)]) if number == last else 0
            if not inode.tear(op, before, kept):
                return
            del job.commits[commits:]
            if 0 < kept < size:
                self._world.fault(self._process.name, "torn_write", f"{offset}+{kept} of {size}")

    def _executed(self, job: Job) -> None:
        if self._process.loop.dead:
            return
        self._started.remove(job)
        self._running.append(job)
        duration = self._between(self._settings.job_ns)
        if job.commits:
            duration += self._between(self._settings.sync_ns)
        disk = self._process.node.disk
        if disk.slowness != 1 and job.touched:
            duration = round(duration * disk.slowness)
        # If a process is killed, the kernel still finishes its fsync. After a power cut it does not.
        self._world.push(self._world.now + duration, self._finish, (job, self._process.node.boots))

    def _execute(self, job: Job) -> None:
        """Run a job to its end or, if it is spread, to its next pause."""
        world = self._world
        outer = (world.current, world.job, world.guard.inside)
        # A loop runs now if it closes its workers or its process is just killed.
        loop = _get_running_loop() if world.current else None
        world.enter(self._process)
        world.job = job
        try:
            if job.thread is None:
                self._call(job)
            else:
                with world.guard.watching(job.thread):
                    job.thread.go()
        finally:
            world.current, world.job, world.guard.inside = outer
            if loop is not None:
                _set_running_loop(loop)

    def _call(self, job: Job) -> None:
        try:
            job.result = job.function()
        except Exception as error:
            job.error = error

    def _finish(self, job_and_boot: tuple[Job, int]) -> None:
        job, boot = job_and_boot
        node = self._process.node
        if job not in self._running:
            return
        if node.disk.hung and job.touched and node.powered and node.boots == boot:
            node.disk.wait(self._finish, job_and_boot)
            return
        self._running.remove(job)
        if node.powered and node.boots == boot:
            self._complete(job)
            if not self._process.loop.dead:
                self._next(job.lane)

    def _complete(self, job: Job) -> None:
        if job.commits:
            for commit in job.commits:
                commit()
            job.commits.clear()
        if self._process.loop.dead or job.future.done():
            return
        if job.done is not None:
            self._process.loop.call_soon_threadsafe(job.done, job.result, job.error)
            return
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)

    def _next(self, lane: _Lane) -> None:
        lane.free += 1
        if lane.queue:
            self._take(lane.queue.popleft())

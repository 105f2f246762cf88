"""The simulated loop keeps asyncio's promises, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import selectors
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dledger.chaos.machine import RunFailed, RunTimeout, Settings, World
from dledger.chaos.machine.futures import SimTask
from dledger.runtime.env import Env
from dledger.runtime.workers import Lane

Body = Callable[[Env], Coroutine[Any, Any, object]]


def run(body: Body, seed: int = 1, limit_s: float = 100.0) -> World:
    """Run one program on one machine to its end."""
    world = World(seed)
    process = world.spawn(world.node("n0"), body)
    world.run_until(lambda: process.exit, limit_s)
    assert process.exit is not None and process.exit.reason == "returned"
    return world


def test_callbacks_are_first_in_first_out() -> None:
    seen: list[int] = []

    async def main(env: Env) -> None:
        loop = asyncio.get_running_loop()
        for number in range(100):
            loop.call_soon(seen.append, number)
        await asyncio.sleep(0)

    run(main)
    assert seen == list(range(100))


def test_what_a_callback_schedules_waits_for_the_next_turn() -> None:
    seen: list[str] = []

    async def main(env: Env) -> None:
        loop = asyncio.get_running_loop()

        def first() -> None:
            loop.call_soon(seen.append, "c")
            seen.append("a")

        loop.call_soon(first)
        loop.call_soon(seen.append, "b")
        await asyncio.sleep(0.001)

    run(main)
    assert seen == ["a", "b", "c"]


class UnhurriedSelector(selectors.SelectSelector):
    """The selector of a loop whose clock stands still while Python code runs. It moves when the loop waits
    for a timer, so the order of timers does not depend on how fast the machine is."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout if timeout is None else 0)
        if not found and timeout is not None:
            self.now += timeout
        return found


class UnhurriedLoop(asyncio.SelectorEventLoop):
    """The loop of asyncio with such a clock."""

    def __init__(self) -> None:
        self._clock = UnhurriedSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def test_the_order_of_callbacks_is_that_of_the_real_loop() -> None:
    async def script(seen: list[str]) -> None:
        loop = asyncio.get_running_loop()
        future, event = loop.create_future(), asyncio.Event()

        async def waiter(name: str) -> None:
            seen.append(f"{name} begins")
            await event.wait()
            seen.append(f"{name} woken")
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                seen.append(f"{name} cancelled")
                raise

        async def timing_out() -> None:
            try:
                async with asyncio.timeout(0.01):
                    await future
            except TimeoutError:
                seen.append("time-out")
            raise KeyError

        future.add_done_callback(lambda _: seen.append("done callback"))
        loop.call_later(0.005, seen.append, "later")
        loop.call_at(loop.time() + 0.003, seen.append, "at")
        loop.call_soon(seen.append, "soon")
        loop.call_soon_threadsafe(seen.append, "threadsafe")
        loop.call_soon(seen.append, "never").cancel()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(waiter("a"))
                await asyncio.sleep(0)
                seen.append("body")
                event.set()
                group.create_task(timing_out())
        except* KeyError:
            seen.append("group ended")
        await asyncio.gather(asyncio.to_thread(seen.append, "job"), asyncio.sleep(0.01))

    real: list[str] = []
    with asyncio.Runner(loop_factory=UnhurriedLoop) as runner:
        runner.run(script(real))
    for seed in range(5):
        simulated: list[str] = []
        run(lambda env, seen=simulated: script(seen), seed)  # type: ignore[misc]
        assert simulated == real
    assert len(real) == 12


def test_a_disposed_world_leaves_nothing() -> None:
    seen: list[str] = []

    async def main(env: Env) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            env.log.info("no effect")
            try:
                await asyncio.sleep(1)
            finally:
                seen.append("closed")

    with World(1) as world:
        for name in ("a", "b"):
            world.spawn(world.node(name), main)
        world.run_for(1)
        world.kill("a")
        world.run_for(1)
        assert seen == []
    assert seen == ["closed", "closed"]
    reference = weakref.ref(world)
    del world
    gc.collect()
    assert reference() is None


def test_what_a_world_left_ends_with_the_next_one() -> None:
    """A suite that keeps every world takes all of a machine's memory."""

    class Left:
        def __init__(self) -> None:
            self.itself = self

    with World(1):
        left = weakref.ref(Left())
    between = weakref.ref(Left())
    with World(2):
        pass
    assert left() is None
    assert between() is None


def test_an_hour_of_sleep_takes_an_hour_of_virtual_time_only() -> None:
    async def main(env: Env) -> None:
        loop = asyncio.get_running_loop()
        before, wall = loop.time(), env.wall.now_ms()
        await asyncio.sleep(3600)
        assert 3600 <= loop.time() - before < 3600.001
        assert 3_600_000 <= env.wall.now_ms() - wall <= 3_600_001

    assert 3600 <= run(main, limit_s=4000).time < 3600.01


def test_callbacks_cost_time() -> None:
    async def main(env: Env) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert 0.001 < loop.time() - before < 0.1

    run(main)


def test_timers_of_one_instant_run_in_an_order_of_the_seed() -> None:
    def order(seed: int) -> list[int]:
        seen: list[int] = []

        async def main(env: Env) -> None:
            loop = asyncio.get_running_loop()
            when = loop.time() + 1
            for number in range(8):
                loop.call_at(when, seen.append, number)
            await asyncio.sleep(2)

        run(main, seed)
        assert sorted(seen) == list(range(8))
        return seen

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_cancelled_timers_never_run_and_do_not_pile_up() -> None:
    async def main(env: Env) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(5000):
            loop.call_later(1000, pytest.fail, "ran").cancel()
        assert len(loop._timers) < 250  # type: ignore[attr-defined]
        live = [loop.call_later(0.5, lambda: None) for _ in range(10)]
        await asyncio.sleep(1)
        for timer in live:
            timer.cancel()  # after it ran: no harm

    run(main, limit_s=2000)


def test_a_wake_up_at_the_time_of_a_forgotten_one_is_not_lost() -> None:
    seen: list[str] = []

    async def main(env: Env) -> None:
        await asyncio.Event().wait()

    world = World(1)
    loop = world.spawn(world.node("n0"), main).loop
    world.run_for(0.1)
    timer = loop.call_later(1, pytest.fail, "ran")
    due = loop._timers[0][0]
    world.run_for(0.1)
    loop.call_soon(timer.cancel)
    world.run_for((due - world.now) / 1e9)
    assert world.now == due
    loop.call_soon(seen.append, "ran")
    world.run_for(0.1)
    assert seen == ["ran"]


def test_a_task_group_aborts_its_children_in_order_of_creation() -> None:
    ended: list[str] = []

    async def child() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            task = asyncio.current_task()
            assert task is not None
            ended.append(task.get_name())

    async def failing() -> None:
        await asyncio.sleep(1)
        raise KeyError("x")

    async def main(env: Env) -> None:
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                for _ in range(50):
                    group.create_task(child())
                group.create_task(failing(), name="failing")
        assert caught.group_contains(KeyError)

    run(main)
    assert ended == [f"task-{number}" for number in range(1, 51)]


def test_the_usual_primitives_work() -> None:
    async def main(env: Env) -> None:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[int] = asyncio.Queue(2)
        event = asyncio.Event()
        lock = asyncio.Lock()

        async def producer() -> None:
            for number in range(10):
                await queue.put(number)
            event.set()

        async def double(number: int) -> int:
            async with lock:
                await asyncio.sleep(0.01)
            return 2 * number

        async with asyncio.TaskGroup() as group:
            group.create_task(producer())
            assert [await queue.get() for _ in range(10)] == list(range(10))
            await event.wait()
        assert await asyncio.gather(*(double(number) for number in range(5))) == [0, 2, 4, 6, 8]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await loop.create_future()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 0.1)
        assert await asyncio.shield(double(4)) == 8
        assert asyncio.get_running_loop() is loop
        assert isinstance(asyncio.current_task(), SimTask)

    run(main)


def test_jobs_take_time_and_flush_jobs_keep_their_order() -> None:
    async def main(env: Env) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        seen: list[int] = []
        jobs = [env.workers.run(Lane.FLUSH, seen.append, number) for number in range(20)]
        assert seen == []
        await asyncio.gather(*jobs)
        assert seen == list(range(20))
        assert loop.time() - before > 20 * 5e-6
        assert await env.workers.run(Lane.DISK, dict, a=1) == {"a": 1}
        assert await loop.run_in_executor(None, max, 1, 2) == 2
        assert await asyncio.to_thread(min, 1, 2) == 1

    run(main)


def test_a_job_has_no_running_loop_and_its_error_arrives() -> None:
    def job() -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        raise OSError(5, "bad disk")

    async def main(env: Env) -> None:
        with pytest.raises(OSError, match="bad disk"):
            await env.workers.run(Lane.DISK, job)

    run(main)


def test_disk_jobs_run_side_by_side_flush_jobs_do_not() -> None:
    def peak(lane: Lane) -> int:
        world = World(3, settings=Settings(job_ns=(1_000_000, 1_000_001)))
        spent: list[float] = []

        async def main(env: Env) -> None:
            before = asyncio.get_running_loop().time()
            await asyncio.gather(*(env.workers.run(lane, int) for _ in range(4)))
            spent.append(asyncio.get_running_loop().time() - before)

        process = world.spawn(world.node("n0"), main)
        world.run_until(lambda: process.exit, 1)
        return round(spent[0] / 0.001)

    assert peak(Lane.FLUSH) == 4
    assert peak(Lane.DISK) == 2


def test_closing_the_workers_finishes_what_is_queued() -> None:
    seen: list[int] = []

    async def main(env: Env) -> None:
        jobs = [env.workers.run(Lane.FLUSH, seen.append, number) for number in range(5)]
        env.workers.close()
        assert seen == [0, 1, 2, 3, 4]
        await asyncio.gather(*jobs)
        with pytest.raises(RuntimeError, match="shutdown"):
            env.workers.run(Lane.FLUSH, int)

    run(main)


def test_an_exception_in_a_callback_fails_the_run() -> None:
    async def main(env: Env) -> None:
        env.log.info("about to", number=7)
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(RunFailed, match=r"ZeroDivisionError[\s\S]*about to number=7"):
        run(main)


def test_an_error_of_the_program_fails_the_run_unless_it_was_allowed() -> None:
    async def main(env: Env) -> None:
        raise LookupError("gone")

    with pytest.raises(RunFailed, match="gone"):
        run(main)
    world = World(1)
    process = world.spawn(world.node("n0"), main, may_raise=(LookupError,))
    world.run_for(1)
    assert process.exit is not None and isinstance(process.exit.error, LookupError)


def test_a_task_error_that_nobody_asks_for_fails_the_run() -> None:
    async def failing() -> None:
        raise LookupError("unseen")

    async def main(env: Env) -> None:
        task = asyncio.get_running_loop().create_task(failing())
        await asyncio.sleep(0.1)
        del task
        await asyncio.sleep(0.1)

    with pytest.raises(RunFailed, match="unseen"), World(1) as world:
        world.spawn(world.node("n0"), main)
        world.run_for(1)


def test_kill_unwinds_nothing_and_nothing_runs_after_it() -> None:
    seen: list[str] = []

    async def main(env: Env) -> None:
        asyncio.get_running_loop().call_later(2, seen.append, "timer")
        env.workers.run(Lane.DISK, int).add_done_callback(lambda _: seen.append("job"))
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            seen.append("finally")

    with World(1) as world:
        process = world.spawn(world.node("n0"), main)
        world.run_for(1)
        assert seen == ["job"]
        world.kill("n0")
        gc.collect()
        world.run_for(5)
        assert seen == ["job"]
        assert process.exit is not None and process.exit.reason == "killed"


def test_cancel_lets_a_program_end_by_itself() -> None:
    seen: list[str] = []

    async def main(env: Env) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(1)
            seen.append("tidy")

    world = World(1)
    process = world.spawn(world.node("n0"), main)
    world.run_for(1)
    process.cancel()
    world.run_until(lambda: process.exit, 2)
    assert seen == ["tidy"]


def test_clocks_of_machines_are_unrelated_and_a_boot_changes_them() -> None:
    starts: list[tuple[float, int, str]] = []

    async def main(env: Env) -> None:
        starts.append((asyncio.get_running_loop().time(), env.pid, env.boot_id))

    world = World(1)
    for name in ("a", "b"):
        world.spawn(world.node(name), main)
    world.run_for(1)
    world.restart("a", main)
    world.run_for(1)
    world.power_cut("a")
    world.restart("a", main)
    world.run_for(1)
    (first, other), (again, rebooted) = sorted(starts[:2], key=lambda start: start[1]), starts[2:]
    assert abs(first[0] - other[0]) > 1
    assert again[2] == first[2] != rebooted[2]
    assert abs(again[0] - first[0] - 1) < 0.001
    assert abs(rebooted[0] - again[0]) > 2
    assert len(dict.fromkeys(start[1] for start in starts)) == 4


def test_run_until_says_when_it_waited_in_vain() -> None:
    world = World(1)
    with pytest.raises(RunTimeout, match=r"2\.5 s"):
        world.run_until(lambda: False, 2.5)
    assert world.time == 2.5


def test_programs_cannot_drive_or_stop_the_loop() -> None:
    async def main(env: Env) -> None:
        loop = asyncio.get_running_loop()
        assert loop.is_running()
        with pytest.raises(RuntimeError, match="world drives"):
            loop.run_forever()
        with pytest.raises(RuntimeError, match="return from main"):
            loop.stop()

    run(main)

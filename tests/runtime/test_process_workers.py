"""Worker processes: results, exceptions, deaths, interrupts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from dledger.runtime.processes import ProcessWorkers, cores


@pytest.fixture
def processes() -> Iterator[ProcessWorkers]:
    workers = ProcessWorkers(2)
    yield workers
    workers.close()


def end_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_results_and_exceptions_come_back(processes: ProcessWorkers) -> None:
    async def main() -> list[int]:
        with pytest.raises(ZeroDivisionError):
            await processes.run(divmod, 1, 0)
        return [await processes.run(abs, -2), await processes.run(os.getpid)]

    value, pid = asyncio.run(main())
    assert value == 2
    assert pid != os.getpid()


def test_the_death_of_a_worker_is_an_error(processes: ProcessWorkers) -> None:
    async def main() -> None:
        await processes.run(end_oneself)

    with pytest.raises(OSError, match="a worker process died"):
        asyncio.run(main())


def test_cores() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)


SCRIPT = """
import asyncio, multiprocessing, signal, sys, time
from dledger.runtime.processes import ProcessWorkers

async def main(workers):
    sleeper = asyncio.create_task(workers.run(time.sleep, 60))
    await workers.run(abs, 1)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    await sleeper

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    workers = ProcessWorkers(2)
    try:
        asyncio.run(main(workers))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    finally:
        workers.close()
"""


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(sign: signal.Signals, tmp_path: os.PathLike[str]) -> None:
    """A keyboard's interrupt goes to all of the group; only the parent may speak of it."""
    script = os.path.join(tmp_path, "script.py")
    with open(script, "w") as file:
        file.write(SCRIPT)
    program = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert program.stdout is not None
    children = [int(pid) for pid in program.stdout.readline().split()]
    assert len(children) == 2
    if sign == signal.SIGINT:
        os.killpg(program.pid, sign)
        output, errors = program.communicate(timeout=100)
        assert (output.strip(), errors) == ("interrupted", "")
    else:
        program.kill()
        program.wait()
    deadline = time.monotonic() + 100
    while any(_runs(pid) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    program.stdout.close()


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

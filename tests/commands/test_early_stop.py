"""A server that is asked to end while it still imports its parts ends, also as process 1 of a container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LIMIT_S = 100.0
SLOW_IMPORTS = """
import signal, sys, time
from pathlib import Path

class Slow:
    @staticmethod
    def find_spec(name, path=None, target=None):
        while callable(signal.getsignal(signal.SIGTERM)) and not Path({go!r}).exists():
            time.sleep(0.001)

sys.meta_path.insert(0, Slow)
"""
"""Whoever handles the signal imports nothing more until there is a file: until the signal was sent."""


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    (line,) = (
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")
    )
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux who handles which signal")
@pytest.mark.parametrize("command", [["dledger", "broker"], ["dledger.broker"], ["dledger.namesrv"]], ids=str)
def test_a_signal_during_the_imports_is_not_lost(command: list[str], tmp_path: Path) -> None:
    go = tmp_path / "go"
    (tmp_path / "sitecustomize.py").write_text(SLOW_IMPORTS.format(go=str(go)))
    places = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = [f"--storePathRootDir={tmp_path}", "--dLegerSelfId=n0", "--dLegerPeers=n0-127.0.0.1:0"]
    process = subprocess.Popen(
        [sys.executable, "-m", *command, *(settings if "namesrv" not in command[0] else ["--listenPort=0"])],
        # As in process 1, what is not handled has no effect.
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        env={**os.environ, "PYTHONPATH": places},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        deadline = time.monotonic() + LIMIT_S
        while not handles(process.pid, signal.SIGTERM):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.terminate()
        go.touch()
        output, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert (process.returncode, output) == (128 + signal.SIGTERM, b"")

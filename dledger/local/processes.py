"""Processes of the operating system with pid files: they are started, signalled and stopped, and a signal
never goes to another process by mistake.

A pid file holds the pid of the process and its start time, as the operating system reports it. If the
system has given the pid to another process since, the start time differs. So a stale pid file is
recognised and ignored.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

POLL_S = 0.02
TAIL_BYTES = 4096


class ProcessError(Exception):
    """Raised if a process could not be started, or ended when it should not have."""


def start_mark(pid: int) -> str | None:
    """Return the start time of a process in the system's own format; None if the process is not running. A
    zombie counts as not running."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return _start_mark_ps(pid) if not Path("/proc/self/stat").exists() else None
    fields = text.rpartition(")")[2].split()
    # A process keeps its files and ports open until the last of its threads has ended.
    ended = fields[0] == "X" or (fields[0] == "Z" and int(fields[17]) <= 1)
    return None if ended else f"ticks {fields[19]}"


def _start_mark_ps(pid: int) -> str | None:
    done = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, encoding="utf-8", check=False
    )
    state, _, start = done.stdout.strip().partition(" ")
    return None if done.returncode or state.startswith("Z") else start.strip()


def boot_mark() -> str:
    """Return a text that identifies the present boot of the machine. After a boot, pids and start times
    begin again, so they identify a process only together with this text."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


class ManagedProcess:
    """One program with a pid file. Any process of the same user may stop the program, not only the process
    that started it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        pid_file: Path,
        output: Path,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._command = list(command)
        self._pid_file = pid_file
        self._output = output
        self._cwd = cwd
        self._environment = dict(environment or {})
        self._child: subprocess.Popen[bytes] | None = None
        self._output_from = 0
        """Position in the output file at which the output of the process that this object started begins.
        The output of earlier processes is before it."""

    @property
    def pid(self) -> int | None:
        """Pid of the running process; None when it is not running."""
        self.exit_code()  # reaps a child that ended
        try:
            record = json.loads(self._pid_file.read_text(encoding="utf-8"))
            pid, start, boot = int(record["pid"]), record["start"], record["boot"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):  # not a file of ours, or torn: nothing may be killed by it
            return None
        return pid if boot == boot_mark() and start_mark(pid) == start else None

    def start(self) -> int:
        """Start the program in the background, detached from this terminal; returns the pid. Raises
        ProcessError if it runs already."""
        if (running := self.pid) is not None:
            raise ProcessError(f"{self.name} is already running (pid {running})")
        self._output.parent.mkdir(parents=True, exist_ok=True)
        self._pid_file.parent.mkdir(parents=True, exist_ok=True)
        with self._output.open("ab") as output:
            self._output_from = output.tell()
            self._child = subprocess.Popen(
                self._command,
                cwd=self._cwd,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        record = {"pid": self._child.pid, "start": start_mark(self._child.pid), "boot": boot_mark()}
        temporary = self._pid_file.with_suffix(".tmp")
        temporary.write_text(json.dumps({**record, "command": self._command}) + "\n", encoding="utf-8")
        temporary.replace(self._pid_file)
        return self._child.pid

    def signal(self, number: signal.Signals) -> int | None:
        """Send a signal to the process. Returns its pid, or None if the process is not running."""
        if (pid := self.pid) is None:
            return None
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # it ended before the signal was sent
            return None
        return pid

    def wait_gone(self, limit_s: float) -> bool:
        """Wait until the process has ended. Returns False if the time limit is reached first."""
        deadline = time.monotonic() + limit_s
        while self.pid is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def kill(self) -> int | None:
        """Send SIGKILL and wait until the process has ended. Returns its pid, or None if it was not
        running."""
        pid = self.signal(signal.SIGKILL)
        if pid is not None and not self.wait_gone(10):
            raise ProcessError(f"{self.name} (pid {pid}) did not end after SIGKILL")
        return pid

    def stop(self, limit_s: float) -> str:
        """Send SIGTERM, and SIGKILL if the process still runs after the limit. Returns `stopped`, `killed`
        or `not running`."""
        if self.signal(signal.SIGTERM) is None:
            return "not running"
        if self.wait_gone(limit_s):
            return "stopped"
        self.kill()
        return "killed"

    def exit_code(self) -> int | None:
        """Exit code of the process if this object started it and it has ended; otherwise None."""
        return None if self._child is None else self._child.poll()

    def tail(self) -> str:
        """Return the last part of what the process printed."""
        try:
            with self._output.open("rb") as file:
                file.seek(max(self._output_from, self._output.stat().st_size - TAIL_BYTES))
                return file.read().decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

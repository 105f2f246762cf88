"""Real processes with pid files: start, signal, stop; never somebody else's process.

A pid file holds the pid and the moment the process started, as the operating system tells it. A pid that was
given to another process in the meantime has another start, so a stale file is recognised and ignored.
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
    """A process could not be started, or ended when it should not have."""


def start_mark(pid: int) -> str | None:
    """When this process started, in the system's words; None if it does not run (a zombie does not)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return _start_mark_ps(pid) if not Path("/proc/self/stat").exists() else None
    fields = text.rpartition(")")[2].split()
    # Its files, and so its ports, stay open until the last of its threads has ended.
    ended = fields[0] == "X" or (fields[0] == "Z" and int(fields[17]) <= 1)
    return None if ended else f"ticks {fields[19]}"


def _start_mark_ps(pid: int) -> str | None:
    done = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, encoding="utf-8", check=False
    )
    state, _, start = done.stdout.strip().partition(" ")
    return None if done.returncode or state.startswith("Z") else start.strip()


def boot_mark() -> str:
    """Which start of the machine this is: pids and ticks begin anew with each."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


class ManagedProcess:
    """One program with a pid file. Any process of the same user may stop what another one started."""

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
        """Where the output of the process that this object started begins: earlier ones wrote there, too."""

    @property
    def pid(self) -> int | None:
        """Pid of the running process, or None."""
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
        """Start in the background, detached from this terminal: the pid. ProcessError if it runs already."""
        if (running := self.pid) is not None:
            raise ProcessError(f"{self.name} runs already (pid {running})")
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
        """Send a signal; the pid it went to, or None when nothing runs."""
        if (pid := self.pid) is None:
            return None
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # ended between the look and the signal
            return None
        return pid

    def wait_gone(self, limit_s: float) -> bool:
        """Whether the process ended within the limit."""
        deadline = time.monotonic() + limit_s
        while self.pid is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def kill(self) -> int | None:
        """SIGKILL, and wait until it is gone. The pid, or None when nothing ran."""
        pid = self.signal(signal.SIGKILL)
        if pid is not None and not self.wait_gone(10):
            raise ProcessError(f"{self.name} (pid {pid}) does not die of SIGKILL")
        return pid

    def stop(self, limit_s: float) -> str:
        """SIGTERM, after the limit SIGKILL. What happened: `stopped`, `killed` or `not running`."""
        if self.signal(signal.SIGTERM) is None:
            return "not running"
        if self.wait_gone(limit_s):
            return "stopped"
        self.kill()
        return "killed"

    def exit_code(self) -> int | None:
        """Exit code, when this object started the process and it has ended."""
        return None if self._child is None else self._child.poll()

    def tail(self) -> str:
        """The end of what the process printed."""
        try:
            with self._output.open("rb") as file:
                file.seek(max(self._output_from, self._output.stat().st_size - TAIL_BYTES))
                return file.read().decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

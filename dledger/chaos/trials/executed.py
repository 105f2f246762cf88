"""Commands of the user that inject faults into a group that others have started: `--exec KIND=COMMAND`.

A command is split into words as a shell does, and is run without a shell. In each word `{node}`, `{host}`,
`{port}`, `{address}` and `{amount}` are replaced; other braces stay as they are.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from dledger.chaos.trials.nemeses import NEMESES
from dledger.local.cluster import ClusterError
from dledger.runtime.options import WrongUsage

COMMAND_LIMIT_S = 60.0
"""Longest time of one command, in seconds. It is killed then, and the fault counts as failed."""
MAX_OUTPUT = 300
"""Number of characters of a failed command's output that are shown: the last ones."""
MAX_READ = 1024 * 1024
"""Bytes of the output of a failed command that are read."""
PLACEHOLDERS = ("node", "host", "port", "address", "amount")


@dataclass(frozen=True)
class Template:
    """A command with placeholders."""

    text: str

    def words(self, values: Mapping[str, str]) -> list[str]:
        """The command with these values in the place of the placeholders."""
        found = shlex.split(self.text)
        for name in PLACEHOLDERS:
            found = [word.replace(f"{{{name}}}", values.get(name, "")) for word in found]
        return found


def parse_commands(option: str, given: Sequence[str]) -> dict[str, Template]:
    """Read the values of `--exec` or `--exec-undo`, each KIND=COMMAND. Raises WrongUsage for a kind of fault
    that does not exist or is given twice, and for a command that cannot be split into words."""
    found: dict[str, Template] = {}
    for text in given:
        kind, separator, command = text.partition("=")
        if not separator or not command.strip():
            raise WrongUsage(f"{option} {text!r}: give KIND=COMMAND, as in kill='ssh {{host}} pkill -9 java'")
        if kind not in NEMESES:
            raise WrongUsage(
                f"{option}: there is no fault {kind!r}; give one of {', '.join(sorted(NEMESES))}"
            )
        if kind in found:
            raise WrongUsage(f"{option}: {kind} is given twice")
        try:
            shlex.split(command)
        except ValueError as error:
            raise WrongUsage(f"{option} {text!r}: {error}") from error
        found[kind] = Template(command)
    return found


class Runner:
    """Runs commands, and kills those that run when the trial is interrupted. May be used from several
    threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[subprocess.Popen[bytes], None] = {}
        self._refused = False

    def run(self, template: Template, values: Mapping[str, str]) -> None:
        """Run a command to its end. Raises ClusterError if it fails, does not end in time or cannot be
        started."""
        words = template.words(values)
        text = shlex.join(words)
        # The output goes to a file: a process that the command leaves in the background would keep a pipe
        # open.
        with tempfile.TemporaryFile() as output:
            self._run(words, text, output)

    def _run(self, words: Sequence[str], text: str, output: IO[bytes]) -> None:
        with self._lock:
            if self._refused:
                raise ClusterError(f"not run, because the trial was interrupted: {text}")
            try:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ClusterError(f"cannot run {text}: {error.strerror or error}") from error
            self._running[process] = None
        try:
            code = process.wait(COMMAND_LIMIT_S)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.wait()
            raise ClusterError(f"did not end within {COMMAND_LIMIT_S:g} s: {text}") from None
        finally:
            with self._lock:
                del self._running[process]
        if code:
            output.seek(0)
            said = output.read(MAX_READ).decode(errors="replace")[-MAX_OUTPUT:].strip()
            raise ClusterError(f"exit code {code} of {text}: {said}")

    def interrupt(self) -> None:
        """Kill the commands that run, and start no others until `resume`."""
        with self._lock:
            self._refused = True
            for process in self._running:
                _kill(process)

    def resume(self) -> None:
        """Allow commands again: those that undo faults."""
        with self._lock:
            self._refused = False


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)

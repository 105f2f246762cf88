"""Processes that measure or load a group: each reads requests as lines, and answers with lines of JSON
(`failover_clock`, `pressure`)."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from typing import IO, Any

from dledger.local.cluster import PACKAGES

ANSWER_LIMIT_S = 30.0
"""Longest time until a process answers, in seconds."""
END_LIMIT_S = 10.0
"""Longest time until a process ends when its standard input is closed, in seconds. Then it is killed."""


class LineProcess:
    """A process that answers each line of its standard input with a line of JSON. Use it inside its `with`
    block, which ends the process."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=PACKAGES,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,  # Ctrl-C must not reach it: this process ends it
        )

    def __enter__(self) -> LineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._process)

    def say(self, line: str) -> None:
        """Send a request; `answer` reads the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Read the next line of the process. Raises TimeoutError if no line comes within ANSWER_LIMIT_S."""
        line = _read_line(self._process.stdout, ANSWER_LIMIT_S)
        value = json.loads(line)
        assert isinstance(value, dict)
        return value

    def ask(self, line: str) -> dict[str, Any]:
        """Send a request and read its answer."""
        self.say(line)
        return self.answer()


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    try:
        process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _read_line(stream: IO[str] | None, limit_s: float) -> str:
    assert stream is not None
    ready, _, _ = select.select([stream], [], [], limit_s)
    if not ready:
        raise TimeoutError(f"no answer within {limit_s:g} s")
    line = stream.readline()
    if not line:
        raise TimeoutError("the process ended")
    return line

"""Clients of other projects in a trial. Each is a process with a producer and an orderly consumer.

It writes what it does to its standard output, one JSON object a line, and a trial notes this in its history,
as if a program of ours had done it. Times (`at`) are those of the machine's monotonic clock, in ns; bodies
have one character for each byte.

    {"event": "ready"}
    {"event": "sending", "key": "go-0-7", "at": 1, "bodies": ["go-0-7|..."]}
    {"event": "sent", "key": "go-0-7", "at": 2, "outcome": "unknown", "text": "why"}
    {"event": "sent", "key": "go-0-7", "at": 2, "outcome": "acknowledged", "queue": 0, "offset": 3, "id": "7"}
    {"event": "received", "queue": 0, "offset": 3, "position": 4096, "stored": 1700000000000, "body": "..."}
    {"event": "stopped"}
    {"event": "failed", "text": "why"}

`sending` with several bodies is a batch. `outcome` is `acknowledged` or `unknown`: a client that sends again
by itself never knows that nothing was stored. `id` has the offset message ids, separated by commas. `stored`
is the store time in ms since the epoch.

The process sends from the line `start` on its standard input until the line `stop`. It ends when its standard
input ends. A failed trial therefore leaves no process behind.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any, Protocol

from dledger.chaos.scenarios.broker_clients import Program
from dledger.chaos.scenarios.broker_history import BrokerHistory, Receipt, Send
from dledger.chaos.scenarios.client_stage import ClientStage
from dledger.chaos.scenarios.history import ACKNOWLEDGED, UNKNOWN
from dledger.chaos.trials.other_tools import TOOLS, CannotStart, environment
from dledger.runtime.env import Env

TOPIC = "shared"
"""The topic of the clients of other projects. Our own producers and consumers use it, too."""
MAX_LINE = 1 << 20
"""Longest line that such a process may write, in bytes."""
END_S = 10.0
"""How long such a process may take to end after its standard input has ended, in seconds. Then it is killed.
"""


class OtherStage(ClientStage, Protocol):
    """The run of a client of another project: a trial."""

    def client_directory(self, name: str) -> Path:
        """A directory for the files of a client."""


class UnexpectedLine(ValueError):
    """Raised for a line that is none of the protocol. The text shows the line."""


class Notes:
    """Turns the lines of one process into entries of the history."""

    def __init__(self, stage: ClientStage, history: BrokerHistory, name: str, group: str) -> None:
        self._stage = stage
        self._history = history
        self._name = name
        self._group = group
        self._open: dict[str, Send] = {}
        self.ready: bool = False
        """Whether the process may be told to start."""
        self.stopped: bool = False
        """Whether the process sends no more."""
        self.error: str = ""
        """Why the process cannot go on; empty if it can."""

    def read(self, line: str) -> None:
        """Note one line. Raises UnexpectedLine."""
        try:
            self._note(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnexpectedLine(f"{self._name} wrote {line[:200]!r}: {error!r}") from error

    def _note(self, said: dict[str, Any]) -> None:
        event = said["event"]
        if event == "sending":
            values = [body.encode("latin-1") for body in said["bodies"]]
            batch = len(values) > 1
            self._open[said["key"]] = send = Send(self._name, TOPIC, values, self._time(said["at"]), batch)
            self._history.sends.append(send)
        elif event == "sent":
            self._sent(self._open.pop(said["key"]), said)
        elif event == "received":
            self._received(said)
        elif event == "ready":
            self.ready = True
        elif event == "stopped":
            self.stopped = True
        elif event == "failed":
            self.error = str(said["text"])
        else:
            raise ValueError(f"there is no event {event!r}")

    def _sent(self, send: Send, said: dict[str, Any]) -> None:
        if said["outcome"] not in (ACKNOWLEDGED, UNKNOWN):
            raise ValueError(f"there is no outcome {said['outcome']!r}")
        send.outcome, send.text = said["outcome"], str(said.get("text", ""))
        if send.outcome == ACKNOWLEDGED:
            send.queue, send.offset = int(said["queue"]), int(said["offset"])
            send.ids = tuple(said["id"].split(","))
        send.end, send.begun = self._time(said["at"]), self._stage.begun

    def _received(self, said: dict[str, Any]) -> None:
        self._history.received(
            Receipt(
                self._group,
                self._name,
                1,
                (TOPIC, int(said["queue"])),
                int(said["offset"]),
                said["body"].encode("latin-1"),
                int(said["position"]),
                int(said["stored"]),
                self._stage.leader_term(),
                self._stage.begun,
            )
        )

    def _time(self, at_ns: int) -> int:
        """The time of the trial at a time of the machine's monotonic clock."""
        return self._stage.client_now(self._name) + at_ns - time.monotonic_ns()


class OtherClient(Program):
    """The process of a client of another project, from its start to its end."""

    kind = ""
    """Its kind, a key of TOOLS."""
    group = ""

    def __init__(self, stage: OtherStage, number: int, history: BrokerHistory, topics: list[str]) -> None:
        super().__init__(stage, number, history, topics)
        self._directory = stage.client_directory(self.name)
        self._notes = Notes(stage, history, self.name, self.group)
        self._input: asyncio.StreamWriter | None = None

    @property
    def ready(self) -> bool:
        """Whether it waits for its start, or cannot start."""
        return self._notes.ready or bool(self.error)

    @property
    def done(self) -> bool:
        """Whether it sends no more."""
        return self._notes.stopped or bool(self.error)

    @property
    def error(self) -> str:
        """Why it could not go on; empty if it can."""
        return self._notes.error

    async def begin(self) -> None:
        """Let it begin to send."""
        await self._write("start")

    async def stop_sending(self) -> None:
        """Let it end to send. It still receives."""
        await self._write("stop")

    async def _write(self, line: str) -> None:
        if self._input is None:
            return
        try:
            self._input.write(f"{line}\n".encode())
            await self._input.drain()
        except OSError as error:  # it has ended; `main` says why
            self._notes.error = self._notes.error or f"{self.name} does not read: {error}"

    async def main(self, env: Env) -> None:
        self.lives += 1
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            command = await asyncio.to_thread(TOOLS[self.kind].command, self._directory)
        except CannotStart as problem:
            self._notes.error = f"{self.name} cannot start: {problem}"
            return
        noise = self._directory / "errors.out"
        try:
            with noise.open("wb") as errors:
                process = await asyncio.create_subprocess_exec(
                    *command, self._stage.namesrv_addr, TOPIC, self.group, self.name,
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
                    cwd=self._directory, env=environment(self._directory), limit=MAX_LINE,
                )  # fmt: skip
        except OSError as problem:
            self._notes.error = f"{self.name} cannot start: {problem}"
            return
        try:
            assert process.stdin is not None and process.stdout is not None
            self._input = process.stdin
            async for line in process.stdout:
                self._notes.read(line.decode("ascii"))
            code = await process.wait()
            last = noise.read_text(encoding="utf-8", errors="replace")[-600:]
            said = self.error or last or "no output"
            self._notes.error = f"{self.name} ended with exit code {code}: {said}"
        except UnexpectedLine as problem:
            self._notes.error = str(problem)
        except ValueError as problem:  # a line that is too long, or not ASCII
            self._notes.error = f"{self.name} wrote a line that cannot be read: {problem}"
        finally:
            self._input = None
            await asyncio.shield(_end(process))


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process: its standard input ends, and it is killed if it does not end then."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


class JavaClient(OtherClient):
    """Apache RocketMQ's Java client."""

    kind = "java"
    group = "java-workers"


class GoClient(OtherClient):
    """Apache RocketMQ's Go client."""

    kind = "go"
    group = "go-workers"


__all__ = ["TOPIC", "GoClient", "JavaClient", "Notes", "OtherClient", "OtherStage", "UnexpectedLine"]

"""The interfaces of `dledger/runtime/` for a simulated process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.runtime.env import Env
from dledger.runtime.ids import Ids

if TYPE_CHECKING:
    from dledger.chaos.machine.node import Process


class SimWallClock:
    """Time of day on one machine: the start date in the settings, plus virtual time, plus the machine's
    offset (skew)."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._node = process.node
        self._epoch_ms = process.world.settings.epoch_ms

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return self._epoch_ms + self._node.clock.wall_skew_ms + self._process.loop.now_ns() // 1_000_000


class SimLog:
    """The log of a simulated process. All lines go into the trace; the last lines also go into the report of
    a failed run."""

    def __init__(self, process: Process, name: str) -> None:
        self._process = process
        self._name = name

    def _emit(self, level: str, event: str, fields: dict[str, object]) -> None:
        process = self._process
        if process.loop.dead:
            return
        text = f"{self._name}: {event}" if self._name else event
        if fields:
            text += " " + " ".join(f"{key}={value}" for key, value in fields.items())
        process.world.log(process, level, text)

    def debug(self, event: str, **fields: object) -> None:
        """Write a line into the trace only."""
        if self._process.world.trace is not None:
            self._emit("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Write one line of level info."""
        self._emit("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Write one line of level warning."""
        self._emit("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Write one line of level error."""
        self._emit("error", event, fields)

    def child(self, name: str) -> SimLog:
        """A log like this one, whose name is extended by `name`."""
        return SimLog(self._process, f"{self._name}.{name}" if self._name else name)


def make_env(process: Process) -> Env:
    """The `Env` of one process."""
    return Env(
        files=process.files,
        wall=SimWallClock(process),
        random=process.random,
        ids=Ids(process.random),
        workers=process.workers,
        log=SimLog(process, ""),
        pid=process.pid,
        boot_id=process.node.boot_id,
        secret_bytes=process.world.stream(f"secret/{process.node.name}/{process.number}").randbytes,
    )

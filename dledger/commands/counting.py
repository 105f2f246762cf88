"""The smallest durable state machine: it counts the applied RAW entries, and keeps a digest of them in
their order.

`dledger serve` runs it. Two nodes with equal counts and equal digests have applied equal histories.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dledger.errors import PASSING, refused_by_system
from dledger.formats.entry import HEADER_SIZE, Kind, unpack_header
from dledger.formats.store_files import CorruptFile, decode_json, encode_json
from dledger.host import Chunk, LogReader, Role, misfit
from dledger.runtime import Env, Lane
from dledger.runtime.atomic_file import publish, read_file

STATE_FILE = "count"
SAVE_INTERVAL_S = 1.0


@dataclass(frozen=True)
class Counted:
    """Content of a state file: the count and the digest after entry `applied`, and the term of that entry."""

    applied: int
    count: int
    digest: str
    term: int | None
    """Term of the entry `applied`; None in files of older programs, which did not store it."""


def decode_count(data: bytes) -> Counted:
    """Decode a state file. Raises CorruptFile if it is damaged."""
    state = decode_json(data)
    try:
        term = int(str(state["term"])) if "term" in state else None
        return Counted(int(str(state["applied"])), int(str(state["count"])), str(state["digest"]), term)
    except (KeyError, ValueError) as error:
        raise CorruptFile(repr(error)) from error


class CountingHost:
    """The state machine of `dledger serve`, which counts entries. It saves its state in
    `<directory>/count` about every second, and when `save` is called."""

    def __init__(self, env: Env, directory: str) -> None:
        self.count: int = 0
        self.digest: str = ""
        self.applied: int = -1
        self.opened: asyncio.Event = asyncio.Event()
        """Set when the log is open, so that role and term are known."""
        self._env = env
        self._directory = directory
        self._path = f"{directory}/{STATE_FILE}"
        self._saved = -1
        self._waits = False
        """Whether the last save failed. So a failure is logged once, and not every second."""
        self._log: LogReader | None = None

    async def open(self, log: LogReader) -> int:
        """Load the saved state. If there is none, or it does not belong to this log, all entries are
        applied again."""
        self._log = log
        run, files = self._env.workers.run, self._env.files
        try:
            data = await run(Lane.DISK, read_file, files, self._path)
        except OSError as error:
            raise refused_by_system(f"{self._path} (remove it to rebuild it)", error) from error
        if data is not None:
            try:
                saved = decode_count(data)
                why = await misfit(log, saved.applied, saved.term, None)
            except CorruptFile as error:
                why = str(error)
            if why:
                self._env.log.warning("saved state not used, replaying the log", path=self._path, why=why)
                await run(Lane.DISK, files.unlink, self._path)  # it would be wrong once the log has grown
                await run(Lane.DISK, files.sync_dir, self._directory)
            else:
                self.applied, self.count, self.digest = saved.applied, saved.count, saved.digest
        self._saved = self.applied
        return self.applied

    def snapshot(self) -> Iterable[tuple[str, bytes]]:
        """Return the parts of a snapshot: the count and the digest."""
        return [(STATE_FILE, json.dumps({"count": self.count, "digest": self.digest}).encode())]

    async def restore(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Replace count and digest by those of a snapshot."""
        state = json.loads(parts[STATE_FILE])
        self.count, self.digest, self.applied = state["count"], state["digest"], index  # `run` saves it

    async def log_begins(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Do nothing: the state covers all entries, whether the log still holds them or not."""

    async def kept_from(self) -> int | None:
        """Return None, because this state machine needs no entry of the log after it has applied it."""
        return None

    def apply(self, chunk: Chunk) -> None:
        """Count the RAW entries of a chunk; this state machine ignores all others."""
        offset = 0
        for _ in range(chunk.count):
            header = unpack_header(chunk.data, offset)
            if header.kind == Kind.RAW:
                body = chunk.data[offset + HEADER_SIZE : offset + header.size]
                self.count += 1
                self.digest = hashlib.sha256(self.digest.encode() + body).hexdigest()
            offset += header.size
        self.applied = chunk.first_index + chunk.count - 1

    def on_role(self, role: Role, term: int, leader_id: str | None) -> None:
        """Set `opened`, because the node is open now."""
        self.opened.set()

    def on_serving(self, term: int) -> None:
        """Do nothing: clients append directly to the node."""

    def on_commit(self, commit_index: int) -> None:
        """Do nothing: the client protocol answers clients itself."""

    def on_stopped_serving(self, term: int) -> None:
        """Do nothing: the client protocol answers clients itself."""

    async def run(self) -> None:
        """Save about every second, until cancelled."""
        while True:
            await asyncio.sleep(SAVE_INTERVAL_S)
            await self.save()

    async def save(self) -> bool:
        """Replace the state file if the state has changed. Returns False if the disk is full, so that a
        later attempt may succeed; raises NodeFailed for any other error."""
        if self.applied == self._saved:
            return True
        applied = self.applied
        state: dict[str, object] = {"applied": applied, "count": self.count, "digest": self.digest}
        term = None if self._log is None else self._log.term_of(applied)
        if term is not None:
            state["term"] = term
        try:
            await publish(self._env.files, self._env.workers, Lane.DISK, self._path, encode_json(state))
        except OSError as error:
            if error.errno not in PASSING:
                raise refused_by_system(f"cannot write {self._path}", error) from error
            if not self._waits:
                self._env.log.warning("cannot save the state, trying again", error=error)
            self._waits = True
            return False
        self._saved = applied
        self._waits = False
        return True

    def describe(self) -> str:
        """Return the state as JSON."""
        return json.dumps({"applied": self.applied, "count": self.count, "digest": self.digest})

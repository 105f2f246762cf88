"""The key-value table (KVConfigManager): a few settings by namespace and key, stored in kvConfig.json.

A change is answered when it is on disk. Changes that arrive during a write are part of the next write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import BadBody, RemotingError
from dledger.remoting.fastjson import dumps, loads
from dledger.runtime.atomic_file import publish, read_file
from dledger.runtime.env import Env
from dledger.runtime.settings import ConfigError
from dledger.runtime.workers import Lane

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
"""Namespace whose entries map a topic to its order configuration "brokerName:queues;..."."""

MAX_ENTRIES = 100_000
"""Largest number of keys in all namespaces together; one more is refused."""
MAX_ENTRY_SIZE = 64 * 1024
"""Limit, in characters, of one namespace, key and value together; a larger entry is refused."""
MAX_WAITING = 10_000
"""Largest number of changes that wait for the disk; one more is refused (SYSTEM_BUSY)."""

Table = dict[str, dict[str, str]]
Done = Callable[[RemotingError | None], None]


class KvTable:
    """The key-value table. `run` writes it to the file; without a path it is never written."""

    def __init__(self, env: Env, path: str | None) -> None:
        self._env = env
        self._path = path
        self._log = env.log.child("kv")
        self._table: Table = {}
        self._waiting: list[tuple[str, str, str | None, Done]] = []
        self._wake = asyncio.Event()
        self.problem = ""
        """Why the table cannot be read now; empty if it can be read."""

    async def load(self) -> None:
        """Read the file. Raises ConfigError if it exists and cannot be understood."""
        if self._path is None:
            return
        try:
            data = await self._env.workers.run(Lane.DISK, read_file, self._env.files, self._path)
            if data is not None:
                self._table = decode_table(data)
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot be read: {error.strerror or error}") from error
        except BadBody as error:
            raise ConfigError(f"{self._path}: {error.remark}") from error

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value of a key; None if it is not set."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return all entries of a namespace; None if it has none."""
        return self._table.get(namespace)

    def change(self, namespace: str, key: str, value: str | None, done: Done) -> None:
        """Set a value, or delete it if `value` is None. `done` is called when the change is on disk, or with
        an error."""
        check_entry(namespace, key, value)
        if len(self._waiting) >= MAX_WAITING:
            raise RemotingError(ResponseCode.SYSTEM_BUSY, f"{MAX_WAITING} changes wait for the disk")
        self._waiting.append((namespace, key, value, done))
        self._wake.set()

    async def run(self) -> None:
        """Write changes until cancelled. A failed write fails only the changes in it."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting, self._waiting = self._waiting, []
            if waiting:
                await self._write(waiting)

    async def _write(self, waiting: list[tuple[str, str, str | None, Done]]) -> None:
        table = {namespace: dict(entries) for namespace, entries in self._table.items()}
        accepted = []
        size = sum(map(len, table.values()))
        for namespace, key, value, done in waiting:
            entries = table.setdefault(namespace, {})
            if value is None:
                size -= entries.pop(key, None) is not None
            elif key not in entries and (refused := table_full(size)):
                done(RemotingError(ResponseCode.SYSTEM_ERROR, refused))
                continue
            else:
                size += key not in entries
                entries[key] = value
            accepted.append(done)
        table = {namespace: entries for namespace, entries in table.items() if entries}
        error = await self._publish(table)
        if error is None:
            self._table = table
        for done in accepted:
            done(error)

    async def _publish(self, table: Table) -> RemotingError | None:
        """Write the file, if there is one."""
        if self._path is None:
            return None
        try:
            await publish(self._env.files, self._env.workers, Lane.DISK, self._path, encode_table(table))
        except OSError as failure:
            reason = f"{self._path}: cannot be written: {failure.strerror or failure}"
            self._log.error("KV table not written", reason=reason)
            return RemotingError(ResponseCode.SYSTEM_ERROR, reason)
        return None


def check_entry(namespace: str, key: str, value: str | None) -> None:
    """Check the size of an entry. Raises RemotingError if it is too large."""
    if len(namespace) + len(key) + len(value or "") > MAX_ENTRY_SIZE:
        raise RemotingError(
            ResponseCode.SYSTEM_ERROR, f"the KV entry is too long; the limit is {MAX_ENTRY_SIZE} characters"
        )


def table_full(count: int) -> str | None:
    """Why a new entry is refused when there are `count` entries; None when it is not."""
    return (
        (f"the KV table has {MAX_ENTRIES} entries, and that is the limit: remove one first")
        if count >= MAX_ENTRIES
        else None
    )


def encode_table(table: Table) -> bytes:
    """Encode the content of the file (KVConfigSerializeWrapper)."""
    return dumps({"configTable": table})


def decode_table(data: bytes) -> Table:
    """Decode what `encode_table` encodes. Raises BadBody for anything else."""
    value = loads(data) if data.strip() else {}
    if not isinstance(value, dict):
        raise BadBody("not a KV table: expected a JSON object")
    try:
        return msgspec.convert(value.get("configTable") or {}, Table)
    except msgspec.ValidationError as error:
        raise BadBody(f"not a KV table: {error}") from error

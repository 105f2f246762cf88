"""Exports of tables of the replicated state to `config/*.json` below the store, as RocketMQ writes these
files.

The files are for tools and people. The broker never reads them, and deleting them loses nothing (architecture
rule 1). Each member writes its own files from the state that it has applied, when that state has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from dledger.broker.store.message_store import MessageStore
from dledger.broker.topic.shown import shown_group
from dledger.broker.topic.topic_table import TopicTable
from dledger.errors import PASSING, refused_by_system
from dledger.formats.checksum import crc32
from dledger.formats.state import DELAYS
from dledger.remoting.fastjson import dumps
from dledger.remoting.registration import DataVersion, table_body
from dledger.runtime.atomic_file import publish
from dledger.runtime.cooperative import Pace
from dledger.runtime.env import Env
from dledger.runtime.workers import Lane

CONFIG_DIR = "config"
SLICE = 1000
"""Number of rows that are encoded, in about 2 ms, before the loop turns to other work."""
SHARE = 0.05
"""Largest share of the time that exports may take. A million consumer offsets take seconds."""


class ConfigExport:
    """Writes the exports while the broker runs."""

    def __init__(
        self,
        env: Env,
        root: str,
        store: MessageStore,
        table: TopicTable,
        version: Callable[[], DataVersion],
        interval_s: Callable[[], float],
    ) -> None:
        """`interval_s`: a function that returns the seconds between two checks for changes; 0 turns exports
        off."""
        self._env = env
        self._directory = f"{root}/{CONFIG_DIR}"
        self._store = store
        self._table = table
        self._version = version
        self._interval_s = interval_s
        self._applied = -1
        self._written: dict[str, int] = {}
        """Maps the name of a file to the CRC of its content. The content does not include the version."""
        self._told = False
        self.exports: int = 0
        """Number of files written since start."""

    async def run(self) -> None:
        """Export changed tables at intervals, until cancelled. Retries while the disk is full. Raises
        NodeFailed for any other error of the disk."""
        loop = asyncio.get_running_loop()
        while True:
            interval_s = self._interval_s()
            await asyncio.sleep(interval_s or 1.0)
            if not interval_s or self._store.applied_index == self._applied:
                continue
            began = loop.time()
            try:
                await self.export()
                self._told = False
            except OSError as error:
                if error.errno not in PASSING:
                    raise refused_by_system("cannot write config/*.json", error) from error
                if not self._told:
                    self._env.log.warning("cannot write config/*.json, trying again", error=error)
                self._told = True
            await asyncio.sleep((loop.time() - began) * (1 / SHARE - 1))

    async def export(self) -> None:
        """Write the files whose content has changed since they were last written."""
        applied = self._store.applied_index
        await self._env.workers.run(Lane.DISK, self._env.files.mkdir, self._directory)
        await self._table.prepare()
        entries = self._table.entries()
        version = self._version()
        encoded = dumps(version)
        await self._write("topics.json", b"".join(entries), table_body(entries, version))
        for name, key, rows in (
            ("subscriptionGroup.json", b"subscriptionGroupTable", self._groups()),
            ("consumerOffset.json", b"offsetTable", self._offsets()),
            ("delayOffset.json", b"offsetTable", self._delays()),
        ):
            content = b",".join([row async for row in rows])
            more = b'"forbiddenTable":{},' if name == "subscriptionGroup.json" else b""
            body = b'{"dataVersion":%b,%b"%b":{%b}}' % (encoded, more, key, content)
            await self._write(name, content, body)
        self._applied = applied

    async def _write(self, name: str, content: bytes, body: bytes) -> None:
        crc = crc32(content)
        if self._written.get(name) == crc:
            return
        path = f"{self._directory}/{name}"
        await publish(self._env.files, self._env.workers, Lane.DISK, path, body)
        self._written[name] = crc
        self.exports += 1

    async def _groups(self) -> AsyncIterator[bytes]:
        pace = Pace(SLICE // 4)
        for name, group in list(self._store.state.groups.items()):
            await pace.step()
            yield b"%b:%b" % (msgspec.json.encode(name), shown_group(group).encode())

    async def _offsets(self) -> AsyncIterator[bytes]:
        pace = Pace(SLICE)
        for name in list(self._store.state.offsets):
            by_topic: dict[str, dict[str, int]] = {}
            for (topic, queue), offset in list(self._store.state.offsets.get(name, {}).items()):
                by_topic.setdefault(f"{topic}@{name}", {})[str(queue)] = offset
                await pace.step()
            for key, offsets in by_topic.items():
                yield b"%b:%b" % (msgspec.json.encode(key), msgspec.json.encode(offsets))
                await pace.step()

    async def _delays(self) -> AsyncIterator[bytes]:
        for level, row in sorted(self._store.state[DELAYS].rows.items()):
            yield b'"%d":%d' % (level, row.next)

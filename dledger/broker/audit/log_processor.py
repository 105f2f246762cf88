"""Request 28009 AUDIT_LOG, by which a reader copies the committed log of this broker, byte for byte
(`remoting.audit_headers`).

Any node answers, leader or follower. The bytes are not checked here: each entry has CRCs, and the reader
checks them.
"""

from __future__ import annotations

from dledger.broker.auth import required
from dledger.broker.core import Core
from dledger.broker.requests import Call, Needs, handles
from dledger.remoting.audit_headers import AuditLogHeader
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.runtime.files import Buffer

MAX_LOG_BYTES = 4 * 1024 * 1024
"""Largest number of bytes of the log in one answer, unless a single entry is larger. A request for more
gets this many."""
MAX_LOG_READS = 8
"""Largest number of requests for bytes of the log for which this broker reads at the same time; one more is
refused with 2 SYSTEM_BUSY."""


class LogProcessor:
    """Answers requests for bytes of the log."""

    def __init__(self, core: Core) -> None:
        self._node = core.node
        self._store = core.store
        self._background = core.background
        self._config = core.settings.now
        self._reading = 0

    @handles(
        RequestCode.AUDIT_LOG,
        AuditLogHeader,
        needs=Needs.ANY,
        reads="the answering node's log, up to its applied index",
        may=required.ADMIN,
    )
    def log(self, call: Call[AuditLogHeader]) -> None:
        """Return entries of the log, from a given index on."""
        header = call.header
        if header.first < 0 or header.maxBytes < 1:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER,
                f"{header.maxBytes} bytes from entry {header.first} on: ask for 1 or more, from entry 0 on",
            )
        self._background.start(call.connection, call.request, self._log(call))

    async def _log(self, call: Call[AuditLogHeader]) -> None:
        if self._reading >= MAX_LOG_READS:
            text = f"{MAX_LOG_READS} readers of the log are being served: try again later"
            raise RemotingError(ResponseCode.SYSTEM_BUSY, text)
        self._reading += 1
        try:
            position, body = await self._bytes(call.header.first, min(call.header.maxBytes, MAX_LOG_BYTES))
        finally:
            self._reading -= 1
        ext = {
            "begin": str(self._node.log.first_index),
            "applied": str(self._store.applied_index),
            "position": str(position),
            "cluster": self._node.cluster_id,
            "group": self._config.broker_name,
            "node": self._config.self_id,
        }
        call.respond(ext=ext, body=[body] if body else b"")

    async def _bytes(self, first: int, most: int) -> tuple[int, Buffer]:
        """Return the position of entry `first`, and bytes of the log from there on. They end with the last
        applied entry, at the end of the segment, or within an entry. There are none if the log does not hold
        entry `first` (position -1), or if it is not applied yet."""
        log, applied = self._node.log, self._store.applied_index
        if first > applied:
            return -1, b""
        try:
            position, size = await log.find(first)
            segment_end = position - position % log.segment_size + log.segment_size
            end = min(position + max(size, most), segment_end)
            last, last_size = await log.find(applied)
            end = min(end, last + last_size)
            hot = log.view(position, end - position)
            return position, await log.read(position, end - position) if hot is None else hot
        except (KeyError, ValueError):
            if first < log.first_index:
                return -1, b""  # retention was faster
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY, f"entry {first} of the log cannot be found now: it waits for repair"
            ) from None

"""Messages that wait on this machine's disk until their cluster can be reached: an ordered queue in one
SQLite file. All methods block.

SQLite keeps the file consistent through a crash, and locks out other processes. Each `put` is one transaction
with its fsync.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from dledger.client.errors import ClientError
from dledger.runtime.locks import JobLock

_LAYOUT = """
CREATE TABLE IF NOT EXISTS waiting (number INTEGER PRIMARY KEY AUTOINCREMENT, message BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS refused (number INTEGER PRIMARY KEY, message BLOB NOT NULL, reason TEXT NOT NULL);
"""


class SpoolFailed(ClientError):
    """The spool cannot be opened, or the disk did not accept a message. The message is not in the spool."""


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """A message as it is kept in the file; fields may be added at the end."""

    unique_id: str
    topic: str
    body: bytes
    tags: str | None = None
    keys: str | None = None
    properties: dict[str, str] = {}
    flag: int = 0
    delay_level: int = 0
    deliver_at_ms: int | None = None
    ordering_key: str | None = None
    kept_ms: int = 0
    """When the message was put into the file, by this machine's clock, in ms since the epoch."""


class Row(NamedTuple):
    """A kept message and its place in the order."""

    number: int
    message: Kept


class Spool:
    """The file of the spool; see the module. Methods may be called from any thread; only one runs at a time.

    The connection must not be closed while a call is running, because then Python's SQLite module ends the
    process with a segmentation fault. This can happen because the call of a cancelled caller goes on in its
    thread.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        self._one_at_a_time = JobLock()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Kept).decode

    def open(self) -> tuple[int, int, int]:
        """Create or open the file. Returns the number of waiting messages, their size in bytes, and the
        number of refused messages. Raises SpoolFailed."""
        with self._one_at_a_time:
            try:
                return self._prepare()
            except sqlite3.Error as error:
                self.close()
                locked = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY
                why = "another process uses it: give each process its own spool" if locked else str(error)
                raise SpoolFailed(f"the spool {self._path} cannot be opened: {why}") from error

    def _prepare(self) -> tuple[int, int, int]:
        database = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        self._database = database
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
            database.execute(f"PRAGMA {pragma}").fetchall()
        database.executescript(_LAYOUT)
        count, size = database.execute("SELECT count(*), total(length(message)) FROM waiting").fetchone()
        (refused,) = database.execute("SELECT count(*) FROM refused").fetchone()
        return count, int(size), refused

    def put(self, messages: Sequence[Kept]) -> list[int]:
        """Store messages durably and in order. Returns the size of each in bytes. Raises SpoolFailed if none
        of them is stored."""
        rows = [self._encode(message) for message in messages]
        self._change("INSERT INTO waiting (message) VALUES (?)", [(row,) for row in rows])
        return [len(row) for row in rows]

    def size_of(self, message: Kept) -> int:
        """Size of a message in the spool, in bytes."""
        return len(self._encode(message))

    def next(self, after: int, count: int) -> list[Row]:
        """The oldest waiting messages with a number above `after`, at most `count`."""
        found = self._read(
            "SELECT number, message FROM waiting WHERE number > ? ORDER BY number LIMIT ?", after, count
        )
        return [self._row(number, message) for number, message in found]

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove messages that their cluster has stored."""
        self._change("DELETE FROM waiting WHERE number = ?", [(number,) for number in numbers])

    def refuse(self, refused: Sequence[tuple[int, str]]) -> None:
        """Move messages that the cluster refused to the table `refused`, with the reasons, so that an
        operator can look at them."""
        with self._changing() as database:
            database.executemany(
                "INSERT INTO refused SELECT number, message, ?2 FROM waiting WHERE number = ?1", refused
            )
            database.executemany("DELETE FROM waiting WHERE number = ?1", [(row[0],) for row in refused])

    def refused(self) -> list[tuple[Row, str]]:
        """The messages in the table `refused`, each with the reason."""
        found = self._read("SELECT number, message, reason FROM refused ORDER BY number")
        return [(self._row(number, message), reason) for number, message, reason in found]

    def close(self) -> None:
        """Close the file. Nothing is lost if this is never called."""
        with self._one_at_a_time:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            raise SpoolFailed(f"the spool {self._path} is not open")
        return self._database

    def _read(self, statement: str, *values: int) -> list[tuple[Any, ...]]:
        with self._one_at_a_time:
            try:
                return self._open().execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise SpoolFailed(f"the spool {self._path}: {error}") from error

    def _row(self, number: int, message: bytes) -> Row:
        try:
            return Row(number, self._decode(message))
        except msgspec.MsgspecError as error:
            raise SpoolFailed(f"the spool {self._path}: row {number} is not a message: {error}") from error

    def _change(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        with self._changing() as database:
            database.executemany(statement, rows)

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Context manager of a transaction. The transaction is committed at the end, and rolled back as a
        whole after an exception."""
        with self._one_at_a_time:
            database = self._open()
            try:
                with database:
                    database.execute("BEGIN")
                    yield database
            except sqlite3.Error as error:
                raise SpoolFailed(f"the spool {self._path}: {error}") from error

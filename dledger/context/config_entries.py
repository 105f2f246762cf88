"""Finds and reads the configurations among the entries of a log."""

from __future__ import annotations

from dledger.election.configuration import Configuration, decode_configuration
from dledger.errors import EXIT_STORE, NodeFailed
from dledger.formats.entry import HEADER_SIZE, Kind, unpack_header
from dledger.formats.record import CorruptRecord, decode_record
from dledger.log.store import LogStore

ENTRIES = 65536
"""How many entries one call of the log examines."""


def decode_config(record: bytes | memoryview) -> Configuration | None:
    """The configuration in the body of an entry (a CommitLog record); None if the body holds no readable
    configuration."""
    try:
        return decode_configuration(decode_record(record).body)
    except CorruptRecord:
        return None


def unreadable_config(index: int) -> str:
    """Why a node that cannot read a configuration ends: it would not know whose votes count."""
    return f"the configuration entry {index} cannot be read by this version of the program: upgrade this node"


async def search(log: LogStore, first: int, last: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Search the durable entries `first..last`. Returns the indexes of configuration entries, and the ranges
    of entries that are corrupt."""
    configs: list[int] = []
    rotten: list[tuple[int, int]] = []
    for begin in range(first, last + 1, ENTRIES):
        found, bad = await log.configs_among(begin, min(last, begin + ENTRIES - 1))
        configs += found
        rotten += bad
    return configs, rotten


async def read_config(log: LogStore, index: int) -> Configuration | None:
    """Read a configuration entry; None if the entry is of another kind. Raises NodeFailed if a newer program
    wrote the entry, Rotten or OSError."""
    entry, _ = await log.read_range(index, index)
    if unpack_header(entry).kind != Kind.CONFIG:
        return None
    configuration = decode_config(memoryview(entry)[HEADER_SIZE:])
    if configuration is None:
        raise NodeFailed(unreadable_config(index), EXIT_STORE)
    return configuration

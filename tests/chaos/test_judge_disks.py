"""The judge's own reader of simulated disks."""

from __future__ import annotations

from dledger.chaos.machine import World
from dledger.chaos.scenarios.disks import StoreOnDisk
from dledger.formats.checksum import crc32
from dledger.formats.entry import HEADER, HEADER_SIZE, MAGIC, chain_crc
from dledger.formats.store_files import DATA_DIR, segment_name
from dledger.runtime.env import Env

SEGMENT = 4096


async def idle(env: Env) -> None:
    """A process that only has files."""


def entries(count: int, first: int, pos: int) -> bytes:
    """Entries of 8 bytes and term 1, as bytes of a segment."""
    data, chain = b"", 0
    for index in range(first, first + count):
        body = f"{index:08}".encode()
        crc, size = crc32(body), HEADER_SIZE + len(body)
        chain = chain_crc(chain, index, 1, crc)
        data += HEADER.pack(MAGIC, size, index, 1, pos + len(data), 0, chain, crc, len(body)) + body
    return data


def store_with(data: bytes, start: int) -> StoreOnDisk:
    world = World(1)
    files = world.spawn(world.node("n0"), idle).files
    files.mkdir(f"/store/{DATA_DIR}")
    files.open(f"/store/{DATA_DIR}/{segment_name(start)}", create=True).pwritev(
        [data.ljust(SEGMENT, b"\0")], 0
    )
    return StoreOnDisk(world.nodes["n0"].disk, "/store", SEGMENT)


def test_a_log_is_walked_from_its_beginning() -> None:
    store = store_with(entries(3, 0, 0), 0)
    assert [header.index for header, _ in store.walk(durable=False)] == [0, 1, 2]
    store = store_with(entries(3, 7, SEGMENT), SEGMENT)
    assert [header.index for header, _ in store.walk(False, SEGMENT, 6)] == [7, 8, 9]


def test_a_first_entry_that_rots_into_another_index_is_none() -> None:
    """A false alarm of the simulation (rot, seed 1011): entry 0 was taken for entry 64, as neither the CRC of
    its body nor a chain value before it covers its index."""
    for first, start in ((0, 0), (7, SEGMENT)):
        data = bytearray(entries(3, first, start))
        data[15] ^= 1 << 6
        assert not list(store_with(bytes(data), start).walk(False, start, first - 1))

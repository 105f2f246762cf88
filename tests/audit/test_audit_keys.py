"""IndexFiles: every key has its unit, every unit its key, and links within a file lead where they should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dledger.formats.index_file import (
    HEADER,
    HEADER_SIZE,
    UNIT,
    UNIT_SIZE,
    IndexHeader,
    key_hash,
    lookup,
    unit_offset,
    unpack_index_header,
)
from dledger.formats.record import decode_record
from tests.audit.apache_store import ApacheLog, apache_log, key_files, write_apache_store
from tests.audit.engine import audit
from tests.audit.store_builder import SEGMENT_SIZE

SLOTS = 500
Damage = Callable[[bytearray], None]


@pytest.fixture(scope="module")
def log() -> ApacheLog:
    return apache_log()


@pytest.fixture(scope="module")
def files(log: ApacheLog) -> list[bytes]:
    return key_files(log)


def findings(log: ApacheLog, root: Path, files: list[bytes]) -> list[tuple[str, str]]:
    report = audit([write_apache_store(log, root, keys=files)])
    return [(found.code, found.detail) for found in report.ordered()]


def unit(number: int, **fields: int) -> Damage:
    def damage(image: bytearray) -> None:
        at = unit_offset(SLOTS, number)
        values = dict(
            zip(("hash", "position", "seconds", "before"), UNIT.unpack_from(image, at), strict=True)
        )
        UNIT.pack_into(image, at, *(value + fields.get(name, 0) for name, value in values.items()))

    return damage


def header(**fields: int) -> Damage:
    def damage(image: bytearray) -> None:
        old = unpack_index_header(image)
        new = old._replace(**{name: getattr(old, name) + more for name, more in fields.items()})
        HEADER.pack_into(image, 0, *new)

    return damage


def slot(image: bytearray) -> None:
    at = next(at for at in range(HEADER_SIZE, HEADER_SIZE + 4 * SLOTS, 4) if image[at + 3])
    image[at + 3] ^= 1


FAULTS: list[tuple[str, int, Damage, set[str]]] = [
    ("nothing", 1, lambda image: None, set()),
    ("hash", 1, unit(700, hash=1), {"KEY_DANGLING", "KEY_MISSING", "KEY_INDEX"}),
    ("position", 1, unit(700, position=8), {"KEY_DANGLING", "KEY_MISSING"}),
    ("a position far away", 1, unit(1024, position=1 << 40), {"KEY_MISSING", "KEY_INDEX"}),
    ("seconds", 1, unit(700, seconds=5), {"KEY_MISMATCH"}),
    ("link", 1, unit(700, before=1), {"KEY_INDEX"}),
    ("slot", 1, slot, {"KEY_INDEX"}),
    ("begin time", 1, header(begin_ms=60_000), {"KEY_MISMATCH"}),
    ("begin position", 1, header(begin_position=-8), {"KEY_INDEX"}),
    ("end position", 0, header(end_position=8), {"KEY_INDEX"}),
    ("count", 0, header(count=1 << 20), {"KEY_INDEX", "KEY_MISSING"}),
]


@pytest.mark.parametrize(("name", "number", "damage", "codes"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_damage_of_a_file_is_found_and_nothing_else(
    name: str,
    number: int,
    damage: Damage,
    codes: set[str],
    log: ApacheLog,
    files: list[bytes],
    tmp_path: Path,
) -> None:
    assert len(files) == 3
    image = bytearray(files[number])
    damage(image)
    found = findings(log, tmp_path, [*files[:number], bytes(image), *files[number + 1 :]])
    assert {code for code, _ in found} == codes, found


def test_a_wrong_time_is_found_where_all_keys_fit(log: ApacheLog, tmp_path: Path) -> None:
    """Also tags have units here, as in 5.4: nothing is missing, so only the times are left to compare."""
    files = key_files(log, tags=True)
    assert findings(log, tmp_path / "whole", files) == []
    image = bytearray(files[1])
    unit(700, seconds=5)(image)
    found = findings(log, tmp_path / "damaged", [files[0], bytes(image), *files[2:]])
    assert [code for code, _ in found] == ["KEY_MISMATCH"], found


def test_a_missing_file_is_missing_keys(log: ApacheLog, files: list[bytes], tmp_path: Path) -> None:
    found = findings(log, tmp_path / "first", files[1:])
    assert {code for code, _ in found} == {"KEY_MISSING"}
    assert sum(int(detail.split()[0]) for _, detail in found) == unpack_index_header(files[0]).count - 1
    assert {code for code, _ in findings(log, tmp_path / "middle", [files[0], files[2]])} == {"KEY_MISSING"}
    assert {code for code, _ in findings(log, tmp_path / "last", files[:2])} == {"KEY_LAG"}


def test_files_that_follow_the_log_are_information(log: ApacheLog, tmp_path: Path) -> None:
    short = apache_log(1000)
    report = audit([write_apache_store(log, tmp_path, keys=key_files(short))])
    assert {found.code for found in report.findings} == {"KEY_LAG"}
    assert report.exit_code == 0


def test_an_empty_and_a_short_file(log: ApacheLog, files: list[bytes], tmp_path: Path) -> None:
    empty = HEADER.pack(*IndexHeader()).ljust(len(files[0]), b"\0")
    assert findings(log, tmp_path / "empty", [*files, empty]) == []
    found = findings(log, tmp_path / "short", [*files, b"short"])
    assert [code for code, _ in found] == ["KEY_INDEX"]
    assert "too few for a header" in found[0][1]


def test_units_of_rotten_messages_are_not_called_dangling(
    log: ApacheLog, files: list[bytes], tmp_path: Path
) -> None:
    store = write_apache_store(log, tmp_path, keys=files)
    entry = log.entries[700]
    path = store / "dledger-n0" / "data" / f"{entry.pos // SEGMENT_SIZE * SEGMENT_SIZE:020d}"
    data = bytearray(path.read_bytes())
    data[entry.pos % SEGMENT_SIZE + 150] ^= 1
    path.write_bytes(data)
    assert [found.code for found in audit([store]).ordered()] == ["BIT_ROT"]


def test_a_key_is_looked_up_through_the_links(log: ApacheLog, files: list[bytes]) -> None:
    wanted = key_hash("orders", "shared0")
    positions: list[int] = []
    for image in reversed(files):
        positions += lookup(lambda n, at, image=image: image[at : at + n], SLOTS, wanted, 0, 1 << 62, 1000)[0]  # type: ignore[misc]
    expected = []
    for entry in log.entries:
        if entry.body_size:
            data = log.segments[entry.pos // SEGMENT_SIZE * SEGMENT_SIZE]
            at = entry.pos % SEGMENT_SIZE
            record = decode_record(data[at + 48 : at + entry.size])
            if record.topic == "orders" and "shared0\x02" in record.properties:
                expected.append(entry.pos + 48)
    assert positions == expected[::-1]
    assert len(expected) > 20


def test_lookups_end_at_limits_and_broken_links(files: list[bytes]) -> None:
    image = bytearray(files[0])
    number = unpack_index_header(image).count - 1
    hashed = UNIT.unpack_from(image, unit_offset(SLOTS, number))[0]

    def read(length: int, at: int) -> bytes:
        return bytes(image[at : at + length])

    assert len(lookup(read, SLOTS, hashed, 0, 1 << 62, 1)[0]) == 1
    assert lookup(read, SLOTS, hashed, 1 << 61, 1 << 62, 9)[0] == []
    image[unit_offset(SLOTS, number) + UNIT_SIZE - 4 :][:4] = (number).to_bytes(4, "big")
    image[unit_offset(SLOTS, number) + UNIT_SIZE - 4 : unit_offset(SLOTS, number) + UNIT_SIZE] = (
        number
    ).to_bytes(4, "big")
    assert lookup(read, SLOTS, hashed, 0, 1 << 62, 9)[0] == []

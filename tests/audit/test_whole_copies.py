"""The finding of a damaged entry says whether anything is lost, who has the entry whole, and what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.formats.entry import HEADER_SIZE
from dledger.formats.record import decode_record
from tests.audit.engine import audit
from tests.audit.faults import by_names
from tests.audit.store_builder import Log, read_entry, sample_log, write_group


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


def told(name: str, log: Log, directory: Path, *only: int) -> dict[str, str]:
    """By replica, what the findings of rot say when this fault is put into a group."""
    stores = write_group(log, directory)
    next(by_names(name)).inject(stores, log)
    given = [stores[number] for number in only] or stores
    return {found.replica: found.detail for found in audit(given).findings if found.code == "BIT_ROT"}


def message(log: Log, directory: Path, index: int) -> str:
    (store,) = write_group(log, directory, 1)
    record = decode_record(read_entry(store, log.entries[index])[HEADER_SIZE:])
    return f"topic {record.topic}, queue {record.queue_id}, offset {record.queue_offset}"


def test_one_damaged_copy(log: Log, tmp_path: Path) -> None:
    said = told("flipped body byte", log, tmp_path / "group")
    place = message(log, tmp_path / "one", 700)
    assert said == {
        "n0": f"the body does not match its CRC; nothing is lost, n1 and n2 have it whole: {place}"
    }


def test_a_damaged_header(log: Log, tmp_path: Path) -> None:
    said = told("flipped magic", log, tmp_path / "group")["n1"]
    assert said.endswith(f"; nothing is lost, n0 and n2 have it whole: {message(log, tmp_path / 'one', 900)}")


def test_two_damaged_copies(log: Log, tmp_path: Path) -> None:
    said = told("flipped body bytes on two", log, tmp_path)
    assert all("; nothing is lost, n2 has it whole: topic " in detail for detail in said.values())
    assert set(said) == {"n0", "n1"}


def test_every_copy_is_damaged(log: Log, tmp_path: Path) -> None:
    said = told("the same flip everywhere", log, tmp_path)
    assert len(said) == 3
    assert all(
        detail.endswith("; no other replica that was audited has it whole") for detail in said.values()
    )


def test_one_store_alone(log: Log, tmp_path: Path) -> None:
    """Nothing can be said of the others."""
    assert told("flipped body byte", log, tmp_path, 0) == {"n0": "the body does not match its CRC"}


def test_many_entries(log: Log, tmp_path: Path) -> None:
    said = told("zeroed pages", log, tmp_path)
    assert all("nothing is lost, n0 and n2 have them whole" in detail for detail in said.values())
    assert set(said) == {"n1"}

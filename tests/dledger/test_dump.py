"""`dledger dump`: what is listed of a store, where the listing ends, what the exit code says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_log_store import Session, overwrite, position, use

from dledger.formats.entry import HEADER_SIZE, Kind
from dledger.log.appender import Appender

pytestmark = pytest.mark.usefixtures("index_in_memory")

ROOT = Path(__file__).resolve().parents[2]
COUNT = 30
ROTTEN = 12


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The storePathRootDir of a node that holds COUNT entries."""

    async def work(session: Session) -> None:
        log = session.log
        appender = Appender(
            log, 1, pending_bytes=1 << 30, pending_entries=1 << 30, schedule_pump=lambda: None
        )
        for number in range(COUNT):
            appender.add_system(b"%d " % number + bytes(3000), Kind.RAW)
        for batch in appender.take():
            log.append(batch)
        await session.durable()

    use(tmp_path / "dledger-n0", work)
    return tmp_path


def damage(store: Path, index: int, offset: int) -> None:
    """Flip a bit of an entry."""
    path, begin, _ = position(store / "dledger-n0", index)
    overwrite(path, begin + offset, bytes([path.read_bytes()[begin + offset] ^ 4]))


def dump_command(store: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dledger", "dump", str(store), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def dump(store: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and lines."""
    done = dump_command(store, *arguments)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_a_whole_store_is_listed_to_its_end(store: Path) -> None:
    code, lines = dump(store)
    assert code == 0
    assert lines[0] == str(store / "dledger-n0") and lines[1].split()[:3] == ["index", "term", "pos"]
    assert [int(line.split()[0]) for line in lines[2:]] == list(range(COUNT)), "of two segments"
    code, lines = dump(store, "--json", "--from", "7", "--count", "2")
    assert code == 0
    found = [json.loads(line) for line in lines]
    assert [(line["index"], line["kind"], line["problem"]) for line in found] == [
        (7, "RAW", ""),
        (8, "RAW", ""),
    ]


@pytest.mark.parametrize(
    ("offset", "text"),
    [(HEADER_SIZE + 1000, "body CRC"), (38, "chain"), (11, "index")],
    ids=["body", "chain", "index"],
)
def test_the_listing_of_a_damaged_store_ends_with_the_problem(store: Path, offset: int, text: str) -> None:
    damage(store, ROTTEN, offset)
    code, lines = dump(store)
    assert code == 1
    assert [int(line.split()[0]) for line in lines[2:]] == list(range(ROTTEN + 1))
    assert text in lines[-1] and not any(text in line for line in lines[2:-1])
    code, lines = dump(store, "--json")
    assert code == 1
    found = [json.loads(line) for line in lines]
    assert [bool(line["problem"]) for line in found] == [False] * ROTTEN + [True]
    assert text in found[-1]["problem"]


def test_damage_before_what_was_asked_for_is_said(store: Path) -> None:
    damage(store, ROTTEN, HEADER_SIZE + 1000)
    code, lines = dump(store, "--json", "--from", str(ROTTEN + 5))
    assert code == 1
    assert [json.loads(line)["index"] for line in lines] == [ROTTEN]


def test_a_directory_of_groups_says_where_their_stores_are(tmp_path: Path) -> None:
    (tmp_path / "blue" / "dledger-n0").mkdir(parents=True)
    done = dump_command(tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"{tmp_path}: there is no dledger-<id> directory in it; one is in {tmp_path}/blue "
    )

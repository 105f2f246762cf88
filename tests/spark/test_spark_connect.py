"""Spark Connect: a server in a process of its own, clients that have neither its Java nor its Python path."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("grpc", reason="Spark Connect needs grpcio: pip install 'dledger[spark]'")
pytest.importorskip("grpc_status", reason="Spark Connect needs grpcio-status: pip install 'dledger[spark]'")

from tests.audit.engine import audit
from tests.audit.faults import by_names
from tests.audit.store_builder import Log, sample_log, write_group
from tests.spark.groups_kit import running_group
from tests.spark.standalone import connect_server
from tests.spark.views_kit import places_of

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
BEHIND_THE_ROT = 2000
"""An index of a later segment."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Nothing of ours is where it runs: clients send it."""
    with connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.fixture(scope="module")
def server_with_packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("with"), python_path=str(ROOT)) as url:
        yield url


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


@pytest.fixture(scope="module")
def stores(log: Log, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The first one has rot, the last one a rewritten entry."""
    made = write_group(log, tmp_path_factory.mktemp("stores"))
    for fault in by_names("rewritten committed entry", "flipped body byte", "wrong index unit"):
        fault.inject(made, log)
    return made


def client(module: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`python -m module`, where no Java can be found."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={"PYTHONPATH": str(ROOT), "PATH": "/nonexistent", "LANG": "C.UTF-8", **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def said(*arguments: str) -> Any:
    done = client("tests.spark.connect_client", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def places(log: Log, first: int = 0) -> list[list[object]]:
    """Topic, queue and offset of the messages from a log index on."""
    return sorted([*place] for *place, index in places_of(log) if index >= first)


def test_an_audit_over_connect_gives_the_report_of_the_local_engine(server: str, stores: list[Path]) -> None:
    done = client("spark", "audit", "--json", "--master", server, *map(str, stores))
    local = audit(stores).as_json()
    assert done.returncode == local["exit_code"] == 3, done.stderr
    assert {**json.loads(done.stdout), "seconds": 0} == {**local, "seconds": 0}
    assert done.stderr == ""


def test_filters_are_pushed_down_over_connect(server: str, stores: list[Path], log: Log) -> None:
    """Rot in a segment that a filter leaves unread does not matter."""
    found = said(server, "batch", str(stores[0]), str(BEHIND_THE_ROT))
    assert "does not match its CRC" in found["every"]
    assert found["later"] == places(log, BEHIND_THE_ROT)


def test_what_is_wrong_is_told_in_one_line(server: str, stores: list[Path]) -> None:
    done = client("spark", "read", "--master", server, str(stores[1]), "--view", "mesages")
    assert done.returncode == 4
    assert "did you mean 'messages'" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_packages_are_sent_to_the_server(server: str, stores: list[Path]) -> None:
    done = client("spark", "doctor", "--json", str(stores[0]), SPARK_REMOTE=server)
    assert done.returncode == 0, done.stdout
    found = {check["check"]: check["found"] for check in json.loads(done.stdout)["checks"]}
    assert str(ROOT) in found["python"] and "grpcio" in found["packages"]
    assert str(ROOT) not in found["executors"] and found["executors"].endswith(".zip")
    assert "java" not in found


@pytest.mark.slow
def test_a_log_is_archived_over_connect_and_the_archive_counted(
    server: str, stores: list[Path], log: Log, tmp_path: Path
) -> None:
    archive = ("archive", "--json", "--master", server, str(stores[1]), "--to", str(tmp_path / "archive"))
    done = client("spark", *archive)
    assert done.returncode == 0, done.stderr
    done = client("spark", "stats", "--json", "--master", server, "--archive", str(tmp_path / "archive"))
    assert done.returncode == 0, done.stderr
    counted = {topic["topic"]: topic["messages"] for topic in json.loads(done.stdout)["topics"]}
    assert sum(counted.values()) == len(places(log))


@pytest.mark.slow
def test_streams_need_our_packages_where_the_server_runs(
    server: str, server_with_packages: str, stores: list[Path], log: Log, tmp_path: Path
) -> None:
    """A limit of Spark's, and documented as one: what clients send does not reach the planner of a stream."""
    arguments = ("stream", str(stores[1]))
    alone = said(server, *arguments, str(tmp_path / "1"))
    there = subprocess.run(
        [sys.executable, "-c", "import dledger"], cwd=tmp_path, capture_output=True, check=False
    )
    if there.returncode:
        assert "No module named 'dledger'" in alone["error"]
    else:  # our packages are installed for the interpreter that the server uses
        assert alone == {"rows": places(log)}
    assert said(server_with_packages, *arguments, str(tmp_path / "2")) == {"rows": places(log)}


@pytest.mark.slow
def test_topics_are_written_by_batch_and_stream_over_connect(
    server_with_packages: str, tmp_path: Path
) -> None:
    with running_group(tmp_path / "group") as group:
        for topic in ("T", "T2"):
            group.create_topic(topic, 4)
        found = said(server_with_packages, "write", group.namesrv_addr, "T", str(tmp_path / "check"))
    bodies = [str(number) for number in range(10)]
    assert found == {"T": bodies, "T2": bodies}

"""A real cluster: a master and two workers on this machine, the wheel, spark-submit, exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dledger.local.cluster import wait_for
from tests.audit.engine import audit
from tests.audit.faults import by_names
from tests.audit.report_kit import report_of
from tests.audit.store_builder import sample_log, write_group
from tests.spark.groups_kit import plant_rot, running_group, send

if TYPE_CHECKING:
    from tests.spark.standalone import Cluster

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
MAIN = str(ROOT / "scripts" / "spark_main.py")
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL = ("spark.executor.memory=512m", f"spark.executor.extraJavaOptions={QUICK}")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves its work in the tree, and would find it there next time."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for package in ("dledger", "pyspark_dledger"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    build = ["wheel", "--quiet", "--no-deps", "--wheel-dir", str(source / "dist"), str(source)]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True, timeout=300)
    (made,) = (source / "dist").iterdir()
    return made


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("pyspark")
    from tests.spark.standalone import cluster

    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    log = sample_log()
    made = write_group(log, tmp_path_factory.mktemp("stores"))
    for fault in by_names("rewritten committed entry", "flipped body byte", "wrong index unit"):
        fault.inject(made, log)
    return made


@dataclass(frozen=True)
class Rotten:
    """A running group whose brokers ship digests, with one entry that is whole on one node only.

    `local`: what the engine without Spark says of the group.
    """

    namesrv: str
    digests: str
    nodes: list[str]
    local: dict[str, Any]


@pytest.fixture(scope="module")
def rotten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rotten]:
    """More than one task reads, and in the newest segment, as digests of the others are not made again."""
    directory = tmp_path_factory.mktemp("rotten")
    digests = directory / "digests"
    digests.mkdir()
    with running_group(
        directory / "group", digestShipPath=str(digests), digestShipIntervalMs="1000"
    ) as group:
        group.create_topic("T", 4)
        bodies = [os.urandom(512 * 1024) for _ in range(54)]
        send(group, "T", bodies)
        nodes = sorted(group.followers_first()[:2])
        for node in nodes:
            plant_rot(group, node, bodies[-1])
        send(group, "T", [b"one more"])
        group.wait_caught_up()
        live = ("--namesrv", group.namesrv_addr)
        places = ("--digests", str(digests), *live)
        reports: list[dict[str, Any]] = []

        def agree() -> bool | None:
            """The first look may find who lags at the moment."""
            reports[:] = [local_audit(*where)[1] for where in (live, places)]
            return told(reports[0]) == told(reports[1]) or None

        wait_for(agree, 120, lambda: f"brokers and digests tell of {[told(each) for each in reports]}")
        yield Rotten(group.namesrv_addr, str(digests), nodes, reports[0])


def local_audit(*arguments: str) -> tuple[int, dict[str, Any]]:
    return report_of("spark", "audit", "--engine", "local", *arguments)


def told(report: dict[str, Any]) -> list[tuple[str, str]]:
    """What is wrong, and where."""
    return sorted((found["code"], found.get("replica", "")) for found in report["findings"])


def submit_options(wheel: Path, events: Path | None = None) -> list[str]:
    """`events`: where Spark writes what its executors did; tasks wait until all executors are there."""
    options = ["--py-files", str(wheel), "--driver-java-options", QUICK]
    settings = [*SMALL]
    if events is not None:
        settings += [
            "spark.eventLog.enabled=true",
            f"spark.eventLog.dir={events.as_uri()}",
            "spark.eventLog.rolling.enabled=false",
            "spark.eventLog.compress=false",
            "spark.scheduler.minRegisteredResourcesRatio=1.0",
        ]
    return options + [word for setting in settings for word in ("--conf", setting)]


def executors_that_read(events: Path) -> list[set[str]]:
    """For each stage with several tasks that read a data source, the executors that ran one of these
    tasks."""
    (log,) = events.iterdir()
    reading: dict[int, set[str]] = {}
    for event in map(json.loads, log.read_text().splitlines()):
        if event["Event"] == "SparkListenerStageSubmitted":
            stage = event["Stage Info"]
            names = [rdd["Name"] for rdd in stage["RDD Info"]]
            if "DataSourceRDD" in names and stage["Number of Tasks"] > 1:
                reading[stage["Stage ID"]] = set()
        elif event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in reading:
            assert event["Task End Reason"]["Reason"] == "Success"
            reading[event["Stage ID"]].add(event["Task Info"]["Executor ID"])
    return list(reading.values())


def test_the_submitted_wheel_gives_the_report_of_the_local_engine(
    spark_cluster: Cluster, wheel: Path, stores: list[Path]
) -> None:
    """A path, and URLs that go through fsspec: `file:` would be taken for a path."""
    places = [str(stores[0]), f"local://{stores[1]}", f"local://{stores[2]}"]
    done = spark_cluster.submit(MAIN, "audit", "--json", *places, options=submit_options(wheel))
    local = audit(stores).as_json()
    assert done.returncode == local["exit_code"] == 3, done.stderr[-3000:]
    said = done.stdout.splitlines()[-1]
    assert said.count('"local:///') == 2
    assert {**json.loads(said.replace("local://", "")), "seconds": 0} == {**local, "seconds": 0}


def test_live_brokers_scan_for_both_executors_and_are_drilled(
    spark_cluster: Cluster, wheel: Path, rotten: Rotten, tmp_path: Path
) -> None:
    done = spark_cluster.submit(
        MAIN, "audit", "--json", "--namesrv", rotten.namesrv, options=submit_options(wheel, tmp_path)
    )
    assert done.returncode == 3, done.stderr[-3000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    # On a busy machine an election may add an entry meanwhile.
    locally = (rotten.local, local_audit("--namesrv", rotten.namesrv)[1])
    assert {**theirs, "seconds": 0} in [{**report, "seconds": 0} for report in locally]
    # How many good copies an entry has only a drill tells.
    assert told(theirs) == [("BELOW_QUORUM", ""), *(("BIT_ROT", node) for node in rotten.nodes)]
    assert {"0", "1"} in executors_that_read(tmp_path)


@pytest.mark.slow
def test_shipped_digests_are_compared_there_and_brokers_only_drilled(
    spark_cluster: Cluster, wheel: Path, rotten: Rotten
) -> None:
    rot = [("BIT_ROT", node) for node in rotten.nodes]
    for places, code, found in (
        (("--namesrv", rotten.namesrv), 3, [("BELOW_QUORUM", ""), *rot]),
        ((), 4, [*rot, ("NOT_DRILLED", "")]),
    ):
        arguments = ("audit", "--json", "--digests", rotten.digests, *places)
        done = spark_cluster.submit(MAIN, *arguments, options=submit_options(wheel))
        assert done.returncode == code, done.stderr[-3000:]
        assert told(json.loads(done.stdout.splitlines()[-1])) == found


def test_both_executors_take_our_packages_from_the_wheel(
    spark_cluster: Cluster, wheel: Path, stores: list[Path]
) -> None:
    options = submit_options(wheel)
    done = spark_cluster.submit(MAIN, "doctor", "--json", str(stores[0]), options=options)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    found = {check["check"]: check["found"] for check in json.loads(done.stdout)["checks"]}
    assert str(wheel) in found["python"], "the driver has them from there as well"
    for number in (0, 1):
        assert f"worker-{number}/app-" in found["executors"]
    assert str(ROOT) not in found["executors"] and found["executors"].count(".zip") == 2


@pytest.mark.slow
def test_without_spark_submit_the_packages_are_sent_too(spark_cluster: Cluster, stores: list[Path]) -> None:
    from tests.spark.standalone import run

    environ = {**spark_cluster.environ, "PYTHONPATH": str(ROOT)}
    defaults = spark_cluster.directory / "conf" / "spark-defaults.conf"
    defaults.parent.mkdir()
    defaults.write_text("\n".join(setting.replace("=", " ", 1) for setting in SMALL))
    environ["SPARK_CONF_DIR"] = str(defaults.parent)
    arguments = ["audit", "--json", "--master", spark_cluster.master, *map(str, stores[:2])]
    done = run([sys.executable, "-m", "dledger.spark", *arguments], environ, spark_cluster.directory)
    assert done.returncode == 2, done.stderr
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert {**theirs, "seconds": 0} == {**audit(stores[:2]).as_json(), "seconds": 0}
    assert done.stderr == "", "a person at a terminal is not shown Spark's log"


@pytest.mark.slow
def test_a_store_that_is_not_there_is_4(spark_cluster: Cluster, wheel: Path) -> None:
    done = spark_cluster.submit(MAIN, "audit", "--json", "/nonexistent", options=submit_options(wheel))
    assert done.returncode == 4, done.stderr[-3000:]
    assert json.loads(done.stdout)["verdict"] == "failed"


@pytest.mark.slow
def test_a_client_without_java_audits_on_the_cluster_through_a_connect_server(
    spark_cluster: Cluster, stores: list[Path], tmp_path: Path
) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio: pip install 'dledger[spark]'")
    from tests.spark.standalone import connect_server, run

    environ = {"PATH": "/nonexistent", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    with connect_server(tmp_path, spark_cluster.master, settings=SMALL) as server:
        for command, code in ((("audit", *map(str, stores)), 3), (("doctor", str(stores[0])), 0)):
            arguments = ["-m", "dledger.spark", command[0], "--json", "--master", server, *command[1:]]
            done = run([sys.executable, *arguments], environ, tmp_path)
            assert done.returncode == code, done.stdout + done.stderr
            told_last = json.loads(done.stdout)
            if code:
                assert {**told_last, "seconds": 0} == {**audit(stores).as_json(), "seconds": 0}
    found = {check["check"]: check["found"] for check in told_last["checks"]}
    assert spark_cluster.master in found["session"]
    for number in (0, 1):
        assert f"worker-{number}/app-" in found["executors"]

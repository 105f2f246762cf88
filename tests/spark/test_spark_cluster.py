"""A real cluster: a master and two workers on this machine, the wheel, spark-submit, exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.audit.engine import audit
from tests.audit.faults import by_names
from tests.audit.store_builder import sample_log, write_group

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
    for package in ROOT.iterdir():
        if (package / "__init__.py").exists():
            shutil.copytree(package, source / package.name, ignore=shutil.ignore_patterns("__pycache__"))
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


def submit_options(wheel: Path) -> list[str]:
    options = ["--py-files", str(wheel), "--driver-java-options", QUICK]
    return options + [word for setting in SMALL for word in ("--conf", setting)]


def test_the_submitted_wheel_gives_the_report_of_the_local_engine(
    spark_cluster: Cluster, wheel: Path, stores: list[Path]
) -> None:
    done = spark_cluster.submit(MAIN, "audit", "--json", *map(str, stores), options=submit_options(wheel))
    local = audit(stores).as_json()
    assert done.returncode == local["exit_code"] == 3, done.stderr[-3000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert {**theirs, "seconds": 0} == {**local, "seconds": 0}


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
    done = run([sys.executable, "-m", "spark", *arguments], environ, spark_cluster.directory)
    assert done.returncode == 2, done.stderr
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert {**theirs, "seconds": 0} == {**audit(stores[:2]).as_json(), "seconds": 0}
    assert done.stderr == "", "a person at a terminal is not shown Spark's log"


@pytest.mark.slow
def test_a_store_that_is_not_there_is_4(spark_cluster: Cluster, wheel: Path) -> None:
    done = spark_cluster.submit(MAIN, "audit", "--json", "/nonexistent", options=submit_options(wheel))
    assert done.returncode == 4, done.stderr[-3000:]
    assert json.loads(done.stdout)["verdict"] == "failed"

"""Where a session runs decides what is set; our packages as executors get them."""

from __future__ import annotations

import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dledger.spark.java import Java
from dledger.spark.packages import EXECUTOR_PACKAGES, archive, package_root
from dledger.spark.session import Place, connect_server, place_of, prepare_environment, reach, settings
from tests.audit.engine import audit
from tests.audit.faults import by_names
from tests.audit.store_builder import sample_log, write_group

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("master", "place"),
    [
        (None, Place.LOCAL),
        ("local", Place.LOCAL),
        ("local[2,4]", Place.LOCAL),
        ("spark://host:7077", Place.CLUSTER),
        ("yarn", Place.CLUSTER),
        ("k8s://https://host", Place.CLUSTER),
        ("sc://host:15002", Place.CONNECT),
    ],
)
def test_the_master_says_where(master: str | None, place: Place) -> None:
    assert place_of(master, {}) is place
    assert place_of(master, {"PYSPARK_GATEWAY_PORT": "1"}) is Place.SUBMITTED


def test_a_connect_server_may_be_named_as_spark_has_it() -> None:
    environ = {"SPARK_REMOTE": "sc://host"}
    assert (place_of(None, environ), connect_server(None, environ)) == (Place.CONNECT, "sc://host")
    assert connect_server("sc://other", environ) == "sc://other"
    assert (place_of("spark://h:1", environ), connect_server("spark://h:1", environ)) == (Place.CLUSTER, "")
    assert place_of(None, {"SPARK_REMOTE": "local[2]"}) is Place.LOCAL


def test_a_master_that_nobody_is_at_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for master in (
            f"spark://127.0.0.1:{port}",
            f"sc://127.0.0.1:{port}/;user_id=x",
            "local[2]",
            "yarn",
            "",
        ):
            reach(master)
        reach(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    for master in (f"spark://127.0.0.1:{port}", f"sc://127.0.0.1:{port}/;user_id=x"):
        with pytest.raises(OSError, match=rf"cannot be reached \(127.0.0.1:{port}: .*refused"):
            reach(master)


def test_only_a_local_session_is_bound_to_loopback(tmp_path: Path) -> None:
    for place in Place:
        made = settings(place, tmp_path)
        assert made["spark.sql.session.timeZone"] == "UTC"
        assert ("spark.driver.host" in made) == (place is Place.LOCAL)
        assert ("spark.executorEnv.PYTHONPATH" in made) == (place is Place.LOCAL)
        assert ("spark.driver.extraJavaOptions" in made) == (place in (Place.LOCAL, Place.CLUSTER))
    assert (
        "TieredStopAtLevel" in settings(Place.CLUSTER, tmp_path, short=True)["spark.driver.extraJavaOptions"]
    )


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in ("SPARK_LOCAL_IP", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "x")  # so that monkeypatch takes away what is set below
        monkeypatch.delenv(name)
    monkeypatch.setenv("JAVA_HOME", "old")
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    monkeypatch.setenv("PYSPARK_PYTHON", "/their/python")
    prepare_environment(Java("/home/of/java", 21, "PATH", "/real"), Place.CLUSTER)
    assert os.environ["JAVA_HOME"] == "/home/of/java"
    assert os.environ["PYSPARK_PYTHON"] == "/their/python"
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [package_root(), "/theirs"]
    assert "SPARK_LOCAL_IP" not in os.environ
    prepare_environment(Java("/home/of/java", 21, "PATH", "/real"))
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [package_root(), "/theirs"]


ALL_FROM = """
import sys
sys.path.insert(0, sys.argv[1])
import dledger.audit.local, dledger.audit.shipped_scans, dledger.client, dledger.spark.source
for name, module in sorted(sys.modules.items()):
    if name.partition(".")[0] == "dledger":
        print(module.__file__)
"""


def test_the_archive_holds_all_that_executors_import(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    made = archive(tmp_path)
    assert archive(tmp_path) == made and list(tmp_path.iterdir()) == [made]
    done = subprocess.run(
        [sys.executable, "-c", ALL_FROM, str(made)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    loaded = done.stdout.splitlines()
    assert len(loaded) > 40
    assert [path for path in loaded if not path.startswith(str(made))] == []


def test_a_wheel_gives_the_same_archive_as_the_directory(tmp_path: Path) -> None:
    made = archive(tmp_path)
    wheel = tmp_path / "dledger-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed, zipfile.ZipFile(made) as original:
        for name in original.namelist():
            packed.writestr(name, original.read(name))
        packed.writestr("dledger/broker/app.py", "not for executors")
        packed.writestr("dledger-1.dist-info/METADATA", "x")
    assert archive(tmp_path / "", str(wheel)) == made
    parts = {name.split("/")[1] for name in original.namelist() if name.startswith("dledger/")}
    assert parts == {"__init__.py", *EXECUTOR_PACKAGES} and len(parts) < len(original.namelist())


def test_a_place_without_our_packages_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="the package dledger is missing"):
        archive(tmp_path, str(tmp_path))


@pytest.mark.spark
def test_stores_by_url_are_audited_on_spark_with_the_same_findings(spark: Any, tmp_path: Path) -> None:
    from dledger.runtime.files import OsFiles
    from dledger.spark.audit_job import audit_stores

    log = sample_log()
    stores = write_group(log, tmp_path)
    for fault in by_names("flipped body byte", "rewritten committed entry", "wrong index unit"):
        fault.inject(stores, log)
    urls = [f"file://{store}" for store in stores]
    found = audit_stores(spark, OsFiles(), urls).as_json()
    assert found["exit_code"] == 3
    assert str(found).replace("file://", "") == str(audit(stores).as_json())
    wrong = audit_stores(spark, OsFiles(), ["s33://bucket/x"])
    assert wrong.exit_code == 4 and "did you mean" in wrong.findings[0].detail

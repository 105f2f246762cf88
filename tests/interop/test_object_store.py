"""Stores and digests behind the S3 protocol: s3fs as it is, against a server on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port, wait_for
from tests.audit.report_kit import report_of
from tests.audit.store_builder import rewrite, sample_log, write_group
from tests.cluster.test_group_audit import SEGMENT, TOPIC, codes, load_while, spark_audit
from tests.interop.conftest import cache, install

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("moto[s3,server]==5.*", "s3fs")
MOST_LISTINGS = 200
"""Limit for an audit of three stores with 22 files each: it asks dozens of questions about each file with few
requests."""
UPLOAD = """
import pathlib, s3fs, sys
there, root = s3fs.S3FileSystem(), pathlib.Path(sys.argv[1])
there.mkdir("replicas")
for path in sorted(root.rglob("*")):
    if path.is_file():
        there.put_file(str(path), f"replicas/{path.relative_to(root)}")
"""

MAKE_BUCKET = "import s3fs, sys; s3fs.S3FileSystem().mkdir(sys.argv[1])"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], Path]]:
    """The environment that reaches an S3 server, and the file in which it logs requests."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", "."]
    modules = install(cache() / "pip" / "s3", [*pip, *PACKAGES], "s3fs and an S3 server")
    port = find_base_port(start=21000)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{modules}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    log = tmp_path_factory.mktemp("s3") / "requests.log"
    command = [sys.executable, "-c", "from moto.server import main; main()", "-p", str(port)]
    with log.open("w") as output, subprocess.Popen(command, env=environment, stderr=output) as server:
        try:
            _wait(f"http://127.0.0.1:{port}/", server)
            yield environment, log
        finally:
            server.terminate()


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert server.poll() is None, "the S3 server ended"
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    pytest.fail("the S3 server does not answer")


@pytest.mark.interop
def test_replicas_in_s3_are_audited_like_directories(s3: tuple[dict[str, str], Path], tmp_path: Path) -> None:
    environment, requests = s3
    log = sample_log()
    stores = write_group(log, tmp_path / "stores")
    rewrite(stores[2], log, 1200)
    subprocess.run(
        [sys.executable, "-c", UPLOAD, str(tmp_path / "stores")], env=environment, check=True, timeout=120
    )
    before = len(requests.read_text().splitlines())
    found = []
    for base in ("s3://replicas", str(tmp_path / "stores")):
        names = [f"{base}/{store.name}" for store in stores]
        code, report = report_of("dledger", "audit", "compare", *names, environment=environment)
        assert code == 3
        found.append({**json.loads(json.dumps(report).replace(base, "BASE")), "seconds": 0})
    assert found[0] == found[1]
    asked = requests.read_text().splitlines()[before:]
    assert 0 < sum("list-type" in line for line in asked) <= MOST_LISTINGS
    assert [line for line in asked if '"HEAD ' in line] == []


@pytest.mark.interop
def test_a_bucket_that_is_not_there_is_no_clean_audit(s3: tuple[dict[str, str], Path]) -> None:
    command = [sys.executable, "-m", "dledger.audit", "verify", "s3://nowhere/n0"]
    done = subprocess.run(command, env=s3[0], capture_output=True, text=True, timeout=120)
    assert done.returncode == 4, done.stdout
    assert "s3://nowhere/n0" in done.stdout


@pytest.mark.interop
def test_brokers_ship_digests_to_s3_and_try_again_until_there_is_a_bucket(
    s3: tuple[dict[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, requests = s3
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    place = "s3://digests/of=all"
    spec = ClusterSpec(
        base_port=find_base_port(start=23500),
        segment_size=SEGMENT,
        broker={"digestShipPath": place, "digestShipIntervalMs": "500"},
    )
    group = LocalCluster.create(tmp_path / "group", spec)

    logs = tmp_path / "group" / "logs"

    def said(event: str) -> list[int]:
        """How often each broker said it, in its log."""
        files = [list((logs / f"broker-{node}").rglob("*.log")) for node in spec.node_ids]
        return [sum(path.read_text().count(event) for path in paths) for paths in files]

    def tries() -> int:
        return sum("rows.parquet" in line and "404" in line for line in requests.read_text().splitlines())

    group.start()
    try:
        group.create_topic(TOPIC, 4)
        failed, again = "digests not shipped", "digests are shipped again"
        wait_for(
            lambda: (tries() >= 24 and 0 not in said(failed)) or None,
            60,
            lambda: f"{tries()} requests in vain, {said(failed)} lines",
        )
        assert max(said(failed)) <= 2, "not one a round"  # one more where the store was slow
        subprocess.run([sys.executable, "-c", MAKE_BUCKET, "digests"], check=True, timeout=120)
        wait_for(lambda: 0 not in said(again) or None, 60, lambda: "no round")
        reports = []

        def audit_meanwhile() -> None:
            for _ in range(2):
                reports.append(spark_audit("--digests", place, "--namesrv", group.namesrv_addr))

        load_while(group, audit_meanwhile)
        group.wait_caught_up()
        committed = group.committed_index(group.wait_leader())

        def all_shipped() -> bool | None:
            reports.append(spark_audit("--digests", place))
            return reports[-1][1]["compared_up_to"] >= committed or None

        wait_for(all_shipped, 60, lambda: str(reports[-1]))
        assert max(said(failed)) <= 3 and max(said(again)) <= 3
    finally:
        group.stop()
    for code, report in reports:
        assert (code, codes(report)) == (0, []), report["findings"]
    assert min(replica["segments"] for replica in reports[-1][1]["replicas"]) >= 3
    asked = [line for line in requests.read_text().splitlines() if "/digests" in line]
    assert any("PUT /digests/" in line for line in asked)
    assert not any("HEAD /digests/" in line for line in asked)
    assert not any("uploads" in line for line in asked), "one PUT an object"
    code, on_spark = report_of("spark", "audit", "--digests", place, environment=environment)
    assert code == 0, on_spark["findings"]
    # The brokers went on to ship until they ended.
    assert on_spark["compared_up_to"] >= reports[-1][1]["compared_up_to"]
    assert len(on_spark["replicas"]) == spec.nodes

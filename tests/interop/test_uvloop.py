"""Where uvloop is installed all programs run on it: a real group, and leaders killed under load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.conftest import cache, install

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]
PACKAGE = "uvloop==0.22.1"


def test_a_group_on_uvloop_loses_nothing_when_its_leader_is_killed(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", "."]
    modules = install(cache() / "pip" / "uvloop", [*pip, PACKAGE], "uvloop")
    command = [sys.executable, "-m", "dledger.chaos", "failover", "--load", "--kills", "3", "--json"]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{modules}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["rounds"] == 3 and report["lost"] == report["load_lost"] == 0
    assert report["load_acknowledged"] > 1000
    logs = [path for path in tmp_path.glob("**/logs/*/*.log") if path.name != "stats.log"]
    assert len(logs) == 4
    for log in logs:
        assert "event loop of uvloop" in log.read_text(), log

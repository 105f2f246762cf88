"""`scripts/venv.sh`: one lock for one environment, and nothing waits whose environment is ready."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("flock") is None, reason="needs flock")


def _bash(venv: Path, script: str, **settings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", "-c", f"set -euo pipefail; source scripts/venv.sh; {script}"],
        cwd=ROOT,
        env={**os.environ, "VENV": str(venv), "TMPDIR": str(venv.parent), **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _environment(directory: Path) -> Path:
    """What looks like an environment with nothing installed; pip is a program that says so."""
    venv = directory / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    return venv


_NO_PIP = 'run_pip() { echo "Successfully pretended"; }; '
_SLOW_PIP = 'run_pip() { touch "$TMPDIR/began"; while [ ! -e "$TMPDIR/go" ]; do sleep 0.02; done; }; '
_LIMIT_S = 100.0


def _appears(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not path.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_second_script_for_one_environment_waits_and_says_for_what(tmp_path: Path) -> None:
    venv = _environment(tmp_path)
    first = _bash(venv, _SLOW_PIP + "prepare_venv dev")
    _appears(tmp_path / "began", first)
    second = _bash(venv, _NO_PIP + "prepare_venv dev")
    assert second.stderr is not None
    said = second.stderr.readline()
    assert f"Waiting for another script that installs into {venv}" in said
    assert second.poll() is None
    (tmp_path / "go").touch()  # the first one's installation ends
    assert first.wait(_LIMIT_S) == 0
    _, said = second.communicate(timeout=_LIMIT_S)
    assert second.returncode == 0
    assert "Installing" not in said, "what the first one installed is there"


def test_another_environment_and_a_ready_one_do_not_wait(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    ready, other = _environment(tmp_path / "a"), _environment(tmp_path / "b")
    shared = {"TMPDIR": str(tmp_path)}
    assert _bash(ready, _NO_PIP + "prepare_venv dev", **shared).wait(_LIMIT_S) == 0
    busy = _bash(other, _SLOW_PIP + "prepare_venv dev", **shared)
    _appears(tmp_path / "began", busy)
    nothing = _bash(ready, 'run_pip() { echo "pip is called" >&2; return 1; }; prepare_venv dev', **shared)
    third = _environment(tmp_path / "a" / "deep")
    fresh = _bash(third, _NO_PIP + "prepare_venv dev", **shared)
    assert (nothing.wait(_LIMIT_S), fresh.wait(_LIMIT_S)) == (0, 0)
    assert busy.poll() is None
    (tmp_path / "go").touch()
    assert busy.wait(_LIMIT_S) == 0

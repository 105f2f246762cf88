"""What type checkers see: every public symbol that a user of the clients meets has a known type."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = ("client", "formats", "remoting", "runtime")
"""What a program that imports the clients can reach. The parts of a broker are not complete yet."""


def test_the_marker_of_a_typed_package_is_there() -> None:
    assert (ROOT / "dledger" / "py.typed").exists()


@pytest.mark.slow
def test_types_of_all_that_a_user_of_clients_can_reach_are_known() -> None:
    """By `pyright --verifytypes`, where pyright is installed: it is no dependency of ours."""
    pyright = shutil.which("pyright", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    if pyright is None:
        pytest.skip("pyright is not installed (pip install pyright)")
    ended = subprocess.run(
        [pyright, "--verifytypes", "dledger", "--ignoreexternal", "--outputjson"],
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    symbols = json.loads(ended.stdout)["typeCompleteness"]["symbols"]
    parts = tuple(f"dledger.{part}." for part in PARTS)
    ours = [
        symbol
        for symbol in symbols
        if symbol["name"].startswith(parts) or symbol["name"].rpartition(".")[0] == "dledger"
    ]
    unknown = [symbol["name"] for symbol in ours if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]]
    assert len(ours) > 1500
    assert not unknown

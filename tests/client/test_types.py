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
BY_INFERENCE = (
    "dledger.admin.blocking.Blocking",
    "dledger.admin.client.AdminClient",
    "dledger.AdminClient",
    "dledger.admin.AdminClient",
)
"""Methods of `AdminClient` have the types of their originals by inference, which counts as a guess."""


def test_the_marker_of_a_typed_package_is_there() -> None:
    assert (ROOT / "dledger" / "py.typed").exists()


@pytest.mark.slow
def test_types_of_all_symbols_are_known() -> None:
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
    ours = [one for one in symbols if one["isExported"] and not one["name"].startswith(BY_INFERENCE)]
    unknown = [symbol["name"] for symbol in ours if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]]
    assert len(ours) > 15_000
    assert not unknown

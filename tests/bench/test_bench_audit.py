"""`dledger bench audit` on a small store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dledger.bench import audit
from tests.command_line import bench as main


@pytest.mark.slow
def test_the_audit_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "ROUNDS", 1)
    for _ in range(2):  # made, and found there
        assert main(["audit", "--directory", str(tmp_path), "--megabytes", "3", "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert figures["replica, MB"] == 1
        assert figures["scan, MB/s per core"] > 0
        assert figures["audit with --jobs 1, s"] > 0
        assert figures["audit with --jobs 1, MiB of its largest process"] > 20


def test_stores_of_another_release_are_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "made").touch()
    for arguments in (["audit", "--directory"], ["spark", "--store"]):
        assert main([*arguments, str(tmp_path)]) == 1
        assert "is not of this release: delete it" in capsys.readouterr().err


def test_a_directory_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit"]) == 2
    assert "--directory" in capsys.readouterr().err

"""How long starts with much in the log take: what is measured, and what is an error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from dledger.bench.restart import _start, forget_pages, log_bytes
from dledger.local.cluster import ClusterError, LocalCluster
from tests.command_line import bench as main


def group(directory: Path, held: dict[str, int]) -> LocalCluster:
    """One that starts at once, whose nodes hold so many entries."""
    fake = SimpleNamespace(
        directory=directory,
        spec=SimpleNamespace(node_ids=tuple(held)),
        start=lambda limit_s: None,
        wait_caught_up=lambda limit_s: None,
        committed_index=held.__getitem__,
    )
    return cast("LocalCluster", fake)


def test_each_start_has_two_figures(tmp_path: Path) -> None:
    found = dict(_start(group(tmp_path, {"n0": 7, "n1": 8}), "a kill", 7, cold=True))
    assert list(found) == [
        "start after a kill, until a leader is in the routes",
        "start after a kill, until all have caught up",
    ]


def test_a_start_that_loses_something_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="n1 holds entries up to 6, not 7"):
        list(_start(group(tmp_path, {"n0": 7, "n1": 6}), "a kill", 7, cold=False))


def test_files_are_whole_without_their_pages(tmp_path: Path) -> None:
    segment = tmp_path / "dledger-n0" / "data" / "0"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(b"entries" * 1000)
    forget_pages(tmp_path)
    assert segment.read_bytes() == b"entries" * 1000
    assert log_bytes(tmp_path) == 7000


def test_too_little_disk_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=20 * 10**9))
    assert main(["restart", "--directory", str(tmp_path)]) == 1
    assert "36 GB of disk wanted" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_group_starts_again_with_what_it_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restart", "--gigabytes", "0.02", "--directory", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["messages"] >= 15_000 and len(found["log of each node, GB"]) == 3
    assert (
        0
        < found[
            "start after a kill of all under load, nothing in the page cache, until all have caught up, s"
        ]
        < 60
    )
    assert not list(tmp_path.iterdir()), "the stores are deleted"

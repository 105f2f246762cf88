"""Which cluster a command asks when no address is given: that of `dledger up` in the same directory."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from dledger.commands.app import command
from dledger.local.default_group import local_namesrv
from dledger.local.spec import ClusterSpec


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, in which no group was made yet."""
    monkeypatch.chdir(tmp_path)
    for name in ("NAMESRV_ADDR", "DLEDGER_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def make_group(directory: Path, base_port: int) -> None:
    directory.mkdir()
    (directory / "cluster.json").write_text(json.dumps(asdict(ClusterSpec(base_port=base_port))))


def test_the_group_of_this_directory_is_found(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_namesrv() is None
    make_group(directory / "dledger-data", 23000)
    assert local_namesrv() == "127.0.0.1:23000"
    make_group(directory / "other", 24000)
    monkeypatch.setenv("DLEDGER_DIR", "other")
    assert local_namesrv() == "127.0.0.1:24000"


def test_a_file_that_cannot_be_read_names_no_group(directory: Path) -> None:
    (directory / "dledger-data").mkdir()
    (directory / "dledger-data/cluster.json").write_text("{")
    assert local_namesrv() is None


@pytest.mark.parametrize(
    ("given", "asked"),
    [({}, "127.0.0.1:1"), ({"NAMESRV_ADDR": "127.0.0.1:2"}, "127.0.0.1:2")],
    ids=["the group", "the environment first"],
)
def test_commands_ask_it_unless_an_address_is_given(
    given: dict[str, str], asked: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_group(directory / "dledger-data", 1)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(command, ["topic", "list"])
    assert done.exit_code == 1 and asked in done.output, done.output


def test_without_any_the_command_says_what_to_do(directory: Path) -> None:
    done = CliRunner().invoke(command, ["topic", "list"])
    assert done.exit_code == 2
    assert "give it with -n host:port, set NAMESRV_ADDR" in done.output
    assert "`dledger up`" in done.output


def test_a_group_of_this_directory_that_does_not_answer(directory: Path) -> None:
    """Other clusters are not started with `dledger up`."""
    make_group(directory / "dledger-data", 1)
    hint = "`dledger status` shows what is down; `dledger restart` or `dledger up` starts it"
    assert hint in CliRunner().invoke(command, ["topic", "list"]).output
    assert hint not in CliRunner().invoke(command, ["topic", "list", "-n", "127.0.0.1:2"]).output

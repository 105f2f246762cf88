"""`dledger up` and the files in conf/ that somebody edited; ports that are held; nodes that do not answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.local import cluster as clusters
from dledger.local.cluster import ClusterSpec, LocalCluster
from dledger.local.conf_files import RECORD, write_conf
from dledger.local.spec import ClusterError
from dledger.runtime.properties_file import parse_properties
from tests.command_line import run

FIRST = {"listenPort": "1", "flushDiskType": "SYNC_FLUSH", "segmentPoolSize": "1"}


def settings(path: Path) -> dict[str, str]:
    return {item.key: item.value for item in parse_properties(path.read_text(encoding="utf-8"))}


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "conf" / "broker-n0.conf"
    path.parent.mkdir()
    assert write_conf(path, FIRST) == ""
    return path


def test_a_file_that_nobody_edited_is_written_anew(conf: Path) -> None:
    wanted = {**FIRST, "listenPort": "2", "httpPort": "3"}
    del wanted["segmentPoolSize"]
    assert write_conf(conf, wanted) == ""
    assert settings(conf) == wanted


def test_edits_stay_and_are_told(conf: Path) -> None:
    conf.write_text("# mine\nlistenPort=1\nflushDiskType=ASYNC_FLUSH\nmaxMessageSize=100\n", encoding="utf-8")
    for _ in range(2):
        note = write_conf(conf, FIRST)
        assert "conf/broker-n0.conf was edited: kept" in note
        for kept in ("flushDiskType=ASYNC_FLUSH", "maxMessageSize=100", "segmentPoolSize (removed)"):
            assert kept in note
        assert conf.read_text(encoding="utf-8").startswith("# mine\n")
        assert settings(conf) == {
            "listenPort": "1",
            "flushDiskType": "ASYNC_FLUSH",
            "maxMessageSize": "100",
        }


def test_what_is_newly_asked_for_comes_into_an_edited_file(conf: Path) -> None:
    conf.write_text("# mine\nlistenPort=1\nsegmentPoolSize=1\nmaxMessageSize=100\n", encoding="utf-8")
    wanted = {"listenPort": "9", "flushDiskType": "SYNC_FLUSH", "httpPort": "3"}
    note = write_conf(conf, wanted)
    assert "changed to listenPort=9, httpPort=3" in note
    assert settings(conf) == {"listenPort": "9", "httpPort": "3", "maxMessageSize": "100"}
    assert "# mine" in conf.read_text(encoding="utf-8")


def test_of_a_file_of_an_older_program_everything_stays(conf: Path) -> None:
    (conf.parent / RECORD).unlink()
    conf.write_text("listenPort=1\nflushDiskType=ASYNC_FLUSH\n", encoding="utf-8")
    assert "flushDiskType=ASYNC_FLUSH" in write_conf(conf, FIRST)
    assert settings(conf) == FIRST | {"flushDiskType": "ASYNC_FLUSH"}


def test_a_file_that_cannot_be_read_stays_as_it_is(conf: Path) -> None:
    conf.write_text("nonsense\n", encoding="utf-8")
    assert "stays as it is" in write_conf(conf, FIRST)
    assert conf.read_text(encoding="utf-8") == "nonsense\n"


def test_a_group_keeps_what_was_edited_in_its_directory(
    tmp_path: Path, unused_tcp_ports: Callable[[int], list[int]]
) -> None:
    spec = ClusterSpec(base_port=12_000, nodes=1)
    group = LocalCluster.create(tmp_path / "g", spec)
    assert group.notes == []
    path = tmp_path / "g" / "conf" / "broker-n0.conf"
    path.write_text(path.read_text(encoding="utf-8") + "maxMessageSize=1000\n", encoding="utf-8")
    again = LocalCluster.create(tmp_path / "g", replace(spec, broker={"traceOn": "false"}))
    assert settings(path)["maxMessageSize"] == "1000"
    assert settings(path)["traceOn"] == "false"
    (note,) = again.notes
    assert "maxMessageSize=1000" in note
    assert "traceOn=false" in note


def test_a_port_that_is_held_is_waited_for_and_its_holder_named(
    tmp_path: Path, unused_tcp_ports: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.ports import free_ports

    base = free_ports(40)[0]
    group = LocalCluster.create(tmp_path / "g", ClusterSpec(base_port=base, nodes=1))
    with socket.create_server(("127.0.0.1", base)) as holder:
        monkeypatch.setattr(clusters, "PORT_WAIT_S", 0.0)
        with pytest.raises(ClusterError, match="by process"):
            group.check_ports()
        monkeypatch.setattr(clusters, "PORT_WAIT_S", 600.0)
        threading.Timer(0.1, holder.close).start()
        group.check_ports()


def test_ports_that_the_system_gives_away_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "ephemeral_ports", lambda: (32768, 60999))
    inside = LocalCluster(tmp_path, ClusterSpec(base_port=40_000, nodes=1))
    assert "Choose a --base-port below 32768" in inside.ephemeral_note()
    assert "below" in LocalCluster(tmp_path, ClusterSpec(base_port=32_760, nodes=1)).ephemeral_note()
    assert LocalCluster(tmp_path, ClusterSpec(base_port=9876, nodes=3)).ephemeral_note() == ""
    monkeypatch.setattr(clusters, "ephemeral_ports", lambda: None)
    assert inside.ephemeral_note() == ""


def test_a_node_that_is_not_there_does_not_answer(
    unused_tcp_ports: Callable[[int], list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    (port,) = unused_tcp_ports(1)
    peers = f"n0-127.0.0.1:{port};n1-nowhere.invalid:1"
    assert run("status", "--peers", peers, "--timeout", "20") == 4
    shown = capsys.readouterr().out
    lines = [line for line in shown.splitlines() if line.startswith(("n0", "n1"))]
    assert len(lines) == 2
    for line in lines:
        assert "does not answer" in line
        assert "Errno" not in line
        assert "call failed" not in line

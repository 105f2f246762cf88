"""Configuration, ports, disk and directories of a group; starting real groups is in tests/cluster."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dledger.local import wire
from dledger.local.cluster import MIB, ClusterError, ClusterSpec, LocalCluster, find_base_port
from dledger.local.ports import port_taken


def test_ports_of_a_group_are_distinct_and_follow_from_the_base_port() -> None:
    spec = ClusterSpec(nodes=3, base_port=20000)
    assert len(spec.ports()) == 1 + 3 * 3
    assert spec.namesrv_port == 20000
    assert [spec.port(node) for node in spec.node_ids] == [20010, 20020, 20030]
    assert [spec.raft_port(node) for node in spec.node_ids] == [20011, 20021, 20031]
    assert [spec.http_port(node) for node in spec.node_ids] == [20012, 20022, 20032]


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"nodes": 10}, {"base_port": 0}, {"base_port": 65530}])
def test_an_impossible_group_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ClusterError):
        ClusterSpec(**wrong)  # type: ignore[arg-type]


def test_configuration_files_have_rocketmq_s_property_names(tmp_path: Path) -> None:
    cluster = LocalCluster.create(
        tmp_path / "g", ClusterSpec(base_port=20100, broker={"maxMessageSize": "1024"})
    )
    text = (tmp_path / "g" / "conf" / "broker-n1.conf").read_text()
    properties = dict(line.split("=", 1) for line in text.splitlines())
    assert properties["dLegerSelfId"] == "n1"
    assert properties["dLegerPeers"] == "n0-127.0.0.1:20111;n1-127.0.0.1:20121;n2-127.0.0.1:20131"
    assert properties["listenPort"] == "20120"
    assert properties["namesrvAddr"] == cluster.namesrv_addr == "127.0.0.1:20100"
    assert properties["mapedFileSizeCommitLog"] == str(64 * MIB)
    assert properties["storePathRootDir"] == str(tmp_path / "g" / "store" / "n1")
    assert properties["maxMessageSize"] == "1024"
    assert "listenPort=20100" in (tmp_path / "g" / "conf" / "namesrv.conf").read_text()


def test_spares_have_ports_and_are_no_peers(tmp_path: Path) -> None:
    cluster = LocalCluster.planned(tmp_path, ClusterSpec(nodes=4, base_port=20100))
    cluster.members = ("n0", "n2", "n3")
    cluster.write()
    files = sorted(path.name for path in (tmp_path / "conf").glob("broker-*.conf"))
    assert files == ["broker-n0.conf", "broker-n2.conf", "broker-n3.conf"]
    peers = "dLegerPeers=n0-127.0.0.1:20111;n2-127.0.0.1:20131;n3-127.0.0.1:20141\n"
    assert peers in (tmp_path / "conf" / "broker-n3.conf").read_text()
    assert cluster.followers_first() == cluster.down() == ["n0", "n2", "n3"]
    assert [node["id"] for node in cluster.status()["groups"][0]["nodes"]] == ["n0", "n2", "n3"]
    cluster.members = ("n0", "n1", "n2")
    cluster.write()
    assert "dLegerPeers=n0-127.0.0.1:20111;n1-" in (tmp_path / "conf" / "broker-n0.conf").read_text()


def test_a_group_is_found_again_by_its_directory(tmp_path: Path) -> None:
    spec = ClusterSpec(nodes=2, base_port=20200)
    LocalCluster.create(tmp_path, spec)
    assert LocalCluster.open(tmp_path).spec == spec


def test_a_directory_without_group_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=str(tmp_path)):
        LocalCluster.open(tmp_path)


def test_a_directory_of_somebody_else_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(ClusterError, match="not empty"):
        LocalCluster.create(tmp_path)


def test_the_number_of_nodes_of_a_group_stays(tmp_path: Path) -> None:
    LocalCluster.create(tmp_path, ClusterSpec(nodes=3))
    with pytest.raises(ClusterError, match="3 nodes"):
        LocalCluster.create(tmp_path, ClusterSpec(nodes=5))


def test_a_port_in_use_is_named_with_what_it_is_for(tmp_path: Path) -> None:
    base = find_base_port(start=21000)
    cluster = LocalCluster.create(tmp_path, ClusterSpec(base_port=base))
    with socket.create_server(("127.0.0.1", base + 21)):
        assert port_taken(base + 21)
        assert find_base_port(start=base) != base
        with pytest.raises(ClusterError, match=rf"{base + 21} \(peers of n1\)"):
            cluster.start()


def test_ports_are_not_given_to_two_programs_at_once() -> None:
    base = find_base_port(start=21000)
    look = f"from dledger.local.cluster import find_base_port; print(find_base_port(start={base}))"
    other = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert int(other.stdout) > base
    assert find_base_port(start=base) == base, "ours stay ours"


def test_too_little_disk_says_how_much_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = LocalCluster.create(tmp_path)
    usage = type(shutil.disk_usage(tmp_path))(100 * MIB, 90 * MIB, 10 * MIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    wanted = cluster.spec.disk_wanted() // MIB
    with pytest.raises(ClusterError, match=f"{wanted} MiB, and 10 MiB are free"):
        cluster.check_disk()


def test_where_there_is_room_nobody_looks_at_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster.create(tmp_path)
    wanted = cluster.spec.disk_wanted()
    usage = type(shutil.disk_usage(tmp_path))(wanted, 0, wanted)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(Path, "rglob", lambda path, pattern: pytest.fail(f"looked through {path}"))
    cluster.check_disk()


def test_status_of_a_stopped_group_has_every_key(tmp_path: Path) -> None:
    status = LocalCluster.create(tmp_path, ClusterSpec(base_port=find_base_port(start=22000))).status()
    assert status["namesrv"][0].keys() == {"addr", "pid", "own"}
    (group,) = status["groups"]
    assert group["name"] == "broker-a"
    assert group["leader"] is None
    assert [node["role"] for node in group["nodes"]] == ["DOWN"] * 3
    assert group["nodes"][0].keys() == {
        "id", "pid", "addr", "raft_addr", "store", "role", "term", "end_index", "committed_index"
    }  # fmt: skip


def test_a_master_is_read_from_both_styles_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:1",2:"127.0.0.1:2"}}}}'
    for body in (text, text.replace("0:", '"0":', 1)):
        answer = wire.Answer(code=0, opaque=1, remark=None, ext={}, body=body.encode(), raw_header={})
        monkeypatch.setattr(wire, "call", lambda *_, answer=answer, **__: answer)
        assert wire.master_address("x:1", "broker-a") == "127.0.0.1:1"
        assert wire.master_address("x:1", "broker-b") is None

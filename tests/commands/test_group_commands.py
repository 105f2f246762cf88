"""`dledger up` and `status` without processes: what is decided, refused and told before and beside them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dledger.broker.config import SETTINGS
from dledger.commands import further_groups
from dledger.commands.app import command
from dledger.commands.further_groups import bring_up_all, find_group, further_names, look_at_all
from dledger.commands.group_actions import DECIDED, SEGMENT_MB, Wish, bring_up, kill_and_wait
from dledger.commands.group_status import (
    ERRORS,
    FINE,
    NOT_SEEN,
    NothingSeen,
    Seen,
    look_at_directory,
    look_at_namesrv,
)
from dledger.local import wire
from dledger.local.cluster import MIB, ClusterError, ClusterSpec, Killed, LocalCluster, find_base_port
from dledger.local.wire import NoAnswer, Registered
from dledger.runtime.environment_variables import NAMESRV_ADDR
from dledger.runtime.settings import ConfigError

ELSEWHERE = "127.0.0.1:4"
"""A NameServer of others; nothing listens there."""


def dledger(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(command, words, env=environment)


@pytest.fixture
def unstarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are decided, written, and not started."""
    monkeypatch.setattr(LocalCluster, "start", lambda *_: ["broker-n0"])
    monkeypatch.setattr(LocalCluster, "wait_answering", lambda *_: True)


def knows(monkeypatch: pytest.MonkeyPatch, groups: dict[str, dict[str, str]] | None) -> None:
    """Every NameServer knows these groups; None: none answers."""

    def registered(address: str, timeout_s: float = 1.0) -> dict[str, Registered]:
        if groups is None:
            raise NoAnswer(f"{address}: silent")
        return {name: Registered("C", addresses) for name, addresses in groups.items()}

    monkeypatch.setattr(wire, "registered", registered)


# --- up -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [*DECIDED, "LISTENPORT"])
def test_what_an_option_decides_is_not_set(key: str, tmp_path: Path) -> None:
    done = dledger("up", "--dir", str(tmp_path / "g"), "--set", f"{key}=x")
    assert done.exit_code == 2 and f"--set {key}".lower() in done.output.lower()
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--set", "word"), "expected KEY=VALUE"),
        (("--set", "maxMesageSize=1"), "did you mean 'maxMessageSize'?"),
        (("--set", "maxMessageSize=x"), "--set: maxMessageSize"),
        (("--segment-mb", "1"), "--segment-mb 1: give 9 to 1048576 MiB"),
        (("--nodes", "10"), "from 1 to 9"),
        (("--group", "a b"), "--group"),
        (("--namesrv", "nonsense"), "expected host:port"),
        (("--namesrv", ELSEWHERE), "as --namesrv says"),
    ],
)
def test_what_cannot_be_started_is_told_and_nothing_is_written(
    words: Sequence[str], told: str, tmp_path: Path
) -> None:
    port = str(find_base_port(start=23000))
    done = dledger("up", "--dir", str(tmp_path / "g"), "--base-port", port, "--json", *words)
    assert done.exit_code == 2 and told in done.stderr
    assert told in json.loads(done.stdout)["error"]
    assert not (tmp_path / "g").exists()


def test_settings_of_an_earlier_start_stay_until_they_are_taken_back(unstarted: None, tmp_path: Path) -> None:
    port = find_base_port(start=23000)
    for settings, expected in (
        (("maxMessageSize=1024",), {"maxMessageSize": "1024"}),
        ((), {"maxMessageSize": "1024"}),
        (("flushDiskType=ASYNC_FLUSH",), {"maxMessageSize": "1024", "flushDiskType": "ASYNC_FLUSH"}),
        (("maxMessageSize=",), {"flushDiskType": "ASYNC_FLUSH"}),
    ):
        cluster, _ = bring_up(tmp_path, Wish(base_port=port, settings=settings))
        assert cluster.spec.broker == expected == LocalCluster.open(tmp_path).spec.broker


def test_behind_a_name_server_of_others_ports_are_found(
    unstarted: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    knows(monkeypatch, {"broker-a": {"0": "127.0.0.1:5"}})
    with pytest.raises(ClusterError, match=r"already has a group broker-a .*--group"):
        bring_up(tmp_path / "b", Wish(namesrv=ELSEWHERE))
    cluster, _ = bring_up(tmp_path / "b", Wish(group="broker-b", namesrv=ELSEWHERE))
    assert cluster.namesrv_addr == ELSEWHERE and cluster.spec.base_port > 9876
    assert "namesrv" not in cluster.spec.ports().values() and not (tmp_path / "b/conf/namesrv.conf").exists()
    assert cluster.broker_properties("n0")["namesrvAddr"] == ELSEWHERE
    again, _ = bring_up(tmp_path / "b", Wish())
    assert again.spec == cluster.spec


@pytest.mark.parametrize(
    ("first", "taken", "expected"),
    [
        ("broker-a", ["broker-a"], ["broker-b", "broker-c"]),
        ("broker-a", ["broker-a", "broker-b"], ["broker-c", "broker-d"]),
        ("broker-y", ["broker-y"], ["broker-z", "broker-2"]),
        ("east", ["east"], ["east-2", "east-3"]),
        ("east", ["east", "east-2"], ["east-3", "east-4"]),
    ],
)
def test_names_of_further_groups(first: str, taken: list[str], expected: list[str]) -> None:
    assert further_names(first, 2, taken) == expected


def test_several_groups_in_one_directory(
    unstarted: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    knows(monkeypatch, {})
    told: list[str] = []

    def up(groups: int | None, **wish: Any) -> list[LocalCluster]:
        return bring_up_all(tmp_path / "g", Wish(**wish), groups, 1.0, told.append)[0]

    base = find_base_port(start=24000)
    three = up(3, base_port=base, nodes=1, segment_mb=16, settings=("maxMessageSize=65536",))
    assert [group.spec.group for group in three] == ["broker-a", "broker-b", "broker-c"]
    assert len({port for group in three for port in group.spec.ports()}) == 1 + 3 * 3
    assert {group.namesrv_addr for group in three} == {f"127.0.0.1:{base}"}
    assert {group.spec.segment_size for group in three} == {16 * MIB}
    assert all(group.spec.broker == three[0].spec.broker for group in three)
    assert [one.spec for one in up(None)] == [one.spec for one in three]
    assert [group.spec.group for group in up(4)][3:] == ["broker-d"]
    assert {group.spec.broker["traceOn"] for group in up(None, settings=("traceOn=false",))} == {"false"}
    with pytest.raises(ClusterError, match=r"--groups 2: .* has 4"):
        up(2)
    with pytest.raises(ClusterError, match=r"--groups 17: give a number from 1 to 16"):
        up(17)
    assert find_group(tmp_path / "g", "broker-c").directory == three[2].directory
    assert find_group(tmp_path / "g", None).spec == find_group(tmp_path / "g", "broker-a").spec
    with pytest.raises(ClusterError, match="the groups are broker-a, broker-b"):
        find_group(tmp_path / "g", "broker-x")


def test_the_verdict_on_several_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    groups = [LocalCluster(tmp_path, ClusterSpec(group=name)) for name in ("a", "b")]
    codes = {"a": FINE, "b": NOT_SEEN}

    def seen(group: LocalCluster) -> Seen:
        name = group.spec.group
        problems = ["nothing runs"] if codes[name] else []
        return Seen({"groups": [name]}, ["namesrv N", f"group {name}"], problems, codes[name])

    monkeypatch.setattr(further_groups, "look_at_directory", seen)
    both = look_at_all(groups)
    assert (both.code, both.problems) == (ERRORS, ["b: nothing runs"])
    assert both.lines == ["namesrv N", "group a", "group b"] and both.found == {"groups": ["a", "b"]}
    codes["a"] = ERRORS
    assert look_at_all(groups).code == ERRORS
    codes["a"] = NOT_SEEN
    assert look_at_all(groups).code == NOT_SEEN


def test_the_variable_says_where_a_new_group_registers(
    unstarted: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(NAMESRV_ADDR, ELSEWHERE)
    with pytest.raises(ClusterError, match="as NAMESRV_ADDR says"):
        bring_up(tmp_path / "a", Wish())
    knows(monkeypatch, {})
    assert bring_up(tmp_path / "a", Wish())[0].spec.namesrv == ELSEWHERE
    assert bring_up(tmp_path / "b", Wish(base_port=find_base_port()), environment=False)[0].spec.namesrv == ""
    port = find_base_port(start=23000)  # the address that this group's own NameServer will have
    monkeypatch.setenv(NAMESRV_ADDR, f"localhost:{port}")
    assert bring_up(tmp_path / "c", Wish(base_port=port))[0].spec.namesrv == ""


def test_a_group_of_an_older_program_is_opened(tmp_path: Path) -> None:
    LocalCluster.create(tmp_path, ClusterSpec())
    path = tmp_path / "cluster.json"
    older = json.loads(path.read_text())
    del older["namesrv"]
    path.write_text(json.dumps(older))
    assert LocalCluster.open(tmp_path).namesrv_addr == "127.0.0.1:9876"


def test_the_store_of_one_group_is_not_started_as_another(tmp_path: Path) -> None:
    LocalCluster.create(tmp_path, ClusterSpec(group="broker-b"))
    with pytest.raises(ClusterError, match="holds the group broker-b, not broker-a"):
        LocalCluster.create(tmp_path, ClusterSpec())


# --- waiting ------------------------------------------------------------------------------------------


def test_what_is_waited_for_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path, ClusterSpec(group="broker-b", namesrv=ELSEWHERE))
    monkeypatch.setattr(cluster, "_check_alive", lambda: None)
    monkeypatch.setattr(cluster, "_describe", lambda: "...")
    told: list[str] = []

    def wait(leader: str | None, groups: dict[str, dict[str, str]] | None) -> str:
        monkeypatch.setattr(cluster, "leader", lambda: leader)
        knows(monkeypatch, groups)
        with pytest.raises(ClusterError) as error:
            cluster.wait_ready(0, told.append)
        assert told.pop() in str(error.value) and not told
        return str(error.value)

    assert "no leader is serving" in wait(None, {})
    assert f"n1 leads, but no NameServer answers ({ELSEWHERE}: silent)" in wait("n1", None)
    known = {"broker-a": {"0": "h:1"}, "broker-c": {"0": "h:2"}}
    assert "does not know broker-b (it knows broker-a, broker-c)" in wait("n1", known)
    assert "shows h:1 for broker-b" in wait("n1", {"broker-b": {"0": "h:1"}})
    knows(monkeypatch, {"broker-b": {"0": cluster.addr("n1")}})
    assert cluster.wait_ready(0, told.append) == "n1" and not told


def test_the_last_majority_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path, ClusterSpec())
    monkeypatch.setattr(cluster, "running", lambda: ["broker-n1"])
    monkeypatch.setattr(cluster, "kill_leader", lambda limit_s: Killed("n1", 7, 0.0))
    monkeypatch.setattr(cluster, "down", lambda: ["n0", "n1"])
    with pytest.raises(ClusterError, match=r"killed n1 .*n0, n1 of 3 down: no majority"):
        kill_and_wait(cluster, wait=True)
    assert kill_and_wait(cluster, wait=False) == {"killed": "n1", "pid": 7}


def test_the_time_without_a_leader_begins_with_the_signal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel takes some milliseconds to end a process: whoever sends waits for them, too."""
    cluster = LocalCluster.create(tmp_path, ClusterSpec())
    at = time.monotonic() - 5  # the process took that long to die
    monkeypatch.setattr(cluster, "running", lambda: ["broker-n0", "broker-n1", "broker-n2"])
    monkeypatch.setattr(cluster, "kill_leader", lambda limit_s: Killed("n1", 7, at))
    monkeypatch.setattr(cluster, "down", lambda: ["n1"])
    monkeypatch.setattr(cluster, "wait_leader", lambda limit_s: "n2")
    done = kill_and_wait(cluster, wait=True)
    assert done["leader"] == "n2"
    assert done["seconds"] >= 5


# --- status -------------------------------------------------------------------------------------------


def node(name: str, role: str) -> dict[str, Any]:
    pid = None if role == "DOWN" else 7
    keys = ("addr", "store", "term", "end_index", "committed_index")
    return {"id": name, "role": role, "pid": pid, **dict.fromkeys(keys, 1)}


@pytest.mark.parametrize(
    ("roles", "found", "code", "problem"),
    [
        ("LEADER FOLLOWER FOLLOWER", True, 0, ""),
        ("LEADER FOLLOWER FOLLOWER", False, 1, "clients do not find the group"),
        ("LEADER FOLLOWER DOWN", True, 1, "n2 is down"),
        ("LEADER SILENT FOLLOWER", True, 1, "does not answer"),
        ("CANDIDATE DOWN DOWN", True, 2, "there is no leader"),
        ("DOWN DOWN DOWN", True, 4, "nothing runs"),
    ],
)
def test_the_verdict_on_a_group(
    roles: str, found: bool, code: int, problem: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = LocalCluster.create(tmp_path, ClusterSpec())
    nodes = [node(f"n{number}", role) for number, role in enumerate(roles.split())]
    leader = next((one["id"] for one in nodes if one["role"] == "LEADER"), None)
    servers = [{"addr": "h:1", "pid": 1, "own": True}]
    status = {"namesrv": servers, "groups": [{"name": "broker-a", "leader": leader, "nodes": nodes}]}
    monkeypatch.setattr(cluster, "status", lambda: status)
    monkeypatch.setattr(cluster, "running", lambda: [one["id"] for one in nodes if one["pid"]])
    monkeypatch.setattr(cluster, "unshown", lambda leader: "" if found else "silence")
    seen = look_at_directory(cluster)
    assert seen.code == code and problem in " ".join(seen.problems)
    assert seen.as_json() == {**status, "problems": seen.problems}


@pytest.mark.parametrize(
    ("groups", "dead", "code"),
    [
        ({"a": {"0": "h:1", "1": "h:2"}, "b": {"0": "h:3"}}, "", 0),
        ({"a": {"0": "h:1", "1": "h:2"}}, "h:2", 1),
        ({"a": {"0": "h:1", "1": "h:2"}}, "h:1", 2),
        ({"a": {"1": "h:2"}, "b": {"0": "h:3"}}, "", 2),
    ],
)
def test_the_verdict_on_what_a_name_server_knows(
    groups: dict[str, dict[str, str]], dead: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    knows(monkeypatch, groups)
    monkeypatch.setattr(wire, "listens", lambda address: address != dead)
    seen = look_at_namesrv("h:9;h:8", None)
    assert seen.code == code and bool(seen.problems) == bool(code)
    assert [group["name"] for group in seen.found["groups"]] == list(groups)
    assert len(look_at_namesrv("h:9", "a").found["groups"]) == 1


@pytest.mark.parametrize("order", ["h:9;h:8;h:7", "h:7;h:8;h:9", "h:8;h:7;h:9"])
def test_a_name_server_that_knows_less_than_others_is_named(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {
        "h:9": {},
        "h:8": {"a": wire.Registered("C", {"1": "h:2"})},
        "h:7": {"a": wire.Registered("C", {"0": "h:1", "1": "h:2"}), "b": wire.Registered("C", {"0": "h:3"})},
    }
    monkeypatch.setattr(wire, "registered", lambda address, timeout_s=1.0: known[address])
    monkeypatch.setattr(wire, "listens", lambda address: True)
    seen = look_at_namesrv(order, None)
    assert seen.code == 1 and [group["leader"] for group in seen.found["groups"]] == ["h:1", "h:3"]
    assert sorted(problem.partition(",")[0] for problem in seen.problems) == [
        "NameServer h:8 does not list b",
        "NameServer h:9 does not list a",
    ]
    (only,) = look_at_namesrv(order, "a").problems
    assert only.startswith("NameServer h:9 does not list a,")
    assert list(wire.registered_anywhere(order.split(";"))) == ["a", "b"]


@pytest.mark.parametrize(
    ("groups", "only", "told"),
    [
        (None, None, "no NameServer answers"),
        ({}, None, "no broker is registered"),
        ({"broker-a": {"0": "h:1"}}, "broker-b", "did you mean 'broker-a'"),
    ],
)
def test_what_cannot_be_looked_at_ends_with_4(
    groups: dict[str, dict[str, str]] | None, only: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    knows(monkeypatch, groups)
    with pytest.raises(NothingSeen, match=told):
        look_at_namesrv("h:1", only)
    done = dledger("status", "--namesrv", "h:1", *(["--group", only] if only else []))
    assert done.exit_code == 4 and told in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--peers", "x", "--namesrv", "y"), "--peers and --namesrv: give one"),
        (("--peers", "x", "--dir", "y"), "--peers and --dir: give one"),
        (("--timeout", "1"), "--timeout can only be used with --peers"),
        (("--namesrv", "h:1", "--tls-ca", "f"), "--tls-ca can only be used with --peers"),
        (("--dir", "x", "--group", "g"), "--group can only be used with"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(words: Sequence[str], told: str) -> None:
    done = dledger("status", *words)
    assert done.exit_code == 2 and told in done.stderr


def test_status_looks_here_first_and_then_where_the_variable_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    knows(monkeypatch, {"far-away": {"0": "h:1"}})
    monkeypatch.setattr(wire, "listens", lambda address: True)
    assert "far-away" in dledger("status", NAMESRV_ADDR="h:9").stdout
    assert "no group" in dledger("status", NAMESRV_ADDR="h:9", DLEDGER_DIR="other").stderr
    LocalCluster.create(tmp_path / "dledger-data", ClusterSpec(group="near"))
    here = dledger("status", NAMESRV_ADDR="h:9")
    assert here.exit_code == 4 and "group near" in here.stdout
    assert "far-away" in dledger("status", "--namesrv", "h:9", DLEDGER_DIR="other").stdout


def test_the_sizes_of_segments_are_those_that_brokers_accept() -> None:
    needed = {"dLegerPeers": "n0-127.0.0.1:40911"}
    low, high = (size * MIB for size in SEGMENT_MB)
    for size in (low, high):
        SETTINGS.load({**needed, "mapedFileSizeCommitLog": str(size)})
    for size in (low - MIB, high + MIB):
        with pytest.raises(ConfigError, match="mapedFileSizeCommitLog"):
            SETTINGS.load({**needed, "mapedFileSizeCommitLog": str(size)})

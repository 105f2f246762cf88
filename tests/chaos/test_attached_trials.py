"""Whole trials at a group that somebody else has started."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger.admin.client import AdminClient
from dledger.client import Message, Producer
from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port
from dledger.local.ports import CLAIM

pytestmark = pytest.mark.slow

LIMIT_S = 300
OTHERS = "orders"
SCENARIO = """
name = "mine"
purpose = "Leaders are killed and replaced, and links of clients are slow."
must_hold = "Clients go on."
clients = ["probe", "producers", "operator", "pull", "push"]
seconds = 12
rate = 30
load = 4

[[faults]]
kind = "transfer"
target = "leader"
every_s = [2.0, 3.0]

[[faults]]
kind = "kill"
target = "leader"
every_s = [4.0, 4.0]
lasts_s = [0.5, 0.5]

[[faults]]
kind = "slow-link"
target = "all"
every_s = [3.0, 4.0]
lasts_s = [0.5, 1.0]
amount = [5, 20]

[[faults]]
kind = "reconnect-storm"
target = "all"
every_s = [4.0, 5.0]
"""
KILL = """
import json, os, pathlib, signal, sys
found = json.loads(pathlib.Path(sys.argv[1], "run", f"broker-{sys.argv[2]}.pid").read_text())
os.kill(found["pid"], signal.SIGKILL)
"""


class Theirs:
    """The group of somebody else, with a topic of its own, and the commands that kill and start its brokers.
    Its NameServer knows another group, too."""

    def __init__(self, directory: Path) -> None:
        strict = {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "false"}
        spec = ClusterSpec(base_port=find_base_port(start=25000), group="theirs", broker=strict)
        self.cluster = LocalCluster.create(directory / "group", spec)
        port = find_base_port(start=spec.base_port + CLAIM)
        other = ClusterSpec(nodes=1, base_port=port, group="another", namesrv=self.cluster.namesrv_addr)
        self.other = LocalCluster.create(directory / "other", other)
        (directory / "mine.toml").write_text(SCENARIO)
        (directory / "kill.py").write_text(KILL)
        python, place = shlex.quote(sys.executable), shlex.quote(str(self.cluster.directory))
        self.words = [
            str(directory / "mine.toml"), "--namesrv", self.cluster.namesrv_addr, "--json",
            "--broker-name", "theirs",
            "--exec", f"kill={python} {directory / 'kill.py'} {place} {{node}}",
            "--exec-undo", f"kill={python} -m dledger restart --dir {place}",
        ]  # fmt: skip

    def names(self) -> set[str]:
        """All topics and consumer groups, of both groups of brokers."""
        with AdminClient(self.cluster.namesrv_addr) as admin:
            found = set(admin.topics.names())
            for master in admin.brokers.masters().values():
                found |= {*admin.topics.configs(master).topicConfigTable, *admin.groups.configs(master)}
            return found


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theirs]:
    found = Theirs(tmp_path_factory.mktemp("theirs"))
    try:
        found.cluster.start()
        found.other.start()
        with Producer("others", found.cluster.namesrv_addr) as producer:
            producer.create_topic(OTHERS, 1, "theirs")
            producer.send(Message(OTHERS, b"before the trial"))
        yield found
    finally:
        found.other.stop()
        found.cluster.stop()


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "dledger", "chaos", "run", *words]


def helpers(theirs: Theirs) -> list[str]:
    """The command lines of processes that send to the group's NameServer as load."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if "dledger.chaos" in line and theirs.cluster.namesrv_addr in line:
                found.append(line)
    return found


def test_without_yes_the_trial_only_says_what_it_would_do(theirs: Theirs) -> None:
    before = theirs.names()
    done = subprocess.run(
        command(*theirs.words), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1 and "nothing was done" in done.stderr
    assert "theirs behind" in done.stderr and "kill of leader" in done.stderr
    assert theirs.names() == before and OTHERS in before


def test_leaders_of_others_are_killed_by_a_command_and_every_rule_holds(
    theirs: Theirs, tmp_path: Path
) -> None:
    before = theirs.names()
    done = subprocess.run(
        command(*theirs.words, "--yes", "--report", str(tmp_path)),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    rules = {verdict["name"] for verdict in result["verdicts"]}
    assert {"log", "sends", "load", "receipts", "handed", "offsets", "faults", "progress"} <= rules
    assert not rules & {"replicas", "processes", "flights"} and "replicas" in result["left_out"]
    kinds = {fault["kind"] for fault in result["faults"] if not fault["error"]}
    assert kinds == {"transfer", "kill", "slow-link", "reconnect-storm"}
    kills = [fault for fault in result["faults"] if fault["kind"] == "kill"]
    assert all(kill["command_s"] > 0 and kill["end_s"] for kill in kills) and result["failovers"]
    assert result["network"] == "proxy" and "theirs" in result["group"]
    assert "from the running brokers" in (tmp_path / "report.html").read_text()
    assert theirs.names() == before and not helpers(theirs)
    with AdminClient(theirs.cluster.namesrv_addr) as admin:
        (offsets,) = admin.topics.stats(OTHERS).offsets.values()
        assert offsets.maxOffset == 1, "the trial sent to a topic of others"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_trial_undoes_its_faults_and_deletes_its_names(
    theirs: Theirs, number: signal.Signals, code: int
) -> None:
    before = theirs.names()
    running = command(*theirs.words, "--yes", "--seconds", "60")
    with subprocess.Popen(running, stderr=subprocess.PIPE, text=True, start_new_session=True) as trial:
        assert trial.stderr is not None
        for line in trial.stderr:
            if " s  kill of n" in line:
                break
        during = theirs.names() - before
        assert any(name.endswith("%auto") for name in during), during
        os.killpg(trial.pid, number)
        said = trial.stderr.read()
        assert trial.wait(LIMIT_S) == code, said
    assert "left behind" not in said and theirs.names() == before
    LocalCluster.open(theirs.cluster.directory).wait_caught_up(60)  # the killed broker runs again
    deadline = time.monotonic() + 20
    while helpers(theirs) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not helpers(theirs)


def test_with_several_groups_of_brokers_one_must_be_named(theirs: Theirs) -> None:
    done = subprocess.run(
        command("transfers", "--namesrv", theirs.cluster.namesrv_addr),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (
        done.returncode == 2 and "which broker group is meant; registered are: another, theirs" in done.stderr
    )


def test_a_scenario_that_needs_the_processes_of_others_is_refused(theirs: Theirs) -> None:
    where = ["--namesrv", theirs.cluster.namesrv_addr, "--broker-name", "theirs"]
    done = subprocess.run(
        command("rolling-restart", *where, "--yes"),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "rolling-restart: the processes" in done.stderr

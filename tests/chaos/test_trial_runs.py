"""Whole trials with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MINE = """
name = "mine"
purpose = "A follower is killed, and the NameServer, too."
must_hold = "Clients go on."
clients = ["probe", "producers", "pull"]
seconds = 8
rate = 20

[[faults]]
kind = "kill"
target = "follower"
every_s = [2.0, 3.0]
lasts_s = [0.2, 0.5]

[[faults]]
kind = "kill-namesrv"
target = "namesrv"
every_s = [3.0, 3.0]
lasts_s = [0.5, 0.5]
"""
LIMIT_S = 300


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dledger", "chaos", "run", *arguments]


def processes_in(directory: Path) -> list[str]:
    """The command lines of running processes that name a file below this directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(directory) in line:
                found.append(line)
    return found


def test_leaders_are_killed_and_every_rule_holds(tmp_path: Path) -> None:
    directory = tmp_path / "trial"
    arguments = ["kill-leader", "--seconds", "8", "--seed", "1", "--json", "--dir", str(directory)]
    done = subprocess.run(
        command(*arguments, "--report", str(tmp_path / "report")),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["holds"] and result["counts"]["faults"] >= 1 and result["failovers"]
    assert {"sends", "receipts", "handed", "offsets", "transactions", "timers", "replicas", "progress"} <= {
        verdict["name"] for verdict in result["verdicts"]
    }
    assert "Every rule holds" in (tmp_path / "report" / "report.html").read_text()
    assert not processes_in(directory)


def test_a_scenario_of_a_user_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(MINE)
    done = subprocess.run(
        command(str(tmp_path / "mine.toml"), "--dir", str(tmp_path / "trial")),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill of n" in done.stderr and "kill-namesrv of namesrv" in done.stderr


def test_members_are_exchanged_and_the_nodes_that_came_and_left_are_judged(tmp_path: Path) -> None:
    arguments = ["members", "--seconds", "20", "--seed", "1", "--json", "--dir", str(tmp_path / "trial")]
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["size"] == 3 and len(result["nodes"]) == 4
    exchanges = [note for note in result["notes"] if "has joined the group" in note]
    assert exchanges and any("is preferred, and " in note for note in result["notes"])
    recorded = [flight["node"] for flight in result["flights"] if flight["steps"]]
    left = [node for node in recorded if node.endswith("(has left)")]
    assert len(left) == len(exchanges) and len(recorded) == 3 + len(left)
    outside = [seen["node"] for seen in result["roles"] if seen["role"] == "OUTSIDE"]
    assert outside[0] == "n3" and len(outside) > 1


@pytest.mark.parametrize(
    ("scenario", "number", "code"),
    [
        ("kill-leader", signal.SIGINT, 130),
        ("rolling-restart", signal.SIGINT, 130),
        ("pause-leader", signal.SIGTERM, 143),
    ],
)
def test_an_interrupted_trial_leaves_no_process(
    tmp_path: Path, scenario: str, number: signal.Signals, code: int
) -> None:
    directory = tmp_path / "trial"
    running = command(scenario, "--dir", str(directory))
    with subprocess.Popen(running, stderr=subprocess.PIPE, text=True, start_new_session=True) as trial:
        assert trial.stderr is not None
        for line in trial.stderr:
            if " s  " in line and " of n" in line:
                break
        assert len(processes_in(directory)) >= 3
        os.killpg(trial.pid, number)
        assert trial.wait(60) == code
    deadline = time.monotonic() + 20
    while (left := processes_in(directory)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def test_a_directory_of_an_earlier_trial_is_refused(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    done = subprocess.run(
        command("kill-leader", "--dir", str(tmp_path)),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "has a group of an earlier trial" in done.stderr

"""`scripts/deep`: what runs next, what a result says, and that nothing is lost between runs."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from dledger.local.cluster import wait_for
from tests.scripts.test_orders import load_script

deep = load_script("deep")


def kind(name: str, items: Sequence[str], script: str = "true", **more: Any) -> Any:
    """Items that run a shell script with their name and seed as $1 and $2."""

    def command(item: str, seed: int) -> list[str]:
        return ["bash", "-c", script, "-", item, str(seed)]

    return deep.Kind(
        name, name, lambda: items, command, more.pop("expected_s", 1), more.pop("limit_s", 60), **more
    )


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs the command over kinds of the test's own; its results are in `tmp_path`."""

    def invoke(kinds: Sequence[Any], *arguments: str) -> Result:
        monkeypatch.setattr(deep, "KINDS", {one.name: one for one in kinds})
        return CliRunner().invoke(deep.main, ["--results", str(tmp_path / "results.jsonl"), *arguments])

    return invoke


def noted(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]


def test_every_item_runs_once_and_its_result_is_noted(run: Run, tmp_path: Path) -> None:
    done = run([kind("a", ["x", "y"]), kind("b", ["z"])])
    assert done.exit_code == 0, done.output
    assert sorted((row["kind"], row["item"], row["outcome"]) for row in noted(tmp_path)) == [
        ("a", "x", "passed"),
        ("a", "y", "passed"),
        ("b", "z", "passed"),
    ]
    assert "deep: 3 passed" in done.output


def test_a_later_run_begins_with_what_has_not_run_for_longest(run: Run, tmp_path: Path) -> None:
    kinds = [kind("a", ["x", "y", "z"])]
    run(kinds, "--match", "y")
    done = run(kinds, "--list")
    assert "x (never ran)" in done.output
    run(kinds, "--match", "x")
    run(kinds, "--match", "z")
    began = {row["item"]: row for row in noted(tmp_path)}
    for place, item in enumerate("yxz"):  # runs of one second would share their time
        began[item]["began"] = f"2026-01-0{place + 1}T00:00:00+00:00"
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in began.values()))
    assert "y (2026-01-01T00:00:00+00:00)" in run(kinds, "--list").output
    run(kinds)
    assert [row["item"] for row in noted(tmp_path)][3:] == ["y", "x", "z"]


def test_kinds_share_the_time_of_a_run() -> None:
    kinds = {"long": kind("long", ["l1", "l2"]), "short": kind("short", ["s1", "s2"])}
    waiting = {name: list(one.items()) for name, one in kinds.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deep, "KINDS", kinds)
        chosen = deep.choose(waiting, {}, {"long": 300.0, "short": 2.0}, 1000)
    assert (chosen[0].name, chosen[1]) == ("short", "s1")


def test_no_item_is_begun_that_does_not_fit_into_the_time_left(run: Run, tmp_path: Path) -> None:
    kinds = [kind("long", ["l"], expected_s=3600), kind("short", ["s"])]
    assert run(kinds, "--minutes", "1").exit_code == 0
    assert [row["item"] for row in noted(tmp_path)] == ["s"]


def test_an_item_that_the_end_of_the_run_cuts_says_nothing_and_gets_more_time(
    run: Run, tmp_path: Path
) -> None:
    kinds = [kind("a", ["x"], "sleep 600", expected_s=0)]
    done = run(kinds, "--minutes", "0.01")
    assert done.exit_code == 0
    (row,) = noted(tmp_path)
    assert row["outcome"] == "cut"
    assert "x (never ran)" in done.output
    history = deep.read_results(tmp_path / "results.jsonl")
    assert deep.expected_s(kinds[0], history, "x") > row["seconds"]


def test_an_item_beyond_its_own_limit_has_failed(run: Run, tmp_path: Path) -> None:
    assert run([kind("a", ["x"], "sleep 600", limit_s=0.5)]).exit_code == 1
    assert noted(tmp_path)[0]["outcome"] == "failed"


def test_all_processes_of_an_item_end_with_it(run: Run, tmp_path: Path) -> None:
    """The item leaves a process behind that holds a lock; the next one gets the lock."""
    lock = tmp_path / "held"
    run([kind("a", ["x"], f"flock {lock} sleep 600 & sleep 0.2")])
    done = run([kind("b", ["y"], f"flock --timeout 30 {lock} true")])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_ends_its_item_and_keeps_what_ran(number: int, tmp_path: Path) -> None:
    """Also as a background job, which is started with SIGINT ignored."""
    script = (
        "import sys; sys.path.insert(0, 'scripts'); import deep; from pathlib import Path\n"
        f"began = Path({str(tmp_path / 'began')!r})\n"
        f"slow = f'touch {{began}}; exec flock {tmp_path / 'held'} sleep 600'\n"
        "command = lambda item, seed: ['bash', '-c', 'true' if item == 'a' else slow]\n"
        "deep.KINDS = {'k': deep.Kind('k', 'k', lambda: ['a', 'b'], command, 0, 600)}\n"
        f"deep.main(['--results', {str(tmp_path / 'results.jsonl')!r}])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{script}"],
        cwd=deep.ROOT,
        stdout=subprocess.DEVNULL,
    )
    wait_for(lambda: (tmp_path / "began").exists(), 60, lambda: "the second item did not begin")
    process.send_signal(number)
    assert process.wait(60) == 1
    assert [(row["item"], row["outcome"]) for row in noted(tmp_path)] == [("a", "passed")]
    subprocess.run(["flock", "--timeout", "60", str(tmp_path / "held"), "true"], check=True)


def test_an_item_that_is_just_being_started_is_ended_as_well(tmp_path: Path) -> None:
    """The signal arrives when the item runs, and before `Popen` has returned."""
    held, began = tmp_path / "held", tmp_path / "began"
    script = f"""
import os, signal, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, "scripts")
import deep

class Slow(subprocess.Popen):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if kwargs.get("start_new_session"):
            while not Path({str(began)!r}).exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)

deep.subprocess.Popen = Slow
command = ["flock", {str(held)!r}, "bash", "-c", "touch {began}; sleep 600"]
deep.KINDS = {{"k": deep.Kind("k", "k", lambda: ["a"], lambda item, seed: command, 0, 600)}}
deep.main(["--results", {str(tmp_path / "results.jsonl")!r}])
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=deep.ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1 and "Aborted!" in done.stderr, done.stderr
    assert began.exists(), "the item ran"
    subprocess.run(["flock", "--timeout", "60", str(held), "true"], check=True)


def test_a_failure_stays_until_the_same_command_passes(run: Run, tmp_path: Path) -> None:
    """Other seeds that find nothing do not hide what one seed found."""
    switch = tmp_path / "broken"
    switch.touch()
    kinds = [kind("sim", ["profile"], f"echo found by seed $2; test ! -e {switch}")]
    failed = run(kinds)
    assert failed.exit_code == 1
    command = noted(tmp_path)[0]["command"]
    assert f"again: {shlex.join(command)}" in failed.output
    assert "found by seed" in failed.output
    switch.unlink()
    row = noted(tmp_path)[0] | {"command": [*command[:-1], "another seed"], "outcome": "passed"}
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    assert "FAILED sim: profile" in run(kinds, "--list").output
    assert run(kinds, "--again").exit_code == 0
    assert noted(tmp_path)[-1]["command"] == command
    assert "FAILED" not in run(kinds, "--list").output


def test_each_seed_that_failed_is_repeated_and_its_log_is_kept(run: Run, tmp_path: Path) -> None:
    switch = tmp_path / "broken"
    switch.touch()
    kinds = [kind("sim", ["profile"], f"echo found by seed $2; test ! -e {switch}")]
    run(kinds)
    (first,) = noted(tmp_path)
    second = {**first, "command": [*first["command"][:-1], "another seed"]}
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write(json.dumps(second) + "\n")
    switch.unlink()
    assert run(kinds, "--again").exit_code == 0
    assert [row["command"] for row in noted(tmp_path)[2:]] == [first["command"], second["command"]]
    assert first["command"][-1] in Path(first["log"]).read_text(), "passed runs write to another file"


def test_the_kind_that_had_the_least_time_comes_first(run: Run, tmp_path: Path) -> None:
    kinds = [kind("a", ["x", "y"], "sleep 0.2"), kind("b", ["z"])]
    run(kinds, "--match", "x")
    run(kinds)
    assert [row["item"] for row in noted(tmp_path)][:3] == ["x", "z", "y"]


def test_a_text_that_no_item_contains_is_wrong_usage(run: Run) -> None:
    assert run([kind("a", ["x"])], "--match", "q").exit_code == 2


def test_what_selects_no_test_is_no_failure(run: Run, tmp_path: Path) -> None:
    assert run([kind("a", ["x"], "exit 5")]).exit_code == 0
    assert noted(tmp_path)[0]["outcome"] == "empty"


def test_an_item_may_run_several_times_beside_busy_loops(run: Run, tmp_path: Path) -> None:
    count = "pgrep --parent $PPID --full --count -- '-c while True: pass$'"
    done = run([kind("loaded", ["x"], f"test $({count}) = 2", busy_loops=2)], "--times", "3")
    assert done.exit_code == 0, done.output
    assert [row["outcome"] for row in noted(tmp_path)] == ["passed"] * 3


def test_a_line_that_a_crash_cut_short_is_left_out(run: Run, tmp_path: Path) -> None:
    kinds = [kind("a", ["x"])]
    run(kinds)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"kind": "a", "it')
    assert "never ran" not in run(kinds, "--list").output


def test_a_second_run_with_the_same_results_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with deep.locked(path), pytest.raises(click.ClickException, match="another run"), deep.locked(path):
        pass


def test_an_unknown_kind_is_refused_with_those_that_there_are(run: Run) -> None:
    done = run([kind("a", ["x"])], "--what", "a,b")
    assert done.exit_code == 2
    assert "'b' is none of a" in done.output


def test_the_last_line_is_one_object_for_programs(run: Run) -> None:
    said = json.loads(run([kind("a", ["x"])], "--json").stdout.splitlines()[-1])
    assert said["ran"][0]["item"] == "x"
    assert said["kinds"][0]["never_run"] == 0


def test_the_kinds_have_items() -> None:
    for one in deep.KINDS.values():
        assert one.items(), one.name
        assert all((deep.ROOT / item).exists() for item in one.items() if item.startswith("tests/")), one.name

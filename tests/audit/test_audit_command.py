"""`dledger audit`: output and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.audit.faults import by_names
from tests.audit.store_builder import Log, sample_log, write_group, write_store
from tests.command_line import audit as run
from tests.uninstalled import run_module_without


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


@pytest.mark.parametrize(
    ("fault", "code", "verdict"),
    [
        ("nothing", 0, "clean"),
        ("wrong index unit", 1, "warnings"),
        ("flipped body byte", 2, "errors"),
        ("rewritten committed entry", 3, "critical"),
        ("unreadable segment", 4, "failed"),
    ],
)
def test_exit_codes(
    fault: str, code: int, verdict: str, log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = write_group(log, tmp_path)
    next(by_names(fault)).inject(stores, log)
    assert run(["compare", "--json", *map(str, stores)]) == code
    result = json.loads(capsys.readouterr().out)
    assert (result["verdict"], result["exit_code"]) == (verdict, code)
    assert result["seconds"] > 0


def test_one_store_is_verified(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = write_store(log, tmp_path / "n0")
    assert run(["verify", str(store)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("audit: clean replicas=1 entries=2512 ")


@pytest.mark.parametrize("identity", [True, False])
def test_preallocated_queue_files_and_stores_without_identity_are_clean(
    identity: bool, log: Log, tmp_path: Path
) -> None:
    store = write_store(log, tmp_path / "n0", identity=identity, queue_file_size=100_000)
    assert run(["verify", "--json", str(store)]) == 0


def test_findings_are_told_with_advice(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stores = write_group(log, tmp_path)
    next(by_names("flipped body byte")).inject(stores, log)
    assert run(["compare", *map(str, stores)]) == 2
    text = capsys.readouterr().out
    assert "error     BIT_ROT  n0       700" in text
    assert "BIT_ROT: the finding says whether another replica has the entry whole" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "/no/such/store"],
        ["compare", "/no/such/store", "/nor/this"],
        ["verify"],
        ["compare"],
        ["nonsense"],
        [],
    ],
)
def test_what_cannot_run_is_4(arguments: list[str]) -> None:
    assert run(arguments) == 4


def test_a_directory_without_a_store_is_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(tmp_path)]) == 4
    assert "holds no directory dledger-<id>" in capsys.readouterr().out
    (tmp_path / "blue" / "dledger-n0").mkdir(parents=True)
    assert run(["verify", str(tmp_path)]) == 4
    assert f"dledger-<id>; one is in {tmp_path}/blue " in capsys.readouterr().out


def test_one_store_is_not_compared_with_itself(log: Log, tmp_path: Path) -> None:
    store = write_store(log, tmp_path / "n0")
    assert run(["compare", str(store)]) == 4
    assert run(["compare", str(store), str(store)]) == 4


def test_a_copy_of_a_store_is_no_replica(log: Log, tmp_path: Path) -> None:
    one = write_store(log, tmp_path / "a", "n0")
    two = write_store(log, tmp_path / "b", "n0")
    assert run(["compare", str(one), str(two)]) == 4


def test_an_empty_store_is_not_clean(tmp_path: Path) -> None:
    for name in ("data", "index"):
        (tmp_path / "dledger-n0" / name).mkdir(parents=True)
    assert run(["verify", str(tmp_path)]) == 4


def test_a_crash_does_not_look_like_warnings() -> None:
    program = "from dledger.audit.crash import exit_4_on_crash; exit_4_on_crash(); raise ValueError('boom')"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "boom" in done.stderr


def run_without(hidden: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`dledger audit` where a library is not installed."""
    return run_module_without([hidden], "dledger.audit", *arguments)


def test_a_base_install_audits_without_pyarrow(log: Log, tmp_path: Path) -> None:
    stores = [str(store) for store in write_group(log, tmp_path)]
    done = run_without("pyarrow", "verify", stores[0])
    assert (done.returncode, done.stderr) == (0, "")
    next(by_names("wrong ConsumeQueue unit")).inject([Path(store) for store in stores], log)
    done = run_without("pyarrow", "compare", "--json", *stores)
    assert (done.returncode, done.stderr) == (1, "")
    assert [found["code"] for found in json.loads(done.stdout)["findings"]] == ["QUEUE_MISMATCH"]
    assert run_without("pyarrow", "verify", "/nonexist").returncode == 4
    done = run_without("pyarrow", "verify", stores[0], "--report", str(tmp_path / "report.parquet"))
    assert done.returncode == 4
    assert "pip install 'dledger[arrow]'" in done.stderr


def test_a_library_that_is_missing_is_no_verdict(tmp_path: Path) -> None:
    done = run_without("numpy", "verify", str(tmp_path))
    assert done.returncode == 4
    assert "audit verify needs numpy: pip install 'dledger[server]'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["verify", "/x", "--jobz", "3"], "Did you mean one of: '--jobs'"),
        (["verify", "/x", "--lag", "3"], "No such option '--lag'"),
        (["verifi", "/x"], "Did you mean 'verify'"),
    ],
)
def test_wrong_words_get_a_hint_and_no_guess(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 4
    assert told in capsys.readouterr().err

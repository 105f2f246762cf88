"""The list of `scripts/check` is complete, and says what failed."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTING = ROOT / "docs/internals/testing.md"


def the_script() -> ModuleType:
    """scripts/check.py, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("quick_checks", ROOT / "scripts/check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


check = the_script()
LISTED = [test for step in check.STEPS for test in step.tests]
NOT_QUICK = {
    "tests/spark/test_archive_then_delete.py": "runs the commands of a page on a group and with Spark",
    "tests/cluster/test_first_day.py": "runs programs of the pages on a group of real processes, and Spark",
    "tests/cluster/test_readme.py": "runs programs of the pages on a group of real processes",
    "tests/cluster/test_three_machines.py": "starts three brokers as a page says",
    "tests/spark/test_arrow_reader.py": "runs programs of a page that need pyarrow",
}
"""Tests that read pages and take longer, with what they do."""
TELLS = re.compile(r"\bDOCS\b|/ \"docs|tests\.page_programs")
"""What a test contains that reads a page of the documentation."""
DECLARED = {
    "processor_kinds": "access",
    "declarations": "requests",
    "all_mutants": "mutants",
    "Blocking": "blocking",
    "TABLES": "tables",
}
"""A list that a contributor extends -> the step that checks it."""


def files(tests: list[str]) -> set[Path]:
    """The files that a step's tests are in."""
    found = set()
    for test in tests:
        path = ROOT / test.partition("::")[0]
        found |= set(path.rglob("test_*.py")) if path.is_dir() else {path}
    return found


def test_every_test_in_the_list_exists() -> None:
    for test in LISTED:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists(), f"scripts/check.py names {path}, which does not exist"
        source = (ROOT / path).read_text() if name else ""
        assert not name or f"def {name}(" in source, (
            f"scripts/check.py names {name}, which {path} does not have"
        )


def test_every_test_that_reads_a_page_is_in_the_list() -> None:
    listed = files(LISTED)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        if TELLS.search(path.read_text()) and path not in listed:
            assert name in NOT_QUICK, (
                f"{name} reads a page: add it to STEPS of scripts/check.py, or to NOT_QUICK of this file, "
                "with the reason why it takes longer"
            )


def test_every_exception_exists() -> None:
    assert [name for name in NOT_QUICK if not (ROOT / name).is_file()] == []


def test_every_page_that_a_test_can_write_is_written() -> None:
    """`scripts/check --write` runs each test that writes; those that record what programs print are apart."""
    records = {"tests/scripts/test_raft_scripts.py", "tests/interop/test_allocations.py"}
    writers = {
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if re.search(r"getoption\(\"--rewrite\"\)", path.read_text())
    }
    written = {"tests/docs/test_generated_pages.py", "tests/client/test_blocking_methods.py"}
    assert writers - records == written
    assert "--rewrite" in check.WRITE.command and files(check.WRITE.tests) >= {ROOT / one for one in written}


def test_every_tool_that_ci_runs_on_the_code_is_in_the_list() -> None:
    tools = re.findall(
        r'^step \S+ \d+ "\$VENV_PYTHON" -m ((?:ruff|mypy).*)$', (ROOT / ".ci/run").read_text(), re.M
    )
    assert len(tools) == 4
    ours = [" ".join(step.command[1:]) for step in check.STEPS if not step.tests]
    for tool in tools:
        words = tool.split()
        assert any(all(word in one.split() for word in words) for one in ours), (
            f".ci/run runs `{tool}`: add it to STEPS of scripts/check.py"
        )


@pytest.mark.parametrize(("name", "step"), DECLARED.items())
def test_each_list_that_contributors_extend_is_checked(name: str, step: str) -> None:
    (found,) = [one for one in check.STEPS if one.name == step]
    assert any(re.search(rf"\b{name}\b", path.read_text()) for path in files(list(found.tests)))


def test_no_step_needs_an_extra_but_dev() -> None:
    """Tests that are skipped without Spark check nothing for most contributors."""
    for path in sorted(files(LISTED)):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("importorskip"):
                package = ast.unparse(node.args[0])
                assert package == "'prometheus_client'", (
                    f"{path.relative_to(ROOT)} is skipped without {package}"
                )


def test_each_step_has_its_row_in_the_documentation() -> None:
    text = TESTING.read_text()
    rows = re.findall(r"^\| (`.*?) \|", text, re.M)
    missing = [step.name for step in check.STEPS if not any(f"`{step.name}`" in row for row in rows)]
    assert not missing, f"docs/internals/testing.md has no row for the step {missing[0]}"


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/check.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_step_that_does_not_exist_is_refused() -> None:
    done = ended("pagse")
    assert done.returncode == 2 and "no step pagse; the steps are tidy," in done.stderr


def test_the_list_can_be_shown() -> None:
    done = ended("--list", "mutants")
    assert done.returncode == 0 and "tests/chaos/test_mutants.py" in done.stdout


def test_a_failed_step_shows_what_it_printed(capsys: pytest.CaptureFixture[str]) -> None:
    program = "print('what is missing'); raise SystemExit(1)"
    steps = (check.Step("bad", "fails", ("-c", program)), check.Step("good", "passes", ("-c", "")))
    assert check.check(steps, 2) == ["bad"]
    printed = capsys.readouterr().out
    assert re.search(r"^FAILED +[\d.]+ s  bad .*\nwhat is missing\n", printed, re.M)
    assert re.search(r"^ok +[\d.]+ s  good ", printed, re.M)


def test_pages_that_cannot_be_written_end_with_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "WRITE", check.Step("write", "fails", ("-c", "raise SystemExit(1)")))
    assert check.main(["--write", "mutants"]) == 1
    assert "not every page could be written" in capsys.readouterr().out

"""The quick checks of `scripts/check`: in about a minute they say what a change has forgotten.

`STEPS` is the list. A step belongs here when it needs no group of brokers and ends within seconds.
tests/test_quick_checks.py checks that the list is complete.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 600
"""A step that takes longer hangs, and has failed."""


@dataclass(frozen=True)
class Step:
    """One check: a command of this Python."""

    name: str
    about: str
    """What it holds against what."""
    command: tuple[str, ...]

    @property
    def tests(self) -> tuple[str, ...]:
        """The tests that it runs; none for a tool."""
        return tuple(word for word in self.command if word.startswith("tests/"))


@dataclass(frozen=True)
class Ended:
    """How a step ended."""

    step: Step
    code: int
    seconds: float
    output: str


def _tool(name: str, about: str, *command: str) -> Step:
    return Step(name, about, ("-m", *command))


def _tests(name: str, about: str, *tests: str) -> Step:
    return Step(name, about, ("-m", "pytest", "-q", "-p", "no:xdist", *tests))


SCRIPTS = tuple(
    f"scripts/{name}.py"
    for name in ("blocking_methods", "check", "cluster", "deep", "orders", "quickstart", "release")
)
"""Scripts that mypy checks besides the package."""

STEPS = (  # the longest first, so that cores are busy to the end
    _tests("tidy", "rules of the house", "tests/test_tidy.py", "tests/test_import_graph.py"),
    _tool("mypy", "types of the product", "mypy"),
    _tool("mypy-scripts", "types of the scripts", "mypy", "--cache-dir", ".mypy_cache/scripts", *SCRIPTS),
    _tool("ruff", "lint", "ruff", "check", "."),
    _tool("format", "layout of the code", "ruff", "format", "--check", "."),
    _tests("checks", "this list is complete", "tests/test_quick_checks.py"),
    _tests(
        "pages",
        "generated parts, links, limits, metrics, settings and commands in the documentation",
        "tests/docs",
        "tests/test_page_programs.py",
        "tests/broker/test_settings_page.py",
    ),
    _tests("files", "fragments of the changelog, hooks, templates, metadata", "tests/test_repository.py"),
    _tests(
        "requests",
        "each request has one method and a read point",
        "tests/broker/test_broker_read_points.py",
    ),
    _tests(
        "access",
        "each request says who may send it, and what it does",
        "tests/broker/test_user_access.py::"
        "test_only_audits_and_brokers_need_a_super_user_without_saying_what_they_do",
    ),
    _tests(
        "turns",
        "each request has its worst input",
        "tests/broker/test_turn_cost.py::test_each_code_has_an_entry",
    ),
    _tests(
        "tables",
        "each table of replicated state has an oracle, and says what a deletion does to it",
        "tests/chaos/test_oracles.py",
        "tests/formats/test_state_versions.py",
        "tests/formats/test_forgotten_tables.py",
    ),
    _tests(
        "blocking",
        "each method of the asyncio clients has a blocking twin",
        "tests/client/test_admin_client.py::test_every_method_has_a_twin_that_waits",
        "tests/client/test_blocking_methods.py",
        "tests/client/test_public_names.py",
    ),
    _tests(
        "mutants",
        "each mutant still fits the code",
        "tests/chaos/test_mutants.py",
    ),
)
WRITE = _tests(
    "write",
    "write the generated parts of all pages, and the methods of blocking clients",
    "tests/docs",
    "tests/client/test_blocking_methods.py",
    "--rewrite",
)


def run(step: Step) -> Ended:
    """Run a step to its end; what it printed is kept."""
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *step.command],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            text=True,
            check=False,
        )
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        code, output = 1, f"not finished after {LIMIT_S} s\n"
    return Ended(step, code, time.monotonic() - begin, output)


def show(ended: Ended) -> None:
    """One line, and what a failed step printed."""
    verdict = "ok" if ended.code == 0 else "FAILED"
    print(f"{verdict:6} {ended.seconds:5.1f} s  {ended.step.name:13} {ended.step.about}", flush=True)
    if ended.code:
        print(ended.output.rstrip(), flush=True)


def check(steps: tuple[Step, ...], jobs: int) -> list[str]:
    """Run steps side by side; the names of those that failed."""
    failed = []
    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(run, step) for step in steps]):
            ended = future.result()
            show(ended)
            if ended.code:
                failed.append(ended.step.name)
    return failed


def main(arguments: list[str]) -> int:
    """Exit code 0 when every step passes, 1 when one fails."""
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(prog="scripts/check", description="Run the quick checks.")
    parser.add_argument("step", nargs="*", metavar="STEP", help=f"only these: {', '.join(names)}")
    parser.add_argument("--write", action="store_true", help="first write the generated parts of all pages")
    parser.add_argument("--list", action="store_true", help="print the steps and their tests")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="steps at a time")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.step if name not in names]
    if unknown:
        parser.error(f"no step {', '.join(unknown)}; the steps are {', '.join(names)}")
    steps = tuple(step for step in STEPS if not asked.step or step.name in asked.step)
    if asked.list:
        for step in steps:
            print(f"{step.name:13} {step.about}")
            for test in step.tests:
                print(f"{'':13} {test}")
        return 0
    begin = time.monotonic()
    if asked.write:
        written = run(WRITE)
        show(written)
        if written.code:
            print("FAILED: not every page could be written (see above)")
            return 1
    failed = check(steps, asked.jobs)
    seconds = time.monotonic() - begin
    if failed:
        again = " ".join(failed)
        print(f"FAILED after {seconds:.0f} s: {again}. Run only these again: scripts/check {again}")
        return 1
    print(f"ok: {len(steps)} checks in {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

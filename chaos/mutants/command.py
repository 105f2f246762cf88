"""`python -m chaos mutants`: run every mutant on a copy of the tree, say which suite caught it and the cost.

Exit 0 when all were caught, 1 when one survived or a patch does not fit, 2 when the tree itself fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from chaos.mutants.patches import Mutant, PatchError, all_mutants, apply, check
from chaos.mutants.suites import FAST, SIM, SUITES, Suite

ROOT = Path(__file__).resolve().parents[2]
NOT_COPIED = (
    ".git", ".venv", "run", "docs", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache",
    ".pytest_cache", ".hypothesis", "*.egg-info",
)  # fmt: skip
_TAIL_LINES = 40


@dataclass
class Result:
    """What became of one mutant. `by`: suite and test (or seed) that caught it."""

    name: str
    caught: bool = False
    by: str = ""
    seconds: float = 0.0
    seeds: int = 0
    ran: list[str] = field(default_factory=list)

    def row(self) -> dict[str, object]:
        """For the JSON line."""
        cost = {"seconds": round(self.seconds, 1), "seeds": self.seeds}
        return {"name": self.name, "caught": self.caught, "by": self.by, "cost": cost}


@dataclass(frozen=True)
class Outcome:
    """Of one suite: what failed first (empty: nothing), how many seeds it took."""

    failed: str
    seeds: int = 0
    output: str = ""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command and its options."""
    parser = subparsers.add_parser(
        "mutants", help="run wrong changes against the tests that must notice them"
    )
    add_options(parser)
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--list", action="store_true", help="names and what they break; run nothing")
    parser.add_argument(
        "--only", metavar="NAME", action="append", default=[], help="this mutant (repeatable)"
    )
    parser.add_argument("--suite", choices=(FAST, SIM), help="only suites of this kind")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--rotate", type=int, metavar="DAY", help="a part that changes with the day")
    parser.add_argument("--count", type=int, default=6, help="size of that part")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the unchanged tree first")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")


def run(args: argparse.Namespace) -> int:
    """The command; its exit code."""
    mutants = chosen(all_mutants(), args.only, args.rotate, args.count)
    if args.list:
        for mutant in mutants:
            print(f"{mutant.name:<40} {mutant.rule:<24} {mutant.about}")
        return 0
    misfits = misfitting(mutants)
    if misfits:
        print("\n".join(misfits), file=sys.stderr)
        return 1
    suites = [suite for suite in SUITES if args.suite in (None, suite.kind)]
    if not args.no_baseline:
        failed = baseline(suites)
        if failed:
            print(f"the unchanged tree fails {failed}: nothing can be said of mutants", file=sys.stderr)
            return 2
    results = []
    with ThreadPoolExecutor(max(args.jobs, 1)) as pool:
        for result in pool.map(lambda mutant: try_mutant(mutant, suites), mutants):
            print(line(result), flush=True)
            results.append(result)
    survivors = [result.name for result in results if not result.caught]
    print(f"{len(results) - len(survivors)} of {len(results)} mutants caught")
    if survivors:
        print("survived: " + ", ".join(survivors))
    if args.json:
        print(json.dumps({"mutants": [result.row() for result in results]}))
    return 1 if survivors else 0


def chosen(mutants: list[Mutant], only: Sequence[str], day: int | None, count: int) -> list[Mutant]:
    """Those asked for; SystemExit for a name that is none."""
    if only:
        known = {mutant.name: mutant for mutant in mutants}
        for name in only:
            if name not in known:
                raise SystemExit(f"no mutant {name!r}: see --list")
        return [known[name] for name in only]
    if day is not None and mutants:
        count = min(count, len(mutants))
        return [mutants[(day * count + place) % len(mutants)] for place in range(count)]
    return mutants


def misfitting(mutants: Sequence[Mutant]) -> list[str]:
    """What is wrong with patches that do not fit the tree."""
    found = []
    for mutant in mutants:
        try:
            check(mutant, ROOT)
        except PatchError as error:
            found.append(str(error))
    return found


def baseline(suites: Sequence[Suite]) -> str:
    """Run the suites on an unchanged copy; the first failure, empty when all pass."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copy_tree(Path(folder))
        for suite in suites:
            outcome = run_suite(suite, tree)
            if outcome.failed:
                print(outcome.output, file=sys.stderr)
                return outcome.failed
    return ""


def try_mutant(mutant: Mutant, suites: Sequence[Suite]) -> Result:
    """Apply it to a copy, run suites until one fails."""
    result = Result(mutant.name)
    packages = {path.split("/")[0]: None for path in mutant.paths}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copy_tree(Path(folder))
        apply(mutant, tree)
        for suite in suites:
            if suite.packages and not any(package in suite.packages for package in packages):
                continue
            began = time.monotonic()
            outcome = run_suite(suite, tree)
            result.seconds += time.monotonic() - began
            result.seeds += outcome.seeds
            result.ran.append(suite.name)
            if outcome.failed:
                result.caught = True
                result.by = outcome.failed
                break
    return result


def copy_tree(folder: Path) -> Path:
    """The sources and tests of this tree, in a new place."""
    target = folder / "tree"
    shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(*NOT_COPIED))
    return target


def run_suite(suite: Suite, tree: Path) -> Outcome:
    """One suite on one tree. One that does not end in time has caught the mutant too."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "HYPOTHESIS_STORAGE_DIRECTORY": str(tree / ".h")}
    if suite.seeds:
        command = [sys.executable, "-m", "chaos", "sim", "--seeds", str(suite.seeds), "--json"]
    else:
        tests = [test for test in suite.tests if (tree / test).exists()]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", "-p", "no:cacheprovider", *tests]
        command += ["-m", suite.marks] if suite.marks else []
        if not tests:
            return Outcome("")
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=suite.limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(f"{suite.name}: no end within {suite.limit_s:.0f} s")
    if suite.seeds:
        return _sim_outcome(suite, done.stdout, done.returncode)
    output = "\n".join(done.stdout.splitlines()[-_TAIL_LINES:])
    if done.returncode == 0:
        return Outcome("")
    failed = [text for text in done.stdout.splitlines() if text.startswith(("FAILED ", "ERROR "))]
    what = failed[0].split(" ", 1)[1].split(" - ")[0] if failed else f"exit code {done.returncode}"
    return Outcome(f"{suite.name}: {what}", output=output)


def _sim_outcome(suite: Suite, output: str, code: int) -> Outcome:
    """What `chaos sim --json` said in its last line."""
    tail = "\n".join(output.splitlines()[-_TAIL_LINES:])
    try:
        said = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        return Outcome("" if code == 0 else f"{suite.name}: exit code {code}", 0, tail)
    violations = said.get("violations", [])
    seeds = int(said.get("seeds", suite.seeds))
    if not violations:
        return Outcome("" if code == 0 else f"{suite.name}: exit code {code}", seeds, tail)
    first = violations[0]
    text = (
        f"seed {first.get('seed')}: {first.get('oracle', first)}" if isinstance(first, dict) else str(first)
    )
    return Outcome(f"{suite.name}: {text}"[:200], seeds, tail)


def line(result: Result) -> str:
    """One line for people."""
    state = "caught  " if result.caught else "SURVIVED"
    by = result.by if result.caught else "ran " + ", ".join(result.ran)
    return f"{state} {result.name:<40} {result.seconds:6.1f} s  {by}"


def main() -> int:
    """Outer shell of `python -m chaos.mutants.command`."""
    parser = argparse.ArgumentParser(prog="python -m chaos.mutants.command")
    add_options(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())

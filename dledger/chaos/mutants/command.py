"""`dledger chaos mutants`: run every mutant on a copy of the tree; print which suite caught it and how long
it took.

The exit code is 0 if all were caught, 1 if one survived or a patch does not fit, and 2 if the suites fail on
the unchanged tree.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dledger._fast import SWITCH
from dledger.chaos.mutants.judges import JUDGES, Judged
from dledger.chaos.mutants.patches import Mutant, PatchError, all_mutants, apply, check
from dledger.chaos.mutants.suites import SUITES, Suite
from dledger.chaos.mutants.trials import LIMIT_S, SEEDS, TRIALS, Tried
from dledger.runtime.options import Options

ROOT = Path(__file__).resolve().parents[3]
"""The root of the checkout."""
NEEDS_A_CHECKOUT = (
    "dledger chaos mutants needs a checkout of the repository: an installed package has neither the patches "
    "nor the tests. Clone it, `pip install -e '.[dev]'`, and run the command there"
)
NOT_COPIED = (
    ".git", ".venv", "run", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache",
    ".pytest_cache", ".hypothesis", "*.egg-info",
)  # fmt: skip
_TAIL_LINES = 40
_LONGEST = 160
END_LIMIT_S = 60.0
"""Longest time, in seconds, that an interpreter gets to end after SIGTERM. Then it is killed."""
JUDGE_LIMIT_S = 300.0
"""Longest time for one seed of `--judges`, in seconds."""
JUDGE_SEEDS = 24
"""Largest number of seeds that are played for one judge, beginning with the seed in the judge's row.

Every change of the order of events moves the first seed in which the judge finds its mutant. A mutant that
the judge finds in none of these seeds counts as not caught.
"""


@dataclass
class Result:
    """The result for one mutant. `by` names the suite and the test (or seed) that caught it."""

    name: str
    caught: bool = False
    by: str = ""
    seconds: float = 0.0
    seeds: int = 0
    ran: list[str] = field(default_factory=list)

    def row(self) -> dict[str, object]:
        """The values for the JSON line."""
        cost = {"seconds": round(self.seconds, 1), "seeds": self.seeds}
        return {"name": self.name, "caught": self.caught, "by": self.by, "cost": cost}


@dataclass(frozen=True)
class Outcome:
    """The result of one suite: the first failure (empty if all tests passed), how many seeds were played, and
    the end of the output."""

    failed: str
    seeds: int = 0
    output: str = ""


def run(args: Options) -> int:
    """Run the command. Returns its exit code."""
    if not is_checkout(ROOT):
        return _nothing_run(args, 2, NEEDS_A_CHECKOUT)
    mutants = chosen(all_mutants(), args.only)
    if args.judges:
        names = {judged.mutant for judged in JUDGES}
        mutants = [mutant for mutant in mutants if mutant.name in names]
    if args.trials:
        names = {row.mutant for row in TRIALS}
        mutants = [mutant for mutant in mutants if mutant.name in names]
    if args.list:
        for mutant in mutants:
            print(f"{mutant.name:<40} {mutant.rule:<24} {mutant.about}")
        if args.json:
            rows = [{"name": one.name, "rule": one.rule, "about": one.about} for one in mutants]
            print(json.dumps({"mutants": rows}))
        return 0
    if args.table:
        print("\n".join(table(mutants, [Path(path).read_text() for path in (args.table, *args.files)])))
        return 0
    misfits = misfitting(mutants)
    if misfits:
        return _nothing_run(args, 1, "\n".join(misfits))
    if args.judges:
        by_name = {mutant.name: mutant for mutant in mutants}
        return _run_all(
            args,
            [
                partial(try_judge, judged, by_name[judged.mutant])
                for judged in JUDGES
                if judged.mutant in by_name
            ],
        )
    if args.trials:
        named = {mutant.name: mutant for mutant in mutants}
        return _run_all(
            args,
            [
                partial(try_trial, row, named[row.mutant], with_baseline=not args.no_baseline)
                for row in TRIALS
                if row.mutant in named
            ],
        )
    suites = [suite for suite in SUITES if args.suite in (None, suite.kind, suite.name)]
    if not args.no_baseline:
        failed = baseline([suite for suite in suites if any(concerns(suite, mutant) for mutant in mutants)])
        if failed:
            return _nothing_run(args, 2, f"the unchanged tree fails {failed}: nothing can be said of mutants")
    mutants = [mutant for mutant in mutants if any(concerns(suite, mutant) for suite in suites)]
    return _run_all(args, [partial(try_mutant, mutant, suites) for mutant in mutants])


def _run_all(args: Options, trials: Sequence[Callable[[], Result]]) -> int:
    """Run each trial and print its result. Returns the exit code of the command."""
    results = []
    with ThreadPoolExecutor(max(args.jobs, 1)) as pool:
        for result in pool.map(lambda trial: trial(), trials):
            print(line(result), flush=True)
            results.append(result)
    survivors = [result.name for result in results if not result.caught]
    print(f"{len(results) - len(survivors)} of {len(results)} mutants caught")
    if survivors:
        print("survived: " + ", ".join(survivors))
    if args.json:
        print(json.dumps({"mutants": [result.row() for result in results]}))
    return 1 if survivors else 0


def _nothing_run(args: Options, code: int, why: str) -> int:
    """Print why no mutant was tried. Returns the exit code."""
    print(why, file=sys.stderr)
    if args.json:
        print(json.dumps({"mutants": [], "error": why}))
    return code


def is_checkout(root: Path) -> bool:
    """Whether this is a checkout with the patches and the tests that must notice them. An installed wheel has
    neither."""
    return (root / "tests").is_dir() and any((root / "dledger/chaos/mutants").glob("*.patch"))


def chosen(mutants: list[Mutant], only: Sequence[str]) -> list[Mutant]:
    """The mutants that were asked for, or all of them if none was named. Raises SystemExit for an unknown
    name."""
    if only:
        known = {mutant.name: mutant for mutant in mutants}
        for name in only:
            if name not in known:
                raise SystemExit(f"no mutant {name!r}: see --list")
        return [known[name] for name in only]
    return mutants


def misfitting(mutants: Sequence[Mutant]) -> list[str]:
    """The errors of all patches that do not fit the tree."""
    found = []
    for mutant in mutants:
        try:
            check(mutant, ROOT)
        except PatchError as error:
            found.append(str(error))
    return found


def baseline(suites: Sequence[Suite]) -> str:
    """Run the suites on an unchanged copy of the tree. Returns the first failure, which is empty if all tests
    pass."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copy_tree(Path(folder))
        for suite in suites:
            outcome = run_suite(suite, tree)
            if outcome.failed:
                print(outcome.output, file=sys.stderr)
                return outcome.failed
    return ""


def try_mutant(mutant: Mutant, suites: Sequence[Suite]) -> Result:
    """Apply the mutant to a copy of the tree, and run suites until one fails."""
    result = Result(mutant.name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copy_tree(Path(folder))
        apply(mutant, tree)
        for suite in for_mutant(suites, mutant):
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


def try_judge(judged: Judged, mutant: Mutant) -> Result:
    """Apply the mutant to a copy of the tree, and play seeds until its judge finds it. What other judges find
    does not count."""

    def play(tree: Path, seed: int) -> tuple[bool, str]:
        try:
            violation, output = _first_violation(tree, seed, 1, judged.profile, JUDGE_LIMIT_S)
        except subprocess.TimeoutExpired:
            violation, output = None, f"no end within {JUDGE_LIMIT_S:.0f} s"
        what = str(violation["message"]).splitlines()[0] if violation else output
        caught = violation is not None and judged.says in what
        said = "" if caught else f" did not say {judged.says!r}, but"
        return caught, f"{judged.judge}{said}: {what}"

    return _try_seeds(mutant, range(judged.seed, judged.seed + JUDGE_SEEDS), play)


def try_trial(row: Tried, mutant: Mutant, *, with_baseline: bool = True) -> Result:
    """Apply the mutant to a copy of the tree, and run trials until the checker of the row finds it. What
    other checkers find does not count. With `with_baseline`, what the checker also finds in a trial of the
    unchanged tree, with the same seed, does not count either."""

    def play(tree: Path, seed: int) -> tuple[bool, str]:
        broken = _broken_rules(row, tree, seed)
        caught = row.checker in broken
        what = f"{row.checker}: {broken[row.checker]}" if caught else str(broken or "every rule holds")
        if caught and with_baseline:
            with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
                also = _broken_rules(row, copy_tree(Path(folder)), seed)
            if row.checker in also or "" in also:
                caught, what = False, f"the unchanged tree breaks rules, too: {also}"
        return caught, f"{row.scenario}, {what}"

    return _try_seeds(mutant, range(SEEDS), play)


def _try_seeds(mutant: Mutant, seeds: Sequence[int], play: Callable[[Path, int], tuple[bool, str]]) -> Result:
    """Apply the mutant to a copy of the tree, and play seeds until one of them catches it. `play` gets the
    tree and a seed. It returns whether the mutant was caught, and a text that says by what."""
    result = Result(mutant.name)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copy_tree(Path(folder))
        apply(mutant, tree)
        for seed in seeds:
            result.seeds += 1
            result.caught, text = play(tree, seed)
            result.by = text[:_LONGEST]
            result.ran.append(f"seed {seed}: {result.by}")
            if result.caught:
                break
    result.seconds = time.monotonic() - began
    return result


def _broken_rules(row: Tried, tree: Path, seed: int) -> dict[str, str]:
    """Run a trial on a copy of the tree. Maps each broken rule to the text of its verdict. A trial without a
    result has the rule with the empty name, and its text says why."""
    with tempfile.TemporaryDirectory(prefix="trial-") as folder:
        arguments = ["-m", "dledger", "chaos", "run", row.scenario, "--json"]
        arguments += ["--seconds", f"{row.seconds:g}", "--seed", str(seed), "--dir", folder]
        try:
            done = _python(arguments, tree, LIMIT_S)
        except subprocess.TimeoutExpired:
            return {"": f"no end within {LIMIT_S:.0f} s"}
    try:
        verdicts = json.loads(done.stdout.splitlines()[-1])["verdicts"]
        return {one["name"]: one["text"] for one in verdicts if not one["holds"]}
    except (ValueError, IndexError, KeyError, TypeError):
        return {"": f"exit code {done.returncode}: {_tail(done.stdout)}"}


def for_mutant(suites: Sequence[Suite], mutant: Mutant) -> list[Suite]:
    """The suites that concern the mutant, in their order. If the patch names a suite to begin with, that
    suite comes before the rest."""
    return sorted(
        (suite for suite in suites if concerns(suite, mutant)), key=lambda suite: suite.name != mutant.first
    )


def concerns(suite: Suite, mutant: Mutant) -> bool:
    """Whether the suite runs for this mutant, because of the files that the mutant changes."""
    return not suite.packages or any(
        f"{path}/".startswith(f"dledger/{package}/") for path in mutant.paths for package in suite.packages
    )


def copy_tree(folder: Path) -> Path:
    """Copy the sources and tests of this tree to a new place."""
    target = folder / "tree"
    shutil.copytree(ROOT, target, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    return target


def run_suite(suite: Suite, tree: Path) -> Outcome:
    """Run one suite on one tree. A suite that does not end within its time limit counts as having caught the
    mutant."""
    try:
        return _run_seeds(suite, tree) if suite.seeds else _run_tests(suite, tree)
    except subprocess.TimeoutExpired:
        return Outcome(f"{suite.name}: no end within {suite.limit_s:.0f} s")


def _run_tests(suite: Suite, tree: Path) -> Outcome:
    tests = [test for test in suite.tests if (tree / test).exists()]
    if not tests:
        return Outcome("")
    arguments = ["-m", "pytest", "-x", "-q", "--tb=short", "-p", "no:cacheprovider"]
    # the seed of the unchanged tree, so that no mutant is caught by chance
    arguments += ["--hypothesis-seed=0", *tests]
    done = _python(arguments, tree, suite.limit_s)
    if done.returncode == 0:
        return Outcome("")
    failed = [text for text in done.stdout.splitlines() if text.startswith(("FAILED tests/", "ERROR tests/"))]
    what = failed[0].split(" ", 1)[1].split(" - ")[0] if failed else f"exit code {done.returncode}"
    return Outcome(f"{suite.name}: {what}", output=_tail(done.stdout))


def _run_seeds(suite: Suite, tree: Path) -> Outcome:
    """Play one seed, then two, then four, and so on, because most mutants need few seeds. Coverage marks that
    were not reached do not count as failures."""
    start, size, turn = 0, 1, 0
    until = time.monotonic() + suite.limit_s
    while start < suite.seeds and time.monotonic() < until:
        size = min(size, suite.seeds - start)
        profile = suite.profiles[turn % len(suite.profiles)] if suite.profiles else None
        first, output = _first_violation(tree, start, size, profile, suite.limit_s)
        if first is None and output:
            return Outcome(f"{suite.name}: ended without a result", start + size, output)
        if first is not None:
            what = str(first["message"]).splitlines()[0]
            text = f"{suite.name}: seed {first['seed']} ({first['profile']}): {what}"
            return Outcome(text[:_LONGEST], first["seed"] + 1, output)
        start += size
        size *= 2
        turn += 1
    return Outcome("", start)


def _first_violation(
    tree: Path, start: int, size: int, profile: str | None, limit_s: float
) -> tuple[dict[str, Any] | None, str]:
    """Play seeds on a copy of the tree. Returns the violation of the lowest seed and the end of the output.

    Without a violation the output is empty, unless the command ended before it could say how the seeds went.
    """
    arguments = ["-m", "dledger", "chaos", "sim", "--start", str(start), "--seeds", str(size)]
    arguments += ["--no-shrink", "--json", "--replays", str(tree / "replays")]
    if profile is not None:
        arguments += ["--profile", profile]
    done = _python(arguments, tree, limit_s)
    try:
        said = json.loads(done.stdout.splitlines()[-1])
        first = min(said["violations"], key=lambda violation: violation["seed"], default=None)
    except (ValueError, IndexError, KeyError, TypeError):
        return None, f"exit code {done.returncode}\n{_tail(done.stdout)}"
    return first, _tail(done.stdout) if first is not None else ""


def _python(arguments: list[str], tree: Path, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run this interpreter on a copy of the tree. The output has standard output and standard error
    together. Raises TimeoutExpired after the interpreter was ended with SIGTERM, so that it can end the
    processes that it started."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(tree / ".h"),
        SWITCH: "0",  # mutants change Python code, so no compiled twin may run in its place
    }
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.communicate(timeout=END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output)


def _tail(output: str) -> str:
    return "\n".join(output.splitlines()[-_TAIL_LINES:])


def table(mutants: Sequence[Mutant], outputs: Sequence[str]) -> list[str]:
    """The rows of a table in Markdown: one row for each mutant, one column for each run."""
    runs = []
    for output in outputs:
        said = json.loads(output.splitlines()[-1])
        runs.append({row["name"]: row for row in said["mutants"]})
    lines = ["| mutant | breaks | rule |" + " caught by |" * len(runs), "|---|---|---|" + "---|" * len(runs)]
    for mutant in mutants:
        cells = [_cell(found.get(mutant.name)) for found in runs]
        lines.append(f"| {mutant.name} | {mutant.about} | {mutant.rule} | {' | '.join(cells)} |")
    return lines


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if not row["caught"]:
        return "-"
    suite, _, what = str(row["by"]).partition(": ")
    seeds = row["cost"]["seeds"]
    place = what.split("::")[-1] if "::" in what else f"{seeds} seed{'s' * (seeds > 1)}" if seeds else what
    return f"{suite}: {place}, {row['cost']['seconds']:.0f} s"


def line(result: Result) -> str:
    """One line for people about a result."""
    state = "caught  " if result.caught else "SURVIVED"
    by = result.by if result.caught else "ran " + ", ".join(result.ran)
    return f"{state} {result.name:<40} {result.seconds:6.1f} s  {by}"

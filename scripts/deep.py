"""`scripts/deep`: the checks that are too long or too random to run before each merge, a part at a time.

`.ci/run` runs the same tests every time. Everything else is here: seeds of the simulator that were never
played, all mutants, the slow suites, whole suites on a busy machine. Each check is an *item*. A run takes the
item that has not run for longest, then the next, until its time is over, and notes each result in a file; the
next run goes on from there. What an item finds becomes a pinned test of the default suite.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parent.parent
PYTHON = os.path.relpath(sys.executable, ROOT)
PASSED, FAILED, CUT, EMPTY = "passed", "failed", "cut", "empty"
"""How an item ended. CUT: its time was over, so nothing is known. EMPTY: it had nothing to do."""
NO_TESTS = 5
"""Exit code of pytest that selected no test."""
MARGIN = 1.3
"""An item is begun when this many times its last duration fit into the time that is left."""
GRACE_S = 20.0
"""How long an item may take to end after SIGINT, before it is killed."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a run, and the item that it is at."""
LOG_LINES = 25
"""Lines of a failed item's log that are shown."""


@dataclass(frozen=True)
class Kind:
    """A family of items that are run in the same way."""

    name: str
    about: str
    items: Callable[[], Sequence[str]]
    command: Callable[[str, int], Sequence[str]]
    """From an item and a seed, which only random checks use."""
    expected_s: float
    """The duration of an item that never ran."""
    limit_s: float
    """An item that takes longer has failed."""
    busy_loops: int = 0
    """Processes that do nothing but take processor time while an item runs."""


@dataclass(frozen=True)
class Result:
    """One run of one item: a line of the results file."""

    kind: str
    item: str
    outcome: str
    began: str
    """ISO 8601, UTC."""
    seconds: float
    commit: str
    """The commit that was checked out, with `+` when files were changed."""
    command: list[str]
    """What repeats this run, from the root of the repository."""
    log: str = ""
    """The file with its output; the next run of the item writes over that of a run which did not fail."""


History = Mapping[tuple[str, str], Sequence[Result]]
"""The results of each (kind, item), oldest first."""


# What there is to run


def files_with(*marks: str) -> list[str]:
    """The test files that use one of these marks."""
    pattern = re.compile(rf"\bmark\.({'|'.join(marks)})\b")
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path.relative_to(ROOT).as_posix() for path in paths if pattern.search(path.read_text())]


def random_tests() -> list[str]:
    """The test files with property-based tests."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path.relative_to(ROOT).as_posix() for path in paths if "from hypothesis" in path.read_text()]


def profiles() -> list[str]:
    """The mixes of faults that the simulator knows."""
    from dledger.chaos.scenarios.profiles import PROFILES

    return sorted(PROFILES)


def mutants() -> list[str]:
    """The wrong changes that the tests must notice."""
    from dledger.chaos.mutants.patches import all_mutants

    return [mutant.name for mutant in all_mutants()]


def pytest_of(marks: str, *options: str) -> Callable[[str, int], list[str]]:
    """Runs one test file with the tests that fit the marks."""
    return lambda item, _: ["scripts/test", "-m", marks, "--timeout", "900", *options, item]


def simulate(profile: str, seed: int) -> list[str]:
    """Plays seeds that were most probably never played."""
    command = [PYTHON, "-m", "dledger", "chaos", "sim", "--profile", profile]
    return [*command, "--start", str(seed), "--seeds", "30", "--jobs", "2"]


def scenarios() -> list[str]:
    """The scenarios for groups of real processes."""
    from dledger.chaos.trials.scenario import library

    return sorted(library())


def try_scenario(name: str, seed: int) -> list[str]:
    """Runs one scenario with a plan of its own."""
    command = [PYTHON, "-m", "dledger", "chaos", "run", name]
    return [*command, "--seconds", "15", "--seed", str(seed)]


def mutate(name: str, _: int) -> list[str]:
    """Runs the suites that must catch one mutant."""
    return [PYTHON, "-m", "dledger", "chaos", "mutants", "--only", name, "--no-baseline"]


def draw_examples(item: str, seed: int) -> list[str]:
    """Runs property-based tests with examples of their own instead of the fixed ones."""
    options = ["--hypothesis-profile", "search", "--hypothesis-seed", str(seed)]
    return ["scripts/test", "--timeout", "900", *options, item]


SUITES = {
    "default suite": ["scripts/test", "-n", "logical", "--dist", "worksteal", "--timeout", "400"],
    ".ci/run": [".ci/run"],
}
"""What must pass on a busy machine."""

KINDS = {
    kind.name: kind
    for kind in (
        Kind("sim", "30 new seeds of each profile of the simulator", profiles, simulate, 60, 1800),
        Kind("mutants", "each mutant against all suites that concern it", mutants, mutate, 90, 3600),
        Kind(
            "slow",
            "tests with real processes and large data",
            lambda: files_with("slow", "sample"),
            pytest_of("slow and not spark and not soak and not interop"),
            90,
            3600,
        ),
        Kind(
            "interop",
            "unmodified clients of other projects",
            lambda: files_with("interop"),
            lambda item, _: [
                *("env", "DLEDGER_REQUIRE_INTEROP=1"),  # a client that cannot be installed is a failure
                *pytest_of("interop and not soak")(item, 0),
            ],
            180,
            3600,
        ),
        Kind(
            "browser",
            "the dashboard in a real browser",
            lambda: files_with("browser"),
            lambda item, _: ["env", "DLEDGER_REQUIRE_BROWSER=1", *pytest_of("browser")(item, 0)],
            120,
            1800,
        ),
        Kind(
            "spark",
            "the Spark jobs",
            lambda: files_with("spark"),
            pytest_of("spark and not soak"),
            120,
            3600,
        ),
        Kind(
            "soak",
            "tests that take gigabytes or hours",
            lambda: files_with("soak"),
            pytest_of("soak"),
            600,
            7200,
        ),
        Kind(
            "trials",
            "scenarios of faults, 15 seconds each, on groups of real processes",
            scenarios,
            try_scenario,
            60,
            900,
        ),
        Kind("random", "property-based tests with new examples", random_tests, draw_examples, 60, 3600),
        Kind(
            "twins",
            "the default suite without the compiled loops",
            lambda: ["default suite"],
            lambda _item, _seed: ["env", "DLEDGER_FAST=0", *SUITES["default suite"]],
            600,
            3600,
        ),
        Kind(
            "wheel",
            "the installed package with Spark, where nothing else is",
            lambda: ["with Spark"],
            lambda _item, _seed: ["scripts/wheel-check"],
            300,
            1800,
        ),
        Kind(
            "loaded",
            "whole suites with two busy loops beside them",
            lambda: list(SUITES),
            lambda item, _: SUITES[item],
            1200,
            7200,
            busy_loops=2,
        ),
    )
}


# Choosing


def last(history: History, kind: str, item: str) -> Result | None:
    """The last run of an item that told something."""
    known = [one for one in history.get((kind, item), ()) if one.outcome != CUT]
    return known[-1] if known else None


def expected_s(kind: Kind, history: History, item: str) -> float:
    """How long an item takes: as long as the last time, and longer than it had when it was cut."""
    runs = history.get((kind.name, item), ())
    if not runs:
        return kind.expected_s
    return runs[-1].seconds * (2 if runs[-1].outcome == CUT else 1)


def open_failures(history: History, kind: str, item: str) -> list[Result]:
    """The failures of an item that were not repeated with success.

    A random check draws anew each time, so only the same command shows that what it found is mended.
    """
    found: dict[tuple[str, ...], Result] = {}
    for one in history.get((kind, item), ()):
        if one.outcome == FAILED:
            found[tuple(one.command)] = one
        elif one.outcome != CUT:
            found.pop(tuple(one.command), None)
    return list(found.values())


def time_spent(kind: Kind, history: History) -> float:
    """The seconds that all noted runs of a kind took."""
    return sum(one.seconds for (name, _), runs in history.items() if name == kind.name for one in runs)


def by_age(kind: Kind, history: History) -> list[str]:
    """The items of a kind: those that never ran, then those that have not run for longest."""

    def age(item: str) -> str:
        one = last(history, kind.name, item)
        return one.began if one else ""

    return sorted(kind.items(), key=age)


def choose(
    waiting: Mapping[str, Sequence[str]], history: History, spent_s: Mapping[str, float], left_s: float
) -> tuple[Kind, str] | None:
    """The next item, of the kind that has had the least time so far. None: nothing fits into the time left.

    `waiting`: by kind the items that may be run, in their order.
    """
    for name in sorted(waiting, key=lambda name: spent_s.get(name, 0.0)):
        kind = KINDS[name]
        for item in waiting[name]:
            if expected_s(kind, history, item) * MARGIN <= left_s:
                return kind, item
    return None


# Running


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that take all the processor time they get."""
    loops: list[subprocess.Popen[bytes]] = []
    try:
        with signals_held():  # a loop that was started is known, and so is ended
            for _ in range(count):
                busy = [sys.executable, "-c", "while True: pass"]
                loops.append(subprocess.Popen(busy, preexec_fn=_release_signals))
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_item(command: Sequence[str], log: Path, limit_s: float) -> int | None:
    """Run a command with its output in a file. Its exit code, or None when the limit was reached."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = None
        try:
            with signals_held():  # an item that was started is known, and so is ended
                process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # so that all that it starts can be ended with it
                    preexec_fn=_release_signals,
                )
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process is not None:
                end_group(process)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let the signals that end a run wait until the block is left."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _release_signals() -> None:
    """In a new process, which inherits the mask."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and everything that it started, in order at first."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def outcome_of(code: int | None, limited_by_run: bool) -> str:
    """From an exit code; None: the limit was reached, which says nothing when it was the end of the run."""
    if code is None:
        return CUT if limited_by_run else FAILED
    return {0: PASSED, NO_TESTS: EMPTY}.get(code, FAILED)


def current_commit() -> str:
    """The commit that is checked out, and whether files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout

    return git("rev-parse", "--short=10", "HEAD").strip() + (
        "+" if git("status", "--porcelain").strip() else ""
    )


# The results file


def read_results(path: Path) -> dict[tuple[str, str], list[Result]]:
    """All results that are noted. A line that was cut short by a crash is left out."""
    history: dict[tuple[str, str], list[Result]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError, TypeError):
                one = Result(**json.loads(line))
                history.setdefault((one.kind, one.item), []).append(one)
    return history


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One run at a time works with a results file; a second one ends with an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.ClickException(
                f"another run works with {path}: wait for its end, or name another file with --results"
            ) from None
        yield


# The report


def summary(kinds: Sequence[Kind], history: History) -> list[dict[str, Any]]:
    """A row for each kind: how many items there are, never ran, failed last, and the one to run next."""
    rows = []
    for kind in kinds:
        items = by_age(kind, history)
        known = [last(history, kind.name, item) for item in items]
        rows.append(
            {
                "kind": kind.name,
                "about": kind.about,
                "items": len(items),
                "never_run": sum(one is None for one in known),
                "failed": len(failures([kind], history)),
                "next": items[0] if items else None,
                "next_last_ran": known[0].began if known and known[0] else None,
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The summary for people, with what has not run for longest."""
    lines = [f"{'kind':<8} {'items':>5} {'never':>5} {'failed':>6}  has not run for longest"]
    for row in rows:
        longest = f"{row['next']} ({row['next_last_ran'] or 'never ran'})" if row["next"] else "-"
        lines.append(
            f"{row['kind']:<8} {row['items']:>5} {row['never_run']:>5} {row['failed']:>6}  {longest}"
        )
    return "\n".join(lines)


def failures(kinds: Sequence[Kind], history: History) -> list[Result]:
    """What failed and has not passed since."""
    return [one for kind in kinds for item in kind.items() for one in open_failures(history, kind.name, item)]


def log_of(results: Path, kind: str, item: str) -> Path:
    """Where the output of an item's last run is."""
    return results.parent / "logs" / kind / (re.sub(r"[^\w.-]+", "-", item) + ".txt")


# The command


def default_results() -> Path:
    """Beside what else is kept of this project for longer than a checkout."""
    cache = os.environ.get("DLEDGER_CACHE") or str(Path.home() / ".cache" / "dledger")
    return Path(cache) / "deep" / "results.jsonl"


def wanted_kinds(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[Kind]:
    """The kinds that --what names."""
    names = text.split(",") if text else list(KINDS)
    for name in names:
        if name not in KINDS:
            raise click.BadParameter(f"{name!r} is none of {', '.join(KINDS)}")
    return [KINDS[name] for name in dict.fromkeys(names)]


def kinds_help() -> str:
    """The kinds, a line each."""
    return "\n".join(f"  {kind.name:<8} {kind.about}" for kind in KINDS.values())


@click.command(
    help="Run the checks that have not run for longest, until the time is over.\n\n"
    "What an item finds becomes a pinned test of the default suite.\n\n"
    f"\b\nKinds:\n{kinds_help()}\n\n"
    "\b\nExit codes:\n  0  no item failed (one that was cut short, or had nothing to do, is no failure)\n"
    "  1  an item failed, or the run was interrupted\n  2  wrong usage",
)
@click.option(
    "--minutes", type=click.FloatRange(min=0), default=60, show_default=True, help="Time for this run."
)
@click.option(
    "--what", "kinds", metavar="KIND,...", callback=wanted_kinds, help="Only these kinds (default: all)."
)
@click.option("--match", metavar="TEXT", default="", help="Only items whose name contains this.")
@click.option("--again", is_flag=True, help="Only what failed and has not passed since, with the same seeds.")
@click.option("--times", type=click.IntRange(min=1), default=1, help="Run each item up to so many times.")
@click.option("--list", "only_list", is_flag=True, help="Say what has not run for longest, and run nothing.")
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    default=default_results,
    help="Where results are kept (default: deep/results.jsonl in ~/.cache/dledger, or in $DLEDGER_CACHE).",
)
@click.option("--json", "as_json", is_flag=True, help="The last line is one JSON object.")
def main(
    minutes: float,
    kinds: list[Kind],
    match: str,
    again: bool,
    times: int,
    only_list: bool,
    results: Path,
    as_json: bool,
) -> None:
    """See the help text above."""
    # A background job of a shell is started with SIGINT ignored, and the others would not end its item.
    for number in ENDING:
        signal.signal(number, signal.default_int_handler)
    if not any(match in item for kind in kinds for item in kind.items()):
        raise click.UsageError(f"no item's name contains {match!r}: see --list, and its kinds")
    ran: list[Result] = []
    if not only_list:
        with locked(results):
            ran = run(kinds, match, again, times, minutes * 60, results)
    history = read_results(results)
    rows = summary(kinds, history)
    click.echo(table(rows))
    for one in failures(kinds, history):
        click.echo(f"FAILED {one.kind}: {one.item} ({one.began}, commit {one.commit})")
        click.echo(f"  again: {shlex.join(one.command)}")
        click.echo(f"  log:   {one.log}")
    counts = Counter(one.outcome for one in ran)
    if not only_list:
        said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "nothing ran"
        click.echo(
            f"deep: {said} in {sum(one.seconds for one in ran) / 60:.1f} minutes; results in {results}"
        )
    if as_json:
        click.echo(json.dumps({"ran": [asdict(one) for one in ran], "kinds": rows}))
    sys.exit(1 if counts[FAILED] else 0)


def run(
    kinds: Sequence[Kind], match: str, again: bool, times: int, limit_s: float, results: Path
) -> list[Result]:
    """Run items until the time is over. Each result is noted at once, so that an interrupted run loses only
    the item that it was at."""
    history = read_results(results)
    failed: dict[tuple[str, str], list[list[str]]] = {}
    for one in failures(kinds, history):
        failed.setdefault((one.kind, one.item), []).extend([one.command] * times)
    waiting = {}
    for kind in kinds:
        items = [item for item in by_age(kind, history) if match in item]
        counts = [(item, len(failed.get((kind.name, item), ())) if again else times) for item in items]
        waiting[kind.name] = [item for item, count in counts for _ in range(count)]
    spent_s = {kind.name: time_spent(kind, history) for kind in kinds}
    ran: list[Result] = []
    end = time.monotonic() + limit_s
    while (chosen := choose(waiting, history, spent_s, end - time.monotonic())) is not None:
        kind, item = chosen
        waiting[kind.name].remove(item)
        command = failed[kind.name, item].pop(0) if again else kind.command(item, int(time.time()))
        one = run_one(kind, item, command, log_of(results, kind.name, item), end - time.monotonic())
        with results.open("a") as file:
            file.write(json.dumps(asdict(one)) + "\n")
        history.setdefault((kind.name, item), []).append(one)
        spent_s[kind.name] += one.seconds
        ran.append(one)
    return ran


def run_one(kind: Kind, item: str, command: Sequence[str], log: Path, left_s: float) -> Result:
    """Run one item, and say how it ended."""
    click.echo(f"begins            {kind.name}: {item}", err=True)
    began, start, commit = datetime.now(UTC), time.monotonic(), current_commit()
    limit_s = min(kind.limit_s, left_s)
    with busy_loops(kind.busy_loops):
        code = run_item(command, log, limit_s)
    outcome = outcome_of(code, limited_by_run=limit_s < kind.limit_s)
    seconds = round(time.monotonic() - start, 1)
    click.echo(f"{outcome:<6} {seconds:7.1f} s  {kind.name}: {item}")
    if outcome == FAILED:
        tail = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        click.echo("\n".join(f"    {line[:200]}" for line in tail))
        log = log.rename(log.with_name(f"{log.stem}-{began:%Y%m%d-%H%M%S}.txt"))  # kept for whoever mends it
    began_text = began.isoformat(timespec="seconds")
    return Result(kind.name, item, outcome, began_text, seconds, commit, list(command), str(log))


if __name__ == "__main__":
    main()

"""`dledger chaos sim` plays many seeds in several processes. It shows progress and a report, replays a plan,
and shrinks a failing plan to a smaller one. This module is the outer shell of the simulator: no other module
uses wall time, processes and files."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from dledger.chaos.machine import Trace
from dledger.chaos.machine.trace import first_difference
from dledger.chaos.scenarios.picture import Picture
from dledger.chaos.scenarios.pinned import pinned_seeds
from dledger.chaos.scenarios.plan import Plan, decode_plan, draw_plan
from dledger.chaos.scenarios.profiles import PROFILES
from dledger.chaos.scenarios.runner import Outcome, make_run, run_plan
from dledger.chaos.scenarios.shrink import shrink
from dledger.chaos.scenarios.totals import Totals
from dledger.runtime.options import Options
from dledger.runtime.processes import end_with_parent

PROGRESS_TTY_S, PROGRESS_S = 0.5, 15.0
SEEDS_PER_PROCESS = 300
"""How many seeds a worker process plays before a new process replaces it, so that leaks of the interpreter do
not add up."""
PACKAGE = Path(__file__).resolve().parents[2]
SIMULATED = (
    "__init__.py", "_fast", "audit", "broker", "chaos/invariants.py", "chaos/machine", "chaos/scenarios",
    "client", "config.py", "context", "election", "errors.py", "files", "flight", "formats", "host.py", "log",
    "members", "messages.py", "namesrv", "node", "peers", "protocol.py", "remoting", "replication", "runtime",
    "snapshots", "versions.py",
)  # fmt: skip
"""Parts of the folder `PACKAGE` (dledger) that take part in a run: the programs, what they import, and the
simulator."""
SHRINK_REPLAYS = 120
SHRINK_AT_MOST = 3
"""Largest number of violations whose plans are shrunk. Further ones are only listed."""


def run(args: Options) -> int:
    """Run the command. Returns exit code 0; 1 if a rule was violated or a coverage mark was never reached; 2
    if the results to resume come from other code."""
    if args.list:
        return _list(args)
    if args.picture:
        plan = (
            decode_plan(Path(args.replay).read_text()) if args.replay else draw_plan(args.start, args.profile)
        )
        return _picture(plan, args)
    if args.replay:
        return _play(decode_plan(Path(args.replay).read_text()), args)
    if args.trace:
        return _trace(draw_plan(seed, args.profile) for seed in range(args.start, args.start + args.seeds))
    if args.check_determinism:
        return _check_determinism(args)
    return _run_many(args)


def _list(args: Options) -> int:
    profiles = sorted(PROFILES.items())
    for name, profile in profiles:
        what = "brokers" if profile.brokers else "nodes"
        print(f"{name:<18} {' or '.join(map(str, profile.nodes))} {what}")
    if args.json:
        rows = [{"name": name, "nodes": one.nodes, "brokers": one.brokers} for name, one in profiles]
        print(json.dumps({"profiles": rows}))
    return 0


def run_seed(seed: int, profile: str | None) -> Outcome:
    """Play one seed, in this process."""
    return run_plan(draw_plan(seed, profile))


# One plan


def _play(plan: Plan, args: Options) -> int:
    if args.trace:
        return _trace(iter([plan]))
    outcome = run_plan(plan)
    totals = Totals()
    totals.add(outcome)
    if args.json:
        violations = [_violation_json(outcome, plan, str(args.replay))] if outcome.violation else []
        print(json.dumps({**totals.as_json(0.0), "violations": violations}))
    else:
        print(outcome.violation or f"seed {plan.seed} ({plan.profile}): no violation")
    return 1 if outcome.violation else 0


def _picture(plan: Plan, args: Options) -> int:
    """Play one plan, and write a page with its elections."""
    from dledger.chaos.trials.simulated import report  # with its imports it is needed only here

    run = make_run(plan)
    run.stage.picture = picture = Picture()
    outcome = run.play()
    drawn = f"--start {plan.seed} --profile {plan.profile}"
    command = f"dledger sim {f'--replay {args.replay}' if args.replay else drawn} --picture FILE"
    Path(args.picture).write_text(report(plan, outcome, picture, command), encoding="utf-8")
    print(f"{args.picture}: {outcome.elections} leaders, {len(picture.flights):,} messages", file=sys.stderr)
    if args.json:
        print(json.dumps({"seed": plan.seed, "profile": plan.profile, "violation": outcome.violation}))
    else:
        print(outcome.violation or f"seed {plan.seed} ({plan.profile}): no violation")
    return 1 if outcome.violation else 0


def _trace(plans: Iterator[Plan]) -> int:
    failed = False
    for plan in plans:
        outcome = run_plan(plan, Trace(lambda line: print(line)))
        if outcome.violation:
            failed = True
            print(outcome.violation, file=sys.stderr)
    return 1 if failed else 0


def _check_determinism(args: Options) -> int:
    differ = []
    for seed in range(args.start, args.start + args.seeds):
        plan = draw_plan(seed, args.profile)
        digests = [run_plan(plan, Trace(lambda _: None)).digest for _ in range(2)]
        if digests[0] == digests[1]:
            continue
        differ.append(seed)
        traces = [Trace(), Trace()]
        for trace in traces:
            run_plan(plan, trace)
        print(
            f"seed {seed} ({plan.profile}) tells two stories:", first_difference(*[t.lines for t in traces])
        )
    print(f"{args.seeds} seeds run twice, {len(differ)} differ")
    if args.json:
        print(json.dumps({"seeds": args.seeds, "start": args.start, "differ": differ}))
    return 1 if differ else 0


# Many seeds


def _run_many(args: Options) -> int:
    totals = Totals()
    began = time.monotonic()
    wanted = wanted_seeds(args)
    progress = _Progress(len(wanted))
    code = code_fingerprint()
    try:
        done = _resumed(args, code)
    except OtherCode as error:
        print(error, file=sys.stderr)
        return 2
    for outcome in done.values():
        totals.add(outcome, resumed=True)
    seeds = [(seed, profile) for seed, profile in wanted if seed not in done]
    limit = None if args.minutes is None else began + args.minutes * 60
    results = _Results(args.resume, code)
    for outcome in _outcomes(seeds, args.jobs, limit):
        results.add(outcome)
        totals.add(outcome)
        progress.show(totals, time.monotonic() - began)
        if args.first and totals.violations:
            break
    progress.end()
    wall_s = time.monotonic() - began
    violations = [
        _shown(outcome, args, place < SHRINK_AT_MOST) for place, outcome in enumerate(totals.violations)
    ]
    print("\n".join([*totals.lines(wall_s), f"code {code} (a hash of all sources that took part)"]))
    if totals.seeds < len(wanted) and not args.first:
        print(f"only {totals.seeds} of {len(wanted)} seeds: the minutes were over")
    if args.json:
        figures = {**totals.as_json(wall_s), "start": args.start, "code": code}
        print(json.dumps({**figures, "violations": violations}))
    return 1 if totals.failed else 0


def wanted_seeds(args: Options) -> list[tuple[int, str | None]]:
    """The seeds that a command plays, each with its profile. None stands for the profile that belongs to the
    seed's number."""
    if args.pinned:
        return pinned_seeds()
    return [(seed, args.profile) for seed in range(args.start, args.start + args.seeds)]


def _outcomes(seeds: list[tuple[int, str | None]], jobs: int, limit: float | None) -> Iterator[Outcome]:
    """Yield each outcome when its seed has been played. No seed is begun after the time `limit`."""
    if jobs <= 1:
        for seed, profile in seeds:
            if limit is not None and time.monotonic() > limit:
                return
            yield run_seed(seed, profile)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs, context, initializer=end_with_parent, max_tasks_per_child=SEEDS_PER_PROCESS
    ) as pool:
        waiting: dict[Future[Outcome], None] = {}
        for seed, profile in seeds:
            if limit is not None and time.monotonic() > limit:
                break
            waiting[pool.submit(run_seed, seed, profile)] = None
            if len(waiting) >= 2 * jobs:
                yield from _finished(waiting)
        while waiting:
            yield from _finished(waiting)


def _finished(waiting: dict[Future[Outcome], None]) -> Iterator[Outcome]:
    wait(waiting, return_when=FIRST_COMPLETED)
    for future in [future for future in waiting if future.done()]:
        del waiting[future]
        yield future.result()


def _shown(outcome: Outcome, args: Options, shrinking: bool) -> dict[str, object]:
    """Shrink a failing plan, write it to a file and print it. Returns its part of the JSON."""
    plan = draw_plan(outcome.seed, outcome.profile)
    if shrinking and not args.no_shrink:
        plan = shrink(plan, lambda smaller: run_plan(smaller).kind == outcome.kind, SHRINK_REPLAYS)
        outcome = run_plan(plan)
    folder = Path(args.replays)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{plan.profile}-{plan.seed}.json"
    path.write_text(plan.encode() + "\n")
    print(f"VIOLATION in seed {plan.seed}, profile {plan.profile}:")
    print(outcome.violation)
    print(f"shown with {plan.nodes} nodes, {len(plan.operations)} operations and these faults:")
    for fault in plan.faults:
        print(f"  {fault}")
    print(f"whole:  dledger chaos sim --seeds 1 --start {plan.seed} --profile {plan.profile}")
    print(f"replay: dledger chaos sim --replay {path} [--trace]")
    return _violation_json(outcome, plan, str(path))


def _violation_json(outcome: Outcome, plan: Plan, path: str) -> dict[str, object]:
    return {
        "seed": plan.seed,
        "profile": plan.profile,
        "message": outcome.violation.split("\nlast log lines:")[0],
        "faults": [asdict(fault) for fault in plan.faults],
        "operations": len(plan.operations),
        "nodes": plan.nodes,
        "replay": f"dledger chaos sim --replay {path}",
    }


# Long runs


class OtherCode(Exception):
    """Raised when the results in a file come from other code than the present code."""


def code_fingerprint() -> str:
    """A hash of all sources that take part in a run. With equal sources, equal seeds have equal outcomes."""
    digest = sha256()
    for part in SIMULATED:
        whole = PACKAGE / part
        for path in sorted(whole.rglob("*.py")) if whole.is_dir() else [whole]:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(PACKAGE).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _resumed(args: Options, code: str) -> dict[int, Outcome]:
    """The results of an earlier command for the same seeds. Raises OtherCode if they come from other code,
    unless `--resume-any` is given."""
    if not args.resume or not Path(args.resume).exists():
        return {}
    wanted = range(args.start, args.start + args.seeds)
    found: dict[int, Outcome] = {}
    codes: dict[int, str] = {}
    for line in Path(args.resume).read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the last line of a command that was stopped
        told = row.pop("code", "unknown")
        outcome = Outcome(**row)
        fits = args.profile in (None, outcome.profile)
        if outcome.seed in wanted and fits:
            found[outcome.seed] = outcome
            codes[outcome.seed] = told
    others = [told for told in codes.values() if told != code]
    if others and not args.resume_any:
        raise OtherCode(
            f"{args.resume}: {len(others)} of {len(found)} results are of other code ({others[-1]}) than this"
            f" ({code}): take another file, or count them all the same with --resume-any"
        )
    return found


class _Results:
    """Appends each outcome to a file at once, so that a stopped run loses nothing."""

    def __init__(self, path: str | None, code: str) -> None:
        self._code = code
        self._path = None if path is None else Path(path)

    def add(self, outcome: Outcome) -> None:
        """Write one line."""
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"code": self._code, **asdict(outcome)}) + "\n")


class _Progress:
    """Shows progress on stderr. On a terminal one line is overwritten; otherwise a new line is written from
    time to time."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._tty = sys.stderr.isatty()
        self._next = 0.0

    def show(self, totals: Totals, wall_s: float) -> None:
        """Show the progress if enough time has passed since it was shown last."""
        if wall_s < self._next:
            return
        self._next = wall_s + (PROGRESS_TTY_S if self._tty else PROGRESS_S)
        speed = totals.played / wall_s if wall_s else 0.0
        text = (
            f"{totals.seeds}/{self._seeds} seeds, {speed:.2f}/s, {totals.simulated_s:.0f} s simulated,"
            f" {sum(totals.faults.values())} faults, {len(totals.violations)} violations"
        )
        sys.stderr.write(f"\r{text:<100}" if self._tty else text + "\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Print a newline after the progress line, which each report overwrites."""
        if self._tty:
            sys.stderr.write("\n")

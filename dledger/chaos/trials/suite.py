"""`dledger chaos suite`: runs the scenarios one after another, and notes each result in a file. A suite that
was interrupted goes on where it stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from dledger.chaos.scenarios.command import code_fingerprint
from dledger.chaos.trials.client_kinds import missing_for
from dledger.chaos.trials.command import lasting, run_in_directory, tell, write_report
from dledger.chaos.trials.nemeses import SPARE, needs_of
from dledger.chaos.trials.result import Result, percentile, times_of
from dledger.chaos.trials.scenario import Scenario, library
from dledger.local.cluster import ClusterError
from dledger.runtime.options import Options, WrongUsage

SMOKE_S, FULL_S, FULL_MACHINES_S = 15.0, 180.0, 600.0
"""Duration of each trial, in seconds: of `--smoke`, of `--full`, and of `--full` where disks or networks are
broken: such faults last longer, and fewer fit into a minute."""


@dataclass(frozen=True)
class Row:
    """The result of one trial: a line of the results file. Times are in ms."""

    scenario: str
    seed: int
    seconds: float
    holds: bool
    faults: int = 0
    acknowledged: int = 0
    received: int = 0
    rules: int = 0
    broken: tuple[str, ...] = ()
    failovers: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None
    code: str = ""
    """Identifies the code and the scenario that ran. A result of other code is not used again."""
    error: str = ""
    """Why the trial did not come to an end; empty if it did."""


def run(args: Options) -> int:
    """Run the command. Exit code 0: every rule holds in every trial. Exit code 1: a rule is broken, or a
    group did not start. Raises WrongUsage for an unknown scenario or a results file that cannot be read."""
    chosen = _chosen(args.only)
    results = Path(args.results) if args.results else None
    done = _read(results)
    rows = []
    skipped: dict[str, str] = {}
    for scenario in chosen:
        if missing := missing_for(scenario.clients):
            skipped[scenario.name] = missing
            print(f"{scenario.name:<18} skipped: {missing}", file=sys.stderr if args.json else sys.stdout)
            continue
        scenario = lasting(scenario, args.seconds or _seconds_of(scenario, full=args.full))
        code = f"{code_fingerprint()}/{sha256(repr(scenario).encode()).hexdigest()[:16]}"
        row = done.get((scenario.name, args.seed, code))
        if row is None:
            row = replace(_trial(scenario, args), code=code)
            if results is not None:
                results.parent.mkdir(parents=True, exist_ok=True)
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
        rows.append(row)
        print(line_of(row), file=sys.stderr if args.json else sys.stdout, flush=True)
    if args.json:
        print(json.dumps({"trials": [asdict(row) for row in rows], "skipped": skipped}))
    return 0 if all(row.holds for row in rows) else 1


def _seconds_of(scenario: Scenario, *, full: bool) -> float:
    if not full:
        return SMOKE_S
    needs = needs_of(fault.kind for fault in scenario.faults)
    return FULL_MACHINES_S if any(need != SPARE for need in needs) else FULL_S


def _chosen(only: Sequence[str]) -> list[Scenario]:
    found = library()
    unknown = [name for name in only if name not in found]
    if unknown:
        raise WrongUsage(f"there is no scenario {', '.join(unknown)}; `dledger chaos list` shows all")
    return [scenario for name, scenario in found.items() if not only or name in only]


def _read(path: Path | None) -> dict[tuple[str, int, str], Row]:
    """The results that the file has already, except those of trials that did not come to an end."""
    if path is None or not path.exists():
        return {}
    found = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = Row(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise WrongUsage(f"{path}, line {number} is no result of a suite: {error}") from error
        if not row.error:
            found[row.scenario, row.seed, row.code] = row
    return found


def _trial(scenario: Scenario, args: Options) -> Row:
    tell(f"== {scenario.name}: {scenario.purpose}")
    try:
        result = run_in_directory(scenario, args.seed)
    except ClusterError as error:
        return Row(scenario.name, args.seed, scenario.seconds, holds=False, error=str(error))
    if args.report:
        write_report(result, Path(args.report) / scenario.name)
    return row_of(result)


def row_of(result: Result) -> Row:
    """The line of the results file for one trial."""
    times = times_of(result.failovers)
    return Row(
        scenario=result.scenario,
        seed=result.seed,
        seconds=result.seconds,
        holds=result.holds,
        faults=len(result.faults),
        acknowledged=result.counts["acknowledged"] + result.counts["load"],
        received=result.counts["received"],
        rules=len(result.verdicts),
        broken=tuple(verdict.name for verdict in result.verdicts if not verdict.holds),
        failovers=len(times),
        p50_ms=percentile(times, 0.5) if times else None,
        p99_ms=percentile(times, 0.99) if times else None,
        max_ms=times[-1] if times else None,
    )


def line_of(row: Row) -> str:
    """One row as a line of text."""
    if row.error:
        return f"{row.scenario:<18} FAILED  {row.error}"
    word = "holds " if row.holds else "BROKEN"
    parts = [
        f"{row.scenario:<18} {word}  {row.rules} rules, {row.faults} faults, "
        f"{row.acknowledged:,} acknowledged"
    ]
    parts += [f"failover {row.p50_ms:.0f} ms (longest {row.max_ms:.0f})"] if row.max_ms is not None else []
    parts += [f"broken: {', '.join(row.broken)}"] if row.broken else []
    return "; ".join(parts)

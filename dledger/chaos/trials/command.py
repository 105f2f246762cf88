"""`dledger chaos list` and `dledger chaos run`: shows the scenarios, and runs a trial of one.

This module is the outer shell of trials: it makes the directory of a trial, shows progress, prints the result
and writes it to files.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dledger.chaos.trials.attaching import describe as describe_attachment
from dledger.chaos.trials.attaching import find_group, plan_attachment
from dledger.chaos.trials.client_kinds import missing_for
from dledger.chaos.trials.client_proxy import DivertedLoop
from dledger.chaos.trials.conductor import run_on, run_trial
from dledger.chaos.trials.executed import parse_commands
from dledger.chaos.trials.page import report
from dledger.chaos.trials.result import Result, percentile, times_of
from dledger.chaos.trials.scenario import MAX_SECONDS, Scenario, ScenarioError, library, parse_scenario
from dledger.local.cluster import ClusterError
from dledger.runtime.options import Options, WrongUsage
from dledger.runtime.signals import TERMINATED

RESULT_FILE, PAGE_FILE = "result.json", "report.html"


def show(args: Options) -> int:
    """Run `dledger chaos list`. Exit code 0."""
    found = library()
    if args.json:
        rows = [
            {"name": one.name, "purpose": one.purpose, "must_hold": one.must_hold} for one in found.values()
        ]
        print(json.dumps({"scenarios": rows}))
        return 0
    width = max(map(len, found))
    for name, scenario in found.items():
        print(f"{name:{width}}  {scenario.purpose}")
    return 0


def run(args: Options) -> int:
    """Run `dledger chaos run`. Exit code 0: every rule holds. Exit code 1: a rule is broken, the group did
    not start, or --yes is missing. Raises WrongUsage if there is no such scenario, or if this machine lacks
    what its clients need."""
    scenario = lasting(find_scenario(args.scenario), args.seconds)
    if missing := missing_for(scenario.clients):
        raise WrongUsage(f"{args.scenario}: {missing}")
    if args.namesrv:
        return run_attached(scenario, args)
    if args.dir and (Path(args.dir) / "group").exists():
        raise WrongUsage(f"{args.dir} has a group of an earlier trial: choose another directory")
    try:
        result = run_in_directory(scenario, args.seed, args.dir, args.scenario)
    except ClusterError as error:
        print(f"chaos run: {error}", file=sys.stderr)
        return 1
    return show_result(result, args)


def show_result(result: Result, args: Options) -> int:
    """Print the result and write the report, as the options say. Returns the exit code."""
    if args.report:
        write_report(result, Path(args.report))
    for line in describe(result):
        print(line, file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(result.encode()))
    return 0 if result.holds else 1


def run_attached(scenario: Scenario, args: Options) -> int:
    """Run a trial at a group that others have started. Exit code 1: a rule is broken, something is left
    behind, or --yes is missing. Raises WrongUsage if the scenario needs what is not allowed there."""
    from dledger.chaos.trials.attached import AttachedGroup

    try:
        group = find_group(args.namesrv, args.broker_name)
        attachment = plan_attachment(
            scenario,
            parse_commands("--exec", args.exec),
            parse_commands("--exec-undo", args.exec_undo),
            group.why_no_transfer,
        )
    except ClusterError as error:
        print(f"chaos run: {error}", file=sys.stderr)
        return 1
    for line in describe_attachment(group, attachment):
        tell(line)
    if not args.yes:
        tell("nothing was done: this disturbs the group, so give --yes to do it")
        return 1
    system = None
    try:
        system = AttachedGroup(group, attachment)
        with asyncio.Runner(loop_factory=DivertedLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, DivertedLoop)
            loop.diversions = system.diversions
            again = f"{again_command(args)} --seconds {scenario.seconds:g} --seed {args.seed}"
            result = runner.run(run_on(system, attachment.scenario, args.seed, tell, again))
    except (ClusterError, OSError) as error:
        print(f"chaos run: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        raise SystemExit(TERMINATED) from None
    finally:
        if system is not None and system.leftover:
            tell(f"left behind: {system.leftover}")
    return show_result(result, args) or int(bool(system.leftover))


def again_command(args: Options) -> str:
    """The command line of a trial at a group of others, without duration and seed."""
    words = ["dledger", "chaos", "run", args.scenario, "--namesrv", args.namesrv]
    words += ["--broker-name", args.broker_name] if args.broker_name else []
    for option, given in (("--exec", args.exec), ("--exec-undo", args.exec_undo)):
        for text in given:
            words += [option, text]
    return shlex.join([*words, "--yes"])


def run_in_directory(scenario: Scenario, seed: int, given: str | None = None, named: str = "") -> Result:
    """Run a trial in the given directory, or in a temporary one, which stays only if a rule is broken. Raises
    ClusterError if the group does not start, and SystemExit after SIGTERM."""
    directory = Path(given or tempfile.mkdtemp(prefix="trial-"))
    keep = given is not None
    try:
        result = asyncio.run(run_trial(scenario, seed, directory / "group", tell, named))
        if not result.holds and not keep:
            keep = True
            tell(f"stores and logs are kept in {directory}")
        return result
    except asyncio.CancelledError:
        raise SystemExit(TERMINATED) from None
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def lasting(scenario: Scenario, seconds: float | None) -> Scenario:
    """The scenario with another duration, if one is given. Raises WrongUsage if it is too long."""
    if seconds is None:
        return scenario
    if seconds > MAX_SECONDS:
        raise WrongUsage(f"--seconds {seconds:g}: give at most {MAX_SECONDS}")
    return replace(scenario, seconds=seconds)


def find_scenario(name: str) -> Scenario:
    """The scenario of this name, or in this file (a name that ends with `.toml`). Raises WrongUsage if there
    is none, or if the file is wrong."""
    try:
        if name.endswith(".toml"):
            return parse_scenario(Path(name).read_text(encoding="utf-8"), name)
        return library()[name]
    except KeyError:
        raise WrongUsage(f"there is no scenario {name}; `dledger chaos list` shows all") from None
    except (ScenarioError, OSError) as error:
        raise WrongUsage(str(error)) from error


def write_report(result: Result, directory: Path) -> None:
    """Write the result into this directory, which is made if it does not exist."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result.encode(), indent=1) + "\n"
    (directory / RESULT_FILE).write_text(text, encoding="utf-8")
    (directory / PAGE_FILE).write_text(report(result), encoding="utf-8")


def tell(text: str) -> None:
    """Show a line of progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def describe(result: Result) -> Iterator[str]:
    """The result as lines of text."""
    counts = result.counts
    yield (
        f"{result.scenario}, seed {result.seed}: {counts['faults']} faults, {counts['elections']} leaders, "
        f"{counts['acknowledged']:,} sends acknowledged, {counts['unknown']:,} with unknown outcome, "
        f"{counts['refused']:,} refused"
        + (f", {again:,} stored again" if (again := counts.get("stored_again", 0)) else "")
    )
    if times := times_of(result.failovers):
        open_ones = len(result.failovers) - len(times)
        yield (
            f"failover, as our client sees it: median {percentile(times, 0.5):.0f} ms, "
            f"p99 {percentile(times, 0.99):.0f} ms, longest {times[-1]:.0f} ms "
            f"({len(times)} faults at a leader"
            + (f", and {open_ones} that were not over when the clients ended)" if open_ones else ")")
        )
    for fault in result.faults:
        if fault.error:
            struck = ", ".join(fault.nodes) or fault.target
            yield f"fault {fault.kind} of {struck} at {fault.begin_s:.1f} s: {fault.error}"
    width = max(len(verdict.name) for verdict in result.verdicts)
    for verdict in result.verdicts:
        word = "holds" if verdict.holds else "BROKEN"
        yield f"{verdict.name:{width}}  {word:6}  {verdict.checked:>9,}  {verdict.text or verdict.rule}"
    for what, why in result.left_out.items():
        yield f"{what:{width}}  left out: {why}"

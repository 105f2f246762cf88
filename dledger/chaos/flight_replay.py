"""`dledger chaos replay`: steps the core of a node through the recording of its flight recorder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from dledger.chaos.invariants import InvariantViolated, NodeState, check_node, check_step
from dledger.flight.reading import UnusableRecording, read_recording
from dledger.flight.replaying import CoreAfterStep, replay
from dledger.flight.steps import Replay, Step
from dledger.runtime.files import OsFiles
from dledger.runtime.options import Options

SHOWN_STEPS = 20
"""How many of the last steps are printed."""
SHOWN_PROBLEMS = 10
"""How many problems are printed; the JSON has all of them."""


def _node_state(core: CoreAfterStep) -> NodeState:
    """Return a state in which everything that the core does not know is as harmless as possible: a log that
    ends at the commit index, of which nothing is applied."""
    commit = core.commit_index
    return NodeState(
        core.name, core.run, core.role, core.term, core.vote, False, 0, commit, -1, commit, commit, -1
    )


def check_invariants(before: CoreAfterStep | None, after: CoreAfterStep) -> str:
    """Check the invariants of one node that the core alone decides. Returns the first that is broken, or the
    empty text."""
    now = _node_state(after)
    try:
        check_node(now)
        if before is not None:
            check_step(_node_state(before), now)
    except InvariantViolated as violated:
        return str(violated)
    return ""


def replay_path(path: str, *, keep: int = SHOWN_STEPS) -> Replay:
    """Replay the recording in a file of a ring, in the directory of a ring, or in the directory of a node's
    log. `keep` is the number of last steps that the result holds. Raises UnusableRecording. Blocking."""
    files, missing = read_recording(OsFiles(), path)
    return replay(files, missing, check=check_invariants, keep=keep)


def verdict_of(result: Replay) -> str:
    """Return one sentence that says whether the replay agrees with the recording."""
    if result.agrees:
        return f"the digests of all {result.total_steps} steps are equal, and no invariant is broken"
    return f"{len(result.problems)} problem(s) in {result.total_steps} steps"


def _row(step: Step) -> str:
    head = f"{step.number:>8}  {step.time_s:>14.6f}  {step.role:<9}  {step.term:>5}  {step.commit_index:>9}"
    lines = [f"{head}  {step.event}", *(f"{'':>55}-> {effect}" for effect in step.effects)]
    if step.problem:
        lines.append(f"{'':>55}!! {step.problem}")
    return "\n".join(lines)


def describe(result: Replay, steps: int) -> Iterator[str]:
    """Return the lines of the report. `steps` is the number of last steps to show."""
    yield f"node {result.node}, version {result.version} of the core, {result.total_steps} steps"
    for stretch in result.stretches:
        end = "stopped in good order" if stretch.clean_end else "no orderly stop"
        seconds = stretch.end_s - stretch.begin_s
        yield f"  {', '.join(stretch.files)}: {stretch.steps} steps in {seconds:.3f} s; {end}"
    shown = [step for step in result.steps if step.problem or step.number >= result.total_steps - steps]
    if shown:
        yield f"{'step':>8}  {'time (s)':>14}  {'role':<9}  {'term':>5}  {'committed':>9}  event"
        yield from map(_row, shown)
    for text in result.missing:
        yield f"missing: {text}"
    for text in result.problems[:SHOWN_PROBLEMS]:
        yield f"problem: {text}"
    yield verdict_of(result)


def run(args: Options) -> int:
    """Run `dledger chaos replay`. Exit code 0: the replay agrees with the recording. Exit code 1: it does
    not, or an invariant is broken. Exit code 2: nothing can be replayed."""
    try:
        files, missing = read_recording(OsFiles(), args.path)
    except UnusableRecording as error:
        print(f"chaos replay: {error}", file=sys.stderr)
        return 2
    everything = sum(block.events for file in files for block in file.blocks)
    keep = max(everything if args.steps or args.picture else SHOWN_STEPS, 1)
    result = replay(files, missing, check=check_invariants, keep=keep)
    if args.picture:
        from dledger.chaos.trials.flight_page import report  # needed only here

        Path(args.picture).write_text(report(result, verdict_of(result)), encoding="utf-8")
    for line in describe(result, keep if args.steps else SHOWN_STEPS):
        print(line, file=sys.stderr if args.json else sys.stdout)
    if args.json:
        shown = result.steps if args.steps else result.steps[-SHOWN_STEPS:]
        print(json.dumps({"agrees": result.agrees, **asdict(replace(result, steps=shown))}))
    return 0 if result.agrees else 1

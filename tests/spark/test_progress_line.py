"""The line on standard error that says how far a job is: drawn anew in place, and only on terminals."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dledger.spark.progress import WIDTH, Progress, tasks
from tests.audit.store_builder import Log, sample_log, write_group
from tests.command_line import audit as audit_run
from tests.command_line import spark as spark_run


class Terminal(io.StringIO):
    """Remembers what was written."""

    def isatty(self) -> bool:
        return True

    @property
    def states(self) -> list[str]:
        """The line after each return to its beginning, as it can be seen."""
        seen, line = [], ""
        for text in self.getvalue().split("\r")[1:]:
            line = text + line[len(text) :]
            seen.append(line.rstrip())
        return seen


def test_the_line_says_what_and_how_far() -> None:
    terminal = Terminal()
    line = Progress(terminal)
    line.show()
    assert terminal.getvalue() == "", "nothing to say yet"
    line.say("audit g0")
    assert terminal.getvalue() == "", "said, not shown: a job's thread may do it"
    line.show()
    line.show("9 of 10 tasks")
    line.show("10 of 10 tasks")
    assert terminal.states == ["audit g0", "audit g0: 9 of 10 tasks", "audit g0: 10 of 10 tasks"]


def test_what_did_not_change_is_not_written_again() -> None:
    terminal = Terminal()
    line = Progress(terminal)
    line.say("audit")
    line.show("1 of 2 tasks")
    written = terminal.getvalue()
    line.show("1 of 2 tasks")
    assert terminal.getvalue() == written


def test_a_shorter_line_leaves_nothing_of_the_longer_one() -> None:
    terminal = Terminal()
    line = Progress(terminal)
    for what in ("starting Spark", "audit", "drill", "x" * (WIDTH + 10), "end"):
        line.say(what)
        line.show()
    assert terminal.states == ["starting Spark", "audit", "drill", "x" * WIDTH, "end"], "no line breaks"


def test_the_line_goes_before_results_come() -> None:
    terminal = Terminal()
    line = Progress(terminal)
    line.clear()
    assert terminal.getvalue() == "", "there was none"
    line.say("audit")
    line.show()
    line.clear()
    assert terminal.states[-1] == "" and terminal.getvalue().endswith("\r"), "the cursor is back"
    written = terminal.getvalue()
    line.clear()
    assert terminal.getvalue() == written
    line.show()
    assert terminal.states[-1] == "audit", "drawn again after it was taken away"


def test_without_a_terminal_nothing_is_done() -> None:
    line = Progress(None)
    line.say("audit")
    line.show("1 of 2 tasks")
    line.clear()


@dataclass
class Stage:
    numTasks: int
    numCompletedTasks: int


@dataclass
class Session:
    """As much of a SparkSession as is asked; stages by id, None: its job has ended meanwhile."""

    stages: dict[int, Stage | None] = field(default_factory=dict)

    @property
    def sparkContext(self) -> Session:
        return self

    def statusTracker(self) -> Session:
        return self

    def getActiveStageIds(self) -> list[int]:
        return list(self.stages)

    def getStageInfo(self, stage: int) -> Stage | None:
        return self.stages[stage]


def test_tasks_of_all_running_stages_are_counted() -> None:
    running = Session({3: Stage(10, 4), 4: None, 5: Stage(7, 0)})
    assert tasks(running) == "4 of 17 tasks"  # type: ignore[arg-type]
    assert tasks(Session()) == "", "between two stages"  # type: ignore[arg-type]
    assert tasks(object()) == "", "Spark Connect has no context"  # type: ignore[arg-type]


# --- the audit without Spark ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ((audit_run, "compare"), "scanned {done} of {total} segments"),
        ((spark_run, "audit", "--engine", "local"), "audit: {done} of {total} segments"),
    ],
    ids=["dledger audit", "dledger spark audit"],
)
def test_the_local_audit_tells_every_segment(
    command: tuple[Callable[[Sequence[str]], int], *tuple[str, ...]],
    text: str,
    log: Log,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program, *arguments = command
    stores = [str(store) for store in write_group(log, tmp_path, 2)]
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert program([*arguments, *stores]) == 0
    total = 2 * len(log.segments)
    expected = [text.format(done=done, total=total) for done in range(total + 1)]
    assert [state for state in terminal.states if state] == expected
    assert f" of {total} segments" not in capsys.readouterr().out

    plain = io.StringIO()
    monkeypatch.setattr(sys, "stderr", plain)
    assert program([*arguments, *stores]) == 0
    assert plain.getvalue() == "", "nobody looks"

"""The mutants still fit the tree, and the code that applies and runs them is right.

Whether the suites catch the mutants is tested by `dledger chaos mutants`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.chaos.mutants import command
from dledger.chaos.mutants.judges import JUDGES
from dledger.chaos.mutants.patches import Mutant, PatchError, all_mutants, apply, check, read_mutant
from dledger.chaos.mutants.suites import FAST, SIM, SUITES
from dledger.chaos.mutants.trials import SEEDS, TRIALS, Tried
from dledger.chaos.scenarios.profiles import PROFILES
from dledger.chaos.trials.checkers import CHECKERS
from dledger.chaos.trials.scenario import library
from tests.command_line import run

MUTANTS = all_mutants()
ROOT = command.ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_fits_the_tree(mutant: Mutant) -> None:
    check(mutant, ROOT)
    assert not any(path.startswith(("tests/", "dledger/chaos/")) for path in mutant.paths), (
        "mutants change the product"
    )


def test_there_are_enough_and_no_two_are_the_same() -> None:
    assert len(MUTANTS) >= 25
    assert len({mutant.hunks: None for mutant in MUTANTS}) == len(MUTANTS)


def test_the_suites_exist_and_none_was_written_for_mutants() -> None:
    assert {suite.kind: None for suite in SUITES} == {FAST: None, SIM: None}
    for suite in SUITES:
        assert suite.tests or suite.seeds
        for test in suite.tests:
            assert (ROOT / test).exists(), test
            assert "mutant" not in test


def test_a_patch_may_name_the_suite_to_begin_with() -> None:
    names = {suite.name for suite in SUITES}
    assert {"", "scenarios"} < {mutant.first for mutant in MUTANTS} <= {"", *names}
    (late,) = [mutant for mutant in MUTANTS if mutant.name == "wiped-node-votes"]
    order = [suite.name for suite in command.for_mutant(SUITES, late)]
    others = [suite.name for suite in SUITES if command.concerns(suite, late) and suite.name != "scenarios"]
    assert order == ["scenarios", *others]
    (soon,) = [mutant for mutant in MUTANTS if mutant.name == "vote-twice"]
    assert [suite.name for suite in command.for_mutant(SUITES, soon)] == [*others, "scenarios"]


PATCH = """# Two becomes three.
# Rule: arithmetic
--- a/pkg/a.py
+++ b/pkg/a.py
@@ -2,3 +2,3 @@
 x = 1
-y = 2
+y = 3
 z = 4
"""


def write(folder: Path, patch: str, code: str) -> Mutant:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "a.py").write_text(code)
    (folder / "m.patch").write_text(patch)
    return read_mutant(folder / "m.patch")


@pytest.mark.parametrize("before", ["# one\n", "", "# one\n# two\n# three\n"])
def test_a_patch_is_applied_where_its_lines_are(tmp_path: Path, before: str) -> None:
    mutant = write(tmp_path, PATCH, f"{before}x = 1\ny = 2\nz = 4\n")
    assert (mutant.about, mutant.rule, mutant.paths) == ("Two becomes three.", "arithmetic", ("pkg/a.py",))
    apply(mutant, tmp_path)
    assert (tmp_path / "pkg" / "a.py").read_text() == f"{before}x = 1\ny = 3\nz = 4\n"


@pytest.mark.parametrize(
    "code", ["x = 1\ny = 5\nz = 4\n", "x = 1\ny = 2\nz = 4\nx = 1\ny = 2\nz = 4\n", "# one\nx = 1\ny = 2\n"]
)
def test_a_patch_that_does_not_fit_exactly_once_is_refused(tmp_path: Path, code: str) -> None:
    mutant = write(tmp_path, PATCH, code)
    with pytest.raises(PatchError, match="make the patch anew"):
        apply(mutant, tmp_path)
    assert (tmp_path / "pkg" / "a.py").read_text() == code


@pytest.mark.parametrize(
    "patch", [PATCH.replace("# Rule: arithmetic\n", ""), PATCH.replace("@@", "##"), PATCH.split("---")[0]]
)
def test_a_file_that_is_no_proper_patch_is_refused(tmp_path: Path, patch: str) -> None:
    with pytest.raises(PatchError):
        write(tmp_path, patch, "x = 1\n")


def test_a_mutant_that_leaves_no_python_is_refused(tmp_path: Path) -> None:
    mutant = write(tmp_path, PATCH.replace("+y = 3", "+y = ("), "\nx = 1\ny = 2\nz = 4\n")
    with pytest.raises(PatchError, match="compile"):
        check(mutant, tmp_path)


def test_mutants_are_looked_up_by_name() -> None:
    assert command.chosen(MUTANTS, []) == MUTANTS
    assert [mutant.name for mutant in command.chosen(MUTANTS, ["vote-twice"])] == ["vote-twice"]
    with pytest.raises(SystemExit, match="no mutant"):
        command.chosen(MUTANTS, ["nothing"])


def test_each_judge_has_a_mutant_and_a_profile_that_exist() -> None:
    assert {judged.mutant for judged in JUDGES} <= {mutant.name for mutant in MUTANTS}
    assert {judged.profile for judged in JUDGES} <= set(PROFILES)
    assert len({judged.judge for judged in JUDGES}) == len(JUDGES) >= 12


def test_each_trial_of_a_mutant_names_a_scenario_and_a_checker_that_exist() -> None:
    assert {row.mutant for row in TRIALS} <= {mutant.name for mutant in MUTANTS}
    assert {row.scenario for row in TRIALS} <= set(library())
    assert {row.checker for row in TRIALS} <= {checker.name for checker in CHECKERS}
    assert len({row.mutant: None for row in TRIALS}) == len(TRIALS)


@pytest.mark.parametrize(
    ("found", "also", "caught", "said"),
    [
        ({"sends": "lost: m1"}, {}, True, "sends: lost: m1"),
        ({"sends": "lost: m1"}, {"progress": "no node leads"}, True, "sends: lost: m1"),
        ({"sends": "lost: m1"}, {"sends": "lost: m2"}, False, "the unchanged tree breaks rules, too"),
        ({"sends": "lost: m1"}, {"": "no end within 9 s"}, False, "the unchanged tree breaks rules, too"),
        ({"progress": "no node leads"}, {}, False, "no node leads"),
        ({}, {}, False, "every rule holds"),
    ],
)
def test_a_trial_catches_a_mutant_if_its_checker_names_it_and_not_the_unchanged_tree(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    found: dict[str, str],
    also: dict[str, str],
    caught: bool,
    said: str,
) -> None:
    mutant = write(tmp_path, PATCH, "x = 1\ny = 2\nz = 4\n")
    monkeypatch.setattr(command, "ROOT", tmp_path)
    changed: list[bool] = []

    def broken(row: Tried, tree: Path, seed: int) -> dict[str, str]:
        changed.append("y = 3" in (tree / "pkg" / "a.py").read_text())
        return found if changed[-1] else also

    monkeypatch.setattr(command, "_broken_rules", broken)
    result = command.try_trial(Tried("m", "kill-leader", 9, "sends"), mutant)
    assert (result.caught, said in result.by) == (caught, True), result
    assert result.seeds == (1 if caught else SEEDS)
    if caught:
        assert changed == [True, False]
        assert command.try_trial(Tried("m", "kill-leader", 9, "sends"), mutant, with_baseline=False).caught
        assert changed == [True, False, True]


def test_the_command_is_registered_like_its_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("chaos", "mutants", "--list", "--only", "vote-twice") == 0
    assert "vote-twice" in capsys.readouterr().out

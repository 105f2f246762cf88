"""Runs every `*.txt` beside this file through the pure cores; `--rewrite` accepts what they print now."""

from __future__ import annotations

from pathlib import Path

import pytest
import raft_script

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    differences = raft_script.run_file(path, bool(request.config.getoption("--rewrite")))
    assert not differences, "\n".join(differences)


def test_there_are_scripts_and_each_says_what_it_is_about() -> None:
    assert len(SCRIPTS) >= 25
    for path in SCRIPTS:
        assert path.read_text().startswith("# "), path.name


def test_a_script_is_parsed_and_written_back_as_it_is() -> None:
    text = "# about\n\ngroup 3\n----\nok\n\n# more\nlog\n----\nn0: empty\nn1: empty\nn2: empty\n"
    assert raft_script.render(*raft_script.parse(text)) == text


def test_a_difference_is_found_and_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("# about\ngroup 1\nlog\n----\nn0: 1:x\n")
    assert "+ n0: empty" in "".join(raft_script.run_file(path, rewrite=False))
    assert raft_script.run_file(path, rewrite=True) == []
    assert raft_script.run_file(path, rewrite=False) == []
    assert "n0: empty" in path.read_text()


@pytest.mark.parametrize("line", ["fly n0", "given n9", "log"])
def test_a_line_that_is_no_command_is_an_error(line: str) -> None:
    script = raft_script.Script()
    if line.startswith("given"):
        script.run("group 3")
    with pytest.raises(raft_script.ScriptError):
        script.run(line)

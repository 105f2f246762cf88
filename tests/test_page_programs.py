"""What pages show is Python of today. That it runs: tests/cluster/test_readme.py."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dledger
from tests.page_programs import PAGES, BadMark, missing_lines, programs

ALL = [program for page in PAGES for program in programs(page)]


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.where)
def test_a_program_of_a_page_compiles_and_imports_what_is_public(program) -> None:  # type: ignore[no-untyped-def]
    tree = ast.parse(program.code, program.where)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "dledger":
            unknown = {alias.name for alias in node.names} - set(dledger.__all__)
            assert not unknown, f"{program.where}: dledger has no {', '.join(sorted(unknown))}"
    program.shortened()


def test_most_programs_are_run() -> None:
    """A mark is for what needs a server, another package or a person; not for what is inconvenient."""
    assert len(ALL) > 15
    assert sum(program.not_run is None for program in ALL) > 0.7 * len(ALL)


def page(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text)
    return path


def test_marks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.page_programs.ROOT", tmp_path)
    one, two = programs(
        page(
            tmp_path,
            "text\n\n<!-- in tests: 30 -> 1 -->\n```python\n# wait.py\nwait(30)\n```\n\nPrints\n\n"
            "<!-- output -->\n```text\nwaited 30\n```\n\n"
            "<!-- not run: needs a browser -->\n```python\nopen()\n```\n",
        )
    )
    assert one.name == "wait.py"
    assert one.shortened() == "# wait.py\nwait(1)\n"
    assert one.output == "waited 30\n"
    assert one.not_run is None
    assert two.not_run == "needs a browser"
    assert two.name == "line_17.py"


@pytest.mark.parametrize(
    "text",
    [
        "<!-- not run: -->\n```python\nx\n```\n",
        "<!-- not run: why -->\n```python\nx\n```\n",
        "<!-- skipped: for now -->\n```python\nx\n```\n",
        "<!-- not run: for some reason -->\n```text\nx\n```\n",
    ],
)
def test_a_mark_without_sense_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("tests.page_programs.ROOT", tmp_path)
    with pytest.raises(BadMark):
        programs(page(tmp_path, text))


def test_outputs_are_compared_but_for_numbers_and_order() -> None:
    assert missing_lines("a 1\nb 2.5\n", "b 7\na 12\n") == []
    assert missing_lines("a 1\n", "b 1\n") == ["not printed: a N", "not in the page: b N"]
    assert missing_lines("a 1\n...\n", "a 1\na 2\nb\n") == []
    assert missing_lines("a 1\na 2\n...\n", "a 1\n") == ["not printed: a N"]

"""The Python programs that README, tutorial and how-to guides show, with what the pages say of them.

A comment right before a block tells the tests what a reader need not see:

    <!-- not run: WHY -->            it cannot run alone
    <!-- in tests: OLD -> NEW -->    one text that is replaced, so that it is quick (may be repeated)
    <!-- output -->                  (before a text block) what the program above prints: numbers may differ,
                                     lines may come in another order, and `...` stands for more of them
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = "127.0.0.1:9876"
"""Address of a group in the programs of pages."""
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs/tutorial").glob("*.md")), *sorted((ROOT / "docs/howto").glob("*.md"))]

_COMMENT = re.compile(r"<!-- (.*?) -->")
_NAME = re.compile(r"# (\w+\.py)\b")
_MORE = "..."


class BadMark(Exception):
    """A comment before a block that means nothing here."""


@dataclass
class Program:
    """One block that begins with ```python."""

    page: Path
    line: int
    code: str
    not_run: str | None = None
    replaced: list[tuple[str, str]] = field(default_factory=list)
    output: str | None = None

    @property
    def name(self) -> str:
        """The file that its first line names, or one of our own choosing."""
        said = _NAME.match(self.code)
        return said[1] if said else f"line_{self.line}.py"

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def shortened(self) -> str:
        """The code as tests run it."""
        code = self.code
        for old, new in self.replaced:
            if old not in code:
                raise BadMark(f"{self.where}: {old!r} is not in the block")
            code = code.replace(old, new)
        return code


def programs(page: Path) -> list[Program]:
    """Those of a page, in its order."""
    found: list[Program] = []
    marks: list[str] = []
    lines = page.read_text().splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.startswith("```"):
            start, kind = at, line[3:].strip()
            while lines[at] != "```":
                at += 1
            text = "\n".join(lines[start:at]) + "\n"
            at += 1
            if kind == "python":
                found.append(_marked(Program(page, start, text), marks))
            elif marks == ["output"]:
                found[-1].output = text
            elif marks:
                raise BadMark(f"{page}:{start}: {marks} before a block of {kind or 'no kind'}")
            marks = []
        elif (comment := _COMMENT.fullmatch(line)) is not None:
            marks.append(comment[1])
        elif line:
            marks = []
    return found


def _marked(program: Program, marks: list[str]) -> Program:
    for mark in marks:
        word, _, rest = mark.partition(": ")
        old, arrow, new = rest.partition(" -> ")
        if word == "not run" and len(rest.split()) > 1:
            program.not_run = rest
        elif word == "in tests" and arrow:
            program.replaced.append((old, new))
        else:
            raise BadMark(f"{program.where}: <!-- {mark} -->")
    return program


def missing_lines(promised: str, printed: str) -> list[str]:
    """Lines of a page's output block that a program did not print, but for numbers; and, unless the block
    has a line `...`, those that it printed besides."""
    wanted = [_masked(line) for line in promised.splitlines()]
    got = [_masked(line) for line in printed.splitlines()]
    more = _MORE in wanted
    missing = []
    for line in wanted:
        if line in got:
            got.remove(line)
        elif line != _MORE:
            missing.append(f"not printed: {line}")
    return missing if more else [*missing, *(f"not in the page: {line}" for line in got)]


def run_program(
    program: Program, address: str, directory: Path, limit_s: float, env: Mapping[str, str] | None = None
) -> str:
    """Write a program into a directory, with the address of a group, and run it there unless its page says
    otherwise. Return what it printed. Programs of a page may import each other by their names."""
    (directory / program.name).write_text(program.shortened().replace(ADDRESS, address))
    if program.not_run is not None:
        return ""
    done = subprocess.run(
        [sys.executable, program.name],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        env=env,
    )
    assert done.returncode == 0, f"{program.where}: {done.stdout}{done.stderr}"
    if program.output is not None:
        wrong = missing_lines(program.output, done.stdout)
        assert not wrong, f"{program.where}: {wrong}\n{done.stdout}{done.stderr}"
    return done.stdout


def _masked(line: str) -> str:
    return re.sub(r"[0-9]+(\.[0-9]+)?", "N", re.sub(r"\b[0-9A-F]{32}\b", "ID", line)).strip()

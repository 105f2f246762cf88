"""Reads and applies patches. A patch is a file with comment lines and then a unified diff. Patches are
applied strictly. Every line before and around a change must be there, at the line number that the diff names.
If the code has moved, the lines must be at exactly one other line number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")


class PatchError(Exception):
    """Raised when a patch cannot be read or does not fit the tree. The text says which patch and where."""


@dataclass(frozen=True)
class Hunk:
    """One changed place of a patch. The lines `before`, expected at line number `line` (from 1), are replaced
    by the lines `after`."""

    path: str
    line: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class Mutant:
    """One patch. `about` says what it breaks, `rule` is the rule that forbids it, and `first` is the suite to
    begin with."""

    name: str
    about: str
    rule: str
    hunks: tuple[Hunk, ...]
    first: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that the patch changes."""
        return tuple(dict.fromkeys(hunk.path for hunk in self.hunks))


def all_mutants() -> list[Mutant]:
    """All patches of this folder, sorted by name."""
    return [read_mutant(path) for path in sorted(FOLDER.glob("*.patch"))]


def read_mutant(path: Path) -> Mutant:
    """Read one patch file. Raises PatchError if it is not a valid mutant."""
    lines = path.read_text().splitlines()
    comments = [line.removeprefix("#").strip() for line in lines if line.startswith("#")]
    rules = [line.removeprefix("Rule:").strip() for line in comments if line.startswith("Rule:")]
    first = [line.removeprefix("First:").strip() for line in comments if line.startswith("First:")]
    about = " ".join(line for line in comments if line and not line.startswith(("Rule:", "First:")))
    if not about or len(rules) != 1 or len(first) > 1:
        raise PatchError(
            f"{path.name}: needs comment lines that say what it breaks, one `# Rule: ...`, "
            "and at most one `# First: ...`"
        )
    hunks = tuple(_hunks(path.name, [line for line in lines if not line.startswith("#")]))
    if not hunks:
        raise PatchError(f"{path.name}: no change in it")
    return Mutant(path.stem, about, rules[0], hunks, *first)


def _hunks(name: str, lines: list[str]) -> list[Hunk]:
    hunks: list[Hunk] = []
    target = ""
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.startswith("+++ "):
            target = line[4:].split("\t")[0].removeprefix("b/")
            continue
        found = _HUNK.match(line)
        if found is None:
            continue
        before: list[str] = []
        after: list[str] = []
        while at < len(lines) and lines[at][:1] in ("", " ", "+", "-", "\\"):
            text = lines[at]
            if text.startswith(("--- ", "+++ ")):
                break
            at += 1
            if text[:1] in ("", " ", "-"):
                before.append(text[1:])
            if text[:1] in ("", " ", "+"):
                after.append(text[1:])
        if not target:
            raise PatchError(f"{name}: a hunk before any file name")
        hunks.append(Hunk(target, int(found[1]), tuple(before), tuple(after)))
    return hunks


def apply(mutant: Mutant, root: Path) -> None:
    """Change the files below `root`. If a hunk does not fit, PatchError is raised and no file is changed."""
    changed = {path: mutated(mutant, path, _read(mutant, root, path)) for path in mutant.paths}
    for path, text in changed.items():
        (root / path).write_text(text)


def check(mutant: Mutant, root: Path) -> None:
    """Raises PatchError if the mutant does not fit the files below `root`, or if the result is not valid
    Python."""
    for path in mutant.paths:
        text = mutated(mutant, path, _read(mutant, root, path))
        try:
            compile(text, path, "exec")
        except SyntaxError as error:
            raise PatchError(f"{mutant.name}: {path} would not compile: {error}") from error


def mutated(mutant: Mutant, path: str, text: str) -> str:
    """The content of one file after the mutant's changes."""
    lines = text.splitlines()
    shift = 0
    for hunk in mutant.hunks:
        if hunk.path != path:
            continue
        place = _find(mutant, hunk, lines, hunk.line - 1 + shift)
        lines[place : place + len(hunk.before)] = hunk.after
        shift += len(hunk.after) - len(hunk.before)
    return "\n".join(lines) + "\n"


def _find(mutant: Mutant, hunk: Hunk, lines: list[str], expected: int) -> int:
    size = len(hunk.before)
    if tuple(lines[expected : expected + size]) == hunk.before:
        return expected
    places = [at for at in range(len(lines) - size + 1) if tuple(lines[at : at + size]) == hunk.before]
    if len(places) == 1:
        return places[0]
    raise PatchError(
        f"{mutant.name}: the lines around {hunk.path}:{hunk.line} are there {len(places)} times; "
        "the code has changed: make the patch anew"
    )


def _read(mutant: Mutant, root: Path, path: str) -> str:
    file = root / path
    if not file.is_file():
        raise PatchError(f"{mutant.name}: there is no {path}")
    return file.read_text()

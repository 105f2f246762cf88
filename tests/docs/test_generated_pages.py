"""Pages against the code: generated parts are as they would be written now, commands can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import dledger
from dledger import errors
from dledger.audit.findings import EXIT_CODES, VERDICTS
from dledger.commands import group_status, local_group
from dledger.commands.app import COMMANDS
from tests.docs.generated import DOCS, PARTS, blocks, every_command, rewritten

PAGES = [path for path in sorted(DOCS.rglob("*.md")) if any(blocks(path.read_text()))]
ANY_PROPERTY = ("broker", "namesrv")
"""Commands that take settings as options."""
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(dledger [^`]+)`")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_a_generated_part_is_as_it_would_be_written_now(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    wanted = rewritten(text, lambda part: PARTS[part]())
    if request.config.getoption("--rewrite"):
        path.write_text(wanted)
        return
    stale = [name for (name, old), (_, new) in zip(blocks(text), blocks(wanted), strict=True) if old != new]
    page = path.relative_to(DOCS.parent)
    assert not stale, f"{page}: stale parts: {', '.join(stale)}. To write them: scripts/check --write"


def test_every_generated_part_is_of_a_known_kind() -> None:
    """Each part that a page has can be made, and each that can be made is in one page."""
    there = sorted(name for path in PAGES for name, _ in blocks(path.read_text()))
    unknown, missing = sorted(set(there) - PARTS.keys()), sorted(PARTS.keys() - set(there))
    assert not unknown, f"no function of PARTS in tests/docs/generated.py makes {unknown}"
    assert not missing, f"no page has <!-- generated: {missing[0]} --> and <!-- end -->"
    assert there == sorted(PARTS), "a part is in two pages"


def section(page: str, title: str) -> str:
    text = (DOCS / page).read_text()
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(text: str) -> list[str]:
    return [line.split("|")[1].strip() for line in text.splitlines() if re.match(r"\| \d", line)]


def test_exit_codes_are_those_of_the_code() -> None:
    """docs/reference/exit-codes.md."""
    page = "reference/exit-codes.md"
    servers = section(page, "Brokers, NameServers and stand-alone nodes")
    ours = {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {0, 2, *ours.values()} <= {int(code) for cell in first_cells(servers) for code in cell.split(",")}
    audits = section(page, "Audits and jobs")
    for severity, code in EXIT_CODES.items():
        row = rf"^\| {code} \| {severity.name.lower()} \|"
        assert re.search(row, audits, re.MULTILINE), VERDICTS[severity]
    local = first_cells(section(page, "Commands for a group of this machine"))
    told = [line.split()[0] for line in local_group.EXIT_CODES.splitlines()[2:]]
    assert local == told
    assert {group_status.FINE, group_status.ERRORS, group_status.NOT_SEEN} <= {int(code) for code in local}


def commands_in(path: Path) -> Iterator[str]:
    """What a page tells to type, one line each."""
    text = path.read_text()
    for kind, block in _FENCE.findall(text):
        if kind in ("", "sh", "bash", "console", "shell"):
            joined = block.replace("\\\n", " ")
            for line in joined.splitlines():
                line = line.strip().removeprefix("$ ")
                line = re.sub(r"^(\w+=\S+ +)+", "", line).split(" # ")[0].strip()
                if line.startswith("dledger "):
                    yield line
    for line in _INLINE.findall(_FENCE.sub("", text)):
        yield line.replace("\n", " ")


def test_commands_in_pages_can_be_typed() -> None:
    """Each word and each option of a `dledger ...` in a page is one that the command has."""
    known: dict[tuple[str, ...], set[str]] = {}
    for words, rows, _ in every_command():
        known[words] = set(re.findall(r"-[-\w]+", " ".join(written for written, _ in rows)))
    for short, long in (("verify", ("audit", "verify")), ("sim", ("chaos", "sim"))):
        known[(short,)] = known[long]
    wrong = []
    for path in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]:
        for line in commands_in(path):
            try:
                words = shlex.split(re.sub(r"\[(.*?)\]", r" \1 ", line), comments=True)[1:]
            except ValueError:
                words = line.split()[1:]
            name = words[0] if words else ""
            if name.startswith("-") or not re.fullmatch(r"[a-z-]+", name):
                continue  # `dledger --help`, `dledger X ...`
            found = (name, words[1]) if len(words) > 1 and (name, words[1]) in known else (name,)
            if found not in known and not any(one[0] == name for one in known):
                wrong.append(f"{path.relative_to(DOCS.parent)}: {line}: no command {name}")
                continue
            if name in ANY_PROPERTY:
                continue
            options = known.get(found, set().union(*(o for w, o in known.items() if w[0] == name)))
            for word in words:
                option = word.split("=")[0].strip("(),;:.")
                is_one = re.fullmatch(r"--[a-z][-a-z]+|-[a-z]", option)
                if is_one and option not in options | {"--help", "-h"}:
                    wrong.append(f"{path.relative_to(DOCS.parent)}: {line}: no option {option}")
    assert not wrong, "\n".join(wrong)
    assert {one[0] for one in known} >= set(COMMANDS)


def test_the_reference_of_the_python_api_has_every_public_name() -> None:
    """docs/reference/python-api.md; its text comes from the docstrings when the site is built."""
    shown = re.findall(r"^::: dledger\.(\w+)$", (DOCS / "reference/python-api.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(dledger.__all__)

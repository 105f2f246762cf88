"""Pages against the code: generated parts are as they would be written now, commands can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import dledger
from dledger import errors
from dledger.audit.crash import COULD_NOT_RUN
from dledger.audit.findings import EXIT_CODES, VERDICTS
from dledger.commands import exit_codes, group_status
from dledger.commands.app import COMMANDS
from dledger.remoting.cli import EXIT_BAD_CONFIG, EXIT_FAILED
from dledger.runtime import signals
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


def test_the_table_of_exit_codes_is_that_of_the_program() -> None:
    """Other modules have constants of their own where they must not import the table: they mean the same."""
    ours = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert ours <= {one.number for one in exit_codes.SERVER.codes}
    audits = {one.name: one.number for one in exit_codes.AUDIT.codes}
    assert audits == {
        VERDICTS[severity].replace("failed", "unknown"): code for severity, code in EXIT_CODES.items()
    }
    assert {group_status.FINE, group_status.ERRORS, group_status.NOT_SEEN} <= {
        one.number for one in exit_codes.LOCAL_GROUP.codes
    }
    assert (signals.INTERRUPTED, signals.TERMINATED) == (exit_codes.INTERRUPTED, exit_codes.TERMINATED)
    assert exit_codes.AUDIT.cannot_run == COULD_NOT_RUN
    assert (EXIT_FAILED, EXIT_BAD_CONFIG) == (exit_codes.FAILED, exit_codes.USAGE)


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

"""The files for people at the top of the repository: what they name exists, and fragments can be gathered."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.scripts.test_orders import load_script

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
FRAGMENT = load_script("release").FRAGMENT
KINDS = [one["directory"] for one in PROJECT["tool"]["towncrier"]["type"]]
FRAGMENTS = sorted(path for path in (ROOT / "changes").iterdir() if path.name != "README.md")
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"))


def faults(name: str, text: str) -> list[str]:
    """What is wrong with a fragment of the changelog."""
    found = []
    kind = FRAGMENT.fullmatch(name)
    if kind is None:
        found.append("call it ISSUE.KIND.md or +short-name.KIND.md")
    elif kind[1] not in KINDS:
        found.append(f"{kind[1]!r} is no kind of change; the kinds are {', '.join(KINDS)}")
    sentence = text.strip()
    if not sentence:
        found.append("it is empty: write a sentence for users")
        return found
    if "\n\n" in sentence or re.search(r"^\s*[-*#] ", sentence, re.M):
        found.append("write one paragraph, without headings and lists")
    if not re.match(r"[A-Z`*\[\"]", sentence):
        found.append("begin with a capital letter, or with a name in backticks")
    if not re.search(r"[.!?]\)?$", sentence):
        found.append("end the sentence with a full stop")
    if len(sentence.split()) < 4:
        found.append("write a whole sentence")
    return found


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_has_a_known_kind_and_is_a_sentence(path: Path) -> None:
    wrong = faults(path.name, path.read_text())
    assert not wrong, f"changes/{path.name}: " + "; ".join(wrong)


GOOD_SENTENCE = "A leader that steps down says why."


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("12.fixed.md", GOOD_SENTENCE, None),
        ("+steps-down.added.md", GOOD_SENTENCE + " Its log has the reason\nin one line.\n", None),
        ("12.changed.md", "`dledger up` takes `--groups`, and starts as many.", None),
        ("steps-down.fixed.md", GOOD_SENTENCE, "call it"),
        ("12.fixed", GOOD_SENTENCE, "call it"),
        ("12.bugfix.md", GOOD_SENTENCE, "'bugfix' is no kind of change; the kinds are added, changed"),
        ("12.fixed.md", "", "it is empty"),
        ("12.fixed.md", "\n \n", "it is empty"),
        ("12.fixed.md", "a leader says why it steps down.", "capital letter"),
        ("12.fixed.md", "A leader says why it steps down", "full stop"),
        ("12.fixed.md", "Steps down.", "whole sentence"),
        ("12.fixed.md", "- A leader says why it steps down.", "one paragraph"),
        ("12.fixed.md", "A leader says why.\n\nA follower does too.", "one paragraph"),
        ("12.fixed.md", "A leader says:\n* why it steps down.", "one paragraph"),
    ],
)
def test_the_rules_for_fragments(name: str, text: str, fault: str | None) -> None:
    found = faults(name, text)
    assert found == [] if fault is None else any(fault in one for one in found), found


def test_fragments_become_a_section_of_the_changelog(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "CHANGELOG.md").write_text((ROOT / "CHANGELOG.md").read_text())
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes/README.md").write_text((ROOT / "changes/README.md").read_text())
    (tmp_path / "changes/12.fixed.md").write_text(GOOD_SENTENCE + "\n")
    (tmp_path / "changes/+short.added.md").write_text("`dledger up` takes `--groups`.\n")
    command = [
        sys.executable,
        "-m",
        "towncrier",
        "build",
        "--yes",
        "--version",
        "9.9.9",
        "--date",
        "2000-01-02",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    text = (tmp_path / "CHANGELOG.md").read_text()
    assert "## 9.9.9 (2000-01-02)\n\n### Added\n\n- `dledger up` takes `--groups`.\n" in text, (
        done.stderr + text
    )
    assert "### Fixed\n\n- A leader that steps down says why. (#12)\n" in text
    assert text.index("## 9.9.9") < text.index("## 0.1.0"), "the newest release comes first"


def test_the_changelog_has_a_section_for_the_version() -> None:
    version = PROJECT["project"]["version"]
    assert f"\n## {version} (" in (ROOT / "CHANGELOG.md").read_text()


def test_the_classifiers_name_the_pythons_that_are_tested() -> None:
    (tested,) = re.findall(r"^PYTHONS = \((.*)\)$", (ROOT / "scripts/release.py").read_text(), re.M)
    said = [
        one.rpartition(" ")[2] for one in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", one)
    ]
    assert said == re.findall(r"[\d.]+", tested)


def test_the_licence_is_an_expression_that_the_build_understands() -> None:
    """PEP 639; setuptools knows it from 77 on."""
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert all((ROOT / name).is_file() for name in PROJECT["project"]["license-files"])
    assert "setuptools>=77" in PROJECT["build-system"]["requires"]
    assert not [one for one in PROJECT["project"]["classifiers"] if one.startswith("License")]


def test_hooks_download_nothing_and_run_what_exists() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    for repository in config["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            script, *steps = hook["entry"].split()
            assert hook["language"] == "system" and (ROOT / script).is_file()
            done = subprocess.run(
                [sys.executable, "scripts/check.py", "--list", *steps],
                cwd=ROOT,
                capture_output=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr


def test_pages_for_authors_stay_out_of_the_search_of_the_site() -> None:
    assert "hooks: [scripts/docs_search.py]" in (ROOT / "mkdocs.yml").read_text()
    hook = runpy.run_path(str(ROOT / "scripts/docs_search.py"))
    assert all((ROOT / "docs" / begin).exists() for begin in hook["NOT_SEARCHED"])
    for name, hidden in (("explanation/decisions/0001-x.md", True), ("howto/pop.md", False)):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=name), meta={})
        assert hook["on_page_markdown"]("text", page=page, config=None, files=None) == "text"
        assert page.meta == ({"search": {"exclude": True}} if hidden else {})


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_an_issue_template_has_what_the_host_reads(path: Path) -> None:
    head = yaml.safe_load(path.read_text().split("---\n")[1])
    assert head.keys() == {"name", "about", "labels"}


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/internals/testing.md", "docs/internals/map.md"])
def test_scripts_and_tests_that_a_page_tells_to_run_exist(name: str) -> None:
    for command in re.findall(
        r"(?:^|`)((?:DLEDGER_FAST=0 )?(?:scripts|\.ci)/[\w-]+(?: [^`\n]*)?)", (ROOT / name).read_text(), re.M
    ):
        words = [word for word in command.split("#")[0].split() if not word.startswith("DLEDGER_")]
        for word in words:
            path = word.partition("::")[0]
            if re.match(r"(scripts|tests|\.ci)/", path) and "*" not in path:
                assert (ROOT / path).exists(), f"{name}: `{command}` names {path}"

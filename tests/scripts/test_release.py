"""`scripts/release`: the changelog that it writes, and what it refuses to call a release.

The files themselves are built and tried by the command, in `.ci/run`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.scripts.test_orders import load_script

release = load_script("release")
START = "# Changelog\n\nIntroduction.\n\n<!-- releases begin here -->\n"
OLDER = "\n## 0.0.9 (2000-01-01)\n\n### Added\n\n- The first thing.\n"
GATHERED = "## 0.1.0 (2000-02-03)\n\n### Fixed\n\n- A leader says why it steps down.\n"


def test_a_section_that_was_begun_gets_its_date_and_the_fragments() -> None:
    text = f"{START}\n## 0.1.0 (not released yet)\n\nBy hand.\n{OLDER}"
    written = release.dated_changelog(text, "0.1.0", "2000-02-03", GATHERED)
    assert written == (
        START
        + "\n## 0.1.0 (2000-02-03)\n\nBy hand.\n\n### Fixed\n\n- A leader says why it steps down.\n"
        + OLDER
    )


def test_without_fragments_only_the_date_is_new() -> None:
    gathered = "## 0.1.0 (2000-02-03)\n\nNo significant changes.\n"
    text = f"{START}\n## 0.1.0 (not released yet)\n\nBy hand.\n"
    assert release.dated_changelog(text, "0.1.0", "2000-02-03", gathered) == text.replace(
        "not released yet", "2000-02-03"
    )


def test_a_new_section_comes_first() -> None:
    written = release.dated_changelog(START + OLDER, "0.1.0", "2000-02-03", GATHERED)
    assert written == f"{START}\n{GATHERED}{OLDER}"


@pytest.mark.parametrize(
    ("text", "gathered", "fault"),
    [
        (f"{START}\n## 0.1.0 (2000-01-31)\n", GATHERED, "raise `version` in pyproject.toml"),
        (START, "## 0.1.0 (2000-02-03)\n\nNo significant changes.\n", "changes/ has no fragment"),
        ("# Changelog\n", GATHERED, "lost the line '<!-- releases begin here -->'"),
    ],
)
def test_a_changelog_that_cannot_be_written(text: str, gathered: str, fault: str) -> None:
    with pytest.raises(release.ReleaseError, match="^[^\n]*" + fault.replace("(", r"\(")):
        release.dated_changelog(text, "0.1.0", "2000-02-03", gathered)


def test_the_notes_of_a_release_are_its_section() -> None:
    written = release.dated_changelog(START + OLDER, "0.1.0", "2000-02-03", GATHERED)
    assert release.section_of(written, "0.1.0") == "### Fixed\n\n- A leader says why it steps down.\n"


def test_fragments_move_into_the_changelog(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "changes/README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((release.ROOT / name).read_bytes())
    (tmp_path / "CHANGELOG.md").write_text(START + OLDER)
    (tmp_path / "changes/7.fixed.md").write_text("A leader says why it steps down.\n")
    notes = release.write_changelog(tmp_path, "0.1.0", "2000-02-03")
    assert notes == "### Fixed\n\n- A leader says why it steps down. (#7)\n"
    assert (tmp_path / "CHANGELOG.md").read_text() == f"{START}\n## 0.1.0 (2000-02-03)\n\n{notes}{OLDER}"
    assert [path.name for path in (tmp_path / "changes").iterdir()] == ["README.md"]


@pytest.mark.parametrize("name", ["+typo.fix.md", "no-kind.md", "7.fixed.txt"])
def test_a_file_that_would_be_left_out_stops_the_changelog(tmp_path: Path, name: str) -> None:
    """towncrier passes over it without a word; it would be deleted, and the note lost."""
    for one in ("pyproject.toml", "changes/README.md"):
        (tmp_path / one).parent.mkdir(exist_ok=True)
        (tmp_path / one).write_bytes((release.ROOT / one).read_bytes())
    (tmp_path / "CHANGELOG.md").write_text(START + OLDER)
    (tmp_path / "changes/7.fixed.md").write_text("A leader says why it steps down.\n")
    (tmp_path / "changes" / name).write_text("A note.\n")
    with pytest.raises(release.ReleaseError, match="is no fragment"):
        release.write_changelog(tmp_path, "0.1.0", "2000-02-03")
    assert (tmp_path / "CHANGELOG.md").read_text() == START + OLDER
    assert (tmp_path / "changes/7.fixed.md").exists() and (tmp_path / "changes" / name).exists()


@pytest.mark.parametrize(
    ("wheel", "oldest"),
    [
        ("d-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", (2, 17)),
        ("d-1-cp311-cp311-manylinux1_x86_64.manylinux_2_28_x86_64.manylinux_2_5_x86_64.whl", (2, 5)),
    ],
)
def test_the_oldest_glibc_of_a_wheel(wheel: str, oldest: tuple[int, int]) -> None:
    assert release.oldest_glibc(wheel) == oldest


@pytest.mark.parametrize(
    ("wheel", "fault"),
    [
        ("d-1-cp311-cp311-linux_x86_64.whl", "no manylinux tag"),
        ("d-1-cp311-cp311-manylinux_2_34_x86_64.whl", "needs glibc 2.34, and 2.17 is promised"),
    ],
)
def test_a_wheel_that_old_systems_refuse(wheel: str, fault: str) -> None:
    with pytest.raises(release.ReleaseError, match=fault):
        release.oldest_glibc(wheel)


PACKAGE = "dledger"
TRACKED = [
    "README.md",
    f"{PACKAGE}/a.py",
    f"{PACKAGE}/twins.pyx",
    f"{PACKAGE}/m.patch",
    "pyspark_dledger/b.py",
]
HELD = ["dledger/", f"{PACKAGE}/a.py", "pyspark_dledger/b.py", "d-1.dist-info/METADATA"]
TWINS = "dledger/_fast/compiled.cpython-311-x86_64-linux-gnu.so"


@pytest.mark.parametrize(("names", "compiled"), [(HELD, False), ([*HELD, TWINS], True)])
def test_a_wheel_holds_each_file_of_the_packages(names: list[str], compiled: bool) -> None:
    release.check_content("d.whl", names, TRACKED, compiled)


@pytest.mark.parametrize(
    ("names", "compiled", "fault"),
    [
        (HELD[:2], False, "lacks pyspark_dledger/b.py"),
        ([*HELD, f"{PACKAGE}/old.py"], False, f"must not hold {PACKAGE}/old.py"),
        ([*HELD, "broker/a.py"], False, "must not hold broker/a.py"),
        (HELD, True, "has no compiled twins"),
        ([*HELD, TWINS], False, "has compiled code"),
    ],
)
def test_a_wheel_with_other_content_is_refused(names: list[str], compiled: bool, fault: str) -> None:
    with pytest.raises(release.ReleaseError, match=fault):
        release.check_content("d.whl", names, TRACKED, compiled)


def test_an_sbom_names_no_file_of_this_machine() -> None:
    index = {"type": "website", "url": "https://example.org/lz4"}
    bill = {
        "metadata": {"component": {"name": "dledger"}},
        "components": [
            {"name": "dledger", "externalReferences": [{"type": "distribution", "url": "file:///tmp/d.whl"}]},
            {"name": "lz4", "externalReferences": [index]},
        ],
    }
    release.drop_local_references(bill)
    assert [one["externalReferences"] for one in bill["components"]] == [[], [index]]


def test_a_failed_command_shows_the_end_of_its_output() -> None:
    script = "import sys; print('before'); sys.exit('the reason')"
    with pytest.raises(release.ReleaseError, match="exit code 1:\nbefore\nthe reason"):
        release.output_of([sys.executable, "-c", script])


def test_a_missing_python_is_named() -> None:
    with pytest.raises(release.ReleaseError, match=r"Python 2\.0 is not installed"):
        release.find_python("2.0")


@pytest.mark.parametrize("arguments", [[], ["--check", "--changelog"]])
def test_one_of_two_things_is_asked_for(arguments: list[str]) -> None:
    done = CliRunner().invoke(release.main, arguments)
    assert done.exit_code == 2
    assert "--check to make and try the files, or --changelog" in done.output


def test_files_are_kept_only_of_a_commit_and_in_an_empty_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def made(out: Path, work: Path) -> list[object]:
        (out / "raw-x").mkdir()
        (out / "file").write_text("content")
        return []

    monkeypatch.setattr(release, "make", made)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "project", lambda: {"version": "0.1.0"})
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    out = tmp_path / ".git" / "kept"
    done = CliRunner().invoke(release.main, ["--check", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert [path.name for path in out.iterdir()] == ["file"]
    done = CliRunner().invoke(release.main, ["--check", "--out", str(out)])
    assert (done.exit_code, "is not empty" in done.output) == (1, True)
    (tmp_path / "changed").write_text("")
    done = CliRunner().invoke(release.main, ["--check", "--out", str(tmp_path / ".git" / "other")])
    assert (done.exit_code, "commit them" in done.output) == (1, True)
    assert not (tmp_path / ".git" / "other").exists()


def test_the_table_says_with_what_each_file_was_tried() -> None:
    made = [release.Made("d.whl", 12, "ab", "3.11", "2.17", 8.5), release.Made("notes.md", 1, "cd")]
    assert release.table(made).splitlines()[1:] == [
        "d.whl     12   2.17          3.11        8.5",
        "notes.md  1    -             -           -",
    ]

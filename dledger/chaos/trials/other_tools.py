"""What the clients of other projects need on this machine, and the commands that start them.

Their programs are in `others/`. The client libraries are not part of this package: the jars of the Java
client are where an environment variable says, and Go has its modules in its module cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent / "others"
"""Directory with the programs of the clients of other projects."""
CLASSPATH = "DLEDGER_JAVA_CLASSPATH"
"""Environment variable with the class path of Apache RocketMQ's Java client, for example `/opt/jars/*`."""
BUILD_LIMIT_S = 600
"""Longest time that Go has to build its program, in seconds."""
MEMORY = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_OFFLINE = {"GOFLAGS": "-mod=readonly -buildvcs=false", "GOPROXY": "off"}


class CannotStart(Exception):
    """Raised if a client of another project cannot be started. The text says why."""


@dataclass(frozen=True)
class Tool:
    """How a client of another project is started."""

    missing: Callable[[], str]
    """Returns what is to be installed before it can be started; an empty text if nothing. It may take some
    seconds when it is called first."""
    command: Callable[[Path], list[str]]
    """Returns the command without its arguments. Files may be written into the given directory. Blocking.
    Raises CannotStart."""


def environment(home: Path) -> dict[str, str]:
    """The environment of such a process. What it keeps in the home directory is written into `home`; the
    compilers keep their caches where they are."""
    return {**os.environ, "HOME": str(home), "JAVA_TOOL_OPTIONS": ""}


def java_missing(variables: Mapping[str, str] | None = None) -> str:
    """Returns what the Java client lacks. `variables` are those of the environment, unless given."""
    given = (os.environ if variables is None else variables).get(CLASSPATH, "")
    if shutil.which("java") is None or shutil.which("javac") is None:
        return "the client java needs a JDK of version 11 or newer: java and javac must be on the PATH"
    if not any(jar.name.startswith("rocketmq-client") for jar in _jars(given)):
        return (
            f"the client java needs the jars of Apache RocketMQ's Java client (rocketmq-client 4.9 or 5): "
            f"give their class path in {CLASSPATH}, for example '/opt/jars/*'; it is {given!r}"
        )
    return ""


def _jars(classpath: str) -> list[Path]:
    """All jars of a class path, in which `DIR/*` stands for all jars of a directory."""
    found: list[Path] = []
    for entry in filter(None, classpath.split(os.pathsep)):
        path = Path(entry)
        found += sorted(path.parent.glob("*.jar")) if path.name == "*" else [path] if path.exists() else []
    return found


def _java_command(home: Path) -> list[str]:
    user = f"-Duser.home={home}"
    classpath = os.environ.get(CLASSPATH, "")
    return ["java", *MEMORY, user, "-cp", classpath, str(SOURCES / "OtherClient.java")]


@cache
def go_missing() -> str:
    """Returns what the Go client lacks."""
    if shutil.which("go") is None:
        return "the client go needs Go 1.21 or newer: go must be on the PATH"
    try:
        _build(Path(os.devnull))
    except CannotStart as problem:
        return (
            f"the client go cannot be built. Its modules must be in the module cache: `go mod download` in "
            f"{SOURCES / 'go'} fetches them. Go says: {problem}"
        )
    return ""


def _build(target: Path) -> None:
    command = ["go", "build", "-o", str(target), "."]
    try:
        done = subprocess.run(
            command,
            cwd=SOURCES / "go",
            env={**os.environ, **_OFFLINE},
            capture_output=True,
            text=True,
            timeout=BUILD_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotStart(f"go build did not end within {BUILD_LIMIT_S} s") from None
    if done.returncode:
        raise CannotStart(done.stderr.strip()[-600:])


def _go_command(home: Path) -> list[str]:
    _build(home / "otherclient")
    return [str(home / "otherclient")]


TOOLS: Mapping[str, Tool] = {
    "java": Tool(java_missing, _java_command),
    "go": Tool(go_missing, _go_command),
}
"""The clients of other projects, by the kind of client."""

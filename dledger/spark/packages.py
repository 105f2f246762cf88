"""Our own packages for executors, in a zip that Spark sends along with a job.

Spark sends a `.zip` to executors and adds it to their import path. `--py-files` also accepts a wheel, but
adds it only to the driver's path, because pyspark looks only for `.zip`, `.egg` and `.jar`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo
from zlib import crc32

from dledger import audit

EXECUTOR_PACKAGES = ("_fast", "audit", "client", "formats", "remoting", "runtime", "spark")
"""Packages of `dledger` that executors need: `spark`, and what it may import. Compiled modules are not
sent, only their Python versions."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


def package_root() -> str:
    """Return the path that contains our packages: the repository, site-packages, or a zip."""
    return str(Path(str(audit.__file__)).absolute().parents[2])


def sent_by_spark() -> bool:
    """Whether this package was imported from an archive of a kind that Spark puts on the path of executors
    too."""
    return package_root().endswith((".zip", ".egg", ".jar"))


def archive(cache: Path, root: str | None = None) -> Path:
    """Make the zip in the cache directory. Its name depends on its content, and it appears complete by one
    rename."""
    modules = sorted(_modules(Path(root or package_root())))
    if not modules:
        raise FileNotFoundError(f"the package dledger is missing in {root or package_root()}")
    digest = 0
    for name, content in modules:
        digest = crc32(content, crc32(name.encode(), digest))
    path = cache / f"dledger-{digest:08x}.zip"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        with ZipFile(unfinished, "w", ZIP_DEFLATED) as made:
            for name, content in modules:
                made.writestr(ZipInfo(name, _EPOCH), content, ZIP_DEFLATED)
        os.replace(unfinished, path)
    return path


def _modules(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (name in the zip, content) of every module. `root` is a directory, or an archive such as a
    wheel."""
    if root.is_dir():
        for path in root.glob("dledger/__init__.py"):
            yield path.relative_to(root).as_posix(), path.read_bytes()
        for part in EXECUTOR_PACKAGES:
            for path in (root / "dledger" / part).rglob("*.py"):
                yield path.relative_to(root).as_posix(), path.read_bytes()
        return
    with ZipFile(root) as source:
        for name in source.namelist():
            if _for_executors(name):
                yield name, source.read(name)


def _for_executors(name: str) -> bool:
    top, _, rest = name.partition("/")
    part = rest.partition("/")[0]
    return top == "dledger" and name.endswith(".py") and part in ("__init__.py", *EXECUTOR_PACKAGES)

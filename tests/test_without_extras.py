"""What a base install does without: the packages of the extras `spark` and `s3`."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.uninstalled import ROOT, run_module_without, run_without

NEED_PYARROW = ("kept", "report_table", "shipped", "shipped_scans")
NEED_AN_EXTRA = (*(f"dledger/audit/{name}.py" for name in NEED_PYARROW), "dledger/bench/lake.py")
"""Modules that cannot be imported without an extra; their importers say what to install."""

FOLDERS = (
    "tests/audit", "tests/bench", "tests/cluster", "tests/interop", "tests/lake", "tests/runtime",
    "tests/spark",
)  # fmt: skip
"""Folders of the tests that use extras. To collect all tests instead takes more than twice the time."""

IMPORT_ALL = """
from importlib import import_module
for name in sys.argv[1:]:
    try:
        import_module(name)
    except ImportError as error:
        print(name, error)
"""


def packages_of_extras(*chosen: str) -> list[str]:
    """Names of the modules, which are those of the packages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = {re.split(r"[^\w-]", text)[0].replace("-", "_") for extra in chosen for text in extras[extra]}
    return sorted(names - {"dledger"})


def modules() -> list[Path]:
    """What a base install consists of, without what runs when it is imported."""
    found = (path.relative_to(ROOT) for path in (ROOT / "dledger").rglob("*.py"))
    alone = [path for path in found if path.parts[1] not in ("spark", "lake")]
    return sorted(path for path in alone if path.name != "__main__.py")


def test_only_the_modules_that_say_so_need_an_extra() -> None:
    names = {".".join(path.with_suffix("").parts): path.as_posix() for path in modules()}
    assert len(names) > 200, "no module found: the test looks in the wrong place"
    packages = packages_of_extras("spark", "s3")
    assert {"pyspark", "pyarrow", "s3fs"} <= set(packages)
    done = run_without(packages, IMPORT_ALL, *sorted(names))
    assert done.returncode == 0, done.stderr
    failed = {names[line.split()[0]]: line for line in done.stdout.splitlines()}
    assert tuple(sorted(failed)) == NEED_AN_EXTRA, done.stdout


BARE = ("client", "commands", "formats", "local", "namesrv", "remoting", "runtime")
"""Parts that an install without any extra can use."""


WITH_HTTP = ("dledger/namesrv/http_server.py",)
"""Modules of these parts that need an extra; they are imported only with an HTTP port."""


def test_clients_and_name_servers_need_no_extra() -> None:
    found = [path for path in modules() if path.parts[1] in BARE and path.stem != "__init__"]
    paths = [path.with_suffix("") for path in found if path.as_posix() not in WITH_HTTP]
    done = run_without(
        packages_of_extras("server", "spark", "s3"),
        IMPORT_ALL,
        *sorted(".".join(path.parts) for path in paths),
    )
    assert done.returncode == 0 and done.stdout == "" and len(paths) > 60, done.stdout + done.stderr


def test_importing_a_client_loads_nothing_heavy() -> None:
    program = "from dledger import Producer, Message; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "dledger.client.producing.sync_producer" in loaded
    assert not loaded & {"aiohttp", "numpy", "pandas", "prometheus_client", "pyarrow", "pyspark", "click"}


def test_importing_dledger_loads_nothing() -> None:
    program = "import sys; before = set(sys.modules); import dledger; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [name for name in done.stdout.split() if name.startswith("dledger.")] == []


def test_tests_are_collected_or_skipped_with_the_reason() -> None:
    packages = packages_of_extras("spark", "lake", "s3")
    arguments = ("--collect-only", "-rs", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "", *FOLDERS)
    done = run_module_without(packages, "pytest", *arguments)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    skipped = dict(re.findall(r"^SKIPPED \[\d+\] (\S+):\d+: (.+)$", done.stdout, re.MULTILINE))
    assert "tests/audit/test_audit_kept.py" in skipped and "tests/spark/test_spark_sink.py" in skipped
    for module, reason in skipped.items():
        missing = re.search(r"No module named '(\w+)", reason)
        assert missing and missing[1] in packages, f"{module}: {reason}"

"""Fixtures that more than one package's tests use."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# How long an example takes to draw or to run says how busy the machine is, and nothing of what is tested.
_PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
# Everywhere the same examples; `scripts/deep` looks for others with `--hypothesis-profile search`.
hypothesis.settings.register_profile("fixed", derandomize=True, database=None, **_PATIENT)
hypothesis.settings.register_profile(
    "search", derandomize=False, max_examples=400, print_blob=True, **_PATIENT
)
hypothesis.settings.load_profile("fixed")

PARTS = ["audit", "bench", "broker", "chaos", "client", "formats", "namesrv", "remoting", "runtime", "spark"]


class OneCopy:
    """`import broker` would find the directory in the root, and make a second copy of `dledger.broker`."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name in PARTS:
            raise ImportError(f"dledger.{name} is its name: a second copy has other classes")


sys.meta_path.insert(0, OneCopy)  # type: ignore[arg-type]

# Where the cluster of whoever runs the tests is must not decide what they do.
for variable in ("NAMESRV_ADDR", "DLEDGER_DIR", "ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY", "ROCKETMQ_TLS"):
    os.environ.pop(variable, None)

_module: Path | None = None
"""The module of the test that runs now."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="tests/docs: write the generated parts of pages (scripts/check --write); tests/scripts: write "
        "what the commands print now",
    )


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_samples(items)


def mark_samples(items: list[pytest.Item]) -> None:
    """Mark cases of tests with `sample(N)` as `slow`, except N cases that are spread over all of them."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for group in cases.values():
        marker = group[0].get_closest_marker("sample")
        assert marker is not None
        (wanted,) = marker.args
        kept = {number * len(group) // wanted for number in range(wanted)}
        for number, item in enumerate(group):
            if number not in kept:
                item.add_marker("slow")


# Before any fixture: a session that is made for a test that is skipped costs more than most tests.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("spark") is not None:
        pytest.importorskip("pyspark")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Between two modules, where no test has anything: the collector need not look at what stays.

    Simulated worlds collect at their end, and so do some tests, each time through all that is not frozen: the
    tests that were collected, and what was imported.
    """
    global _module
    if item.path != _module:
        _module = item.path
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A program that a test runs in this process sets up logging for good: its handlers end with the test."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in [one for one in root.handlers if one not in before]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


@pytest.fixture(scope="session")
def unused_tcp_ports() -> Callable[[int], list[int]]:
    """Ports of 127.0.0.1 on which nobody listens; no other process of the tests gets them."""
    from tests.ports import free_ports

    return free_ports


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """One Spark session for all tests; they are skipped with the reason where there is no Java."""
    pytest.importorskip("pyspark")
    from dledger.spark.java import NoJava
    from dledger.spark.session import session

    try:
        made = session("tests", "local[2,4]", short=True)
    except NoJava as error:
        pytest.skip(str(error))
    yield made
    made.stop()


@pytest.fixture
def ports_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is started with the usual ports, and never listens, does not look who has them."""
    for program in ("broker", "namesrv"):
        monkeypatch.setattr(f"dledger.{program}.cli.wait_for_ports", lambda *ports: None)

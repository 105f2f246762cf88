"""Fixtures that more than one package's tests use."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="tests/scripts: write what the commands print now into them"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("spark") is not None:
        pytest.importorskip("pyspark")


@pytest.fixture(scope="session")
def unused_tcp_ports() -> Callable[[int], list[int]]:
    """Ports of 127.0.0.1 that nobody listened on a moment ago."""

    def find(count: int) -> list[int]:
        sockets = [socket.socket() for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in sockets]
        for one in sockets:
            one.close()
        return ports

    return find


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """One Spark session for all tests; they are skipped with the reason where there is no Java."""
    pytest.importorskip("pyspark")
    from spark.java import NoJava
    from spark.session import session

    try:
        made = session("tests", "local[2,4]", short=True)
    except NoJava as error:
        pytest.skip(str(error))
    yield made
    made.stop()

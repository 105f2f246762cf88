"""One Spark session for all tests of this directory; skipped with the reason where there is no Java."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    pytest.importorskip("pyspark")
    from spark.java import NoJava
    from spark.session import session

    try:
        made = session("tests", "local[2,4]", short=True)
    except NoJava as error:
        pytest.skip(str(error))
    yield made
    made.stop()

"""Fixtures of the tests of tables."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["delta", "iceberg"])
def format(request: pytest.FixtureRequest) -> str:
    """The format of a table."""
    return str(request.param)

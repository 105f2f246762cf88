"""Fixtures of the broker's tests."""

from __future__ import annotations

import pytest

from dledger.broker.clients import notices as client_notices


@pytest.fixture
def short_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told together is told soon."""
    monkeypatch.setattr(client_notices, "GAP_S", 0.005)


@pytest.fixture
def long_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told together waits until the test ends the gap (`end_gap` of test_clients)."""
    monkeypatch.setattr(client_notices, "GAP_S", 60.0)

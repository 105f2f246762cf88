"""Fixtures of the broker's tests."""

from __future__ import annotations

import pytest

from dledger.broker.client import notices as client_notices


@pytest.fixture
def short_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told together is told soon."""
    monkeypatch.setattr(client_notices, "GAP_S", 0.005)

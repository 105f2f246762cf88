"""Fixtures of the clients' tests."""

from __future__ import annotations

import pytest

from tests.client.patience import be_patient


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NameServer and brokers of the same process answer when the test lets them: clients wait for that."""
    be_patient(monkeypatch)

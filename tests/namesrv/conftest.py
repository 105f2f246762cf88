"""Fixtures of the tests of tests/namesrv."""

from __future__ import annotations

import pytest

from tests.client.patience import be_patient


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of the same process answers when the test lets it: clients wait for that."""
    be_patient(monkeypatch)

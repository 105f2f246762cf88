"""Fixtures for tests of the log."""

from __future__ import annotations

import pytest

from dledger.peers import log_client
from dledger.runtime.files import OsFile


@pytest.fixture
def index_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index units are read at once, also when the machine took their pages back since they were written: for
    tests that ask a store without `settled`. What is cold where a test says so stays cold."""
    monkeypatch.setattr(OsFile, "pread_now", OsFile.pread)


@pytest.fixture
def patient_dials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of the log wait for a connection to a node of the same process, whatever the machine does."""
    monkeypatch.setattr(log_client, "DIAL_S", 20.0)

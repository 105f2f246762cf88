"""Fixtures of the clients' tests."""

from __future__ import annotations

import dataclasses

import pytest

from dledger.client import ClientOptions
from dledger.remoting.limits import ClientLimits


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NameServer of the same process is connected to, and answers, when the test lets it: by default
    clients wait for that."""
    names = [field.name for field in dataclasses.fields(ClientOptions)]
    defaults = list(ClientOptions.__init__.__defaults__ or ())
    assert len(defaults) == len(names)
    defaults[names.index("namesrv_timeout_s")] = 20.0
    defaults[names.index("limits")] = ClientLimits(connect_timeout_s=20.0)
    monkeypatch.setattr(ClientOptions.__init__, "__defaults__", tuple(defaults))
    assert ClientOptions().namesrv_timeout_s == ClientOptions().limits.connect_timeout_s == 20.0

"""Fixtures of the clients' tests."""

from __future__ import annotations

import dataclasses

import pytest

from dledger.client import ClientOptions


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NameServer of the same process answers when the test lets it: by default clients wait for that."""
    names = [field.name for field in dataclasses.fields(ClientOptions)]
    defaults = list(ClientOptions.__init__.__defaults__ or ())
    assert len(defaults) == len(names)
    defaults[names.index("namesrv_timeout_s")] = 20.0
    monkeypatch.setattr(ClientOptions.__init__, "__defaults__", tuple(defaults))
    assert ClientOptions().namesrv_timeout_s == 20.0

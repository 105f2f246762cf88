"""Longer default time-outs, for tests whose servers run in the process of the client."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dledger.client import ClientOptions, ProducerOptions
from dledger.remoting.client import RemotingClient
from dledger.remoting.limits import ClientLimits
from dledger.runtime.loops import LoopThread

PATIENCE_S = 20.0
"""How long each single step may take by default: the process may stand still for seconds."""


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default a client waits for an answer longer than the machine pauses.

    Without this, a pause would let an attempt time out, and the client would ask again, or elsewhere. A test
    of a time-out names the option, and makes it short only for what must fail.
    """
    limits = ClientLimits(connect_timeout_s=PATIENCE_S)
    _change(monkeypatch, ClientLimits, connect_timeout_s=PATIENCE_S)
    _change(
        monkeypatch,
        ClientOptions,
        namesrv_timeout_s=PATIENCE_S,
        request_timeout_s=PATIENCE_S,
        probe_timeout_s=PATIENCE_S,
        failover_timeout_s=3 * PATIENCE_S,
        limits=limits,
    )
    _change(monkeypatch, ProducerOptions, attempt_timeout_s=PATIENCE_S, timeout_s=3 * PATIENCE_S)
    header, body, _ = RemotingClient.invoke.__defaults__ or ()
    monkeypatch.setattr(RemotingClient.invoke, "__defaults__", (header, body, PATIENCE_S))
    monkeypatch.setattr(LoopThread.close, "__defaults__", (3 * PATIENCE_S,))
    monkeypatch.setattr("dledger.client.address_hints.ANSWER_TIMEOUT_S", PATIENCE_S)


def _change(monkeypatch: pytest.MonkeyPatch, options: type[Any], **changed: object) -> None:
    """Other defaults of a class of options, all fields of which have one."""
    names = [field.name for field in dataclasses.fields(options)]
    defaults = dict(zip(names, options.__init__.__defaults__ or (), strict=True))
    assert changed.keys() <= defaults.keys(), f"{options.__name__} has no such options"
    monkeypatch.setattr(options.__init__, "__defaults__", tuple({**defaults, **changed}.values()))
    assert all(getattr(options(), name) == value for name, value in changed.items())

"""Where a client finds NameServers: what it is given, else `NAMESRV_ADDR`."""

from __future__ import annotations

import pytest

from dledger.client import AsyncPullConsumer, AsyncPushConsumer, ClientError, Producer
from dledger.client.options import namesrv_addresses
from dledger.runtime.environment_variables import NAMESRV_ADDR


def test_what_is_given_counts_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAMESRV_ADDR, " h:1; h:2 ")
    assert namesrv_addresses(None) == ("h:1", "h:2")
    assert namesrv_addresses("h:3,h:4") == ("h:3", "h:4")
    assert namesrv_addresses(["h:5", " "]) == ("h:5",)
    with pytest.raises(ClientError, match="no NameServer address"):
        namesrv_addresses("")


@pytest.mark.parametrize("value", [None, " "])
def test_without_either_it_is_said_what_to_do(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAMESRV_ADDR, raising=False)
    if value is not None:
        monkeypatch.setenv(NAMESRV_ADDR, value)
    for make in (AsyncPushConsumer, AsyncPullConsumer):
        with pytest.raises(ClientError, match=r"give namesrv=.*or set NAMESRV_ADDR"):
            make("group")
    with pytest.raises(ClientError, match="or set NAMESRV_ADDR"), Producer("group"):
        pass


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAMESRV_ADDR, "nonsense")
    with pytest.raises(ClientError, match=r"'nonsense': expected host:port.*\(NAMESRV_ADDR\)"):
        namesrv_addresses(None)

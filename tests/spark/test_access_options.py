"""Accounts and TLS as options of the data source. Without a Spark session."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import dledger
from dledger.audit.store_directory import StoreError
from dledger.client import Message, Producer
from dledger.client.bulk.replicas import ReplicaClient
from dledger.client.errors import BrokerRefused, refused_text
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection
from dledger.spark import sink_options
from dledger.spark.live import GroupSource
from dledger.spark.option_values import BadOption
from dledger.spark.options import parse
from tests.client.fake_cluster import GROUP, FakeBroker, FakeCluster
from tests.client.test_sync import running

ACCOUNT = {"accessKey": "analyst", "secretKeyEnv": "DAY_SECRET"}


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with running(FakeCluster(topics={"orders": 2})) as cluster:
        with Producer("producers", cluster.namesrv) as producer:
            producer.send(Message("orders", b"one"))
        yield cluster


def seen(fake: FakeCluster) -> list[dict[str, str]]:
    """The header fields of all requests to brokers from now on."""
    found: list[dict[str, str]] = []

    def note(broker: FakeBroker, connection: Connection, request: Request) -> bool:
        found.append(request.ext())
        return False

    fake.script = note
    return found


@pytest.mark.parametrize("by", ["secretKeyEnv", "secretKeyFile"])
def test_requests_are_signed_by_the_account_of_the_options(
    by: str, fake: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAY_SECRET", "secret of the analyst")
    path = tmp_path / "secret"
    path.write_text("secret of the analyst\n")
    account = {"accessKey": "analyst", by: "DAY_SECRET" if by == "secretKeyEnv" else str(path)}
    requests = seen(fake)
    table = dledger.read(servers=fake.namesrv, subscribe="orders", **account).read_all()
    assert table["value"].to_pylist() == [b"one"]
    assert requests
    assert {one.get("AccessKey") for one in requests} == {"analyst"}
    signed = [one["Signature"] for one in requests]
    requests.clear()
    monkeypatch.setenv("DAY_SECRET", "another")
    path.write_text("another")
    dledger.read(servers=fake.namesrv, subscribe="orders", **account).read_all()
    assert not {one["Signature"] for one in requests} & set(signed), "the secret signs"


def test_two_clusters_in_one_process_have_accounts_of_their_own(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAY_SECRET", "a")
    monkeypatch.setenv("OTHER_SECRET", "b")
    requests = seen(fake)
    one = dledger.read(servers=fake.namesrv, subscribe="orders", **ACCOUNT)
    other = dledger.read(servers=fake.namesrv, subscribe="orders", accessKey="x", secretKeyEnv="OTHER_SECRET")
    one.read_all()
    other.read_all()
    assert {ext.get("AccessKey") for ext in requests} == {"analyst", "x"}


def test_without_options_the_environment_counts(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "usual")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "s")
    requests = seen(fake)
    dledger.read(servers=fake.namesrv, subscribe="orders").read_all()
    assert {ext.get("AccessKey") for ext in requests} == {"usual"}


def test_what_is_sent_to_executors_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAY_SECRET", "very-secret")
    options = parse({"servers": "h:1", **ACCOUNT}, "batch")
    client = options.access.client()
    assert client.credentials is not None and client.credentials.secret_key == "very-secret"
    assert b"very-secret" not in pickle.dumps((options, options.access.client))
    assert "very-secret" not in repr(options)


def test_tls_is_an_option() -> None:
    def tls(**options: str) -> Any:
        return parse({"servers": "h:1", **options}, "batch").access.client().tls

    assert tls() is None
    assert tls(tls="true").ca == ""
    assert tls(tlsCa="/ca.pem").ca == "/ca.pem"
    assert (tls(tlsCertificate="/c", tlsKey="/k").certificate, tls(tlsKey="/k").key) == ("/c", "/k")


def test_tls_can_be_switched_off_for_one_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_TLS", "true")
    assert parse({"servers": "h:1"}, "batch").access.client().tls is not None
    assert parse({"servers": "h:1", "tls": "false"}, "batch").access.client().tls is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"secretKey": "s"}, "secretKey: Spark shows options in plans and logs: .* secretKeyFile or"),
        ({"accessKey": "a"}, "give accessKey, and one of the other two"),
        ({"secretKeyEnv": "A"}, "give accessKey, and one"),
        ({"accessKey": "a", "secretKeyEnv": "A", "secretKeyFile": "/b"}, "one of the other two"),
        ({"tls": "false", "tlsCa": "/ca"}, "tlsCa has no effect without tls"),
        ({"tls": "yes"}, "'yes' is not one of true, false"),
    ],
)
def test_what_does_not_fit_together_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        parse({"servers": "h:1", **options}, "batch")
    with pytest.raises(BadOption, match=text):
        sink_options.parse({"servers": "h:1", "topic": "orders", **options})


def test_of_files_an_account_is_refused() -> None:
    with pytest.raises(BadOption, match="accessKey has no effect with path"):
        parse({"path": "/a", **ACCOUNT}, "batch")


@pytest.mark.parametrize("way", [ACCOUNT, {"accessKey": "a", "secretKeyFile": "/no/such/file"}])
def test_a_secret_that_is_missing_is_named(way: dict[str, str]) -> None:
    with pytest.raises(BadOption, match=r"DAY_SECRET is not set|/no/such/file does not exist"):
        dledger.read(servers="127.0.0.1:1", subscribe="orders", **way)


def test_an_account_that_may_not_audit_is_not_called_unreachable(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: ReplicaClient, version: int) -> None:
        text = refused_text(ResponseCode.NO_PERMISSION, "analyst is not an administrator")
        raise BrokerRefused(f"{self.address}: {text}", ResponseCode.NO_PERMISSION)

    monkeypatch.setattr(ReplicaClient, "describe", refuse)
    with pytest.raises(StoreError, match=r"NO_PERMISSION.*The broker runs and refuses the account"):
        GroupSource(fake.namesrv, GROUP).look()
    with pytest.raises(StoreError, match="refuses the account"):
        dledger.read(servers=fake.namesrv, view="scan").read_all()

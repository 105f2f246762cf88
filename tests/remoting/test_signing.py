"""Signatures of real clients, recorded: Java 5.4, ali-ons and the C++ client, with the secret key SK1."""

from __future__ import annotations

import hmac
import json
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remoting_kit import decode_one

from dledger.remoting.signing import ACCESS_KEY, MAX_ORDERS, SIGNATURE, Credentials, SigningKey

LINES = (Path(__file__).parent / "data" / "signed_frames.jsonl").read_text().splitlines()
FRAMES = [json.loads(line) for line in LINES]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: f"{frame['client']} {frame['name']}")
def test_what_clients_sign_is_what_we_sign(frame: dict[str, str]) -> None:
    request = decode_one(bytes.fromhex(frame["frame"]))
    fields = request.ext()
    told = fields.pop(SIGNATURE).encode()
    assert fields[ACCESS_KEY] == "AK1"
    assert SigningKey(b"SK1").signature(fields, request.body) == told
    assert SigningKey(b"SK2").signature(fields, request.body) != told
    assert SigningKey(b"SK1").signature(fields, request.body + b"x") != told
    assert SigningKey(b"SK1").signature({**fields, "more": "x"}, request.body) != told
    del fields[ACCESS_KEY]
    assert Credentials("AK1", "SK1").sign(fields, request.body)[SIGNATURE].encode() == told


def test_credentials_come_from_the_environment_both_or_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Credentials.from_environment() is None
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "name")
    with pytest.raises(ValueError, match="set both"):
        Credentials.from_environment()
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "secret")
    monkeypatch.setenv("ROCKETMQ_SECURITY_TOKEN", "token")
    found = Credentials.from_environment()
    assert found == Credentials("name", "secret", "token")
    assert "secret" not in repr(found) and "token" not in repr(found)
    with pytest.raises(ValueError, match="neither may be empty"):
        Credentials("name", "")


def test_orders_of_fields_that_are_remembered_are_bounded() -> None:
    key = SigningKey(b"SK1")
    for number in range(MAX_ORDERS * 2):
        fields = {"b": "1", f"c{number}": "2", "a": "3"}
        expected = b64encode(hmac.digest(b"SK1", b"312", "sha1"))
        assert key.signature(fields, b"") == key.signature(fields, b"") == expected
        assert len(key._in_order) <= MAX_ORDERS
    assert key.signature({}, b"") == b64encode(hmac.digest(b"SK1", b"", "sha1"))


@given(st.binary(max_size=200), st.text(max_size=50), st.binary(max_size=2000))
def test_it_is_hmac(secret: bytes, value: str, body: bytes) -> None:
    content = value.encode("utf-8", "replace") + body
    expected = b64encode(hmac.digest(secret, content, "sha1"))
    assert SigningKey(secret).signature({"a": value}, body) == expected

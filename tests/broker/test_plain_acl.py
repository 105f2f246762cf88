"""Files of accounts, and rules for addresses."""

from __future__ import annotations

import pytest

from dledger.broker.auth.address_rules import AddressRule, segments_of
from dledger.broker.auth.plain_acl import PUB, SUB, AclError, parse_accounts

MATCHES = [
    ("*", "10.1.2.3", True),
    ("*.*.*.*", "10.1.2.3", True),
    ("*:*:*:*:*:*:*:*", "2001:db8::1", True),
    ("", "10.1.2.3", False),
    ("10.1.2.3", "10.1.2.3", True),
    ("10.1.2.3", "10.1.2.30", False),
    ("10.1.2.3,10.1.2.4", "10.1.2.4", True),
    ("10.1.2.3, 10.1.2.4", "10.1.2.5", False),
    ("10.1.2.{3,4}", "10.1.2.4", True),
    ("10.1.2.{3,4}", "10.1.2.5", False),
    ("10.1.*.*", "10.1.200.7", True),
    ("10.1.*.*", "10.2.200.7", False),
    ("10.1.*", "10.1.200.7", True),
    ("192.168.*.", "192.168.7.1", True),
    ("192.168.100-110.10-20", "192.168.105.15", True),
    ("192.168.100-110.10-20", "192.168.105.21", False),  # RocketMQ looks at the first range only
    ("192.168.100-110.10-20", "192.168.99.15", False),
    ("10.1.2.3", "::ffff:10.1.2.3", True),
    ("2001:db8::1", "2001:DB8:0:0:0:0:0:1", True),
    ("2001:db8::{1,2}", "2001:db8::2", True),
    ("2001:db8:0:0:0:0:0:1-ff", "2001:db8::fe", True),
    ("2001:db8:0:0:0:0:*:*", "2001:db8::7:1", True),
    ("10.1.2.3", "2001:db8::1", False),
    ("*.*.*.1", "2001:db8::1", False),
]


@pytest.mark.parametrize(("rule", "address", "expected"), MATCHES)
def test_rules_for_addresses(rule: str, address: str, expected: bool) -> None:
    assert AddressRule(rule).matches(segments_of(address)) is expected


@pytest.mark.parametrize(
    "rule",
    ["10.1.2", "10.1.2.256", "host", "10.1.2.-1", "10.1.5-3.*", "10.1.x.*", "10.{1,2}.3.4", "10.1.2.{3,4",
     "10.1.2.3.*", "1:2:*", "10.1.2.300-400", "10.1.2.3,"],
)  # fmt: skip
def test_what_is_no_rule(rule: str) -> None:
    with pytest.raises(ValueError):
        AddressRule(rule)


def test_an_address_that_is_none_matches_nothing_but_all() -> None:
    assert segments_of("somewhere") == ()
    assert not AddressRule("10.1.*.*").matches(()) and AddressRule("*").matches(())


FILE = b"""
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*
accounts:
  - accessKey: RocketMQ
    secretKey: 012345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB | PUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
"""


def test_rocketmqs_own_example() -> None:
    accounts = parse_accounts([("plain_acl.yml", FILE)])
    assert [rule.text for rule in accounts.white] == ["10.10.103.*", "192.168.0.*"]
    first, second = accounts.by_key["RocketMQ"], accounts.by_key["rocketmq2"]
    assert first.secret == b"012345678", "as it is written, no number"
    assert not first.admin and second.admin
    asked = ("topicA", "topicB", "topicC", "topicD", "%RETRY%groupA", "%RETRY%groupB", "%RETRY%groupC", "")
    perms = [first.perm(resource) & (PUB | SUB) for resource in asked]
    assert perms == [0, PUB | SUB, PUB | SUB, 0, 0, PUB | SUB, SUB, 0]
    assert second.white.matches(segments_of("192.168.1.7"))


def account(more: str) -> bytes:
    return f"accounts: [{{accessKey: longenough, secretKey: 12345678, {more}}}]".encode()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"accounts: [", "not YAML"),
        (b"- x", "expected globalWhiteRemoteAddresses and accounts"),
        (b"acounts: []", "'acounts' is not a field of the file"),
        (b"globalWhiteRemoteAddresses: [10.1]", "10.1"),
        (b"accounts: {a: b}", "accounts: expected a list"),
        (b"accounts: [{accessKey: short, secretKey: 12345678}]", "accessKey must be longer than 6"),
        (b"accounts: [{accessKey: longenough, secretKey: '123456'}]", "account longenough: secretKey must"),
        (account("admin: maybe"), "admin: expected true"),
        (account("defaultTopicPerm: PUBB"), "PUBB"),
        (account("topicPerms: [topicA]"), "name=PERM"),
        (account("topicPerm: []"), "'topicPerm' is not a field"),
        (account("whiteRemoteAddress: x"), "is not an IP address"),
        (b"accounts: [{accessKey: [], secretKey: 12345678}]", "accessKey: expected a text"),
        (account("") + account("").removeprefix(b"accounts: "), "not YAML"),
        (account("}, {accessKey: longenough, secretKey: 12345678"), "is given twice"),
        (b"\xff\xfe\xff", "not YAML"),
        (b"#" * ((1 << 20) + 1), "the limit is"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file(text: bytes, said: str) -> None:
    with pytest.raises(AclError, match=r"^plain_acl.yml: ") as caught:
        parse_accounts([("plain_acl.yml", text)])
    assert said in str(caught.value)

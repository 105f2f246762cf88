"""Decisions by policies of ACL 2.0, as RocketMQ's documentation and tests of its evaluator have them."""

from __future__ import annotations

import pytest

from dledger.broker.auth.policies import ACTIONS, Action, Policies, action_of, resource_of, source_of
from dledger.formats.state import AclEntry

PUB, SUB, GET = Action.PUB, Action.SUB, Action.GET
NET = "192.168.0.0/24"
NEAR, FAR = "192.168.0.1", "10.10.0.1"


def policies(*entries: str) -> Policies:
    """Policies made from texts `resource actions Allow|Deny [sources] [Default]`."""
    rows = []
    for text in entries:
        resource, actions, decision, *more = text.split()
        policy = "Default" if "Default" in more else "Custom"
        sources = tuple(source_of(one) for part in more if part != "Default" for one in part.split(","))
        names = tuple(action_of(one) for one in actions.split(","))
        row = AclEntry("u", policy, resource_of(resource), names, decision == "Allow", sources)  # type: ignore[arg-type]
        rows.append(row)
    return Policies(rows)


CHAIN = (
    f"* Pub,Sub Allow {NET}",
    f"Topic:* Pub,Sub Deny {NET}",
    f"Topic:test* Pub,Sub Allow {NET}",
    f"Topic:test-1 Pub,Sub Deny {NET}",
)
LONGEST = (
    "* Pub Allow",
    "Topic:* Pub Allow",
    "Topic:test* Pub Allow",
    "Topic:test_* Pub Deny",
    "Topic:test_001 Pub Deny",
)
DEFAULTS = ("Topic:test* Pub Deny", "Topic:* Pub Allow Default", "Group:* Sub Deny Default")
BY_PLACE = ("Topic:t Pub Allow 192.168.1.7,10.0.0.0/8,fd00::/8", "Topic:* Pub Deny")

DECISIONS: list[tuple[tuple[str, ...], str, int, str, bool | None]] = [
    ((), "Topic:test", PUB, NEAR, None),
    # One entry: resource, action and address must fit.
    ((f"Topic:test* Pub Allow {NET}",), "Topic:test", PUB, NEAR, True),
    ((f"Topic:test* Pub Allow {NET}",), "Topic:test-2", PUB, NEAR, True),
    ((f"Topic:test* Pub Allow {NET}",), "Topic:abc", PUB, NEAR, None),
    ((f"Topic:test* Pub Allow {NET}",), "Topic:tes", PUB, NEAR, None),
    ((f"Topic:test* Pub Allow {NET}",), "Topic:test", SUB, NEAR, None),
    ((f"Topic:test* Pub Allow {NET}",), "Topic:test", PUB, FAR, None),
    ((f"Topic:test* Pub Allow {NET}",), "Group:test", PUB, NEAR, None),
    ((f"Topic:test* Pub Deny {NET}",), "Topic:test", PUB, NEAR, False),
    (("Topic:test* Pub Allow",), "Topic:test", PUB, FAR, True),
    (("Topic:test Pub Allow",), "Topic:test-2", PUB, FAR, None),
    (("Group:test* Sub Allow",), "Group:test", SUB, FAR, True),
    # The most specific resource decides.
    (CHAIN, "Topic:test-1", PUB, NEAR, False),
    (CHAIN, "Topic:test-2", PUB, NEAR, True),
    (CHAIN, "Topic:abc", PUB, NEAR, False),
    (CHAIN, "Group:test-2", SUB, NEAR, True),
    (CHAIN, "Cluster:c", PUB, NEAR, True),
    (CHAIN, "Cluster:c", GET, NEAR, None),
    (CHAIN, "Topic:test-2", PUB, FAR, None),
    (LONGEST, "Topic:test_001", PUB, NEAR, False),
    (LONGEST, "Topic:test_002", PUB, NEAR, False),
    (LONGEST, "Topic:test-002", PUB, NEAR, True),
    (LONGEST, "Topic:other", PUB, NEAR, True),
    (LONGEST, "Group:other", PUB, NEAR, True),
    # What does not fit the action is passed over, however specific.
    (("Topic:orders Sub Deny", "Topic:* Pub Allow"), "Topic:orders", PUB, NEAR, True),
    (("Topic:orders Sub Deny", "Topic:* All Allow"), "Topic:orders", SUB, NEAR, False),
    (("Topic:orders Sub Deny", "Topic:* All Allow"), "Topic:orders", GET, NEAR, True),
    # One of several actions is enough.
    (("Topic:orders Get Allow",), "Topic:orders", SUB | GET, NEAR, True),
    (("Topic:orders Update Allow",), "Topic:orders", SUB | GET, NEAR, None),
    (("Topic:orders All Allow",), "Topic:orders", Action.DELETE, NEAR, True),
    (("* All Deny",), "Cluster:c", Action.UPDATE, NEAR, False),
    # Default counts where nothing of Custom fits.
    (DEFAULTS, "Topic:test", PUB, NEAR, False),
    (DEFAULTS, "Topic:abc", PUB, NEAR, True),
    (DEFAULTS, "Group:abc", SUB, NEAR, False),
    (DEFAULTS, "Topic:abc", SUB, NEAR, None),
    (("Topic:* Pub Allow", "Topic:secret Pub Deny Default"), "Topic:secret", PUB, NEAR, True),
    # Addresses, networks, IPv6, IPv4 in IPv6; what does not fit leaves it to the next.
    (BY_PLACE, "Topic:t", PUB, "192.168.1.7", True),
    (BY_PLACE, "Topic:t", PUB, "192.168.1.8", False),
    (BY_PLACE, "Topic:t", PUB, "10.255.0.1", True),
    (BY_PLACE, "Topic:t", PUB, "11.0.0.1", False),
    (BY_PLACE, "Topic:t", PUB, "[fd00::1]", True),
    (BY_PLACE, "Topic:t", PUB, "::ffff:10.1.2.3", True),
    (BY_PLACE, "Topic:t", PUB, "no address", False),
    # A message whose topic nobody knows yet: who may see all.
    (("Topic:* Sub Allow",), "Topic:", SUB, NEAR, True),
    (("Topic:orders* Sub Allow",), "Topic:", SUB, NEAR, None),
]  # fmt: skip


@pytest.mark.parametrize(("entries", "resource", "actions", "host", "expected"), DECISIONS)
def test_decisions(
    entries: tuple[str, ...], resource: str, actions: int, host: str, expected: bool | None
) -> None:
    assert policies(*entries).decide(resource, actions, host) is expected


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("*", "*"),
        (" topic:Orders ", "Topic:Orders"),
        ("GROUP:g*", "Group:g*"),
        ("cluster:*", "Cluster:*"),
        ("Topic:a:b", "Topic:a:b"),
        ("Any:x", None),
        ("Unknown:x", None),
        ("Topics:x", None),
        ("Topic", None),
        ("Topic:", None),
        ("Topic:a*b", None),
        ("Topic:**", None),
        ("", None),
        ("Topic:" + "x" * 300, None),
    ],
)
def test_resources_are_written_in_one_way(text: str, kept: str | None) -> None:
    """What is misspelt would match everything in RocketMQ (`Any:x`), or nothing."""
    if kept is None:
        with pytest.raises(ValueError, match="resource"):
            resource_of(text)
    else:
        assert resource_of(text) == kept


def test_actions_and_sources_are_checked() -> None:
    assert [action_of(one.upper()) for one in ACTIONS] == list(ACTIONS)
    for wrong in ("Any", "Publish", ""):
        with pytest.raises(ValueError, match="expected All"):
            action_of(wrong)
    assert source_of(" 10.0.0.1/8 ") == "10.0.0.1/8"
    for wrong in ("10.0.0.*", "10.0.0.0/33", "host", ""):
        with pytest.raises(ValueError, match="IPv"):
            source_of(wrong)

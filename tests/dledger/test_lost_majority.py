"""What an operator is told where too many voters' stores are blank or await a refill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.election.configuration import founding
from dledger.election.identity import Hello
from dledger.node.leaderless import lost_majority
from dledger.node.powerloss import KEPT_KEY, META_KEY

THREE = ("n0", "n1", "n2")
FIVE = (*THREE, "n3", "n4")


def hello(node: str, state: str, config_index: int = -1, protocol: int = 4) -> Hello:
    """`state`: kept, blank, power (lost), refill (for another reason)."""
    meta = {"kept": {KEPT_KEY: "1:9"}, "power": {META_KEY: "1:9"}, "blank": {KEPT_KEY: "-1:-1"}}.get(
        state, {}
    )
    store = f"{state} {node}" if state == "blank" else f"i-{node}"
    return Hello("g", node, store, "c", 2, protocol, 1 << 20, True, {}, meta, 0, config_index)


def told(voters: tuple[str, ...], *states: str, votes: tuple[str, ...] = ()) -> str:
    """n0, n1 ... in these states; "away" for one that is not connected."""
    hellos = {f"n{n}": hello(f"n{n}", state) for n, state in enumerate(states) if state != "away"}
    founders = founding({node: f"i-{node}" for node in voters})
    return lost_majority(founders, hello("n0", "kept"), hellos, lambda voter: voter in votes)


@pytest.mark.parametrize(
    ("voters", "states"),
    [
        (THREE, ("kept", "kept", "blank")),
        (THREE, ("kept", "away", "blank")),  # who is away may have kept everything
        (THREE, ("kept", "refill", "away")),
        (THREE, ("power", "power", "kept")),  # all are here: they vote again by themselves
        (THREE, ("power", "power", "away")),
        (FIVE, ("kept", "away", "kept", "blank", "refill")),
    ],
)
def test_nothing_is_said_where_a_leader_may_come(voters: tuple[str, ...], states: tuple[str, ...]) -> None:
    assert told(voters, *states) == ""


@pytest.mark.parametrize(
    ("voters", "states", "blank", "refill", "needed"),
    [
        (THREE, ("kept", "blank", "blank"), "n1, n2", "", 1),
        (THREE, ("away", "blank", "blank"), "n1, n2", "", 1),
        (THREE, ("blank", "blank", "blank"), "n0, n1, n2", "", 2),  # a restored backup beside blank ones
        (THREE, ("kept", "refill", "refill"), "", "n1, n2", 1),
        (THREE, ("kept", "blank", "power"), "n1", "n2", 1),  # the verdict on lost power needs all stores
        (FIVE, ("kept", "blank", "away", "refill", "blank"), "n1, n4", "n3", 1),
    ],
)
def test_who_is_blank_and_who_must_be_refilled_is_named(
    voters: tuple[str, ...], states: tuple[str, ...], blank: str, refill: str, needed: int
) -> None:
    text = told(voters, *states)
    assert (f"the stores of {blank} are empty" in text) is bool(blank)
    assert (f"{refill} must be refilled" in text) is bool(refill)
    assert f"not a majority of {', '.join(voters)}. Needed: {needed} of their old stores" in text
    assert "recover --force-single" in text


def test_who_knows_newer_members_or_voted_since_its_hello_is_believed() -> None:
    """To give up stores that are good would be the worst advice."""
    assert told(THREE, "kept", "refill", "refill", votes=("n2",)) == ""
    founders = founding({node: f"i-{node}" for node in THREE})
    hellos = {node: hello(node, "blank", config_index=7) for node in THREE[:2]}
    mine = hello("n2", "kept", config_index=7)
    earlier = hello("n2", "kept", config_index=6)
    assert lost_majority(founders, mine, hellos, lambda voter: False)
    assert not lost_majority(founders, earlier, hellos, lambda voter: False)
    older = {node: hello(node, "older program", protocol=3) for node in THREE}
    assert not lost_majority(founders, mine, older, lambda voter: False)
    # The same configuration by its content, in logs that begin at different snapshots.
    mine, *others = (
        replace(hello(node, state, config_index=index), config_digest="same")
        for node, state, index in [("n2", "kept", 4), ("n0", "blank", 7), ("n1", "blank", 9)]
    )
    assert lost_majority(founders, mine, {other.node: other for other in others}, lambda voter: False)

"""Who may stand after a loss of power under ASYNC_FLUSH (safety.md S9)."""

from __future__ import annotations

import pytest

from dledger.election.membership import Hello
from dledger.powerloss import META_KEY, Verdict, encode_end, judge

VOTERS = ("n0", "n1", "n2")


def hello(node: str, end: tuple[int, int] | None) -> Hello:
    meta = {} if end is None else {META_KEY: encode_end(*end)}
    return Hello("g", node, f"i-{node}", "c", 1, 2, 1 << 20, False, {}, meta)


def hellos(**ends: tuple[int, int] | None) -> dict[str, Hello]:
    return {node: hello(node, end) for node, end in ends.items()}


@pytest.mark.parametrize(
    ("own", "others", "verdict"),
    [
        ((3, 50), hellos(n1=(3, 49), n2=(3, 50)), Verdict.VOTE),  # equal: the higher id
        ((3, 51), hellos(n1=(3, 49), n2=(3, 50)), Verdict.STAND),
        ((3, 51), hellos(n1=(4, 10), n2=(3, 50)), Verdict.VOTE),  # the later term, as in any election
        ((3, 51), hellos(n1=(3, 49)), Verdict.WAIT),  # one is missing: it may have kept everything
        ((3, 51), hellos(n1=(3, 49), n2=None), Verdict.WAIT),  # one did keep everything
        ((-1, -1), hellos(n1=(-1, -1), n2=(-1, -1)), Verdict.VOTE),
    ],
)
def test_only_when_all_lost_power_and_then_the_longest(
    own: tuple[int, int], others: dict[str, Hello], verdict: Verdict
) -> None:
    assert judge("n0", own, VOTERS, others) is verdict


def test_a_single_node_has_nobody_to_wait_for() -> None:
    assert judge("n0", (1, 5), ("n0",), {}) is Verdict.STAND


def test_who_is_no_voter_waits() -> None:
    assert judge("n3", (9, 99), VOTERS, hellos(n0=(1, 1), n1=(1, 1), n2=(1, 1))) is Verdict.WAIT


def test_nonsense_in_a_hello_is_no_loss_of_power() -> None:
    strange = {node: hello(node, None) for node in ("n1", "n2")}
    for text in ("", "3", "x:y", "3:"):
        strange["n1"] = Hello("g", "n1", "i", "c", 1, 2, 1 << 20, False, {}, {META_KEY: text})
        assert judge("n0", (3, 5), VOTERS, strange) is Verdict.WAIT

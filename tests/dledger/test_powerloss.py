"""Who may stand after a loss of power under ASYNC_FLUSH (safety.md S9)."""

from __future__ import annotations

import pytest

from dledger.election.identity import Hello
from dledger.node.powerloss import KEPT_KEY, META_KEY, Verdict, encode_end, judge

VOTERS = ("n0", "n1", "n2")


def hello(
    node: str, end: tuple[int, int] | None, key: str = META_KEY, config_index: int = -1, digest: str = ""
) -> Hello:
    meta = {} if end is None else {key: encode_end(*end)}
    return Hello("g", node, f"i-{node}", "c", 1, 2, 1 << 20, False, {}, meta, 0, config_index, digest)


def mine(node: str = "n0", config_index: int = -1, digest: str = "") -> Hello:
    return hello(node, None, config_index=config_index, digest=digest)


def hellos(**ends: tuple[int, int] | None) -> dict[str, Hello]:
    return {node: hello(node, end) for node, end in ends.items()}


def kept(**ends: tuple[int, int]) -> dict[str, Hello]:
    return {node: hello(node, end, KEPT_KEY) for node, end in ends.items()}


@pytest.mark.parametrize(
    ("own", "others", "verdict"),
    [
        ((3, 50), hellos(n1=(3, 49), n2=(3, 50)), Verdict.VOTE),  # equal: the higher id
        ((3, 51), hellos(n1=(3, 49), n2=(3, 50)), Verdict.STAND),
        ((3, 51), hellos(n1=(4, 10), n2=(3, 50)), Verdict.VOTE),  # the later term, as in any election
        ((3, 51), hellos(n1=(3, 49)), Verdict.WAIT),  # one is missing: it may have kept everything
        ((3, 51), hellos(n1=(3, 49), n2=None), Verdict.WAIT),  # one does not tell: an older program, or rot
        ((-1, -1), hellos(n1=(-1, -1), n2=(-1, -1)), Verdict.VOTE),
    ],
)
def test_only_when_all_lost_power_and_then_the_longest(
    own: tuple[int, int], others: dict[str, Hello], verdict: Verdict
) -> None:
    assert judge(mine(), own, VOTERS, others) is verdict


@pytest.mark.parametrize(
    ("own", "others", "verdict"),
    [
        ((3, 50), hellos(n1=(3, 49)) | kept(n2=(3, 51)), Verdict.VOTE),
        ((3, 50), hellos(n1=(3, 49)) | kept(n2=(3, 48)), Verdict.STAND),  # what those two had counts
        ((3, 50), hellos(n1=(3, 51)) | kept(n2=(3, 48)), Verdict.VOTE),
        ((3, 50), kept(n2=(3, 51)), Verdict.WAIT),  # the third may have kept everything, too
        ((3, 50), hellos(n1=None) | kept(n2=(3, 51)), Verdict.WAIT),
        ((3, 50), kept(n1=(3, 49), n2=(3, 51)), Verdict.WAIT),  # they can elect a leader
    ],
)
def test_those_that_kept_everything_are_waited_for_only_where_they_are_a_majority(
    own: tuple[int, int], others: dict[str, Hello], verdict: Verdict
) -> None:
    assert judge(mine(), own, VOTERS, others) is verdict


@pytest.mark.parametrize(
    ("others", "verdict"), [(("n1", "n2"), Verdict.VOTE), (("n1", "n2", "n3"), Verdict.WAIT)]
)
def test_a_majority_is_more_than_half(others: tuple[str, ...], verdict: Verdict) -> None:
    voters = ("n0", *others, "n4")
    said = kept(**dict.fromkeys(others, (3, 60))) | hellos(n4=(3, 40))
    assert judge(mine(), (3, 50), voters, said) is verdict
    assert judge(mine(), (3, 50), ("n0", "n1"), kept(n1=(3, 60))) is Verdict.VOTE


@pytest.mark.parametrize("shows", ["n2", "n9"])
def test_who_may_have_lost_configurations_does_not_act_beside_one_that_kept_everything(shows: str) -> None:
    said = hellos(n1=(3, 49)) | kept(n2=(3, 48))
    said[shows] = hello(shows, (3, 51), KEPT_KEY, config_index=7)
    assert judge(mine(config_index=6), (3, 50), VOTERS, said) is Verdict.WAIT
    assert judge(mine(config_index=7), (3, 50), VOTERS, said) is (
        Verdict.VOTE if shows == "n2" else Verdict.STAND
    )
    assert judge(mine(config_index=6), (4, 50), VOTERS, said) is Verdict.STAND, "it was never committed"
    assert judge(mine(config_index=6), (3, 51), VOTERS, said) is not Verdict.WAIT, "this log would hold it"
    said[shows] = hello(shows, None, config_index=7)
    assert judge(mine(config_index=6), (3, 50), VOTERS, said) is Verdict.WAIT


def test_a_learner_with_a_newer_configuration_holds_up_nobody_when_all_voters_lost_power() -> None:
    said = hellos(n1=(3, 49), n2=(3, 48))
    said["n9"] = hello("n9", (3, 51), KEPT_KEY, config_index=7)
    assert judge(mine(config_index=6), (3, 50), VOTERS, said) is Verdict.STAND


@pytest.mark.parametrize(
    ("digest", "verdict"), [("same", Verdict.VOTE), ("other", Verdict.WAIT), ("", Verdict.WAIT)]
)
def test_the_same_configuration_through_a_later_snapshot_is_no_newer_one(
    digest: str, verdict: Verdict
) -> None:
    """An older program shows no digest: it is waited for, as it may be one."""
    said = hellos(n1=(3, 49)) | {"n2": hello("n2", (3, 51), KEPT_KEY, 36, digest)}
    assert judge(mine(config_index=18, digest="same"), (3, 50), VOTERS, said) is verdict


def test_a_single_node_has_nobody_to_wait_for() -> None:
    assert judge(mine(), (1, 5), ("n0",), {}) is Verdict.STAND


def test_who_is_no_voter_waits() -> None:
    assert judge(mine("n3"), (9, 99), VOTERS, hellos(n0=(1, 1), n1=(1, 1), n2=(1, 1))) is Verdict.WAIT


def test_nonsense_in_a_hello_is_no_loss_of_power() -> None:
    strange = {node: hello(node, None) for node in ("n1", "n2")}
    for text in ("", "3", "x:y", "3:"):
        strange["n1"] = Hello("g", "n1", "i", "c", 1, 2, 1 << 20, False, {}, {META_KEY: text})
        assert judge(mine(), (3, 5), VOTERS, strange) is Verdict.WAIT

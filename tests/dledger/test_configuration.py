"""Configurations: their bytes, the steps that are allowed, and what a log and a snapshot make of them."""

from __future__ import annotations

import asyncio
from typing import cast

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.config import NodeConfig
from dledger.context.config_log import ConfigLog
from dledger.context.node_events import NodeEvents
from dledger.election.configuration import (
    Configuration,
    ConfigurationRefused,
    Member,
    MemberRole,
    decode_configuration,
    encode_configuration,
    founding,
    single_step,
)
from dledger.election.identity import Hello
from dledger.formats.store_files import Identity
from dledger.log.faulty import FaultyEntries
from dledger.log.store import LogStore
from dledger.members.config_search import ConfigSearch
from tests.dledger.node_context import context

THREE = founding({"n0": "a", "n1": "b", "n2": "c"})
ADDRESSES = {f"n{number}": f"host{number}:40911" for number in range(6)}

texts = st.text(max_size=20)
members = st.builds(Member, texts, texts, st.sampled_from(MemberRole), st.booleans())
configurations = st.builds(
    Configuration,
    st.dictionaries(texts, members, min_size=1, max_size=6),
    st.none() | st.lists(texts, max_size=3).map(tuple),
)


@given(configurations)
def test_a_configuration_survives_its_bytes_and_equal_ones_have_equal_bytes(value: Configuration) -> None:
    body = encode_configuration(value)
    assert decode_configuration(body) == value
    turned = Configuration(dict(reversed(list(value.members.items()))), value.preferred)
    assert encode_configuration(turned) == body


def test_the_bytes_are_canonical() -> None:
    value = Configuration({"n1": Member("b", "h:1"), "n0": Member("", "h:2", MemberRole.LEARNER)}, ("n1",))
    assert msgpack.unpackb(encode_configuration(value)) == {
        "members": {
            "n0": {"address": "h:2", "incarnation": "", "role": "learner"},
            "n1": {"address": "h:1", "incarnation": "b", "role": "voter"},
        },
        "preferred": ["n1"],
        "version": 2,
    }


def test_the_first_version_is_read() -> None:
    old = msgpack.packb({"members": {"n0": "a", "n1": "b", "n2": "c"}})
    assert decode_configuration(old) == THREE
    assert not THREE.recorded and THREE.addressed(ADDRESSES).recorded


@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
).map(lambda value: msgpack.packb({"members": value, "version": 2})))  # fmt: skip
def test_garbage_is_no_configuration_and_no_crash(body: bytes) -> None:
    value = decode_configuration(body)
    assert value is None or isinstance(value, Configuration)


def test_a_newer_version_is_not_half_understood() -> None:
    assert decode_configuration(msgpack.packb({"members": {"n0": "a"}, "version": 3})) is None


def test_every_change_is_one_step() -> None:
    learner = THREE.with_learner("n3", "h:1", stays=False)
    voter = learner.with_voter("n3", "d")
    for before, after in (
        (THREE, learner),
        (learner, voter),
        (voter, voter.without("n3")),
        (THREE, THREE.demoted("n1")),
        (THREE.demoted("n1"), THREE.demoted("n1").with_voter("n1", "b2")),
        (THREE, THREE.preferring(("n1",))),
        (THREE, THREE.addressed(ADDRESSES)),
    ):
        assert single_step(before, after)
    assert voter.voters == ("n0", "n1", "n2", "n3") and learner.voters == THREE.voters


def test_two_steps_at_once_are_none() -> None:
    assert not single_step(THREE, THREE.without("n0").without("n1"))
    assert not single_step(THREE, founding({"n0": "a", "n1": "b", "n2": "another store"}))


@given(
    st.sets(st.sampled_from("abcdefg"), min_size=1),
    st.sampled_from("abcdefg"),
    st.randoms(use_true_random=False),
)
def test_majorities_of_neighbours_share_a_store(old: set[str], change: str, rng: object) -> None:
    new = old ^ {change}
    if not new:
        return
    for first in (sorted(old), sorted(old, reverse=True)):
        for second in (sorted(new), sorted(new, reverse=True)):
            rng.shuffle(first)  # type: ignore[attr-defined]
            one, other = first[: len(first) // 2 + 1], second[: len(second) // 2 + 1]
            assert set(one) & set(other)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: c.with_learner("n1", "h:1", stays=False), "already a member"),
        (lambda c: c.with_learner("n1x", "h:1", stays=False), "one letter with digits"),
        (lambda c: c.with_learner("n4", "h", stays=False), "expected host:port"),
        (lambda c: c.with_learner("n4", "h:99999", stays=False), "expected host:port"),
        (lambda c: c.with_learner("n4", "n4..example.com:1", stays=False), "nor a host name"),
        (lambda c: c.with_learner("n4", ".n4:1", stays=False), "nor a host name"),
        (lambda c: c.with_learner("n4", "n4\0:1", stays=False), "nor a host name"),
        (lambda c: c.with_learner("n4", "\u4e2d." * 100 + "x:1", stays=False), "at most 256 bytes"),
        (lambda c: c.with_voter("n4", "x"), "not a member"),
        (lambda c: c.with_voter("n1", "x"), "already a voter"),
        (lambda c: c.with_learner("n4", "h:1", stays=False).with_voter("n4", ""), "not connected"),
        (lambda c: c.without("n9"), "not a member"),
        (lambda c: c.without("n0").without("n1").without("n2"), "last voter"),
        (lambda c: c.demoted("n9"), "not a voter"),
        (lambda c: founding({"n0": "a"}).demoted("n0"), "last voter"),
        (lambda c: c.preferring(("n9",)), "not a member"),
    ],
)
def test_what_cannot_be_is_refused(change: object, why: str) -> None:
    with pytest.raises(ConfigurationRefused, match=why):
        change(THREE)  # type: ignore[operator]


def test_who_leaves_is_not_preferred_any_more() -> None:
    assert THREE.preferring(("n1", "n0")).without("n1").preferred == ("n0",)


# The log's configurations


def group(self_id: str = "n0") -> ConfigLog:
    static = {name: ADDRESSES[name] for name in ("n0", "n1", "n2", self_id)}
    found = ConfigLog(NodeConfig("g", self_id, static, "/store"))
    found.open(Identity("g", self_id, "a", 4096, "cluster", {"n0": "a", "n1": "b", "n2": "c"}), [])
    return found


def hello(node: str, config_index: int = -1) -> Hello:
    return Hello("g", node, "x", "cluster", 1, 2, 4096, True, config_index=config_index)


def test_the_newest_entry_counts_and_a_cut_takes_it_back() -> None:
    found = group()
    four = THREE.addressed(ADDRESSES).with_learner("n3", "h:1", stays=False)
    found.add(7, four)
    assert found.current == four and found.index == 7 and found.pending(6) and not found.pending(7)
    assert found.cut(6) and found.current == THREE and found.index == -1
    assert not found.cut(6)


def test_members_of_the_last_committed_configuration_stay_connected_until_the_next_is_committed() -> None:
    found = group()
    found.add(7, THREE.addressed(ADDRESSES).without("n2"))
    assert "n2" in found.addresses(6) and "n2" not in found.addresses(7)
    assert "n2" in found.welcome(hello("n2"), 6) and "n2" not in found.welcome(hello("n2"), 7)
    assert "n2" in found.welcome(hello("n2", 9), 7), "it shows a newer configuration that names it"
    assert "n2" not in found.welcome(hello("n2", 7), 7)


def test_a_removed_node_leaves_the_others_in_peace() -> None:
    found = group("n2")
    assert sorted(found.dialled(-1)) == ["n0", "n1"]
    found.add(7, THREE.addressed(ADDRESSES).without("n2"))
    assert sorted(found.dialled(6)) == ["n0", "n1"] and not found.removed(6)
    assert found.dialled(7) == {} and found.removed(7)


def test_a_store_sees_itself_as_a_voter_only_under_its_own_incarnation() -> None:
    found = group("n2")
    assert found.voters_for(Identity("g", "n2", "c", 4096)) == ("n0", "n1", "n2")
    assert found.voters_for(Identity("g", "n2", "another", 4096)) == ("n0", "n1")


def test_a_snapshot_carries_the_configuration_and_a_log_goes_on_from_it() -> None:
    found = group()
    four = THREE.addressed(ADDRESSES).with_learner("n3", "h:1", stays=False)
    five = four.with_voter("n3", "d")
    found.add(7, four)
    found.add(20, five)
    founders, at_ten, at_twenty = found.state_at(6), found.state_at(10), found.state_at(20)
    assert founders is not None and decode_configuration(founders) == THREE
    assert at_ten is not None and decode_configuration(at_ten) == four
    joined = group("n3")
    joined.open(Identity("g", "n3", "d", 4096, "cluster", {"n0": "a"}), [(20, five)], (10, at_ten))
    assert joined.current == five and joined.state_at(15) == at_ten and joined.state_at(9) is None
    assert joined.cut(19) and joined.current == four and joined.index == 10
    assert at_twenty is not None
    joined.restore(30, at_twenty)
    assert joined.current == five and joined.indexes == [] and joined.state_at(30) == at_twenty


def test_nothing_is_known_before_the_group_is_formed() -> None:
    found = ConfigLog(NodeConfig("g", "n0", {"n0": "h:1"}, "/store"))
    assert found.state_at(5) == b"" and found.voters == ()


def test_what_cannot_be_read_may_be_a_newer_configuration() -> None:
    found = group("n1")
    four = THREE.addressed(ADDRESSES).with_learner("n3", "h:1", stays=False)
    found.open(Identity("g", "n1", "b", 4096, "cluster", {"n0": "a", "n1": "b", "n2": "c"}), [(10, four)])
    assert not found.doubtful(50)
    found.unsure.add(5, 6)
    assert not found.doubtful(50), "the one at 10 came later"
    assert found.state_at(4) is not None and found.state_at(7) is None and found.state_at(10) is not None
    found.cut(9)
    assert found.doubtful(9) and found.state_at(9) is None
    (told,) = found.doubts(9)
    assert "5..6" in told
    found.recall(6, four)
    found.unsure.remove(5, 6)
    assert found.current == four and found.index == 6 and not found.doubtful(9)
    found.unsure.add(8, 9)
    found.cut(8)
    assert list(found.unsure) == [(8, 8)]
    found.restore(8, found.state_at(7) or b"")
    assert not found.unsure and found.current == four


def test_an_installed_snapshot_leaves_nothing_of_the_log_before() -> None:
    """Also not what a deposed leader had appended behind the snapshot's index, and nobody cut."""
    found = group("n1")
    four = THREE.addressed(ADDRESSES).with_learner("n3", "h:1", stays=False)
    found.open(Identity("g", "n1", "b", 4096, "cluster", {"n0": "a"}), [(150, four)], None, [(160, 170)])
    found.replaced(120, encode_configuration(THREE))
    assert found.current == THREE and found.index == 120 and found.indexes == []
    assert not found.unsure and not found.doubtful(200)


def test_whoever_may_help_to_read_is_known_while_members_are_in_doubt() -> None:
    """Also a node of `dLegerPeers` that what is known has removed: it may have been added again."""
    found = group("n1")
    found.add(3, THREE.addressed(ADDRESSES).without("n2"))
    assert "n2" not in found.addresses(10) and "n2" not in found.dialled(10)
    found.unsure.add(5, 5)
    assert "n2" in found.addresses(10) and "n2" in found.dialled(10)
    found.unsure.remove(5, 5)
    assert "n2" not in found.dialled(10)


def test_what_lies_behind_an_index_casts_no_doubt_on_it() -> None:
    found = group("n1")
    found.add(10, THREE)
    found.unsure.add(11, 11)
    assert found.state_at(10) is not None and found.state_at(11) is None


class _Log:
    """Whose `configs_among` is overtaken by retention, or by a cut."""

    def __init__(self, overtaken: str) -> None:
        self.first_index, self.durable_mark, self.cuts, self.faulty = 0, 100, 0, FaultyEntries()
        self.overtaken = overtaken

    async def configs_among(self, first: int, last: int) -> tuple[list[int], list[tuple[int, int]]]:
        setattr(self, self.overtaken, 50)
        return [], []


@pytest.mark.parametrize("overtaken", ["first_index", "cuts"])
def test_what_was_retired_or_cut_while_it_was_looked_for_is_still_in_doubt(overtaken: str) -> None:
    found = group("n1")
    found.unsure.add(20, 30)
    search = ConfigSearch(context(log=_Log(overtaken), members=found), lambda: None, cast("NodeEvents", None))
    assert asyncio.run(search._look())
    assert list(found.unsure) == [(20, 30)]


def test_the_elector_knows_of_a_configuration_before_doubt_ends_for_anybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next piece is read while timers run: who stands then must count by what was found."""
    found = group("n1")
    found.unsure.add(5, 5)
    found.unsure.add(50, 60)
    five = THREE.addressed(ADDRESSES).with_learner("n3", "h:1", stays=False)
    told: list[Configuration] = []

    class Log(_Log):
        async def configs_among(self, first: int, last: int) -> tuple[list[int], list[tuple[int, int]]]:
            assert found.doubtful(100) or (told and told[-1] == found.current)
            return ([55] if first == 50 else []), []

    class Events:
        def configs_found(self) -> None:
            told.append(found.current)

    async def read(log: LogStore, index: int) -> Configuration:
        return five

    monkeypatch.setattr("dledger.members.config_search.read_config", read)
    log = Log("cuts")
    log.faulty.add(5, 5)
    search = ConfigSearch(context(log=log, members=found), lambda: None, cast("NodeEvents", Events()))
    assert asyncio.run(search._look()) and told == [five] and not found.doubtful(100)
    log.faulty.remove(5, 5)
    assert asyncio.run(search._look()) and not found.unsure and len(told) == 2


def test_a_node_does_not_take_itself_for_removed_while_it_is_in_doubt() -> None:
    found = group("n2")
    found.add(3, THREE.addressed(ADDRESSES).without("n2"))
    assert found.removed(10)
    found.unsure.add(5, 5)
    assert not found.removed(10) and found.removed(4)

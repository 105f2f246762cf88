"""Repair of large entries over links that carry them in seconds: each is sent once, and is used (S4)."""

from __future__ import annotations

import pytest
from node_group import NAMES, SEGMENT, SETTINGS, Group

from dledger.chaos.machine import World
from dledger.formats.entry import HEADER_SIZE
from dledger.messages import Message, RepairResponse
from dledger.node import repair
from dledger.peers import peers
from dledger.peers.wire import encode_message
from dledger.protocol import PROTOCOL_MAX

BODY = bytes(range(256)) * 4 * 1024 * 3
"""A body of 3 MiB."""
NARROW = 1_250_000
"""10 Mbit/s in bytes per second. An answer takes 2.5 s."""


def with_rot(world: World, followers: int = 1, narrow: int = NARROW) -> tuple[Group, list[str], int]:
    """A group in which `followers` nodes, just started, hold one rotten entry of 3 MiB. Returns also their
    names and its index."""
    group = Group(world)
    leader = group.await_leader()
    index = group.append(leader, [BODY])
    last = group.append(leader, [b"behind"])
    group.await_applied(NAMES, last)
    world.run_for(2)  # all index units are on the disk
    sick = [name for name in NAMES if name != leader][:followers]
    pos, size = group.nodes[sick[0]].log.locate(index)
    assert pos + size <= SEGMENT and size == HEADER_SIZE + len(BODY)
    for name in sick:
        world.kill(name)
        world.nodes[name].disk.flip(f"/store/dledger-{name}/data/{0:020d}", pos + size // 2, 3)
    for place, name in enumerate(NAMES):
        for other in NAMES[place + 1 :]:
            world.network.bandwidth(name, other, narrow)
    for name in sick:
        group.start(name)
    return group, sick, index


def rotten(group: Group, names: list[str], index: int) -> bool:
    return any(list(group.nodes[name].log.faulty) == [(index, index)] for name in names)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the answers that were sent."""
    sizes: list[int] = []

    def noting(
        message: Message, *, compress: bool = False, version: int = PROTOCOL_MAX
    ) -> list[bytes | memoryview]:
        if isinstance(message, RepairResponse):
            sizes.append(len(message.data))
        return encode_message(message, compress=compress, version=version)

    monkeypatch.setattr(peers, "encode_message", noting)
    return sizes


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.sample(2)
def test_an_entry_of_3_mib_is_repaired_over_10_mbit_s(seed: int, answers: list[int]) -> None:
    """Regression: an answer that took longer than 1 s was dropped and asked for again, for ever."""
    with World(seed, settings=SETTINGS) as world:
        group, sick, index = with_rot(world)
        world.run_until(lambda: rotten(group, sick, index), 1)
        began = world.now
        world.run_until(lambda: not group.nodes[sick[0]].log.faulty, 10)
        assert (world.now - began) / 1e9 < 4
        group.await_applied(NAMES, index + 1)
        world.run_for(5)
        assert len(answers) <= 2, "each peer answers once"
        assert group.hosts[sick[0]].entries[index][3] == BODY
        assert group.nodes[sick[0]].status()["repaired_entries"] == 1


@pytest.mark.parametrize("how", ["reset", "forget", "strand", "killed"])
def test_an_answer_that_was_lost_with_its_connection_is_asked_for_anew(how: str, answers: list[int]) -> None:
    """The node asks again long before the question would count as forgotten."""
    with World(3, settings=SETTINGS) as world:
        group, (sick,), index = with_rot(world)
        world.run_until(lambda: rotten(group, [sick], index), 1)
        world.run_for(1.7)
        assert group.nodes[sick].log.faulty
        helpers = [name for name in NAMES if name != sick]
        for name in helpers:
            if how == "killed":
                world.kill(name)
                group.start(name)
            elif how == "reset":
                world.network.reset(sick, name)
            elif how == "strand":
                world.network.strand(sick, name)
            else:
                world.network.forget(name, sick)
        world.run_until(lambda: not group.nodes[sick].log.faulty, 20)
        group.await_applied((sick,), index)
        assert group.hosts[sick].entries[index][3] == BODY


def test_two_of_three_are_repaired_by_the_third_over_10_mbit_s() -> None:
    with World(4, settings=SETTINGS) as world:
        group, sick, index = with_rot(world, 2)
        world.run_until(lambda: rotten(group, sick, index), 1)
        world.run_until(lambda: not any(group.nodes[name].log.faulty for name in sick), 15)
        group.await_applied(NAMES, index + 1)
        assert all(group.hosts[name].entries[index][3] == BODY for name in NAMES)


@pytest.mark.parametrize(("give_up_s", "times"), [(60.0, 1), (6.0, 2)])
def test_a_slower_link_only_takes_longer(
    give_up_s: float, times: int, answers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds also where the question counts as forgotten before its answer arrives: the first answer is
    used."""
    monkeypatch.setattr(repair, "GIVE_UP_S", give_up_s)
    with World(1, settings=SETTINGS) as world:
        group, (sick,), index = with_rot(world, narrow=NARROW // 4)
        world.run_until(lambda: rotten(group, [sick], index), 1)
        world.run_until(lambda: not group.nodes[sick].log.faulty, 11)
        assert len(answers) <= 2 * times
        assert group.nodes[sick].status()["repaired_entries"] == 1

"""Equal (index, term) with unequal content is corruption: the node ends, and nothing is changed (S16)."""

from __future__ import annotations

from functools import partial

import pytest
from disk_group import DiskGroup
from node_group import NAMES, SETTINGS

from dledger.chaos.machine import World
from dledger.errors import EXIT_BUG
from dledger.formats.entry import HEADER_SIZE, Kind, encode_entry, unpack_header
from dledger.log.store import LogStore
from dledger.messages import Append, Code, Message, PushResponse
from dledger.peers.replicator import CHAIN_STRIKES


def other_content(whole: bytes, chain_before: int, body: bytes | None = None) -> bytes:
    """An entry with the index, position and term of `whole` and another body, valid in itself."""
    header = unpack_header(whole)
    body = bytes(byte ^ 0xFF for byte in whole[HEADER_SIZE:]) if body is None else body
    return encode_entry(header.index, header.term, header.pos, body, chain_before, header.kind, covered=True)


def chain_of(group: DiskGroup, name: str, index: int) -> int:
    return unpack_header(group.bytes_of(name, index)).chain_crc


def plant(group: DiskGroup, name: str, index: int) -> bytes:
    """Replace the last entry on the disk of a stopped node by one with other content. Returns that entry."""
    before = group.bytes_of(name, index)
    planted = other_content(before, chain_of(group, name, index - 1))
    path, offset, _ = group.entry(name, index)
    for place, (old, new) in enumerate(zip(before, planted, strict=True)):
        for bit in range(8):
            if (old ^ new) >> bit & 1:
                group.disk(name).flip(path, offset + place, bit)
    return planted


def note_answers(group: DiskGroup, name: str) -> list[PushResponse]:
    """The answers that this node gives to pushes from now on."""
    answers: list[PushResponse] = []
    peers = group.nodes[name].peers
    send = peers.send

    def noting(peer: str, message: Message) -> None:
        if isinstance(message, PushResponse):
            answers.append(message)
        send(peer, message)

    peers.send = noting  # type: ignore[method-assign]
    return answers


def push(group: DiskGroup, leader: str, follower: str, entries: list[bytes]) -> None:
    """Let the leader send these entries, as if they were those of its log."""
    node = group.nodes[leader]
    first, last = unpack_header(entries[0]), unpack_header(entries[-1])
    term_before = node.log.term_of(first.index - 1)
    assert term_before is not None
    message = Append(
        node.term,
        leader,
        first.index - 1,
        term_before,
        first.index,
        last.index,
        first.pos,
        node.commit_index,
        b"".join(entries),
    )
    process = group.world.nodes[leader].process
    assert process is not None
    process.loop.call_soon(node.peers.send, follower, message)


def end_of(log: LogStore) -> tuple[int, int, int | None]:
    return log.last_index, log.end_pos, log.last_chain


def test_a_follower_whose_last_entry_has_other_content_ends() -> None:
    """The next entry does not continue the follower's chain, however often it is sent."""
    with World(1, settings=SETTINGS) as world:
        group = DiskGroup(world)
        last = group.fill(20)
        world.run_for(2)  # all index units are on the disk
        victim = group.followers()[0]
        world.kill(victim)
        planted = plant(group, victim, last)
        group.start(victim)
        world.run_for(1)
        assert group.alive(victim), "by index and term it agrees"
        answers = note_answers(group, victim)
        beyond = group.append(group.await_leader(), [b"does not continue"])
        world.run_until(lambda: not group.alive(victim), 10)
        failure = group.failures[victim]
        assert (
            f"entry {last} has the same term as the leader's" in failure.reason
            and "different content" in failure.reason
        )
        assert failure.exit_code == EXIT_BUG
        assert len([one for one in answers if one.code == Code.INCONSISTENT_STATE]) == CHAIN_STRIKES - 1
        assert all(answer.stored <= last for answer in answers), "nothing of it was acknowledged"
        assert group.nodes[victim].log.last_index == last
        assert group.bytes_of(victim, last) == planted, "nothing was overwritten"
        group.await_applied(tuple(name for name in NAMES if name != victim), beyond)


def test_frames_that_were_damaged_on_the_way_end_nobody() -> None:
    """There are as many bad frames as end a node, but the entry in between fits: so the logs do not
    differ."""
    with World(2, settings=SETTINGS) as world:
        group = DiskGroup(world)
        last = group.fill(20)
        world.run_for(2)
        leader, victim = group.await_leader(), group.followers()[0]
        for _ in range(2):
            node, chain = group.nodes[leader], chain_of(group, leader, last) ^ 1
            bad = encode_entry(last + 1, node.term, node.log.end_pos, b"x", chain, Kind.RAW, covered=True)
            for _ in range(CHAIN_STRIKES - 1):
                push(group, leader, victim, [bad])
                world.run_for(0.1)
            last = group.fill(10)
            world.run_for(2)
        assert group.alive(victim) and group.nodes[victim].replicator.corrupt_frames == 4


@pytest.mark.parametrize("beyond", [False, True], ids=["all of it is there", "more follows"])
def test_a_push_over_entries_that_have_other_content_ends_the_follower(beyond: bool) -> None:
    """The first entries of the push are in the follower's log already, by index and term."""
    with World(3, settings=SETTINGS) as world:
        group = DiskGroup(world)
        last = group.fill(20)
        world.run_for(2)
        leader, victim = group.await_leader(), group.followers()[0]
        entry = partial(group.bytes_of, leader)
        other = other_content(entry(last), chain_of(group, leader, last - 1))
        entries = [entry(last - 1), other]
        if beyond:
            header = unpack_header(other)
            pos, chain = header.pos + header.size, header.chain_crc
            entries.append(encode_entry(last + 1, header.term, pos, b"more", chain, Kind.RAW, covered=True))
        log = group.nodes[victim].log
        before, answers = end_of(log), note_answers(group, victim)
        push(group, leader, victim, entries)
        world.run_until(lambda: not group.alive(victim), 5)
        failure = group.failures[victim]
        assert f"entry {last} has the same term as the leader's but different content" in failure.reason
        assert failure.exit_code == EXIT_BUG
        assert answers == [], "nothing was acknowledged"
        assert end_of(log) == before and group.bytes_of(victim, last) == entry(last)

"""A link that cannot drain what was written carries LZ4, and the follower gets the same bytes (R13)."""

from __future__ import annotations

import pytest
from node_group import NAMES, SETTINGS, Group

from dledger.chaos.machine import World
from dledger.messages import Append, Message
from dledger.peers import peers
from dledger.peers.wire import encode_message
from dledger.protocol import PROTOCOL_MAX

BODY = bytes(range(256)) * 1024


def test_a_follower_behind_a_narrow_link_gets_compressed_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    whole: list[int] = []
    compressed: list[int] = []

    def noting(
        message: Message, *, compress: bool = False, version: int = PROTOCOL_MAX
    ) -> list[bytes | memoryview]:
        parts = encode_message(message, compress=compress, version=version)
        if isinstance(message, Append):
            (compressed if len(parts[1]) < len(message.data) else whole).append(message.last)
        return parts

    monkeypatch.setattr(peers, "encode_message", noting)
    with World(1, settings=SETTINGS) as world:
        group = Group(world)
        leader = group.await_leader()
        follower = next(name for name in NAMES if name != leader)
        group.await_applied(NAMES, group.append(leader, [BODY]))
        assert whole and not compressed, "a link that keeps up carries the bytes as they are"
        world.network.bandwidth(leader, follower, 40_000_000)
        last = -1
        for number in range(40):
            last = group.append(leader, [b"%d " % number + BODY])
        others = tuple(name for name in NAMES if name != follower)
        group.await_applied(others, last)
        world.run_until(lambda: group.applied(follower) >= last, 30)
        assert group.leader() == leader and compressed
        one, other = (group.hosts[name].entries for name in (leader, follower))
        assert one == other and len(one[-1][3]) > len(BODY)
        logs = [group.nodes[name].log for name in (leader, follower)]
        assert len(dict.fromkeys((log.end_pos, log.last_chain) for log in logs)) == 1
        whole.clear()
        group.await_applied(NAMES, group.append(leader, [BODY]))
        assert len(whole) == 2, "and does so again"

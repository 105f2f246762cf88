"""Request and reply on a real group, with a leader kill in between."""

from __future__ import annotations

import pytest

from dledger import FromWhere, Message, NoReply, Producer, PushConsumer, ReceivedMessage, reply_to
from dledger.local.cluster import LocalCluster

ASKED = 30


def test_requests_are_answered_before_and_after_a_leader_kill(group: LocalCluster) -> None:
    group.create_topic("Questions")
    with Producer("answers", group.namesrv_addr) as answers:

        def answer(message: ReceivedMessage) -> None:
            if not message.body.endswith(b"silence"):
                answers.send(reply_to(message, b"re: " + message.body, {"own": "1"}))

        with (
            PushConsumer(
                "answering", group.namesrv_addr, answer, topic="Questions", from_where=FromWhere.FIRST
            ),
            Producer("asking", group.namesrv_addr) as asking,
        ):
            for number in range(2 * ASKED):
                if number == ASKED:
                    node = group.kill_leader().node
                reply = asking.request(Message("Questions", b"%d" % number, tags="q"), timeout_s=20)
                assert (reply.body, reply.properties["own"]) == (b"re: %d" % number, "1")
            with pytest.raises(NoReply, match="Questions"):
                asking.request(Message("Questions", b"silence"), timeout_s=0.2)
    group.restart_node(node)

"""Data for every page, with texts in it that a browser must not obey."""

from __future__ import annotations

import msgspec

from dledger.dashboard.pages import groups, messages, nodes, overview, topics
from dledger.dashboard.pages.page import Rows
from dledger.dashboard.watching import Backlog, NodeView
from dledger.remoting.bodies import SubscriptionGroupConfig
from dledger.remoting.node_report import RoleChange

HOSTILE = "<script>alert('1')</script>\x00\x1b[31m\u202e\"&"
"""What clients, messages and brokers may call themselves."""
SHOWN = "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;␀␛[31m[U+202E]&#34;&amp;"
NOW_MS = 1_800_000_000_000
CHANGES = (
    RoleChange(NOW_MS - 7_200_000, "FOLLOWER", 1, None, "the node started"),
    RoleChange(NOW_MS - 60_000, "CANDIDATE", 2, None, HOSTILE),
    RoleChange(NOW_MS - 59_000, "LEADER", 2, "n0", "quorum of votes"),
)
LEADER = NodeView(
    "broker-a",
    "n0",
    "127.0.0.1:10911",
    reached=True,
    role="LEADER",
    term=2,
    leader="n0",
    serving=True,
    version="V5_3_3",
    booted_ms=NOW_MS - 90_000,
    committed=12_345,
    durable=12_345,
    applied=12_345,
    end=12_345,
    lag_entries=0,
    disk_used=0.4,
    fsync_ms_mean=1.2,
    fsync_ms_max=20.0,
    loop_lag_ms_max=3.0,
    warnings=(HOSTILE,),
    changes=CHANGES,
    rate_in=10.0,
    rate_out=5.0,
)
FOLLOWER = msgspec.structs.replace(
    LEADER,
    id="n1",
    address="127.0.0.1:10921",
    role="FOLLOWER",
    serving=False,
    changes=CHANGES[:1],
    warnings=(),
)
LOST = NodeView("broker-a", "n2", "127.0.0.1:10931", reached=False, problem="it does not answer")
NODES = {one.id: one for one in (LEADER, FOLLOWER, LOST)}
TOPIC = topics.Topic(HOSTILE, "normal", ("broker-a",), 8, 4, "RW", order=True)
GROUP_ROW = groups.GroupRow(HOSTILE, 1, "CLUSTERING", 7, 2.5, 3)
MESSAGE = messages.MessageRow(
    HOSTILE, "broker-a", 3, 17, HOSTILE, HOSTILE, HOSTILE, [HOSTILE], NOW_MS, 5, HOSTILE
)
SPANS = nodes.spans_of("n0", CHANGES, NOW_MS - 3_600_000, NOW_MS)
DATA: dict[str, msgspec.Struct] = {
    "overview": overview.Overview(
        "cluster",
        HOSTILE,
        NOW_MS,
        [overview.health_of("broker-a", NODES)],
        10.0,
        None,
        [overview.Series(HOSTILE, (NOW_MS,), (1.0,), (2.0,))],
        [Backlog(HOSTILE, HOSTILE, 7, 1.0)],
        NOW_MS,
        HOSTILE,
        overview.events_of([NODES], NOW_MS),
    ),
    "nodes": nodes.Nodes(
        "cluster",
        HOSTILE,
        [nodes.GroupNodes(overview.health_of("broker-a", NODES), list(NODES.values()), SPANS)],
        NOW_MS - 3_600_000,
        NOW_MS,
    ),
    "node": nodes.NodePage(LEADER, {HOSTILE: HOSTILE}, {HOSTILE: HOSTILE}, NOW_MS - 3_600_000, NOW_MS, SPANS),
    "topics": topics.Topics(
        "cluster",
        HOSTILE,
        "normal",
        topics.KINDS,
        [topics.TopicRow(TOPIC, None, None)],
        Rows(2, 3, 150),
        [HOSTILE],
    ),
    "topic": topics.TopicPage(
        "cluster",
        TOPIC,
        {HOSTILE: HOSTILE},
        9,
        1.5,
        4096,
        [topics.QueueRow(HOSTILE, 0, 1, 10, NOW_MS)],
        Rows(1, 2, 51),
        [topics.Consumer(HOSTILE, 7, 1.0), topics.Consumer(HOSTILE, None, 0.0, HOSTILE)],
        Rows(2, 3, 101),
    ),
    "groups": groups.Groups("cluster", HOSTILE, [GROUP_ROW], Rows(1, 1, 1), [HOSTILE]),
    "group": groups.GroupPage(
        "cluster",
        GROUP_ROW,
        SubscriptionGroupConfig(HOSTILE, consumeEnable=False),
        [groups.Member(HOSTILE, HOSTILE, HOSTILE, 435)],
        Rows(1, 2, 51),
        [groups.Subscribed(HOSTILE, HOSTILE, "TAG")],
        [groups.QueueOffset(HOSTILE, HOSTILE, 0, 1, 8, NOW_MS)],
        Rows(1, 1, 1),
        None,
        ["nothing consumed"],
    ),
    "messages": messages.Search(
        "cluster",
        HOSTILE,
        HOSTILE,
        HOSTILE,
        HOSTILE,
        "1h",
        "0",
        "0",
        [MESSAGE],
        messages.Looked(1, 2, 3, False, messages.LIMITS[1]),
    ),
    "message": messages.MessagePage(
        "cluster",
        MESSAGE,
        {HOSTILE: HOSTILE},
        NOW_MS,
        HOSTILE,
        HOSTILE,
        2,
        HOSTILE,
        None,
        messages.hex_lines(HOSTILE.encode()),
        True,
        True,
        [messages.Track(HOSTILE, "CONSUMED", HOSTILE)],
    ),
}
"""The data of each page by its name."""

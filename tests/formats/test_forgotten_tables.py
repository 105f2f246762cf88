"""Deletions in the replicated state: every table forgets what is of a topic or a group, and nothing else."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.formats.state import (
    ACLS,
    DELETIONS,
    GROUPS,
    LOCKS,
    POP_ORDERS,
    POPS,
    REQUEST_MODES,
    RESETS,
    TABLES,
    TOPICS,
    USERS,
    AclEntry,
    Declared,
    GroupConfig,
    OffsetReset,
    Op,
    Pending,
    PopCheckpoint,
    PopOrder,
    QueueLock,
    ReplicatedState,
    RequestMode,
    TopicConfig,
    TopicDeletion,
    User,
    group_deletion,
    offsets_op,
    pack_op,
    pack_parts,
    unpack_parts,
    was_deleted,
)

NAMES = ("A", "B")
BY_NAME = (TOPICS, GROUPS)
OF_BOTH = (LOCKS, POPS, POP_ORDERS, REQUEST_MODES, RESETS)


def rows_of(topic: str, group: str) -> list[Op]:
    """A row of each table."""
    return [
        TopicConfig(topic, 2, 2, 6).op(),
        GroupConfig(group).op(),
        QueueLock(group, topic, 1, "client").op(),
        PopCheckpoint(group, topic, 0, 3, 7, 100, (3, 4)).op(),
        PopOrder(group, topic, 1, 7, 100, "", (5,), (0,)).op(),
        RequestMode(topic, group, "POP").op(),
        OffsetReset(group, topic, ((0, 0),)).op(),
        offsets_op(group, [(topic, 0, 2), (topic, 1, 1)]),
    ]


def filled() -> ReplicatedState:
    """Topics and groups A and B, each with each."""
    state = ReplicatedState()
    for topic in NAMES:
        for queue in (0, 1):
            state.bounds(topic, queue).next = 9
        for group in NAMES:
            for op in rows_of(topic, group):
                state.apply(pack_op(op))
    return state


def test_every_table_that_names_a_topic_or_a_group_says_so() -> None:
    """Whoever adds one with such a field of its key decides what a deletion does to it."""
    for table in TABLES:
        if isinstance(table, Declared) and table is not DELETIONS:
            named = {name for name in table.key if name in ("topic", "group")}
            unsaid = sorted(named - set(table.of))
            assert not unsaid, (
                f"the table {table.name} has `{unsaid[0]}` in its key: give its Declared of=(...) in "
                "dledger/formats/state/, so that a deletion removes its rows"
            )


@pytest.mark.parametrize("loaded", [False, True], ids=["played", "loaded"])
def test_of_a_topic_nothing_is_left_and_of_the_others_everything(loaded: bool) -> None:
    state = filled()
    if loaded:
        state = unpack_parts(pack_parts(state))
    state.copy()  # its offsets are shared with a snapshot
    state.apply(pack_op(TopicDeletion("A", 100).op()))
    assert list(state.topics) == ["B"] and list(state.queues) == ["B"] and list(state.groups) == ["A", "B"]
    assert state.next_offset("A", 0) == 0 and state.groups_of("A") == []
    for table in OF_BOTH:
        place = table.key.index("topic")
        assert {key[place] for key in state[table].rows} == {"B"}, table.name
    assert {queue[0] for rows in state.offsets.values() for queue in rows} == {"B"}
    assert was_deleted(state[DELETIONS].rows, "A", 99) and not was_deleted(state[DELETIONS].rows, "A", 100)
    assert not was_deleted(state[DELETIONS].rows, "B", 0)
    assert unpack_parts(pack_parts(state))[DELETIONS].rows == state[DELETIONS].rows
    version = state.topics_version
    state.apply(pack_op(TopicDeletion("A", 200).op()))
    assert state.topics_version == version, "twice is once"


@pytest.mark.parametrize("keep", [False, True])
def test_of_a_group_nothing_is_left_or_all_but_its_configuration(keep: bool) -> None:
    state = filled()
    state.apply(pack_op(group_deletion("A", keep_offsets=keep)))
    assert list(state.groups) == ["B"] and list(state.topics) == ["A", "B"]
    left = {"A", "B"} if keep else {"B"}
    assert state.offsets.keys() == left and set(state.groups_of("A")) == left
    for table in OF_BOTH:
        place = table.key.index("group")
        assert {key[place] for key in state[table].rows} == left, table.name


USERS_OPS = [
    *(User(name, password).op() for name in NAMES for password in ("p", "q")),
    *(
        AclEntry(name, "Custom", resource, ("All",), True).op()
        for name in NAMES
        for resource in ("*", "Topic:*")
    ),
    *(USERS.removal(name) for name in NAMES),
    *(ACLS.removal((name, "Custom", "*")) for name in NAMES),
]


@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)).flatmap(
                    lambda pair: st.sampled_from(rows_of(*pair))
                ),
                st.builds(
                    lambda name, at: TopicDeletion(name, at).op(), st.sampled_from(NAMES), st.integers(0, 99)
                ),
                st.builds(lambda name: group_deletion(name), st.sampled_from(NAMES)),
                st.sampled_from(USERS_OPS),
            ),
            st.integers(0, 4),
        ),
        max_size=14,
    )
)
def test_what_is_pending_is_what_will_be(steps: list[tuple[Op, int]]) -> None:
    """A leader's view, some of it applied and some not, is the state that follows."""
    state, whole = filled(), filled()
    pending = Pending(state)
    applied = 0
    for index, (op, more) in enumerate(steps):
        pending.appended(index, op)
        whole.apply(pack_op(op))
        upto = min(index + 1, applied + more)
        for entry in range(applied, upto):
            state.apply(pack_op(steps[entry][0]))
        applied = upto
        pending.applied(applied - 1)
        for table in (*BY_NAME, *OF_BOTH, DELETIONS, USERS, ACLS):
            ours, theirs = pending[table].rows, whole[table].rows  # type: ignore[index]  # of several types
            assert dict(ours) == dict(theirs) and len(ours) == len(theirs), table.name
            assert all(key in ours for key in theirs)
        for table in (*OF_BOTH, ACLS):
            for kind in table.of:
                for name in NAMES:
                    place = table.key.index(kind)
                    wanted = [key for key in whole[table].rows if key[place] == name]  # type: ignore[index]
                    assert sorted(pending.keys_of(table, kind, name)) == sorted(wanted)  # type: ignore[arg-type]
                    assert whole[table].count_of(kind, name) == len(wanted)  # type: ignore[index]


def test_of_a_user_no_policy_is_left() -> None:
    state = ReplicatedState()
    for op in USERS_OPS[:8]:
        state.apply(pack_op(op))
    state = unpack_parts(pack_parts(state))
    state.apply(pack_op(USERS.removal("A")))
    assert list(state[USERS].rows) == ["B"]
    assert sorted(state[ACLS].rows) == [("B", "Custom", "*"), ("B", "Custom", "Topic:*")]
    state.apply(pack_op(TopicDeletion("B", 1).op()))
    state.apply(pack_op(group_deletion("B")))
    assert list(state[USERS].rows) == ["B"] and len(state[ACLS].rows) == 2
    version = state[ACLS].version
    state.apply(pack_op(USERS.removal("B")))
    assert not state[ACLS].rows and state[ACLS].version > version, "who looks at the version sees it"


@pytest.mark.parametrize(
    "op",
    [
        {"op": "topic_delete", "name": ""},
        {"op": "topic_delete", "name": "A"},
        {"op": "topic_delete", "name": "A", "at": -1},
        {"op": "group_delete"},
        {"op": "group_delete", "name": 7},
        {"op": "group_delete", "name": "A", "keep_offsets": 1},
        {"op": "user_delete"},
        {"op": "user_delete", "name": ""},
        {"op": "user", "name": "A", "password": ""},
        {"op": "acl", "user": "A", "policy": "Other", "resource": "*", "actions": ["All"], "allow": True},
        {"op": "acl", "user": "A", "policy": "Custom", "resource": "*", "actions": ["Any"], "allow": True},
        {"op": "acl", "user": "A", "policy": "Custom", "resource": "*", "actions": [], "allow": True},
    ],
)
def test_a_malformed_one_changes_nothing(op: Op) -> None:
    state = filled()
    before = pack_parts(state)
    assert state.apply(msgpack.packb(op)) is None
    after = pack_parts(state)
    before.pop("counters"), after.pop("counters")
    assert state.skipped == 1 and after == before

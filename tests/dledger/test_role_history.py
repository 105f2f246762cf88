"""The history of a node's role: what a console draws on its line of time."""

from __future__ import annotations

from dledger.host import Role
from dledger.node.role_history import MAX_CHANGES, RoleHistory


def test_only_changes_are_kept_and_a_new_leader_has_no_reason_of_its_own() -> None:
    history = RoleHistory()
    history.note(10, Role.FOLLOWER, 1, None, "the node started")
    history.note(20, Role.FOLLOWER, 1, "n1", "message from the leader of the term")
    history.note(30, Role.FOLLOWER, 1, "n1", "message from the leader of the term")
    history.note(40, Role.CANDIDATE, 1, None, "election time-out")
    assert history.report() == [
        {"at_ms": 10, "role": "FOLLOWER", "term": 1, "leader": None, "why": "the node started"},
        {"at_ms": 20, "role": "FOLLOWER", "term": 1, "leader": "n1", "why": ""},
        {"at_ms": 40, "role": "CANDIDATE", "term": 1, "leader": None, "why": "election time-out"},
    ]


def test_the_oldest_changes_are_dropped() -> None:
    history = RoleHistory()
    for term in range(MAX_CHANGES + 3):
        history.note(term, Role.FOLLOWER, term, None, "higher term")
    found = history.report()
    assert (len(found), found[0]["term"]) == (MAX_CHANGES, 3)

"""Users and their policies that a client machine makes, changes and deletes, and what must become of them.

One program changes a name, one step after the other. A step that was acknowledged holds; where an answer was
lost the name is used no more, and nothing is asked of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.broker_replay import BrokerReplay
from dledger.chaos.scenarios.oracle import Acls, Users


@dataclass
class KnownUser:
    """A user as it was acknowledged last; None: there is none."""

    password: str | None = None
    resources: set[str] = field(default_factory=set)
    """Of the entries of its policies."""


@dataclass
class UserHistory:
    """All of them, by name."""

    users: dict[str, KnownUser] = field(default_factory=dict)
    unsure: dict[str, None] = field(default_factory=dict)
    """Names that are used no more."""
    deleted_with_policies: int = 0
    """Users that were deleted, and made again."""


def judge_users(history: UserHistory, replay: BrokerReplay) -> None:
    """In the end every user is as it was acknowledged."""
    users, acls = replay.table(Users), replay.table(Acls)
    for name, known in history.users.items():
        if name in history.unsure:
            continue
        row = users.rows.get(name)
        found = None if row is None else row["password"]
        # A user that was created is there, with its last password; one that was deleted is not.
        if found != known.password:
            raise InvariantViolated(f"user {name}: acknowledged was {known.password}, there is {found}")
        # Its policies are those that it was given since; none of a user that had its name before.
        resources = {resource for user, _, resource in acls.rows if user == name}
        if resources != known.resources:
            raise InvariantViolated(f"policies of {name}: {known.resources} acknowledged, found {resources}")

"""Users and policies that a client machine creates, changes and deletes, and the check of them. Only one
program changes a user, one step after another. An acknowledged step must hold. If an answer is lost, the name
is not used again, and nothing is checked for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.broker_replay import BrokerReplay
from dledger.chaos.scenarios.oracle import Acls, Users


@dataclass
class KnownUser:
    """A user as the last acknowledged change left it. If the password is None, there is no such user."""

    password: str | None = None
    resources: set[str] = field(default_factory=set)
    """The resources in the entries of its policies."""


@dataclass
class UserHistory:
    """All users by name, as far as the client machine knows."""

    users: dict[str, KnownUser] = field(default_factory=dict)
    unsure: dict[str, None] = field(default_factory=dict)
    """Names of users that are not used again, because the outcome of a change is unknown."""
    deleted_with_policies: int = 0
    """How many users were deleted while they had policies."""


def judge_users(history: UserHistory, replay: BrokerReplay) -> None:
    """Check that in the end every user is as the last acknowledged change left it."""
    users, acls = replay.table(Users), replay.table(Acls)
    for name, known in history.users.items():
        if name in history.unsure:
            continue
        row = users.rows.get(name)
        found = None if row is None else row["password"]
        # A user that was created exists with its last password. A user that was deleted does not exist.
        if found != known.password:
            raise InvariantViolated(f"user {name}: acknowledged was {known.password}, there is {found}")
        # A user has the policies that it was given since its creation, and none of an earlier user of the
        # same name.
        resources = {resource for user, _, resource in acls.rows if user == name}
        if resources != known.resources:
            raise InvariantViolated(f"policies of {name}: {known.resources} acknowledged, found {resources}")

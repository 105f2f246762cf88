"""Effects that an election returns; the shell performs them in order (`dledger.election.elector`).

Effects after a `SaveHardState` may be performed only when term and vote are on disk.
"""

from __future__ import annotations

import msgspec

from dledger.formats.store_files import HardState
from dledger.host import Role
from dledger.messages import Message


class SaveHardState(msgspec.Struct, frozen=True):
    """Make term and vote durable before anything that follows."""

    state: HardState


class Send(msgspec.Struct, frozen=True):
    """Send a message to a peer; it may be lost."""

    peer: str
    message: Message


class RoleChanged(msgspec.Struct, frozen=True):
    """Role, term or known leader changed."""

    role: Role
    term: int
    leader_id: str | None


class RoundConfirmed(msgspec.Struct, frozen=True):
    """A quorum of voters answered this leader's heartbeats of this round or of a later one."""

    round: int


Effect = SaveHardState | Send | RoleChanged | RoundConfirmed

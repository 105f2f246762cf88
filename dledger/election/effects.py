"""The effects that the elector (`dledger.election.elector`) returns. The shell, which does the I/O, performs
them in order. Effects after a `SaveHardState` may be performed only when term and vote are on disk.
"""

from __future__ import annotations

import msgspec

from dledger.formats.store_files import HardState
from dledger.host import Role
from dledger.messages import Message


class SaveHardState(msgspec.Struct, frozen=True):
    """Make term and vote durable before any later effect is performed."""

    state: HardState


class Send(msgspec.Struct, frozen=True):
    """Send a message to a peer; it may be lost."""

    peer: str
    message: Message


class RoleChanged(msgspec.Struct, frozen=True):
    """Report that role, term or known leader changed. `why` is the reason for the present state; empty if
    the node has been in it since its start."""

    role: Role
    term: int
    leader_id: str | None
    why: str = ""


class RoundConfirmed(msgspec.Struct, frozen=True):
    """Report that a quorum of voters answered the heartbeats that this leader sent in this round, or in a
    later one."""

    round: int


Effect = SaveHardState | Send | RoleChanged | RoundConfirmed

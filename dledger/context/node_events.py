"""What the parts of a node tell it; `dledger.node.node.Node` implements it (and `ReplicatorEvents`)."""

from __future__ import annotations

from typing import Protocol

from dledger.election.effects import RoleChanged
from dledger.formats.snapshot import Manifest


class NodeEvents(Protocol):
    """In brackets: who tells it. What nobody but one part needs to know goes to that part directly."""

    def fail(self, error: BaseException) -> None:
        """A callback of the loop failed, which has no caller: the node ends. [Elections, Leadership]"""

    def stepped(self) -> None:
        """Such a callback is through: what must hold between two steps is looked at. [the same, Inbox]"""

    def role_changed(self, change: RoleChanged) -> None:
        """Role, term or known leader are new. [Elections]"""

    def round_confirmed(self, number: int) -> None:
        """A quorum answered this leader's round of heartbeats. [Elections]"""

    def applied(self) -> None:
        """The applied index moved. [Applier]"""

    def segment_applied(self, index: int, pos: int) -> None:
        """Entry `index` is applied, and the next one begins a segment at `pos`. [Applier]"""

    def members_changed(self) -> None:
        """The configuration, or what is known to be committed of it, is another. [MemberEffects]"""

    def configs_found(self) -> None:
        """The configuration in force, or what is in doubt, may be another: nobody else has run since.
        [ConfigSearch]"""

    def repaired(self) -> None:
        """Entries are whole again. [Repairer]"""

    def installed(self, leader: str, manifest: Manifest) -> None:
        """Log and host are those of the snapshot. [InstallReceiver]"""

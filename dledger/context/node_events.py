"""Events that the parts of a node report to it; `dledger.node.node.Node` implements them (and
`ReplicatorEvents`)."""

from __future__ import annotations

from typing import Protocol

from dledger.election.effects import RoleChanged
from dledger.formats.snapshot import Manifest


class NodeEvents(Protocol):
    """Events of the parts of a node; brackets name the part that reports one. An event that concerns only one
    other part is reported to that part directly."""

    def fail(self, error: BaseException) -> None:
        """A callback of the loop failed; it has no caller, so the node ends. [Elections, Leadership]"""

    def stepped(self) -> None:
        """A callback of the loop has finished: check what must hold between two steps. [Elections,
        Leadership, Inbox]"""

    def role_changed(self, change: RoleChanged) -> None:
        """Role, term or known leader changed. [Elections]"""

    def round_confirmed(self, number: int) -> None:
        """A quorum answered this leader's round of heartbeats. [Elections]"""

    def applied(self) -> None:
        """The applied index moved. [Applier]"""

    def segment_applied(self, index: int, pos: int) -> None:
        """Entry `index` is applied, and the next entry begins a segment at `pos`. [Applier]"""

    def members_changed(self) -> None:
        """The configuration changed, or more of it is known to be committed. [MemberEffects]"""

    def configs_found(self) -> None:
        """The configuration in force, or what is uncertain, may have changed; no other task has run since.
        [ConfigSearch]"""

    def repaired(self) -> None:
        """Entries were repaired. [Repairer]"""

    def installed(self, leader: str, manifest: Manifest) -> None:
        """The snapshot replaced log and host. [InstallReceiver]"""

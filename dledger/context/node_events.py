"""Events that the parts of a node report to it; `dledger.node.node.Node` implements them (and
`ReplicatorEvents`)."""

from __future__ import annotations

from typing import Protocol

from dledger.election.effects import RoleChanged
from dledger.formats.snapshot import Manifest


class NodeEvents(Protocol):
    """The events that the parts of a node report to the node. Names in brackets say which parts report an
    event. An event that concerns only one other part is reported to that part directly."""

    def fail(self, error: BaseException) -> None:
        """A callback of the event loop failed. Nobody else would see the error, so the node ends. [Elections,
        Leadership]"""

    def stepped(self) -> None:
        """A callback of the event loop has finished, so the node checks what must hold between two steps.
        [Elections, Leadership, Inbox]"""

    def role_changed(self, change: RoleChanged) -> None:
        """The role, the term or the known leader has changed. [Elections]"""

    def round_confirmed(self, number: int) -> None:
        """A quorum has answered this leader's round of heartbeats. [Elections]"""

    def applied(self) -> None:
        """The applied index has moved. [Applier]"""

    def segment_applied(self, index: int, pos: int) -> None:
        """Entry `index` is applied, and the next entry begins a segment at `pos`. [Applier]"""

    def members_changed(self) -> None:
        """The configuration has changed, or another one is now known to be committed. [MemberEffects]"""

    def configs_found(self) -> None:
        """The configuration in force may have changed, or the set of entries that cannot be read and may hold
        one. No other task has run since that change. [ConfigSearch]"""

    def repaired(self) -> None:
        """Entries have been repaired. [Repairer]"""

    def installed(self, leader: str, manifest: Manifest) -> None:
        """A snapshot from `leader` has replaced the log and the host's state. [InstallReceiver]"""

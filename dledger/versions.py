"""What a group may write while its nodes run different versions (staged upgrades, docs/howto/upgrade.md).

Messages between two nodes follow the version that both speak (`Peers.version`). But all nodes read the log.
So a kind of entry that an older program does not know, or a new form of a known kind, is written only if *all
voters* know it. A voter knows the version that it announced when it was last connected. A voter that has
never connected counts as having the oldest version.

Operations of the state machine above the log are system entries, and have versions of their own: 1, 2, ...
Each program announces the newest version that it reads. Operations of a version that some voter cannot read
are not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dledger.config import NodeConfig
from dledger.election.identity import Hello
from dledger.formats.entry import Kind
from dledger.protocol import PROTOCOL_MIN

KIND_SINCE: Mapping[int, int] = MappingProxyType(
    {Kind.MESSAGE: 1, Kind.TERM_OPENING: 1, Kind.CONFIG: 1, Kind.SYSTEM: 1, Kind.RAW: 1}
)
"""Protocol version in which each kind of entry was added. A kind that is missing in this dict is never
written."""

STATE_MIN = 1
"""Version of the operations that every program reads."""

COVERED_SINCE = 3
"""Lowest protocol version whose programs check CRCs that also cover the channel of an entry
(`formats.entry.COVERED`)."""

OLDEST_KINDS = frozenset(kind for kind, since in KIND_SINCE.items() if since <= PROTOCOL_MIN)
"""Kinds of entries that every program knows."""


class Versions:
    """Versions that the nodes of the group speak, as far as this node has heard."""

    def __init__(self, config: NodeConfig) -> None:
        self._self_id = config.self_id
        self._own = config.protocol_max
        self._own_state = config.state_version
        self._heard: dict[str, int] = {}
        self._heard_state: dict[str, int] = {}

    def heard(self, hello: Hello) -> None:
        """Note the versions that a peer announced in its hello."""
        self._heard[hello.node] = hello.protocol_max
        self._heard_state[hello.node] = hello.state_version

    def of(self, node: str) -> int:
        """The protocol version that a node last announced; the oldest version if it has never connected."""
        return self._own if node == self._self_id else self._heard.get(node, PROTOCOL_MIN)

    def group(self, voters: Iterable[str]) -> int:
        """The highest protocol version that this node and all these voters know."""
        return min([self._own, *map(self.of, voters)])

    def state(self, voters: Iterable[str]) -> int:
        """The highest version of operations that this node and all these voters read."""
        others = (self._heard_state.get(node, STATE_MIN) for node in voters if node != self._self_id)
        return min([self._own_state, *others])

    def may_write(self, kind: int, voters: Iterable[str]) -> bool:
        """Whether entries of this kind may be written now."""
        since = KIND_SINCE.get(kind)
        return since is not None and since <= self.group(voters)

    def may_cover(self, voters: Iterable[str]) -> bool:
        """Whether the CRCs of new entries may cover their channel now."""
        return self.group(voters) >= COVERED_SINCE

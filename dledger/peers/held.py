"""Messages of peers that are held back in order while the disk works.

While term and vote are being saved, and while a cut runs, messages are held back. They are handled afterwards
in the order in which they came (architecture rule 3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dledger.messages import REPLIES, Message
from dledger.peers.links import PeerConnection

MAX_HELD = 10_000
"""Peer messages held back at most while term and vote are saved. One more closes its connection. Messages are
not simply dropped, because senders rely on an open connection to lose nothing: no request is repeated over
the same connection."""


class HeldMessages:
    """The held messages of one node. `handle(peer, message)` handles one, `released` is called when a hold
    has ended."""

    def __init__(self, handle: Callable[[str, Message], None], released: Callable[[], None]) -> None:
        self._handle = handle
        self._released = released
        self._messages: deque[tuple[PeerConnection | None, str, Message]] = deque()
        self._holds = 0

    @property
    def holding(self) -> bool:
        """Whether messages are held back now; meanwhile the elector's timer rests, too."""
        return self._holds > 0

    def add(self, connection: PeerConnection, peer: str, message: Message) -> None:
        """Hold a message back behind the others."""
        if len(self._messages) < MAX_HELD:
            self._messages.append((connection, peer, message))
        else:
            connection.close(f"more than {MAX_HELD} messages are held")  # the next one begins anew

    def again(self, peer: str, message: Message) -> None:
        """Put a message before all held ones, to be handled once more."""
        self._messages.appendleft((None, peer, message))

    def hold(self) -> Callable[[], None]:
        """Hold back peer messages and ticks until the returned function is called."""
        self._holds += 1

        def release() -> None:
            self._holds -= 1
            while self._messages and not self._holds:
                connection, peer, message = self._messages.popleft()
                if connection is None or not connection.closed or not isinstance(message, REPLIES):
                    self._handle(peer, message)  # who answers on the next connection may be another store
            self._released()

        return release

"""Messages of peers that have to wait while the disk works.

While term and vote are being saved, and while the log is being cut, messages are kept here. Afterwards they
are handled in the order in which they came (architecture rule 3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dledger.messages import REPLIES, Message
from dledger.peers.links import PeerConnection

MAX_HELD = 10_000
"""Largest number of messages of peers that wait while term and vote are saved; one more closes its
connection. Messages are not simply dropped, because senders rely on an open connection to lose nothing and do
not repeat a request over the same connection."""


class HeldMessages:
    """The waiting messages of one node. `handle(peer, message)` handles one message. `released` is called
    when messages need not wait any longer."""

    def __init__(self, handle: Callable[[str, Message], None], released: Callable[[], None]) -> None:
        self._handle = handle
        self._released = released
        self._messages: deque[tuple[PeerConnection | None, str, Message]] = deque()
        self._holds = 0

    @property
    def holding(self) -> bool:
        """Whether messages have to wait now. Meanwhile the elector's timer does not run."""
        return self._holds > 0

    def add(self, connection: PeerConnection, peer: str, message: Message) -> None:
        """Add a message behind the others that wait."""
        if len(self._messages) < MAX_HELD:
            self._messages.append((connection, peer, message))
        else:
            connection.close(f"more than {MAX_HELD} messages are held")  # the next one begins anew

    def again(self, peer: str, message: Message) -> None:
        """Put a message before all others that wait, to be handled once more."""
        self._messages.appendleft((None, peer, message))

    def hold(self) -> Callable[[], None]:
        """Let messages of peers, and ticks, wait until the returned function is called."""
        self._holds += 1

        def release() -> None:
            self._holds -= 1
            while self._messages and not self._holds:
                connection, peer, message = self._messages.popleft()
                if connection is None or not connection.closed or not isinstance(message, REPLIES):
                    self._handle(peer, message)  # on the next connection another store may answer
            self._released()

        return release

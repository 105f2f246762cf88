"""Makes unique ids of messages (UNIQ_KEY), each at the cost of one addition and one format."""

from __future__ import annotations

from dledger.formats.message_ids import encode_unique_id
from dledger.runtime import Env

_TAIL_DIGITS = 12
_TAIL_SIZE = 1 << 48


class UniqueIds:
    """Ids in RocketMQ's layout: ip, pid, salt, milliseconds, counter; 32 upper-case hex digits.

    Milliseconds and counter are one 48-bit number that starts at the wall clock and only grows by one, so no
    two ids of one object are equal, whatever the clock does. The random salt makes the ids of different
    objects and restarts of a process different.
    """

    def __init__(self, env: Env, ip: bytes) -> None:
        start = encode_unique_id(ip, env.pid, env.random.getrandbits(32), env.wall.now_ms(), 0)
        self._prefix = start[:-_TAIL_DIGITS]
        self._next = int(start[-_TAIL_DIGITS:], 16)

    def next(self) -> str:
        """The next id."""
        number = self._next
        self._next = (number + 1) % _TAIL_SIZE
        return f"{self._prefix}{number:012X}"

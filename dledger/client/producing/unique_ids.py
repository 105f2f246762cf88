"""Makes unique ids of messages (UNIQ_KEY), each at the cost of one addition and one format."""

from __future__ import annotations

from dledger.formats.message_ids import encode_unique_id
from dledger.runtime import Env

_TAIL_DIGITS = 12
_TAIL_SIZE = 1 << 48


class UniqueIds:
    """Makes ids in RocketMQ's layout: ip, pid, salt, milliseconds, counter; 32 upper-case hex digits.

    Milliseconds and counter are one number of 48 bits. It starts at the wall clock and grows by one with each
    id. So no two ids of one object are equal, even if the clock is set back. The random salt makes the ids of
    different objects, and of a process before and after a restart, different.
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

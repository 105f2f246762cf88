"""Notes the calls of the core of one node, with what it read and a digest of what it returned.

The tape runs on the event loop, in the hot path of every message. A note is one msgpack value, appended to
one buffer. The recorder takes the buffer and writes it in a worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dledger.formats.checksum import crc32

NOTE_ERRORS = (TypeError, ValueError, OverflowError, KeyError, AttributeError, msgspec.MsgspecError)
"""What a note may raise if the core is called with a value that cannot be encoded. Then the recording ends;
the node goes on."""


def _plain(value: object) -> object:
    """Encode what msgpack does not know."""
    if isinstance(value, deque):
        return list(value)
    raise NotImplementedError(f"cannot record a {type(value).__name__}")


ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
"""Encodes notes and states."""
_encode = ENCODER.encode


def effects_of(result: object) -> list[object]:
    """Return what a call of the core returned as a list. Some calls return one effect, or nothing."""
    return result if isinstance(result, list) else [] if result is None else [result]


def digest_of(result: object, state: object) -> int:
    """Return the CRC-32 of the result of a call (its effects, with the names of their types) and of the part
    of the core's state that is checked after each step."""
    if result.__class__ is not list:
        result = effects_of(result)
    names = [effect.__class__.__name__ for effect in result]
    return crc32(_encode((result, names, state)))


class Tape:
    """The notes of one node that are not written yet.

    `running` says whether calls are noted. `inside` is true while a recorded call runs: calls of the core
    that the core makes itself are not noted, and the values that it reads are.
    """

    __slots__ = ("buffer", "events", "filled", "inside", "limit", "reads", "running", "stopped")

    def __init__(self) -> None:
        self.running = False
        self.inside = False
        self.reads: list[object] = []
        """What the present call has read: from the log, from the source of random numbers, and the offered
        snapshot."""
        self.buffer = bytearray()
        self.events = 0
        """Number of calls in `buffer`."""
        self.limit = 0
        """Size of `buffer`, in bytes, from which on `filled` is called after each note. Also called after the
        first note."""
        self.filled: Callable[[], None] = lambda: None
        self.stopped: Callable[[BaseException], None] = lambda error: None
        """Called when a call could not be noted."""

    def note(
        self,
        number: int,
        args: Sequence[Any],
        named: Mapping[str, Any],
        result: object,
        state: object,
        pack: Callable[[Sequence[Any]], tuple[Any, ...]] | None = None,
    ) -> None:
        """Note a call that has returned or raised. The values read are those since the last note. `pack`
        makes the arguments that are written; None if they are those of the call."""
        buffer = self.buffer
        try:
            if pack is not None:
                args = pack(args)
            digest = digest_of(result, state)
            if named:
                buffer += _encode((number, args, self.reads, digest, named))
            else:
                buffer += _encode((number, args, self.reads, digest))
        except NOTE_ERRORS as error:
            self.running = False
            self.stopped(error)
            return
        finally:
            self.reads.clear()
        self.events += 1
        if self.events == 1 or len(buffer) >= self.limit:
            self.filled()

    def take(self) -> tuple[bytes, int]:
        """Return the notes and their number, and begin with an empty buffer."""
        taken, events = bytes(self.buffer), self.events
        self.buffer.clear()
        self.events = 0
        return taken, events


OFF = Tape()
"""The tape of objects that are not recorded any more, because a later leadership or leader took their place.
It never runs."""

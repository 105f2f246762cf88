"""Ids of messages that were stored when their producer sent them again. A later send with one of these ids is
a copy.

A producer that does not know whether its message is stored sends it again and marks it as repeated. The
leader looks for the first copy, and stores the repeated one only if there is none (`broker.intake.resends`).
The first send may still be in flight, in the buffers of a broker that stood still, and arrive later. The
first send has no mark. So a row of this table, written in one batch with the stored message, remembers its
id.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from dledger.formats.state.table import Declared, Name, Row

RESEND, RESEND_OVER = "resend", "resend_over"
MAX_RESENDS = 20_000
"""Largest number of ids that are remembered, some 300 bytes each. A further id replaces the oldest."""
RESEND_LIVE_MS = 600_000
"""Age, in ms, from which an id may be removed when another one comes. No request is in flight for so long."""


class Resend(Row, frozen=True):
    """Remembers one message that was stored when its producer sent it again. `id` is the unique key
    (UNIQ_KEY) of the message; for a batch it is that of the first message. `time` says when the message was
    stored, by the leader's clock, in ms since the epoch."""

    operation: ClassVar[str] = RESEND
    id: Name
    time: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


RESENDS = Declared[str, Resend]("resends", Resend, key=("id",), since=6, remove=RESEND_OVER)

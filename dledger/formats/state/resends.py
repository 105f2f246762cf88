"""Ids of sends that were repeated and are stored: a further send with one of these ids is a copy.

A producer that does not know whether its message is stored sends it again and marks it as repeated. The
leader looks for the first copy, and stores the repeated one only if there is none (`broker.intake.resends`).
The first send may still be in flight, in the buffers of a broker that stood still, and arrive later. It is
not marked. So a row here, in one batch with the stored message, remembers its id.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from dledger.formats.state.table import Declared, Name, Row

RESEND, RESEND_OVER = "resend", "resend_over"
MAX_RESENDS = 20_000
"""Ids that are remembered, some 300 bytes each; a further one replaces the oldest."""
RESEND_LIVE_MS = 600_000
"""Milliseconds. An older id may be removed when another one comes, because no request is in flight for so
long."""


class Resend(Row, frozen=True):
    """One message that was stored when it was sent again. `id` is its unique id (UNIQ_KEY), for a batch the
    id of its first message. `time` is the time of storing by the leader's clock, in ms since the epoch."""

    operation: ClassVar[str] = RESEND
    id: Name
    time: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


RESENDS = Declared[str, Resend]("resends", Resend, key=("id",), since=6, remove=RESEND_OVER)

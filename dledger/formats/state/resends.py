"""Sends that were repeated and are stored: whoever sends one of these ids again sends a copy.

A producer that does not know whether its message is stored sends it again and says so. The leader looks for
the first copy and stores a second one only where there is none (`broker.intake.resends`). The first send may
be under way all the same, in the buffers of a broker that stood still, and come in later. It does not say
that it is one of two; so a row here, in one batch with the message that was stored, remembers its id.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from dledger.formats.state.table import Declared, Name, Row

RESEND, RESEND_OVER = "resend", "resend_over"
MAX_RESENDS = 20_000
"""Ids that are remembered, some 300 bytes each: a further one takes the place of the oldest."""
RESEND_LIVE_MS = 600_000
"""An id that is older may go when another one comes: no request is under way for so long."""


class Resend(Row, frozen=True):
    """One message that was stored when it was sent again. `id`: its unique id (UNIQ_KEY), of a batch that of
    its first message. `time`: when that was, by the clock of who led, in ms since the epoch."""

    operation: ClassVar[str] = RESEND
    id: Name
    time: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


RESENDS = Declared[str, Resend]("resends", Resend, key=("id",), since=6, remove=RESEND_OVER)

"""Changes of the state by pops in order (ConsumerOrderInfoManager). The functions are pure.

After a pop in order, the queue waits for the consumer that has its messages, until all of them are
acknowledged or may be given out again. The group's offset is the offset of the first message that is not
acknowledged, and the next pop starts at this offset.
"""

from __future__ import annotations

import msgspec

from dledger.formats.state import PopOrder


def popped(before: PopOrder | None, row: PopOrder) -> PopOrder:
    """Return the row of a queue after a new pop. The row counts how often each message was given out before.
    If a client did not get the answer and repeats the pop with the same attempt id, both tries count as
    one."""
    if before is None:
        return row
    given = dict(zip(before.offsets, before.counts, strict=True))
    again = 0 if row.attempt and row.attempt == before.attempt else 1
    counts = tuple(given[offset] + again if offset in given else 0 for offset in row.offsets)
    return msgspec.structs.replace(row, counts=counts)


def acked(row: PopOrder, offset: int) -> PopOrder | None:
    """Return the row after an acknowledgement; None if the offset does not belong to this pop."""
    if offset not in row.offsets:
        return None
    if offset in row.acked:
        return row
    return msgspec.structs.replace(row, acked=(*row.acked, offset))


def next_offset(row: PopOrder) -> int:
    """Return the first offset that is not acknowledged. If all are acknowledged, return the offset after the
    last message."""
    left = (offset for offset in row.offsets if offset not in row.acked)
    return next(left, row.offsets[-1] + 1)


def all_acked(row: PopOrder) -> bool:
    """Return whether all messages of the row are acknowledged."""
    return len(row.acked) == len(row.offsets)


def made_visible(row: PopOrder, offset: int, at_ms: int) -> PopOrder:
    """Return the row after a message got a new time at which it becomes visible."""
    visible = tuple(one for one in row.visible if one[0] != offset)
    return msgspec.structs.replace(row, visible=(*visible, (offset, at_ms)))

"""Pops in order: what one changes (ConsumerOrderInfoManager). Pure.

A queue of a group waits for the consumer that has its messages, until all are acknowledged or may be given
again. The group's offset is that of the first message that is not acknowledged: it is popped again from
there.
"""

from __future__ import annotations

import msgspec

from dledger.formats.state import PopOrder


def popped(before: PopOrder | None, row: PopOrder) -> PopOrder:
    """The row of a new pop, with how often each message was given before. The same attempt again, of a
    client that did not get the answer, counts once."""
    if before is None:
        return row
    given = dict(zip(before.offsets, before.counts, strict=True))
    again = 0 if row.attempt and row.attempt == before.attempt else 1
    counts = tuple(given[offset] + again if offset in given else 0 for offset in row.offsets)
    return msgspec.structs.replace(row, counts=counts)


def acked(row: PopOrder, offset: int) -> PopOrder | None:
    """The row after an acknowledgement; None when it is none of these messages."""
    if offset not in row.offsets:
        return None
    if offset in row.acked:
        return row
    return msgspec.structs.replace(row, acked=(*row.acked, offset))


def next_offset(row: PopOrder) -> int:
    """The first message that is not acknowledged, or what follows the last one."""
    left = (offset for offset in row.offsets if offset not in row.acked)
    return next(left, row.offsets[-1] + 1)


def all_acked(row: PopOrder) -> bool:
    """Nothing of it is left."""
    return len(row.acked) == len(row.offsets)


def made_visible(row: PopOrder, offset: int, at_ms: int) -> PopOrder:
    """The row after the invisible time of one message was changed."""
    visible = tuple(one for one in row.visible if one[0] != offset)
    return msgspec.structs.replace(row, visible=(*visible, (offset, at_ms)))

"""Replicated state of a store directory: the newest snapshot that is committed, and the log behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from dledger.audit.entries import BODY_DAMAGED
from dledger.audit.layout import Replica, StoreError
from dledger.audit.scan import Window
from dledger.audit.state_check import load_boundary
from dledger.formats.entry import KIND_MASK, Kind
from dledger.formats.state import ReplicatedState
from dledger.formats.state_codec import unpack_parts
from dledger.formats.state_file import CorruptSnapshot, unpack_snapshot
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file
from dledger.runtime.remote_files import files_for
from dledger.spark.records import Records, records_of
from dledger.spark.runs import Ints, read_windows
from dledger.spark.stores import pieces


def committed_state(replica: Replica) -> ReplicatedState:
    """The state after the last entry that the replica knows to be committed. StoreError, OSError."""
    files = files_for(replica.directory)
    applied, state = _newest(files, replica)
    following = applied + 1
    for piece in pieces(replica, replica.committed, [(following, replica.committed)], target=None):
        for window in read_windows(piece):
            columns = window.columns
            if columns.index[0] != following or (columns.damage & BODY_DAMAGED).any():
                break
            _apply(state, window)
            following = int(columns.index[-1]) + 1
    if following <= replica.committed:
        raise StoreError(
            f"{replica.store}: the state is known up to entry {following - 1} only, the log is damaged or "
            "missing behind it: run the audit, or read another replica"
        )
    return state


def _newest(files: Files, replica: Replica) -> tuple[int, ReplicatedState]:
    """The newest snapshot at or below the committed index, or the empty state of a log that is whole."""
    found = list(_snapshots(files, replica))
    first = replica.segments[0].first_index if replica.segments else None
    if first == 0 or not (replica.segments or found):
        found.append((-1, ReplicatedState()))
    if not found:
        raise StoreError(f"{replica.store}: the log begins at entry {first} and no snapshot can be read")
    return max(found, key=lambda item: item[0])


def _snapshots(files: Files, replica: Replica) -> Iterator[tuple[int, ReplicatedState]]:
    """Readable snapshots, true after the index given. A damaged one is a finding of the audit, not ours."""
    data = read_file(files, replica.state_file) if replica.state_file else None
    if data is not None:
        try:
            own = unpack_snapshot(data)
        except CorruptSnapshot:
            own = None
        if own is not None and own.applied <= replica.committed:
            yield own.applied, own.state
    for manifest in replica.snapshots:
        if manifest.index <= replica.committed:
            boundary = load_boundary(files, replica.directory, manifest.pos)
            if boundary is not None:
                yield manifest.index, unpack_parts(boundary.parts)


def _apply(state: ReplicatedState, window: Window) -> None:
    """As the broker's dispatcher does, in runs of messages between system entries."""
    kind = window.columns.channel >> 24 & KIND_MASK
    records = records_of(window)
    message = (kind == Kind.MESSAGE) & records.good
    done = 0
    for at in [*np.flatnonzero(kind == Kind.SYSTEM).tolist(), len(kind)]:
        _count_messages(state, records, np.flatnonzero(message[done:at]) + done)
        if at < len(kind):
            start = int(records.body_at[at])
            state.apply(window.data[start : start + int(records.body_size[at])])
        done = at + 1


def _count_messages(state: ReplicatedState, records: Records, chosen: Ints) -> None:
    if not len(chosen):
        return
    state.last_store_time_ms = max(state.last_store_time_ms, int(records.stored[chosen].max()))
    chosen = chosen[records.dispatched[chosen]]
    codes = records.topic[chosen] << 32 | records.queue_id[chosen]
    order = np.lexsort((records.queue_offset[chosen], codes))
    last = np.append(np.flatnonzero(np.diff(codes[order])), len(order) - 1) if len(order) else order
    for number in chosen[order[last]].tolist():
        bounds = state.bounds(records.topics[int(records.topic[number])], int(records.queue_id[number]))
        bounds.next = int(records.queue_offset[number]) + 1


def state_rows(replica: Replica) -> Iterator[tuple[object, ...]]:
    """Rows of the view `state`, in the order of `columns.STATE`."""
    yield from rows_of(committed_state(replica), replica.group, replica.name, replica.committed)


def rows_of(
    state: ReplicatedState, broker_group: str, replica: str, applied: int | None
) -> Iterator[tuple[object, ...]]:
    """The same of a state that is known. `applied`: after which entry."""
    head = (broker_group, replica, applied)
    for name, topic in sorted(state.topics.items()):
        yield *head, "topic", name, name, None, None, _json(topic.op())
    for name, group in sorted(state.groups.items()):
        yield *head, "group", name, None, None, None, _json(group.op())
    for name, offsets in sorted(state.offsets.items()):
        for (topic_name, queue_id), offset in sorted(offsets.items()):
            yield *head, "offset", name, topic_name, queue_id, offset, None
    for topic_name, queues in sorted(state.queues.items()):
        for queue_id, bounds in sorted(queues.items()):
            yield *head, "queue", topic_name, topic_name, queue_id, bounds.next, None


def _json(operation: dict[str, object]) -> str:
    return json.dumps({key: value for key, value in operation.items() if key != "op"}, sort_keys=True)

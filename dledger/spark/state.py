"""Replicated state of a store directory, computed from the newest committed snapshot and the log after it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np

from dledger.audit.entries import BODY_DAMAGED
from dledger.audit.replay import Entries, Queued, StateReplay
from dledger.audit.scan import Window
from dledger.audit.state_check import load_boundary
from dledger.audit.store_directory import Replica, StoreError
from dledger.formats.entry import KIND_MASK, Kind
from dledger.formats.life import Life
from dledger.formats.state import TOPIC_BIRTHS, ReplicatedState, UnknownOperation, unpack_parts
from dledger.formats.state_file import CorruptSnapshot, unpack_snapshot
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file
from dledger.runtime.remote_files import files_for
from dledger.spark.entry_ranges import Ints, read_windows
from dledger.spark.offsets import Lives
from dledger.spark.records import Records, records_of
from dledger.spark.stores import IndexUnits, pieces

REPLAY_BYTES = 16 * 1024 * 1024
"""Limit, in bytes, of the log that is replayed on the driver to know the present state. It takes some tenths
of a second."""


def committed_state(replica: Replica) -> ReplicatedState:
    """Return the state after the last entry that the replica knows to be committed. Raises StoreError or
    OSError."""
    applied, state = _newest(files_for(replica.directory), replica)
    _replay(replica, applied, state)
    return state


def _replay(replica: Replica, applied: int, state: ReplicatedState) -> None:
    """Apply the committed entries after the entry `applied` to the state. Raises StoreError or OSError; the
    state is then that after some entry before the damage."""
    numbers = _Numbers()
    replay = StateReplay(state, numbers.keys.__getitem__)
    following = applied + 1
    for piece in pieces(replica, replica.committed, [(following, replica.committed)], target=None):
        for window in read_windows(piece):
            columns = window.columns
            if columns.index[0] != following or (columns.damage & BODY_DAMAGED).any():
                break
            try:
                _play(replay, numbers, window)
            except UnknownOperation as error:
                raise StoreError(
                    f"{replica.store}: entry {replay.at}: {error}: a newer version wrote it, so use "
                    "that version"
                ) from error
            following = int(columns.index[-1]) + 1
    if following <= replica.committed:
        raise StoreError(
            f"{replica.store}: the state is known only up to entry {following - 1}, because the log "
            "after it is damaged or missing: run the audit, or read another replica"
        )


class RecentState(NamedTuple):
    """The replicated state of a store, as far as it is known at little cost."""

    state: ReplicatedState
    is_current: bool
    """Whether it is the state after the last committed entry, and not that of an older snapshot."""


def recent_state(replica: Replica) -> RecentState | None:
    """Return the state after the last committed entry. If more than `REPLAY_BYTES` of log follow the newest
    snapshot, return the state of the snapshot instead; if that log is damaged, the state before the damage.
    A running broker writes a snapshot every 30 s (`snapshotIntervalMs`).

    None if there is no snapshot either. Raises OSError.
    """
    files = files_for(replica.directory)
    applied, known = -1, None
    try:
        applied, known = _newest(files, replica)
        with closing(IndexUnits(files, replica)) as units:
            begin = 0 if applied < 0 else units.end_position(applied)
            end = units.end_position(replica.committed)
        if begin is not None and end is not None and end - begin <= REPLAY_BYTES:
            _replay(replica, applied, known)
            return RecentState(known, True)
    except StoreError:
        pass  # `committed_state` tells why to those who need the state of now
    return None if known is None or applied < 0 else RecentState(known, False)


def topic_lives(replica: Replica) -> tuple[Lives, Lives]:
    """Return the life of each topic (`formats.life`), according to the `recent_state`: the lives of now, or
    those of an older snapshot. One of the two is empty. A life is the time between a topic's creation and its
    deletion.

    Both are empty for stores without an identity, such as those of Apache's brokers, and if the
    `recent_state` is not known. Raises OSError.
    """
    if replica.identity is None or not replica.identity.cluster:
        return {}, {}
    recent = recent_state(replica)
    if recent is None:
        return {}, {}
    births = recent.state[TOPIC_BIRTHS].rows
    found = {
        topic: str(Life(replica.identity.cluster, births[topic].at if topic in births else 0))
        for topic in recent.state.topics
    }
    return (found, {}) if recent.is_current else ({}, found)


def _newest(files: Files, replica: Replica) -> tuple[int, ReplicatedState]:
    """Return the index and the state of the newest snapshot at or below the committed index. If there is
    none and nothing was deleted from the log, return index -1 and the empty state. Raises StoreError if
    there is no snapshot and the beginning of the log was deleted."""
    found = list(_snapshots(files, replica))
    first = replica.segments[0].first_index if replica.segments else None
    if first == 0 or not (replica.segments or found):
        found.append((-1, ReplicatedState()))
    if not found:
        raise StoreError(f"{replica.store}: the log begins at entry {first} and no snapshot can be read")
    return max(found, key=lambda item: item[0])


def _snapshots(files: Files, replica: Replica) -> Iterator[tuple[int, ReplicatedState]]:
    """Yield the readable snapshots at or below the committed index, each with the index of its last entry.
    Damaged snapshots are left out, as reporting them is the task of the audit."""
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


class _Numbers:
    """Gives each queue a number, which stays the same in all windows of a log (the parts that are read at
    a time)."""

    def __init__(self) -> None:
        self.keys: list[tuple[str, int]] = []
        self._numbers: dict[tuple[str, int], int] = {}

    def of(self, records: Records, chosen: Ints) -> Ints:
        """Return the number of each chosen record's queue."""
        codes, which = np.unique(records.topic[chosen] << 32 | records.queue_id[chosen], return_inverse=True)
        found = [self._number(records.topics[code >> 32], code & 0xFFFFFFFF) for code in codes.tolist()]
        return np.array(found, np.int64)[which]

    def _number(self, topic: str, queue_id: int) -> int:
        key = (topic, queue_id)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.keys)
            self.keys.append(key)
        return number


def _play(replay: StateReplay, numbers: _Numbers, window: Window) -> None:
    columns = window.columns
    kind = columns.channel >> 24 & KIND_MASK
    records = records_of(window)
    message = (kind == Kind.MESSAGE) & records.good
    shown = np.flatnonzero(message | (kind == Kind.SYSTEM))
    entries = Entries(
        columns.index[shown],
        kind[shown],
        records.stored[shown],
        records.body_at[shown],
        records.body_size[shown],
    )
    chosen = np.flatnonzero(message & records.dispatched)
    queued = Queued(
        columns.index[chosen],
        numbers.of(records, chosen),
        records.queue_offset[chosen],
        records.physical_offset[chosen],
    )
    for _ in replay.add(window.data, int(columns.index[-1]), entries, queued):
        pass  # no marks


def state_rows(replica: Replica) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the view `state` for a replica, in the order of `columns.STATE`."""
    yield from rows_of(committed_state(replica), replica.group, replica.name, replica.committed)


def rows_of(
    state: ReplicatedState, broker_group: str, replica: str, applied: int | None
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the view `state` for a known state. `applied`: index of the last entry in the
    state; None if leaders were asked."""
    head = (broker_group, replica, applied)
    for row in state.rows_of_view():
        data = None if row.data is None else json.dumps(row.data, sort_keys=True)
        yield *head, row.kind, row.name, row.topic, row.queue_id, row.offset, data

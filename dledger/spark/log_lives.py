"""Lives of topics in the log of a store directory: which messages belong to a topic that was deleted.

A deletion takes the messages of a topic away, but their bytes stay in the log until retention removes them.
The replicated state has the log offset of each topic's last deletion: messages below it belong to a deleted
topic. Deletions that are newer than the newest snapshot of the state are found in the log behind it. The log
is read to its end for that, without a limit. A running broker writes a snapshot every 30 s
(`snapshotIntervalMs`), so this is little. Where there is none, a query reads all segments anyway.

Entries that are damaged or cannot be read are left out here: whoever reads their messages reports them.

Objects of `LogLives` are sent to executors by pickle.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import numpy as np
import pyarrow as pa

from dledger.audit.entries import BODY_DAMAGED
from dledger.audit.state_check import load_boundary
from dledger.audit.store_directory import Replica
from dledger.formats.entry import KIND_MASK, Kind
from dledger.formats.life import Life
from dledger.formats.record import SYSTEM_TOPIC
from dledger.formats.state import (
    DELETIONS,
    TOPIC_BIRTHS,
    TOPIC_DELETE,
    Op,
    ReplicatedState,
    TopicBirth,
    TopicConfig,
    unpack_parts,
)
from dledger.formats.state_file import Snapshot
from dledger.runtime.remote_files import files_for
from dledger.spark.entry_ranges import Bools, Ints, Piece, read_windows
from dledger.spark.option_values import BadOption
from dledger.spark.options import Options, TopicChoice
from dledger.spark.records import Records, records_of
from dledger.spark.selection import is_system_topic, wants_topic
from dledger.spark.stores import pieces

UNKNOWN = -1
"""Stands for the position at which a topic was made, if that is not known."""

SHOWN_TOPICS = 20
"""Largest number of topics that an error names."""

Span = tuple[int, int]
"""One life of a topic: the log offset from which on its messages are in the log, and the position at which
it was made (`Life.born`)."""


@dataclass(frozen=True)
class LogLives:
    """The lives of the topics of one log. `cluster`: id of the log, empty if lives are not known."""

    cluster: str = ""
    of: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)
    """Maps a topic to its known lives, ascending. The first one begins at offset 0, the last one is the
    present one, or is still to come if the topic was deleted."""
    others: int = UNKNOWN
    """`Life.born` of topics that are not in `of`."""

    def begin(self, topic: str) -> int:
        """Return the log offset below which all messages of a topic belong to deleted topics of its name."""
        spans = self.of.get(topic)
        return spans[-1][0] if spans else 0

    def life(self, topic: str) -> str | None:
        """Return the present life of a topic as text; None if it is not known."""
        spans = self.of.get(topic)
        return self._text(spans[-1][1] if spans else self.others)

    def of_deleted(self, records: Records) -> Bools | None:
        """Return which records belong to deleted topics; None if none does."""
        begins = [self.begin(topic) for topic in records.topics] if self.of else []
        if not any(begins):
            return None
        return np.asarray(records.physical_offset < np.array(begins, np.int64)[records.topic], np.bool_)

    def texts(self, records: Records, chosen: Ints) -> pa.StringArray:
        """Return the life of the topic of each chosen record as text; null where it is not known."""
        texts: list[str | None] = []
        first: list[int] = []
        known = [self.of.get(topic, ((0, self.others),)) for topic in records.topics]
        for spans in known:
            first.append(len(texts))
            texts += [self._text(born) for _, born in spans]
        topic, position = records.topic[chosen], records.physical_offset[chosen]
        which = np.array(first, np.int64)[topic]
        for number, spans in enumerate(known):
            if len(spans) > 1:
                mine = topic == number
                begins = np.array([begin for begin, _ in spans], np.int64)
                which[mine] += np.maximum(np.searchsorted(begins, position[mine], side="right") - 1, 0)
        return pa.array(texts, pa.string()).take(pa.array(which))

    def of_topics(self, topics: Collection[str]) -> LogLives:
        """Return the lives of these topics alone."""
        return replace(self, of={topic: spans for topic, spans in self.of.items() if topic in topics})

    def of_pieces(self, read: Sequence[Piece], wants: Callable[[str], bool], *, named: bool) -> LogLives:
        """Return what a task needs that reads these pieces of the log. With `named`, it needs the lives
        themselves; otherwise only which messages belong to deleted topics."""
        position = min((piece.task.start + piece.offset for piece in read), default=0)
        return replace(
            self,
            of={
                topic: spans
                for topic, spans in self.of.items()
                if (named or spans[-1][0] > position) and wants(topic)
            },
        )

    def _text(self, born: int) -> str | None:
        return str(Life(self.cluster, born)) if self.cluster and born != UNKNOWN else None


NO_LIVES = LogLives()
"""The lives of a log of which they are not known: no message is hidden."""


@dataclass(frozen=True)
class LogTopics:
    """What a log says about its topics. `names`: the topics that exist; None if that is not known."""

    lives: LogLives = NO_LIVES
    names: frozenset[str] | None = None


class KnownLives:
    """What was found in logs, by the ids of the logs. A stream keeps it between its batches, so that each
    entry is read once. It is empty in a copy, as tasks do not need it."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, _Found]] = {}
        """Maps the id of a log to the last entry that was read, and what was found up to it."""

    def __reduce__(self) -> tuple[object, ...]:
        return KnownLives, ()


def log_topics(
    replica: Replica,
    held: Snapshot | None,
    highest: int | None,
    *,
    history: bool = False,
    known: KnownLives | None = None,
) -> LogTopics:
    """Return what the log of a replica says about its topics up to entry `highest`, or to its end if that is
    None. Blocking. Raises StoreError or OSError.

    `held`: the content of the state file, if it is known to belong to this log (`topic_segments.held_state`).
    `history`: also find the lives before the present ones. The whole log is read for that. `known`: what
    earlier calls found in committed entries, with the same `history`.
    """
    if replica.identity is None or not replica.identity.cluster:
        return LogTopics()
    cluster = replica.identity.cluster
    applied, found = (known or KnownLives()).found.get(cluster, (-1, None))
    if found is None or (held is not None and held.applied > applied and not history):
        applied, found = -1, _Found(None)
        for index, state in _begin(replica) if history else _newest(replica, held):
            applied, found = index, _Found(state)
            break
    for position, op in _operations(replica, applied + 1, highest):
        found.apply(position, op)
    if known is not None and highest is not None:
        known.found[cluster] = max(applied, highest), found
    return LogTopics(found.lives(cluster), found.names(_queue_topics(replica)))


def check_topics(options: Options, found: Sequence[LogTopics], mode: str = "batch") -> None:
    """Raises BadOption if the options name a topic that none of the logs has, as it would look like an empty
    one, and for a pattern that matches none (`check_pattern`)."""
    if not all(one.names is not None for one in found):
        return  # Apache's: its topics are not in the log
    known = frozenset[str]().union(*(one.names or () for one in found))
    deleted = {name for one in found for name in one.lives.of if one.lives.begin(name)}
    check_pattern(options.topics, known | deleted if options.include_deleted else known, mode)
    for topic in options.topics.names:
        if topic in known or is_system_topic(topic) or topic == SYSTEM_TOPIC:
            continue
        if topic in deleted and options.include_deleted:
            continue
        if topic in deleted:
            more = "; includeDeleted=true shows its messages" if options.view == "messages" else ""
            raise BadOption(f"there is no topic {topic!r}: it was deleted{more}")
        raise BadOption(unknown_topic(topic, known))


def check_pattern(choice: TopicChoice, known: Iterable[str], mode: str) -> None:
    """Check that the option `subscribePattern`, if it is given, matches one of the topics that exist.

    Raises BadOption in the mode `batch`, which would read nothing. Warns in the mode `stream`, which also
    reads topics that are made later.
    """
    names = sorted(known)
    if choice.pattern is None or any(wants_topic(choice, name) for name in names):
        return
    text = (
        f"option subscribePattern: no topic matches {choice.pattern!r}, which must match the whole name"
        f"{_shown_topics(names)}"
    )
    if mode == "batch":
        raise BadOption(text)
    warnings.warn(f"{text}. The stream reads topics that match as soon as they are made", stacklevel=2)


def unknown_topic(topic: str, known: Iterable[str], what: str = "there is no topic") -> str:
    """Return the error text for a topic that does not exist. It is for readers, who do not make topics."""
    names = sorted(name for name in known if not is_system_topic(name))
    close = get_close_matches(topic, names, n=1)
    if close:
        return f"{what} {topic!r}: did you mean {close[0]!r}?"
    return f"{what} {topic!r}{_shown_topics(names)}"


def _shown_topics(known: Iterable[str]) -> str:
    """Return the end of an error text that shows some of the topics which exist; empty if there are none."""
    names = sorted(name for name in known if not is_system_topic(name))
    more = f" and {len(names) - SHOWN_TOPICS} more" if len(names) > SHOWN_TOPICS else ""
    return f"; there are {', '.join(names[:SHOWN_TOPICS])}{more}" if names else ""


class _Found:
    """Lives and names of topics, from a state and the operations after it. `state` None: not known."""

    def __init__(self, state: ReplicatedState | None) -> None:
        self._others = UNKNOWN if state is None else 0
        self._names: set[str] = set()
        self._gone: set[str] = set()
        self._spans: dict[str, list[Span]] = {}
        self._whole = state is not None
        if state is not None:
            self._names = {*state.topics, *state.queues}
            births, deletions = state[TOPIC_BIRTHS].rows, state[DELETIONS].rows
            for name, deletion in deletions.items():
                self._spans[name] = [(0, UNKNOWN), (deletion.at, 0)]
            for name, birth in births.items():
                self._spans[name] = [*self._spans.get(name, [(0, 0)])[:-1], (self._last(name), birth.at)]
            self._gone = deletions.keys() - self._names

    def apply(self, position: int, op: Op) -> None:
        """Apply an operation at this log offset; one that does not concern topics changes nothing."""
        name, at = op.get("name"), op.get("at")
        if not isinstance(name, str):
            return
        if op["op"] == TopicConfig.operation:
            self._names.add(name)
            self._gone.discard(name)
        elif op["op"] == TOPIC_DELETE and isinstance(at, int) and min(at, position) > self._last(name):
            self._spans.setdefault(name, [(0, self._others)]).append((min(at, position), 0))
            self._names.discard(name)
            self._gone.add(name)
        elif op["op"] == TopicBirth.operation and isinstance(at, int):
            self._spans[name] = [*self._spans.get(name, [])[:-1], (self._last(name), at)]

    def lives(self, cluster: str) -> LogLives:
        """Return the lives."""
        return LogLives(cluster, {name: tuple(spans) for name, spans in self._spans.items()}, self._others)

    def names(self, queued: frozenset[str] | None) -> frozenset[str] | None:
        """Return the topics that exist. `queued`: those with a ConsumeQueue, which may lag behind the log."""
        if not self._whole and queued is None:
            return None
        return frozenset(self._names | ((queued or frozenset()) - self._gone))

    def _last(self, name: str) -> int:
        return self._spans[name][-1][0] if name in self._spans else 0


def _queue_topics(replica: Replica) -> frozenset[str] | None:
    """Return the topics that have a ConsumeQueue; None if the replica has no ConsumeQueues."""
    if not replica.queue_root:
        return None
    return frozenset(files_for(replica.directory).listdir(replica.queue_root))


def _newest(replica: Replica, held: Snapshot | None) -> Iterator[tuple[int, ReplicatedState]]:
    """Yield states of the log with the index of their last entry, the newest first. A state holds only what
    is committed, so it may also be newer than the last entry that the replica knew to be committed."""
    files = files_for(replica.directory)
    last = -1 if held is None else held.applied
    for manifest in sorted(replica.snapshots, key=lambda one: -one.index):
        if manifest.index > last:
            boundary = load_boundary(files, replica.directory, manifest.pos)
            if boundary is not None:
                yield manifest.index, unpack_parts(boundary.parts)
    if held is not None:
        yield held.applied, held.state
    yield from _begin(replica)


def _begin(replica: Replica) -> Iterator[tuple[int, ReplicatedState]]:
    """Yield the state before the first entry of the log, if it is known."""
    if not replica.segments or replica.segments[0].first_index == 0:
        yield -1, ReplicatedState()
    for manifest in replica.snapshots:
        if manifest.index == replica.base_index:
            boundary = load_boundary(files_for(replica.directory), replica.directory, manifest.pos)
            if boundary is not None:
                yield manifest.index, unpack_parts(boundary.parts)


def _operations(replica: Replica, first: int, highest: int | None) -> Iterator[tuple[int, Op]]:
    """Yield the operations in the entries `first` to `highest`, each with the log offset of its entry."""
    end = (1 << 62) if highest is None else highest
    for piece in pieces(replica, highest, [(first, end)], target=None) if first <= end else ():
        try:
            for window in read_windows(piece):
                columns = window.columns
                system = (columns.channel >> 24 & KIND_MASK == Kind.SYSTEM) & (
                    columns.damage & BODY_DAMAGED == 0
                )
                if not system.any():
                    continue
                chosen = replace(window, columns=columns[system])
                records = records_of(chosen)
                places = zip(records.body_at.tolist(), records.body_size.tolist(), strict=True)
                for number, (start, size) in enumerate(places):
                    if records.good[number]:
                        op = ReplicatedState.read(records.buffer[start : start + size].tobytes())
                        if op is not None:
                            yield int(chosen.columns.pos[number]), op
        except OSError:
            continue  # whoever reads the messages of the segment says so

"""Turn entries into rows of the view `messages`: check the entries, choose the wanted messages, fill the
columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dledger.audit.entries import BODY_DAMAGED
from dledger.audit.records import has_record
from dledger.audit.scan import Window
from dledger.client.compression import CorruptBody, decompress
from dledger.formats.entry import HEADER_SIZE, KIND_MASK, Kind
from dledger.formats.properties import KEYS, TAGS
from dledger.formats.record import COMPRESSED, SYSTEM_TOPIC
from dledger.spark import columns
from dledger.spark.entry_ranges import NO_END, Bools, Ints, Piece, read_windows
from dledger.spark.options import Options
from dledger.spark.records import Records, records_of, slices
from dledger.spark.selection import Selection
from dledger.spark.texts import parse_properties

_BATCH_BYTES = 64 * 1024 * 1024
"""Approximate size, in bytes of uncompressed bodies, of one batch."""
_FIRST_MS = -62_135_596_800_000
_LAST_MS = 253_402_300_799_999
"""The last ms of the year 9999. Spark can show only the years 1 to 9999, and a producer's clock may be
wrong by any amount."""


ID_SEPARATOR = ":"
"""Stands between the parts of a message's id: topic, queue, life and offset. No topic has it in its name."""


class CorruptMessage(Exception):
    """An entry that should hold a message is damaged or lost."""


@dataclass(frozen=True)
class Expected:
    """The messages that are at some places in the log, according to a ConsumeQueue. `topic` holds indexes
    into `topics`."""

    topics: list[str]
    topic: Ints
    queue_id: Ints
    offset: Ints

    def met(self, records: Records) -> Bools:
        """Whether each record is the expected message."""
        number = {topic: at for at, topic in enumerate(records.topics)}
        wanted = np.array([number.get(topic, -1) for topic in self.topics], np.int64)[self.topic]
        right = (records.topic == wanted) & (records.queue_id == self.queue_id)
        return np.asarray(right & (records.queue_offset == self.offset) & records.dispatched, np.bool_)


def message_columns(options: Options) -> columns.Columns:
    """Return the columns of the view `messages` with these options."""
    return columns.message_columns(
        value=options.include_value,
        headers=options.include_headers,
        group=options.include_group,
        life=options.include_life,
        ident=options.include_id,
        corrupt=options.corrupt_records == "include",
    )


class Lives(Protocol):
    """What is known about the lives of topics (`formats.life`)."""

    def of_deleted(self, records: Records) -> Bools | None:
        """Return which records belong to deleted topics; None if none does."""

    def texts(self, records: Records, chosen: Ints) -> pa.StringArray:
        """Return the life of the topic of each chosen record as text; null where it is not known."""


@dataclass(frozen=True)
class MessageRows:
    """Turns messages into rows. `corrupt`: what to do with damage: fail, skip, or include it as rows;
    `group`: the value of the column `group`; `deleted`: whether messages of deleted topics become rows."""

    selection: Selection
    columns: columns.Columns
    corrupt: str
    group: str
    lives: Lives
    deleted: bool

    def of_piece(self, piece: Piece, highest: int) -> Iterator[pa.RecordBatch]:
        """Yield the messages in a piece of a segment, up to index `highest`.

        Raises CorruptMessage for damage and for a file that cannot be read, if `corrupt` is fail. With
        skip, what is damaged is left out; with include, it becomes rows.
        """
        last = highest if piece.last < 0 else min(piece.last, highest)
        following = piece.first
        why = "retired meanwhile, or damaged"
        try:
            for window in read_windows(piece):
                index = window.columns.index
                if index[-1] > last:
                    window = replace(window, columns=window.columns[index <= last])
                if len(window.columns):
                    yield from self._lost(piece, following, int(window.columns.index[0]) - 1, why)
                    yield from self.of_window(window)
                    following = int(window.columns.index[-1]) + 1
        except OSError as error:
            why = f"the file cannot be read: {error}"
            if self.corrupt == "fail":
                raise CorruptMessage(f"{piece.task.path}: from entry {following} on {why}") from error
        yield from self._lost(piece, following, last if last < NO_END else piece.task.committed, why)

    def of_window(self, window: Window, expected: Expected | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the messages among the entries of a window. With `expected`, the window must contain
        exactly those messages."""
        entries = window.columns
        is_message = (entries.channel >> 24 & KIND_MASK == Kind.MESSAGE) & has_record(entries)
        records = records_of(window)
        records.blame(entries.damage & BODY_DAMAGED != 0, "the body of the entry does not match its CRC")
        in_place = records.physical_offset == entries.pos + HEADER_SIZE
        records.blame(is_message & ~in_place, "the record belongs to another place of the log")
        records.check_body_crcs(is_message & (entries.stored_crc == 0) & (entries.chain == 0))
        if expected is not None:
            records.blame(~expected.met(records), "the ConsumeQueue points at something else")
        own = np.array([topic == SYSTEM_TOPIC for topic in records.topics], np.bool_)[records.topic]
        disguised = ~is_message & records.good & in_place & records.dispatched & ~own
        records.blame(disguised, "the entry holds a message although its kind says that it holds none")
        candidates = is_message & records.dispatched
        if self.selection.system_entries:
            candidates |= ~is_message & own
        yield from self.of_records(records, candidates, entries.index, entries.term)
        yield from self._corrupt_entries(window, records, is_message | disguised)

    def of_records(
        self, records: Records, candidates: Bools, index: Ints | None, term: Ints | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of the wanted messages among the candidates. Records with damaged texts or bodies are
        left out here, and their problem is set."""
        chosen_mask = candidates & self.selection.mask(records)
        gone = None if self.deleted else self.lives.of_deleted(records)
        chosen = np.flatnonzero(chosen_mask if gone is None else chosen_mask & ~gone)
        if not len(chosen):
            return
        properties = parse_properties(records.properties(chosen))
        tags = properties.values(TAGS.encode())
        keys = properties.values(KEYS.encode())
        wanted = records.good[chosen]
        for matching in (self.selection.of_tags(tags), self.selection.of_keys(keys)):
            if matching is not None:
                wanted &= matching
        names = [name for name, _ in self.columns]
        plain = self._plain_bodies(records, chosen[wanted]) if "value" in names else {}
        wanted &= records.good[chosen]
        if not wanted.any():
            return
        texts = {"tags": tags, "key": keys}
        if "headers" in names:
            texts["headers"] = properties.maps()
        if not wanted.all():
            mask = pa.array(wanted)
            texts = {name: array.filter(mask) for name, array in texts.items()}
            chosen = chosen[wanted]
        for start, end in _groups(records.body_size[chosen], chosen, plain):
            part = chosen[start:end]
            arrays = {name: array.slice(start, end - start) for name, array in texts.items()}
            yield self._batch(records, part, arrays, plain, index, term)

    def _plain_bodies(self, records: Records, chosen: Ints) -> dict[int, bytes]:
        """Return the uncompressed bodies of those chosen records that have compressed bodies."""
        found = {}
        damaged = np.zeros(len(records.problem), np.bool_)
        for number in chosen[records.sys_flag[chosen] & COMPRESSED != 0].tolist():
            start = int(records.body_at[number])
            body = records.buffer[start : start + int(records.body_size[number])].tobytes()
            try:
                found[number] = decompress(body, int(records.sys_flag[number]))
            except CorruptBody as error:
                damaged[:] = False
                damaged[number] = True
                records.blame(damaged, str(error))
        return found

    def _batch(
        self,
        records: Records,
        chosen: Ints,
        texts: dict[str, pa.Array],
        plain: dict[int, bytes],
        index: Ints | None,
        term: Ints | None,
    ) -> pa.RecordBatch:
        count = len(chosen)
        names = [name for name, _ in self.columns]
        lives = self.lives.texts(records, chosen) if {"life", "id"}.intersection(names) else None

        def column(name: str) -> pa.Array:
            match name:
                case "value":
                    return _values(records, chosen, plain)
                case "topic":
                    topics = pa.array(records.topics, pa.string())
                    return topics.take(pa.array(records.topic[chosen]))
                case "partition":
                    return pa.array(records.queue_id[chosen].astype(np.int32))
                case "offset":
                    return pa.array(records.queue_offset[chosen])
                case "timestamp":
                    return _times(records.born[chosen])
                case "storeTimestamp":
                    return _times(records.stored[chosen])
                case "flag":
                    return pa.array(records.flag[chosen].astype(np.int32))
                case "logIndex":
                    return pa.nulls(count, pa.int64()) if index is None else pa.array(index[chosen])
                case "logTerm":
                    return pa.nulls(count, pa.int64()) if term is None else pa.array(term[chosen])
                case "group":
                    return pa.repeat(pa.scalar(self.group, pa.string()), count)
                case "life":
                    return lives
                case "id":
                    places = [column(part).cast(pa.string()) for part in ("topic", "partition", "offset")]
                    return pc.binary_join_element_wise(*places[:2], lives, places[2], ID_SEPARATOR)
                case "_corrupt":
                    return pa.nulls(count, pa.string())
                case _:
                    return texts[name]

        schema = columns.arrow_schema(self.columns)
        return pa.RecordBatch.from_arrays([column(name) for name in schema.names], schema=schema)

    def _corrupt_entries(
        self, window: Window, records: Records, concerned: Bools
    ) -> Iterator[pa.RecordBatch]:
        bad = np.flatnonzero(concerned & ~records.good)
        if not len(bad) or self.corrupt == "skip":
            return
        if self.corrupt == "fail":
            first = window.columns.entry(int(bad[0]))
            raise CorruptMessage(f"index {first.index}, pos {first.pos}: {records.problem[bad[0]]}")
        entries = window.columns[bad]
        starts = entries.pos - window.base
        values = slices(records.buffer, starts + HEADER_SIZE, starts + entries.size)
        places = zip(entries.index.tolist(), entries.term.tolist(), strict=True)
        yield from self._corrupt_rows(
            {"value": value.as_py(), "_corrupt": reason, "logIndex": at, "logTerm": term}
            for value, reason, (at, term) in zip(values, records.problem[bad], places, strict=True)
        )

    def of_answer(self, records: Records, starts: Ints, sizes: Ints) -> Iterator[pa.RecordBatch]:
        """Yield the messages of an answer from a broker: records of `sizes` bytes at `starts`."""
        records.check_body_crcs(np.ones(len(starts), np.bool_))
        yield from self.of_records(records, records.dispatched, None, None)
        bad = np.flatnonzero(~records.good)
        if not len(bad) or self.corrupt == "skip":
            return
        if self.corrupt == "fail":
            at = records.physical_offset[bad[0]]
            raise CorruptMessage(f"a broker sent a record of pos {at}: {records.problem[bad[0]]}")
        values = slices(records.buffer, starts[bad], starts[bad] + sizes[bad])
        yield from self._corrupt_rows(
            {"value": value.as_py(), "_corrupt": reason}
            for value, reason in zip(values, records.problem[bad], strict=True)
        )

    def _lost(self, piece: Piece, first: int, last: int, why: str) -> Iterator[pa.RecordBatch]:
        """Report that entries `first` to `last` cannot be found, in the way that `corrupt` says."""
        if last < first or self.corrupt == "skip":
            return
        text = f"{piece.task.path}: entries {first} to {last} are lost here ({why})"
        if self.corrupt == "fail":
            raise CorruptMessage(f"{text}: run the audit, or set corruptRecords to skip or include")
        yield from self._corrupt_rows([{"_corrupt": text, "logIndex": first}])

    def _corrupt_rows(self, rows: Iterable[dict[str, object]]) -> Iterator[pa.RecordBatch]:
        fixed = {"group": self.group}
        names = [name for name, _ in self.columns]
        yield from columns.batches(
            self.columns, (tuple((fixed | row).get(name) for name in names) for row in rows)
        )


def message_rows(options: Options, selection: Selection, group: str, lives: Lives) -> MessageRows:
    """Return what turns the messages of a broker group into the rows that the options ask for."""
    return MessageRows(
        selection,
        message_columns(options),
        options.corrupt_records,
        group,
        lives,
        options.include_deleted,
    )


def _values(records: Records, chosen: Ints, plain: dict[int, bytes]) -> pa.BinaryArray:
    starts = records.body_at[chosen]
    values = slices(records.buffer, starts, starts + records.body_size[chosen])
    unfolded = [plain[number] for number in chosen.tolist() if number in plain] if plain else []
    if not unfolded:
        return values
    mask = np.array([number in plain for number in chosen.tolist()], np.bool_)
    return pc.replace_with_mask(values, pa.array(mask), pa.array(unfolded, pa.binary()))


def _times(milliseconds: npt.NDArray[np.int64]) -> pa.TimestampArray:
    return pa.array(np.clip(milliseconds, _FIRST_MS, _LAST_MS) * 1000).cast(pa.timestamp("us", tz="UTC"))


def _groups(sizes: Ints, chosen: Ints, plain: dict[int, bytes]) -> Iterator[tuple[int, int]]:
    """Yield the range of rows of each batch, cut so that a batch has about _BATCH_BYTES of uncompressed
    bodies."""
    if plain:
        stored = zip(chosen.tolist(), sizes.tolist(), strict=True)
        sizes = np.array([len(plain.get(number, b"")) or size for number, size in stored], np.int64)
    number = np.cumsum(sizes) // _BATCH_BYTES
    cuts = np.flatnonzero(np.diff(number)) + 1
    edges = [0, *cuts.tolist(), len(chosen)]
    yield from pairwise(edges)

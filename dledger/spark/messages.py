"""Turn entries into rows of the view `messages`: check the entries, choose the wanted messages, fill the
columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from os.path import dirname
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dledger.audit.entries import BODY_DAMAGED
from dledger.audit.records import has_record
from dledger.audit.scan import Window
from dledger.audit.store_directory import StoreError
from dledger.client.compression import CorruptBody, decompress
from dledger.formats.entry import HEADER_SIZE, KIND_MASK, Kind
from dledger.formats.properties import KEYS, TAGS
from dledger.formats.record import COMPRESSED, SYSTEM_TOPIC
from dledger.spark import columns
from dledger.spark.copies import NO_COPIES, Copies, Copy, warn
from dledger.spark.entry_ranges import NO_END, Bools, Ints, Piece, is_retired, read_windows
from dledger.spark.expected import Expected
from dledger.spark.offsets import DataLost
from dledger.spark.options import Options
from dledger.spark.records import Records, records_of, slices
from dledger.spark.selection import Selection
from dledger.spark.texts import parse_properties

_BATCH_BYTES = 64 * 1024 * 1024
"""Approximate size, in bytes of uncompressed bodies, of one batch."""
_WAYS_OUT = (
    "run the audit, name the other replicas of the group in path as well, or set corruptRecords to skip or "
    "include"
)
_FIRST_MS = -62_135_596_800_000
_LAST_MS = 253_402_300_799_999
"""The last ms of the year 9999. Spark can show only the years 1 to 9999, and a producer's clock may be
wrong by any amount."""


ID_SEPARATOR = ":"
"""Stands between the parts of a message's id: topic, queue, life and offset. No topic has it in its name."""


class CorruptMessage(Exception):
    """An entry that should hold a message is damaged or lost."""


@dataclass(frozen=True)
class _Judged:
    """Entries of a window with their records, after all checks. `candidates`: entries that may be wanted;
    `concerned`: entries whose damage concerns the reader."""

    window: Window
    expected: Expected | None
    records: Records
    candidates: Bools
    concerned: Bools

    @property
    def bad(self) -> Bools:
        """Whether each entry is damaged, so that a message cannot be read from it."""
        return np.asarray(self.concerned & ~self.records.good, np.bool_)

    def part(self, start: int, end: int) -> tuple[Window, Expected | None]:
        """Return some of the entries."""
        chosen = slice(start, end)
        window = replace(self.window, columns=self.window.columns[chosen])
        return window, None if self.expected is None else self.expected[chosen]

    def place(self, number: int) -> str:
        """Return the queue and the offset of an entry for error texts; the empty text if they are unknown."""
        if self.expected is not None:
            return f" ({self.expected.place(number)})"
        records = self.records
        topic = records.topics[int(records.topic[number])] if records.topics else ""
        if not topic.isprintable() or not topic:
            return ""
        queue, offset = int(records.queue_id[number]), int(records.queue_offset[number])
        return f" (topic {topic}, queue {queue}, offset {offset})"


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
    `group`: the value of the column `group`; `deleted`: whether messages of deleted topics become rows;
    `lossy`: whether segments that retention deletes before they are read are left out."""

    selection: Selection
    columns: columns.Columns
    corrupt: str
    group: str
    lives: Lives
    deleted: bool
    lossy: bool = False

    def of_piece(self, piece: Piece, highest: int, copies: Copies = NO_COPIES) -> Iterator[pa.RecordBatch]:
        """Yield the messages in a piece of a segment, up to index `highest`. What is damaged or lost is taken
        from `copies`, with a DamageWarning.

        If no replica has it, and if a file cannot be read, raises CorruptMessage if `corrupt` is fail. With
        skip, it is left out; with include, it becomes rows. If retention has deleted the segment, raises
        DataLost instead of CorruptMessage, or leaves it out.
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
                    yield from self._lost(piece, following, int(window.columns.index[0]) - 1, why, copies)
                    yield from self.of_window(window, store=piece.task.directory, copies=copies)
                    following = int(window.columns.index[-1]) + 1
        except OSError as error:
            why = f"the file cannot be read: {error}"
            if self.corrupt == "fail" and not len(copies):
                raise CorruptMessage(f"{piece.task.path}: from entry {following} on {why}") from error
        yield from self._lost(piece, following, last if last < NO_END else piece.task.committed, why, copies)

    def of_window(
        self,
        window: Window,
        expected: Expected | None = None,
        *,
        store: str,
        copies: Copies = NO_COPIES,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages among the entries of a window of `store`. With `expected`, the window must
        contain exactly those messages. Damaged entries are taken from `copies`, as in `of_piece`."""
        judged = self._judge(window, expected)
        bad = judged.bad
        if not bad.any() or not len(copies):
            yield from self._rows_of(judged, store)
            return
        keys = copies.keys(window)
        for start, end in _runs(bad):
            if not bad[start]:
                yield from self._rows_of(self._judge(*judged.part(start, end)), store)
                continue
            why = str(judged.records.problem[start])
            low, high = int(keys[start]), int(keys[end - 1])
            for first, last, found in self._elsewhere(copies, store, low, high, why):
                if found is None:
                    own = np.searchsorted(keys, [first, last + 1]).tolist()
                    found = self._judge(*judged.part(*own))
                yield from self._rows_of(found, store)

    def _judge(self, window: Window, expected: Expected | None) -> _Judged:
        """Check the entries of a window and decode their records."""
        entries = window.columns
        damaged = entries.damage & BODY_DAMAGED != 0
        is_message = (entries.channel >> 24 & KIND_MASK == Kind.MESSAGE) & has_record(entries)
        records = records_of(window)
        records.blame(damaged, "the body of the entry does not match its CRC")
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
        # Of a damaged entry it is not known whether it is a message.
        return _Judged(window, expected, records, candidates, is_message | disguised | damaged)

    def _rows_of(self, judged: _Judged, store: str) -> Iterator[pa.RecordBatch]:
        columns = judged.window.columns
        yield from self.of_records(judged.records, judged.candidates, columns.index, columns.term)
        yield from self._corrupt_entries(judged, store)

    def _elsewhere(
        self, copies: Copies, store: str, first: int, last: int, why: str
    ) -> Iterator[tuple[int, int, _Judged | None]]:
        """Yield the entries with keys `first` to `last`, ascending, in parts: (first key, last key, entries).
        Instead of entries that no replica has whole, None. Warns for each part that is found."""
        following = first
        while following <= last:
            source = self._next_good(copies, following, last)
            if source is None:
                yield following, last, None
                return
            number, start = source
            if start > following:
                yield following, start - 1, None
            following = start
            names: list[str] = []
            try:
                for copy in copies.read(number, following, last):
                    good = self._good_from(copy, following)
                    if good is None:
                        break
                    columns = good.window.columns
                    count = len(columns)
                    alone = good.place(0) if count == 1 and good.candidates[0] else ""
                    names += [f"{int(columns.index[0])}{alone}", f"{int(columns.index[-1])}"]
                    yield following, following + count - 1, good
                    following += count
                    if count < len(copy.keys):
                        break
            except (StoreError, OSError):
                pass  # what it has not yielded is looked for again
            if names:
                one = len(names) == 2 and names[0].split(" ")[0] == names[1]
                what = f"entry {names[0]}" if one else f"entries {names[0].split(' ')[0]} to {names[-1]}"
                warn(store, what, why, copies.place(number))
            else:
                yield following, following, None
                following += 1

    def _next_good(self, copies: Copies, first: int, last: int) -> tuple[int, int] | None:
        """Return the number of the replica that has the first good entry, and the key of that entry. None if
        no replica has any."""
        best: tuple[int, int] | None = None
        for number in range(len(copies)):
            try:
                for copy in copies.read(number, first, last):
                    good = copy.keys[~self._judge(copy.window, copy.expected).bad]
                    if len(good):
                        if best is None or good[0] < best[1]:
                            best = (number, int(good[0]))
                        break
            except (StoreError, OSError):
                continue
            if best is not None and best[1] == first:
                break
        return best

    def _good_from(self, copy: Copy, first: int) -> _Judged | None:
        """Return the good entries with consecutive keys from `first` on; None if there are none."""
        judged = self._judge(copy.window, copy.expected)
        wrong = np.flatnonzero(judged.bad | (copy.keys != first + np.arange(len(copy.keys))))
        count = int(wrong[0]) if len(wrong) else len(copy.keys)
        if count == len(copy.keys):
            return judged
        return self._judge(*judged.part(0, count)) if count else None

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

    def _corrupt_entries(self, judged: _Judged, store: str) -> Iterator[pa.RecordBatch]:
        window, records = judged.window, judged.records
        bad = np.flatnonzero(judged.bad)
        if not len(bad) or self.corrupt == "skip":
            return
        if self.corrupt == "fail":
            first = window.columns.entry(int(bad[0]))
            raise CorruptMessage(
                f"{store}: index {first.index}, pos {first.pos}{judged.place(int(bad[0]))}: "
                f"{records.problem[bad[0]]}: {_WAYS_OUT}"
            )
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

    def _lost(
        self, piece: Piece, first: int, last: int, why: str, copies: Copies
    ) -> Iterator[pa.RecordBatch]:
        """Take entries `first` to `last`, which cannot be found, from `copies`. Those that no replica has are
        reported in the way that `corrupt` says."""
        if last < first:
            return
        for low, high, found in self._elsewhere(copies, piece.task.directory, first, last, why):
            if found is not None:
                yield from self._rows_of(found, piece.task.directory)
                continue
            gone = is_retired([dirname(piece.task.path)], piece.task.start)
            if self.corrupt != "skip" and not (gone and self.lossy):
                text = f"{piece.task.path}: entries {low} to {high} are lost here ({why})"
                if self.corrupt == "fail" and gone:
                    raise DataLost(
                        f"{piece.task.path}: entries {low} to {high} are lost: retention deleted the segment "
                        "before it was read; failOnDataLoss=false leaves them out"
                    )
                if self.corrupt == "fail":
                    raise CorruptMessage(f"{text}: {_WAYS_OUT}")
                yield from self._corrupt_rows([{"_corrupt": text, "logIndex": low}])

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
        not options.fail_on_data_loss,
    )


def _runs(values: Bools) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each run of equal values."""
    cuts = (np.flatnonzero(np.diff(values)) + 1).tolist()
    yield from pairwise([0, *cuts, len(values)])


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

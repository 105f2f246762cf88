"""Certificates: what a part of the log contains, in a form that can be compared with rows of a table.

A certificate names a range of the log by its indexes, and by the chain values at both ends, which depend on
every entry up to there. Its digest is the sum of the hashes of all rows, so it does not depend on their
order, and the digests of two ranges can be added up. It therefore stays valid when a table is compacted or
sorted. It follows from the log alone: whoever makes it, and however often, gets the same one.

The digest finds rows that were lost, doubled or changed, whatever the reason. It is no proof against somebody
who can spend years of computing time on finding other rows with the same sum.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DIGEST_BYTES = 64
_MODULUS = 1 << 8 * DIGEST_BYTES
MAX_CERTIFICATES = 10_000
"""Largest number of certificates of a table. Beyond it neighbours are merged."""

_TEXTS = ("topic", "broker_group", "life", "keys", "tags")
_FIXED = np.dtype(
    [
        ("queue", "<i8"),
        ("offset", "<i8"),
        ("log_index", "<i8"),
        ("log_term", "<i8"),
        ("store_time", "<i8"),
        ("born_time", "<i8"),
        ("flag", "<i8"),
        ("day", "<i8"),
        *((name, "<i4") for name in (*_TEXTS, "properties", "body")),
    ]
)
"""The fixed part of a canonical row: numbers, times in microseconds, the day, and the lengths of texts in
bytes (-1 for null). The texts follow: those of `_TEXTS`, the properties (of each name and value the length
and the text), and the body."""


class TopicLife(NamedTuple):
    """One life of a topic (`formats.life`). Topics whose birth is not recorded have the same life."""

    topic: str
    life: str


@dataclass(frozen=True)
class Certificate:
    """Rows of the entries `first` to `last` of one log.

    `chain_before` and `chain_last` are the chain values of the entry before `first` and of entry `last`; -1
    if unknown. `births` are those of the topics before entry `first`, and `births_after` those after entry
    `last` (`rows.Births`). `rows` is the number of messages, `digest` the sum of their hashes.
    """

    cluster: str
    group: str
    first: int
    last: int
    chain_before: int
    chain_last: int
    rows: int
    digest: int
    births: Mapping[str, int] = field(default_factory=dict)
    births_after: Mapping[str, int] = field(default_factory=dict)
    dropped: tuple[TopicLife, ...] = ()
    """Lives of topics whose rows were removed on purpose. `rows` and `digest` are without them."""

    def follows(self, other: Certificate) -> bool:
        """Whether this range begins where the other one ends, in the same log."""
        return (
            (self.cluster, self.group, self.first) == (other.cluster, other.group, other.last + 1)
            and (self.chain_before == other.chain_last or -1 in (self.chain_before, other.chain_last))
            and self.births == other.births_after
        )  # fmt: skip

    def agrees(self, other: Certificate) -> bool:
        """Whether both say the same, as far as both know it. A certificate without a chain value at its end
        is from an archive, and does not know of topics that were deleted and not made again."""
        same = other
        if -1 in (self.chain_before, other.chain_before):
            same = replace(same, chain_before=self.chain_before)
        if -1 in (self.chain_last, other.chain_last):
            same = replace(same, chain_last=self.chain_last, births_after=self.births_after)
        return self == same

    def without(self, life: TopicLife, rows: int, digest: int) -> Certificate:
        """Return the certificate without some rows, which are all those of one life of a topic in this
        range."""
        left = (self.digest - digest) % _MODULUS
        return replace(self, rows=self.rows - rows, digest=left, dropped=(*self.dropped, life))

    def merged(self, following: Certificate) -> Certificate:
        """Return the certificate of both ranges."""
        assert following.follows(self)
        return Certificate(
            self.cluster,
            self.group,
            self.first,
            following.last,
            self.chain_before,
            following.chain_last,
            self.rows + following.rows,
            (self.digest + following.digest) % _MODULUS,
            self.births,
            following.births_after,
            self.dropped,
        )

    @property
    def range(self) -> str:
        """The range, for texts."""
        return f"entries {self.first} to {self.last} of {self.group}"


CERTIFICATES = pa.schema(
    [
        ("cluster", pa.string()),
        ("broker_group", pa.string()),
        ("first_index", pa.int64()),
        ("last_index", pa.int64()),
        ("chain_before", pa.int64()),
        ("chain_last", pa.int64()),
        ("rows", pa.int64()),
        ("digest", pa.string()),
        ("births", pa.string()),
        ("births_after", pa.string()),
        ("dropped", pa.string()),
    ]
)
"""Columns of the table of certificates. `digest` is in hexadecimal digits; `births`, `births_after` and
`dropped` are JSON."""


def to_table(certificates: Iterable[Certificate]) -> pa.Table:
    """Return certificates as rows."""
    rows = [
        {
            "cluster": one.cluster,
            "broker_group": one.group,
            "first_index": one.first,
            "last_index": one.last,
            "chain_before": one.chain_before,
            "chain_last": one.chain_last,
            "rows": one.rows,
            "digest": f"{one.digest:0{2 * DIGEST_BYTES}x}",
            "births": json.dumps(one.births, sort_keys=True),
            "births_after": json.dumps(one.births_after, sort_keys=True),
            "dropped": json.dumps(one.dropped),
        }
        for one in certificates
    ]
    return pa.Table.from_pylist(rows, schema=CERTIFICATES)


def from_table(table: pa.Table) -> list[Certificate]:
    """Inverse of `to_table`. Raises ValueError for a row that is no certificate."""
    found = []
    for row in table.select(CERTIFICATES.names).to_pylist():
        try:
            found.append(
                Certificate(
                    row["cluster"],
                    row["broker_group"],
                    row["first_index"],
                    row["last_index"],
                    row["chain_before"],
                    row["chain_last"],
                    row["rows"],
                    int(row["digest"], 16),
                    json.loads(row["births"]),
                    json.loads(row["births_after"]),
                    tuple(TopicLife(*one) for one in json.loads(row["dropped"])),
                )
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"not a certificate: {row}: {error}") from error
    return found


def series(certificates: Iterable[Certificate], end: int) -> list[Certificate]:
    """Return certificates of one log that follow one another, ascending, up to entry `end - 1`.

    Two writers may have certified the same entries in different ranges, for example 0-9 and 0-14. All of them
    are true. So any that fit together are taken: those first that leave out dropped lives, and then the
    longest. Where nothing fits, a range is left out.
    """
    left = [one for one in certificates if one.last < end]
    found: list[Certificate] = []
    while left:
        if all(one.last + 1 != end for one in left):
            end = max(one.last for one in left) + 1
        best: dict[int, Certificate] = {}
        for one in sorted(left, key=lambda one: (one.first, len(one.dropped), one.last), reverse=True):
            if one.last + 1 == end or one.last + 1 in best:
                best.setdefault(one.first, one)
        at = min(best)
        chain = []
        while at != end:
            chain.append(best[at])
            at = best[at].last + 1
        found[:0] = chain
        end = chain[0].first
        left = [one for one in left if one.last < end]
    return found


def compacted(certificates: Sequence[Certificate], most: int = MAX_CERTIFICATES) -> list[Certificate]:
    """Merge neighbours, beginning with the oldest, until there are at most half of `most`."""
    found = list(certificates)
    while len(found) > most // 2:
        merged: list[Certificate] = []
        left = len(found) - most // 2
        for one in found:
            if left and merged and one.follows(merged[-1]) and one.dropped == merged[-1].dropped:
                merged[-1] = merged[-1].merged(one)
                left -= 1
            else:
                merged.append(one)
        if len(merged) == len(found):
            break
        found = merged
    return found


def digest_of(rows: pa.Table | pa.RecordBatch) -> int:
    """Return the sum of the hashes of these rows. Other columns than those of `rows.SCHEMA` do not count."""
    return total(row_hashes(rows))


def total(digests: Iterable[int]) -> int:
    """Add up digests, and hashes of rows."""
    return sum(digests) % _MODULUS


def row_hashes(rows: pa.Table | pa.RecordBatch) -> Iterator[int]:
    """Yield the hash of each row."""
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    for batch in batches:
        if batch.num_rows:
            yield from _hashes(_canonical(batch))


def _canonical(batch: pa.RecordBatch) -> pa.LargeBinaryArray:
    fixed = np.zeros(batch.num_rows, _FIXED)
    for name in ("queue", "offset", "log_index", "log_term", "flag"):
        fixed[name] = _numbers(batch.column(name))
    for name in ("store_time", "born_time"):
        fixed[name] = _numbers(batch.column(name).cast(pa.timestamp("us", tz="UTC")))
    fixed["day"] = _numbers(batch.column("day").cast(pa.int32()))
    texts = [batch.column(name).cast(pa.large_binary()) for name in _TEXTS]
    texts.append(_joined(batch.column("properties")))
    texts.append(batch.column("body").cast(pa.large_binary()))
    for name, text in zip((*_TEXTS, "properties", "body"), texts, strict=True):
        fixed[name] = pc.fill_null(pc.binary_length(text), -1).to_numpy(zero_copy_only=False)
    places = np.arange(batch.num_rows + 1, dtype=np.int64) * _FIXED.itemsize
    numbers = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), batch.num_rows, [None, pa.py_buffer(places), pa.py_buffer(fixed)]
    )
    empty: Any = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(numbers, *texts, empty, null_handling="replace", null_replacement="")


def _numbers(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a column of numbers or times; the least number stands for null."""
    numbers = column.cast(pa.int64())
    return np.asarray(pc.fill_null(numbers, np.iinfo(np.int64).min).to_numpy(zero_copy_only=False), np.int64)


def _joined(maps: pa.MapArray) -> pa.Array:
    """Return each map as one text: of each name and each value the length, and the text itself."""
    parts = []
    for texts in (maps.keys, maps.items):
        length = pc.fill_null(pc.binary_length(texts), -1).cast(pa.string())
        parts += [length, pa.repeat(pa.scalar(":"), len(texts)), pc.fill_null(texts.cast(pa.string()), "")]
    items = pc.binary_join_element_wise(*parts, "")
    joined = pc.binary_join(pa.ListArray.from_arrays(maps.offsets, items), "").cast(pa.large_binary())
    return pc.if_else(maps.is_valid(), joined, pa.scalar(None, pa.large_binary()))


def _hashes(canonical: pa.LargeBinaryArray) -> Iterator[int]:
    _, offsets, data = canonical.buffers()
    first = canonical.offset
    places = np.frombuffer(offsets, np.int64)[first : first + len(canonical) + 1].tolist()
    view = memoryview(data)
    begin = places[0]
    for end in places[1:]:
        yield int.from_bytes(blake2b(view[begin:end], digest_size=DIGEST_BYTES).digest(), "big")
        begin = end

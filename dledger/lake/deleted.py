"""Removes the messages of deleted topics from a table.

The certificates are changed first: they then say which lives are left out, and their digests are without
those rows. If this is interrupted, the audit of the table finds rows too many, and running it again removes
them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection

from dledger.formats.life import Life
from dledger.lake.certificates import Certificate, row_hashes, series
from dledger.lake.rows import SCHEMA
from dledger.lake.tables import Entries, TopicTable


def drop_deleted(table: TopicTable, cluster: str, alive: Collection[str]) -> list[str]:
    """Remove the rows of one log whose lives are not `alive`. Return the lives that were removed. Raises
    TableError, or TableChanged if another commit came between."""
    table.refresh()
    end = table.position(cluster)
    if end is None:
        return []
    certified = series(table.certificates(cluster), end)
    dead = _sums(table, Entries(cluster, 0, end - 1), certified, alive)
    lives = sorted({life for life, _ in dead})
    if not lives:
        return []
    changed = []
    for number, one in enumerate(certified):
        for life in lives:
            if life not in one.dropped:
                rows, digest = dead.get((life, number), (0, 0))
                one = one.without(life, rows, digest)
        changed.append(one)
    others = [one for one in table.certificates() if one.cluster != cluster]
    table.replace_certificates([*others, *changed])
    table.delete_lives(lives)
    table.refresh()
    return lives


def _is_life(text: str) -> bool:
    """Whether this is a life, and not what somebody wrote into the column by hand."""
    try:
        return str(Life.parse(text)) == text
    except ValueError:
        return False


def _sums(
    table: TopicTable, entries: Entries, certified: list[Certificate], alive: Collection[str]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the number and the digest of the rows of dead lives, by life and number of the certificate."""
    firsts = [one.first for one in certified]
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for batch in table.scan(SCHEMA.names, entries):
        places = zip(batch.column("life").to_pylist(), batch.column("log_index").to_pylist(), strict=True)
        for (life, index), digest in zip(places, row_hashes(batch), strict=True):
            if life not in alive and _is_life(life):
                key = life, bisect_right(firsts, index) - 1
                rows, total = found.get(key, (0, 0))
                found[key] = rows + 1, total + digest
    return found

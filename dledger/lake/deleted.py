"""Removes the messages of deleted topics from a table.

Which topics were deleted follows from the table alone: its certificates say which lives its topics have where
the table ends. So a deletion that the table has not reached yet removes nothing.

The certificates are changed first: they then say which lives are left out, and their digests are without
those rows. If this is interrupted, the audit of the table finds rows too many, and running it again removes
them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from dledger.formats.life import Life
from dledger.lake.certificates import Certificate, TopicLife, row_hashes, series
from dledger.lake.rows import DELETED, SCHEMA
from dledger.lake.tables import Entries, TopicTable


def drop_deleted(table: TopicTable, cluster: str) -> list[TopicLife]:
    """Remove the rows of one log whose topics were deleted. Return the lives that were removed. Raises
    TableError, or TableChanged if another commit came between."""
    table.refresh()
    end = table.position(cluster)
    if end is None:
        return []
    known = table.certificates()
    certified = series((one for one in known if one.cluster == cluster), end)
    if not certified or certified[-1].last + 1 != end:
        return []  # the audit of the table tells more
    dead = _sums(table, Entries(cluster, 0, end - 1), certified)
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
    others = [one for one in known if one.cluster != cluster or one.last >= end]
    table.replace_certificates([*others, *changed])
    table.delete_lives(lives)
    table.refresh()
    return lives


def is_dead(topic: str, life: str | None, births: Mapping[str, int]) -> bool:
    """Whether the topic of this life was deleted, if topics have these births now. False for a text that is
    no life."""
    try:
        found = Life.parse(life or "")
    except ValueError:
        return False
    born = births.get(topic, 0)
    return str(found) == life and (born == DELETED or found.born < born)


def _sums(
    table: TopicTable, entries: Entries, certified: list[Certificate]
) -> dict[tuple[TopicLife, int], tuple[int, int]]:
    """Return the number and the digest of the rows of deleted topics, by life and number of the
    certificate."""
    firsts, births = [one.first for one in certified], certified[-1].births_after
    found: dict[tuple[TopicLife, int], tuple[int, int]] = {}
    for batch in table.scan(SCHEMA.names, entries):
        places = zip(
            *(batch.column(name).to_pylist() for name in ("topic", "life", "log_index")), strict=True
        )
        for (topic, life, index), digest in zip(places, row_hashes(batch), strict=True):
            if topic in table.about.topics and is_dead(topic, life, births):
                key = TopicLife(topic, life), bisect_right(firsts, index) - 1
                rows, total = found.get(key, (0, 0))
                found[key] = rows + 1, total + digest
    return found

"""The life of a topic or a consumer group, which distinguishes it from an earlier one of the same name.

A topic that is deleted and made again begins at offset 0. A client may have kept data about the first one: a
position in it, or the intention to delete it. It compares lives before it uses such data.
"""

from __future__ import annotations

from typing import NamedTuple


class Life(NamedTuple):
    """One life of a topic or consumer group of some name in one broker group.

    `cluster` is the id of the group's log: another group may have a topic of the same name. `born` is the
    position in that log at which the topic was made. It is 0 for topics made before brokers recorded it, or
    while one of the brokers could not record it.
    """

    cluster: str
    born: int

    def __str__(self) -> str:
        """The form used in requests and answers: `<cluster>.<born>`."""
        return f"{self.cluster}.{self.born}"

    @classmethod
    def parse(cls, text: str) -> Life:
        """Inverse of `str`; ValueError for other texts."""
        cluster, dot, born = text.rpartition(".")
        if not dot or not cluster or not (born.isascii() and born.isdecimal()):
            raise ValueError(f"{text[:80]!r} is not a life: <cluster>.<position in its log>")
        return cls(cluster, int(born))

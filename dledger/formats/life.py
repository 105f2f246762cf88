"""The life of a topic or a consumer group: the time between its creation and its deletion.

A topic that is deleted and made again begins at offset 0. A client may have kept data about the deleted one,
for example a position in it. The client compares the lives before it uses such data.
"""

from __future__ import annotations

from typing import NamedTuple

FIELD = "life"
"""Name of a field in the answers to 351 GET_TOPIC_CONFIG and 352 GET_SUBSCRIPTIONGROUP_CONFIG, and in the
requests 215 DELETE_TOPIC_IN_BROKER and 207 DELETE_SUBSCRIPTIONGROUP. Its value is a `Life` as text."""


class Life(NamedTuple):
    """Identifies one life of a topic or consumer group.

    `cluster` is the id of the log of its broker group, because other broker groups may have a topic of the
    same name. `born` is the position in that log at which the topic or consumer group was made. It is 0 for
    those made before brokers recorded it, or while one of the brokers could not record it.
    """

    cluster: str
    born: int

    def __str__(self) -> str:
        """Return the form used in requests and answers: `<cluster>.<born>`."""
        return f"{self.cluster}.{self.born}"

    @classmethod
    def parse(cls, text: str) -> Life:
        """Inverse of `str`. Raises ValueError for other texts."""
        cluster, dot, born = text.rpartition(".")
        if not dot or not cluster or not (born.isascii() and born.isdecimal()):
            raise ValueError(f"{text[:80]!r} is not a life: <cluster>.<position in its log>")
        return cls(cluster, int(born))

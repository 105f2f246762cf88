"""Which messages of a topic a consumer wants: all, those with one of some tags, or by their properties."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dledger.client.errors import ClientError
from dledger.formats.message_ids import tags_code

ALL = "*"

_SQL = re.compile(r"[<>=()'\"]|\s(AND|OR|NOT|IN|IS|LIKE|BETWEEN|CONTAINS)(\s|$)|^NOT\s", re.IGNORECASE)
"""Matches signs and words that occur in conditions on properties, and not in usual tags."""


TAG = "TAG"
SQL92 = "SQL92"


class Sql(str):
    """A condition on properties, given in place of a tag expression (RocketMQ's MessageSelector.bySql).

    Brokers evaluate it for each message, and report its errors when they are asked for messages. A property
    that is compared with a number is read as a number; a comparison with a missing property is never true.
    >>> consumer.subscribe("orders", Sql("price > 5 AND region IN ('eu', 'us')"))  # doctest: +SKIP
    """

    __slots__ = ()


@dataclass(frozen=True)
class Subscription:
    """A topic and an expression, as they are sent (SubscriptionData).

    `tags` is empty for all messages, and for a condition on properties (`kind` SQL92). `version` is the time
    of subscribing in ms: brokers keep the newest.
    """

    topic: str
    expression: str
    tags: tuple[str, ...]
    version: int
    kind: str = TAG

    @property
    def selective(self) -> bool:
        """Whether brokers may leave messages out."""
        return bool(self.tags) or self.kind != TAG

    @property
    def codes(self) -> tuple[int, ...]:
        """Tag codes, in the order of `tags`."""
        return tuple(tags_code(tag) for tag in self.tags)

    def matches(self, tag: str | None) -> bool:
        """Whether a message with this tag is wanted. Brokers compare only hashes, so clients check again."""
        return not self.tags or tag in self.tags


def subscribe(topic: str, expression: str, version: int) -> Subscription:
    """Parse "*" or "A || B", or take an `Sql`; raises ClientError for one that names no tag, or looks like
    SQL.

    >>> subscribe("orders", " paid||  sent ", 0).tags
    ('paid', 'sent')
    """
    if not isinstance(expression, str):
        raise ClientError(f"expression={expression!r}: give a text, '*', 'A' or 'A || B'")
    text = expression.strip()
    if isinstance(expression, Sql):
        if not text:
            raise ClientError("Sql(''): give a condition, as Sql('price > 5')")
        return Subscription(topic, text, (), version, SQL92)
    if text in ("", ALL):
        return Subscription(topic, ALL, (), version)
    tags = tuple(dict.fromkeys(tag.strip() for tag in text.split("||")))
    if any(not tag or "|" in tag or tag == ALL for tag in tags):
        raise ClientError(f"{expression!r} is not a tag expression: write '*', 'A' or 'A || B'")
    if any(_SQL.search(tag) for tag in tags):
        raise ClientError(
            f"{expression!r} looks like a condition on properties (SQL92), and no message can have "
            "such a tag: wrap it in Sql(...) if it is a condition, or select by tags ('A || B')"
        )
    return Subscription(topic, " || ".join(tags), tags, version)

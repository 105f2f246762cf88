"""Which messages of a topic a consumer wants: all of them, those with certain tags, or those whose properties
satisfy a condition."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dledger.client.errors import ClientError
from dledger.formats.message_ids import tags_code

ALL = "*"

_SQL = re.compile(r"[<>=()'\"]|\s(AND|OR|NOT|IN|IS|LIKE|BETWEEN|CONTAINS)(\s|$)|^NOT\s", re.IGNORECASE)
"""Matches characters and words that occur in conditions on properties, but not in usual tags."""


TAG = "TAG"
SQL92 = "SQL92"


class Sql(str):
    """A condition on properties, given in place of a tag expression (RocketMQ's MessageSelector.bySql).
    Brokers evaluate the condition for each message. If it has an error, they report the error when a client
    asks for messages. A property that is compared with a number is read as a number; a comparison with a
    missing property is never true.
    >>> consumer.subscribe("orders", Sql("price > 5 AND region IN ('eu', 'us')"))  # doctest: +SKIP
    """

    __slots__ = ()


@dataclass(frozen=True)
class Subscription:
    """A topic and an expression, in the form in which they are sent to brokers (SubscriptionData).

    `tags` is empty in two cases: if all messages are wanted, and if the expression is a condition on
    properties (`kind` SQL92). `version` is the time of subscribing in ms; brokers keep the newest version.
    """

    topic: str
    expression: str
    tags: tuple[str, ...]
    version: int
    kind: str = TAG

    @property
    def selective(self) -> bool:
        """Whether brokers may leave out messages because of this subscription."""
        return bool(self.tags) or self.kind != TAG

    @property
    def codes(self) -> tuple[int, ...]:
        """Hash codes of the tags, in the order of `tags`."""
        return tuple(tags_code(tag) for tag in self.tags)

    def matches(self, tag: str | None) -> bool:
        """Whether a message with this tag is wanted. Brokers compare only hashes, so clients check again."""
        return not self.tags or tag in self.tags


def subscribe(topic: str, expression: str, version: int) -> Subscription:
    """Make a subscription from "*", from tags as "A || B", or from an `Sql`. Raises ClientError for a text
    that names no tag, or looks like SQL.

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

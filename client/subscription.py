"""What a consumer wants of a topic: everything, or messages with one of some tags."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dledger.client.errors import ClientError
from dledger.formats.message_ids import tags_code

ALL = "*"

_SQL = re.compile(r"[<>=()'\"]|\s(AND|OR|NOT|IN|IS|LIKE|BETWEEN|CONTAINS)(\s|$)|^NOT\s", re.IGNORECASE)
"""What stands in conditions on properties, and in no tag that anybody uses."""


@dataclass(frozen=True)
class Subscription:
    """A topic and a tag expression, as the protocol carries it (SubscriptionData).

    `tags` is empty for everything. `version` is the time of subscribing in ms: brokers keep the newest.
    """

    topic: str
    expression: str
    tags: tuple[str, ...]
    version: int

    @property
    def codes(self) -> tuple[int, ...]:
        """Tag codes, in the order of `tags`."""
        return tuple(tags_code(tag) for tag in self.tags)

    def matches(self, tag: str | None) -> bool:
        """Whether a message with this tag is wanted. Brokers compare hashes only, so clients ask again."""
        return not self.tags or tag in self.tags


def subscribe(topic: str, expression: str, version: int) -> Subscription:
    """Parse "*" or "A || B"; ClientError for an expression that names no tag, or looks like SQL.

    >>> subscribe("orders", " paid||  sent ", 0).tags
    ('paid', 'sent')
    """
    if not isinstance(expression, str):
        raise ClientError(f"expression={expression!r}: give a text, '*', 'A' or 'A || B'")
    text = expression.strip()
    if text in ("", ALL):
        return Subscription(topic, ALL, (), version)
    tags = tuple(dict.fromkeys(tag.strip() for tag in text.split("||")))
    if any(not tag or "|" in tag or tag == ALL for tag in tags):
        raise ClientError(f"{expression!r} is no tag expression: write '*', 'A' or 'A || B'")
    if any(_SQL.search(tag) for tag in tags):
        raise ClientError(
            f"{expression!r} looks like a condition on properties (SQL92), and no message has such a tag: "
            "select by tags ('A || B'), or subscribe to '*' and look at message.properties"
        )
    return Subscription(topic, " || ".join(tags), tags, version)

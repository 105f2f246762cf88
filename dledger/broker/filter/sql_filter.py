"""Filters by properties: SQL92 expressions, compiled once and remembered."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from dledger.broker.filter.sql_grammar import parse
from dledger.broker.filter.sql_nodes import InvalidSelector, Node
from dledger.broker.filter.sql_values import Unmatched
from dledger.broker.filter.verdicts import LOOK
from dledger.formats.properties import decode_properties
from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import RemotingError

MAX_REMEMBERED = 50_000
"""Operators of all compiled expressions that are remembered, about 30 MB; the least used are forgotten."""
_PER_MESSAGE = 100
"""Bytes of properties that are decoded while one message is fetched."""
_PER_OPERATOR = 20
"""The same while one operator is evaluated, on numbers as long as they may be."""
_PER_SCAN = 8
"""CONTAINS that go over the properties while they are decoded once."""


class SqlFilter:
    """Messages whose properties fulfil a condition. One of which this cannot be said (a text compared with a
    number) is not given out, as by RocketMQ."""

    def __init__(self, condition: Node) -> None:
        self._condition = condition

    @property
    def size(self) -> int:
        """Operators in the expression."""
        return self._condition.size

    def by_code(self, code: int) -> int:
        """LOOK."""
        return LOOK

    def by_properties(self, properties: bytes) -> bool:
        """Whether the condition is true: unknown is not."""
        try:
            return self._condition.evaluate(decode_properties(properties.decode("utf-8", "replace"))) is True
        except Unmatched:
            return False

    def cost(self, properties: bytes) -> int:
        """Fetching, decoding, evaluation, and what CONTAINS looks through."""
        size, condition = len(properties), self._condition
        return _PER_MESSAGE + size + condition.size * _PER_OPERATOR + size * condition.scans // _PER_SCAN


class SqlFilters:
    """Compiled expressions, the least used first."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._known: OrderedDict[str, SqlFilter] = OrderedDict()
        self.size: int = 0
        """Operators of all of them."""

    def get(self, expression: str) -> SqlFilter:
        """The filter of an expression; RemotingError 23 where it is none."""
        known = self._known.get(expression)
        if known is not None:
            self._known.move_to_end(expression)
            return known
        try:
            made = SqlFilter(parse(expression))
        except InvalidSelector as error:
            raise RemotingError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"Invalid MessageSelector. {error}"
            ) from error
        self._known[expression] = made
        self.size += made.size
        while self.size > self._limit:
            _, forgotten = self._known.popitem(last=False)
            self.size -= forgotten.size
        return made


_FILTERS: Final = SqlFilters()


def sql_filter(expression: str) -> SqlFilter:
    """Of a condition such as `price > 5 AND region IN ('eu')`; RemotingError 23 where it is none."""
    return _FILTERS.get(expression)

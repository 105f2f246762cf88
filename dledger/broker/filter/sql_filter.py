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
"""Operators of all cached expressions, about 30 MB; beyond this the least recently used expressions are
dropped."""
_PER_MESSAGE = 100
"""Cost of fetching one message, in bytes of properties that are decoded in the same time."""
_PER_OPERATOR = 20
"""Cost of one operator on the longest numbers, in bytes of properties that are decoded in the same time."""
_PER_SCAN = 8
"""How many CONTAINS can search the properties in the time in which they are decoded once."""


class SqlFilter:
    """Messages whose properties satisfy a condition. A message for which it cannot be evaluated (a text
    compared with a number) does not match, as in RocketMQ."""

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
        """Whether the condition is true; unknown counts as false."""
        try:
            return self._condition.evaluate(decode_properties(properties.decode("utf-8", "replace"))) is True
        except Unmatched:
            return False

    def cost(self, properties: bytes) -> int:
        """Cost of fetching, decoding and evaluating, and of the texts that CONTAINS searches."""
        size, condition = len(properties), self._condition
        return _PER_MESSAGE + size + condition.size * _PER_OPERATOR + size * condition.scans // _PER_SCAN


class SqlFilters:
    """Cached expressions, the least recently used first."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._known: OrderedDict[str, SqlFilter] = OrderedDict()
        self.size: int = 0
        """Operators in all cached expressions."""

    def get(self, expression: str) -> SqlFilter:
        """The filter of an expression. RemotingError 23 if it is invalid."""
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
    """The filter of a condition such as `price > 5 AND region IN ('eu')`. RemotingError 23 if it is
    invalid."""
    return _FILTERS.get(expression)

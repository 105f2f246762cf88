"""Filters by a condition on properties. The condition is an SQL92 expression, which is compiled once and then
cached."""

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
"""Limit of the cache: the number of operators in all cached expressions together, about 30 MB. Beyond it the
least recently used expressions are dropped."""
_PER_MESSAGE = 100
"""Cost of fetching one message, as the number of bytes of properties that can be decoded in the same time."""
_PER_OPERATOR = 20
"""Cost of one operator on the longest numbers, as the number of bytes of properties that can be decoded in
the same time."""
_PER_SCAN = 8
"""How many CONTAINS operators can search the properties in the time in which the properties are decoded
once."""


class SqlFilter:
    """Filter that lets messages through whose properties satisfy a condition. A message for which the
    condition cannot be evaluated (for example because a text is compared with a number) does not match, as in
    RocketMQ."""

    def __init__(self, condition: Node) -> None:
        self._condition = condition

    @property
    def size(self) -> int:
        """Number of operators in the condition."""
        return self._condition.size

    def by_code(self, code: int) -> int:
        """Always return LOOK."""
        return LOOK

    def by_properties(self, properties: bytes) -> bool:
        """Return whether the condition is true. The result unknown of SQL counts as false."""
        try:
            return self._condition.evaluate(decode_properties(properties.decode("utf-8", "replace"))) is True
        except Unmatched:
            return False

    def cost(self, properties: bytes) -> int:
        """Return the cost of fetching the message, decoding its properties and evaluating the condition, plus
        the cost of searching texts for CONTAINS."""
        size, condition = len(properties), self._condition
        return _PER_MESSAGE + size + condition.size * _PER_OPERATOR + size * condition.scans // _PER_SCAN


class SqlFilters:
    """Cache of compiled expressions, with the least recently used one first."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._known: OrderedDict[str, SqlFilter] = OrderedDict()
        self.size: int = 0
        """Number of operators in all cached expressions."""

    def get(self, expression: str) -> SqlFilter:
        """Return the filter for an expression. Raises RemotingError 23 SUBSCRIPTION_PARSE_FAILED if the
        expression is invalid."""
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
    """Return the filter for a condition such as `price > 5 AND region IN ('eu')`. Raises RemotingError 23
    SUBSCRIPTION_PARSE_FAILED if the condition is invalid."""
    return _FILTERS.get(expression)

"""SQL92 conditions as trees of closures, which are built from the leaves up (rocketmq-filter's expression
package).

Each public function implements one rule of the grammar. It checks the operands, with RocketMQ's error texts,
and returns a node. The node's `evaluate` takes the properties of a message and returns a value. NULL is None.
The result of a comparison with NULL is unknown, which is None as well. AND, OR and NOT use three-valued
logic.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import cast

from dledger.broker.filter.sql_values import Long, Unmatched, Value, compare, parse_double

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]
MAX_DEPTH = 64
"""Greatest nesting depth of operators; an expression with deeper nesting is invalid. A list of operands
joined by AND, or by OR, counts as one level."""
MAX_SCANS = 64
"""Largest number of CONTAINS operators in an expression; one with more is invalid. Each CONTAINS searches up
to 32 KiB of one property."""
_MIN_DOUBLE = 5e-324


class InvalidSelector(ValueError):
    """Raised if a text is not a valid SQL92 condition. The message says why."""


class Kind(Enum):
    """Kind of an operand. The checks of operators depend on it."""

    PROPERTY = 1
    CONSTANT = 2
    BOOLEAN_CONSTANT = 3
    """TRUE, FALSE or NULL, which is both a constant and a condition."""
    CONDITION = 4
    OTHER = 5
    """The negative of an operand (`-x`)."""


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression. `text` returns the text that RocketMQ shows for this part in errors. `value`
    is the value of a constant. `size` is the number of operators in this part, and `scans` the number of
    those that search in a text."""

    kind: Kind
    evaluate: Evaluate
    text: Callable[[], str]
    value: Value = None
    depth: int = 0
    size: int = 1
    scans: int = 0

    @property
    def constant(self) -> bool:
        """Whether this part is a literal."""
        return self.kind in (Kind.CONSTANT, Kind.BOOLEAN_CONSTANT)

    @property
    def boolean(self) -> bool:
        """Whether this part is a condition, or one of the constants TRUE, FALSE and NULL."""
        return self.kind in (Kind.CONDITION, Kind.BOOLEAN_CONSTANT)


# -- leaves -----------------------------------------------------------------------------------------------


def property_(name: str) -> Node:
    """Return a node for a property. Its value is NULL if the message does not have the property."""
    return Node(Kind.PROPERTY, lambda properties: properties.get(name), lambda: name)


def constant(value: Value) -> Node:
    """Return a node for a literal."""
    kind = Kind.BOOLEAN_CONSTANT if value is None or isinstance(value, bool) else Kind.CONSTANT
    return Node(kind, lambda properties: value, lambda: _literal(value), value)


def integer(text: str) -> Node:
    """Return a node for a whole number such as `5` or `5L`. It is a Java Integer if the value fits, otherwise
    a Long. Raises InvalidSelector if it does not fit into a Long."""
    digits = text.rstrip("lL")
    if len(digits) > 19 or int(digits) >= 1 << 63:
        raise InvalidSelector(f'For input string: "{digits[:40]}"')
    value = int(digits)
    return constant(value if value < 1 << 31 else Long(value))


def double(text: str) -> Node:
    """Return a node for a number such as `5.0`. As in RocketMQ, a number above the greatest Double or below
    the least positive Double is invalid, and InvalidSelector is raised. So 0.0 is refused as well."""
    value = float(text)
    if math.isinf(value):
        raise InvalidSelector(f"{text[:40]} is greater than 1.7976931348623157E308")
    if value < _MIN_DOUBLE:
        raise InvalidSelector(f"{text[:40]} is less than 4.9E-324: write 0")
    return constant(value)


# -- logic ------------------------------------------------------------------------------------------------


def condition(node: Node) -> Node:
    """Check an operand of AND, OR or NOT, or the whole expression, and return it as a condition. A property
    alone is a text, so as a condition it is never true."""
    if node.boolean:
        return node
    if node.kind is not Kind.PROPERTY:
        raise InvalidSelector(f"Expression will not result in a boolean value: {node.text()}")
    value = node.evaluate
    return _derived(
        (node,), lambda properties: None if value(properties) is None else False, node.text, Kind.CONDITION
    )


def any_of(nodes: Sequence[Node]) -> Node:
    """Return a node for OR. It is true if an operand is true. If none is true, it is unknown if an operand is
    unknown."""
    return _joined([condition(node) for node in nodes], True, "||")


def all_of(nodes: Sequence[Node]) -> Node:
    """Return a node for AND. It is false if an operand is false. If none is false, it is unknown if an
    operand is unknown."""
    return _joined([condition(node) for node in nodes], False, "&&")


def _joined(nodes: list[Node], decisive: bool, symbol: str) -> Node:
    parts = tuple(node.evaluate for node in nodes)

    def evaluate(properties: Properties) -> Value:
        unknown = False
        for part in parts:
            value = part(properties)
            if value is decisive:
                return decisive
            unknown |= value is None
        return None if unknown else not decisive

    def text() -> str:
        joined = nodes[0].text()
        for node in nodes[1:]:
            joined = f"({joined} {symbol} {node.text()})"
        return joined

    return _derived(nodes, evaluate, text)


def not_(node: Node) -> Node:
    """Return a node for NOT. As in RocketMQ, NOT binds closer than a comparison: `NOT a = 1` means `(NOT a) =
    1`."""
    node = condition(node)
    value = node.evaluate

    def evaluate(properties: Properties) -> Value:
        found = value(properties)
        return None if found is None else not found

    return _derived((node,), evaluate, lambda: f"(NOT {node.text()})")


def negative(node: Node) -> Node:
    """Return a node for the negative of a number. The negative of any other value is NULL. A property is a
    text, so its negative is also NULL."""
    value = node.evaluate

    def evaluate(properties: Properties) -> Value:
        found = value(properties)
        if isinstance(found, str | bool) or found is None:
            return None
        return Long(-found) if isinstance(found, Long) else -found

    return _derived((node,), evaluate, lambda: f"(- {node.text()})", Kind.OTHER)


# -- comparisons ------------------------------------------------------------------------------------------


def equal(left: Node, right: Node) -> Node:
    """Return a node for `=`. Two properties that are both missing are equal. If only the left one is missing,
    the result is unknown. If only the right one is missing, they are not equal
    (ComparisonExpression.doCreateEqual)."""
    for node in (left, right):
        if node.kind is Kind.BOOLEAN_CONSTANT and node.value is None:
            raise InvalidSelector(f"'{node.text()}' cannot be compared.")
    if left.kind is Kind.BOOLEAN_CONSTANT and right.kind is Kind.CONSTANT:
        raise InvalidSelector(f"'{left.text()}' cannot be compared with '{right.text()}'")
    return _equal(left, right)


def not_equal(left: Node, right: Node) -> Node:
    """Return a node for `<>`. It is unknown if `=` is unknown."""
    return not_(equal(left, right))


def is_null(node: Node) -> Node:
    """Return a node for IS NULL."""
    return _equal(node, constant(None))


def is_not_null(node: Node) -> Node:
    """Return a node for IS NOT NULL."""
    return not_(is_null(node))


def _equal(left: Node, right: Node) -> Node:
    one, other = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> Value:
        mine, theirs = one(properties), other(properties)
        if mine is None:
            return True if theirs is None else None
        if theirs is None:
            return False
        return compare(mine, theirs) == 0

    return _derived((left, right), evaluate, lambda: f"({left.text()} == {right.text()})")


def greater(left: Node, right: Node) -> Node:
    """Return a node for `>`."""
    return _ordered(left, right, operator.gt, ">")


def greater_equal(left: Node, right: Node) -> Node:
    """Return a node for `>=`."""
    return _ordered(left, right, operator.ge, ">=")


def less(left: Node, right: Node) -> Node:
    """Return a node for `<`."""
    return _ordered(left, right, operator.lt, "<")


def less_equal(left: Node, right: Node) -> Node:
    """Return a node for `<=`."""
    return _ordered(left, right, operator.le, "<=")


def _ordered(left: Node, right: Node, wanted: Callable[[int, int], bool], symbol: str) -> Node:
    for node in (left, right):
        number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
        if node.boolean or (node.constant and not number):
            raise InvalidSelector(f"Value '{node.text()}' cannot be compared.")
    one, other = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> Value:
        mine, theirs = one(properties), other(properties)
        if mine is None or theirs is None:
            return None
        if isinstance(mine, str) and isinstance(theirs, str):  # texts are ordered only as numbers
            mine, theirs = parse_double(mine), parse_double(theirs)
        return wanted(compare(mine, theirs), 0)

    return _derived((left, right), evaluate, lambda: f"({left.text()} {symbol} {right.text()})")


def between(node: Node, low: Node, high: Node) -> Node:
    """Return a node for BETWEEN low AND high, which includes both limits. Raises InvalidSelector if both
    limits are constants and cannot be a range."""
    if low.constant and high.constant:
        if low.value is None or high.value is None:
            raise InvalidSelector("Illegal values of between, values can not be null!")
        try:
            backwards = compare(high.value, low.value) < 0
        except Unmatched as error:
            raise InvalidSelector(f"Illegal values of between: {low.text()}, {high.text()}") from error
        if backwards:
            raise InvalidSelector(
                f"Illegal values of between, left value({low.text()}) must less than or equal to right "
                f"value({high.text()})"
            )
    return all_of((greater_equal(node, low), less_equal(node, high)))


def not_between(node: Node, low: Node, high: Node) -> Node:
    """Return a node for NOT BETWEEN."""
    return any_of((less(node, low), greater(node, high)))


# -- texts ------------------------------------------------------------------------------------------------


def within(node: Node, elements: Sequence[str], negated: bool = False) -> Node:
    """Return a node for IN, or NOT IN, with a property on its left side. It is unknown if the message does
    not have the property."""
    if node.kind is not Kind.PROPERTY:
        raise InvalidSelector(f"Expected a property for In expression, got: {node.text()}")
    value, known = node.evaluate, frozenset(elements)

    def evaluate(properties: Properties) -> Value:
        found = value(properties)
        return None if found is None else (found in known) is not negated

    symbol = "NOT IN" if negated else "IN"
    return _derived((node,), evaluate, lambda: f"{node.text()} {symbol} ( {', '.join(elements)} )")


def contains(node: Node, search: str, negated: bool = False) -> Node:
    """Return a node for CONTAINS, or NOT CONTAINS."""
    return _searched(node, search, negated, "CONTAINS", lambda text: search in text, scans=1)


def starts_with(node: Node, search: str, negated: bool = False) -> Node:
    """Return a node for STARTSWITH, or NOT STARTSWITH."""
    return _searched(node, search, negated, "STARTSWITH", lambda text: text.startswith(search))


def ends_with(node: Node, search: str, negated: bool = False) -> Node:
    """Return a node for ENDSWITH, or NOT ENDSWITH."""
    return _searched(node, search, negated, "ENDSWITH", lambda text: text.endswith(search))


def _searched(
    node: Node, search: str, negated: bool, symbol: str, found: Callable[[str], bool], scans: int = 0
) -> Node:
    """Return a node for a search in a text. If the value is not a text, or the search text is empty, the
    result is false, even for the negated operator (ContainsExpression)."""
    value = node.evaluate

    def evaluate(properties: Properties) -> Value:
        text = value(properties)
        return bool(search) and isinstance(text, str) and found(text) is not negated

    name = f"NOT {symbol}" if negated else symbol
    return _derived((node,), evaluate, lambda: f"({name} {node.text()})", scans=scans)


def _derived(
    nodes: Sequence[Node],
    evaluate: Evaluate,
    text: Callable[[], str],
    kind: Kind = Kind.CONDITION,
    scans: int = 0,
) -> Node:
    depth = 1 + max(node.depth for node in nodes)
    if depth > MAX_DEPTH:
        raise InvalidSelector(f"operators are nested too deeply; the limit is {MAX_DEPTH} levels")
    size = 1 + sum(node.size for node in nodes)
    scans += sum(node.scans for node in nodes)
    if scans > MAX_SCANS:
        raise InvalidSelector(f"the expression has {scans} CONTAINS; the limit is {MAX_SCANS}")
    return Node(kind, evaluate, text, None, depth, size, scans)


def _literal(value: Value) -> str:
    if value is None or isinstance(value, bool):
        return "NULL" if value is None else str(value).upper()
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(cast(float, value))

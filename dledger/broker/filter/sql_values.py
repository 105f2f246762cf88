"""Values in SQL92 conditions, which are compared as RocketMQ's brokers compare them
(ComparisonExpression.__compare).

A property is a text. If it is compared with a number, the kind of the number decides how the text is parsed,
as Integer, Long or Double. If Java's `valueOf` would refuse the text, `Unmatched` is raised. A message for
which this happens does not match, whatever the rest of the expression says. Java's Integer is `int` in this
module, Long is `Long`, Double is `float`, Boolean is `bool` and String is `str`.
"""

from __future__ import annotations

import re
from typing import Final

MAX_NUMBER = 400
"""Limit, in characters, of a property that is parsed as a number; a longer one is not a number. The greatest
Double has 309 digits."""
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?[fd]?", re.IGNORECASE | re.ASCII)
_HEXADECIMAL: Final = re.compile(
    r"[+-]?0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)p[+-]?\d+[fd]?", re.IGNORECASE | re.ASCII
)
_NAMED: Final = {"NaN": "nan", "Infinity": "inf"}
_BLANKS: Final = "".join(map(chr, range(0x21)))
"""The characters that String.trim removes."""


class Long(int):
    """A java.lang.Long. Literals beyond 32 bits and their negatives have this type."""


Value = str | int | float | bool | None


class Unmatched(Exception):
    """Raised if the evaluation fails, in the cases in which RocketMQ throws an exception. The message then
    does not match."""


def parse_integer(text: str, bits: int) -> int:
    """Parse a text as Integer.valueOf (32 bits) or Long.valueOf (64 bits) does: an optional sign, then digits
    of any script. Raises Unmatched if the text is not such a number."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not 0 < len(digits) <= MAX_NUMBER or not digits.isdecimal():
        raise Unmatched(text)
    value = int(digits)
    value = -value if text[0] == "-" else value
    limit = 1 << bits - 1
    if not -limit <= value < limit:
        raise Unmatched(text)
    return value


def parse_double(text: str) -> float:
    """Parse a text as Double.valueOf does: with blanks around the number, a suffix f or d, NaN, Infinity and
    hexadecimal numbers. Raises Unmatched if the text is not such a number."""
    if len(text) > MAX_NUMBER:
        raise Unmatched(text)
    text = text.strip(_BLANKS)
    try:
        if _DECIMAL.fullmatch(text):
            return float(text.rstrip("fFdD"))
        if _HEXADECIMAL.fullmatch(text):
            # The digits of the mantissa may be f and d, those of the exponent are not.
            return float.fromhex(text.rstrip("fFdD"))
    except OverflowError:
        return float("-inf") if text.startswith("-") else float("inf")
    sign, name = (text[:1], text[1:]) if text[:1] in ("+", "-") else ("", text)
    if name in _NAMED:
        return float(sign + _NAMED[name])
    raise Unmatched(text)


def parse_boolean(text: str) -> bool:
    """Parse a text as Boolean.valueOf does: "true" in any case is true, every other text is false."""
    return text.lower() == "true"


def compare(left: str | int | float | bool, right: str | int | float | bool) -> int:
    """Return a negative number, zero or a positive number if `left` is below, equal to or above `right`.
    Raises Unmatched if a text cannot be parsed, or if a Boolean on the left is compared with a text."""
    kind, other = type(left), type(right)
    if kind is not other:
        if kind is bool:
            if other is str:
                raise Unmatched(right)  # RocketMQ throws ClassCastException
            return -1
        if kind is str:
            left = _read(str(left), other)
        elif other is str:
            right = _read(str(right), kind)
        elif other is bool:
            return -1
        elif kind is float or other is float:
            left, right = float(left), float(right)
    if isinstance(left, float) and isinstance(right, float):
        return _compare_doubles(left, right)
    return (left > right) - (left < right)  # type: ignore[operator]  # alike by now


def _read(text: str, kind: type) -> int | float | bool:
    if kind is bool:
        return parse_boolean(text)
    return parse_double(text) if kind is float else parse_integer(text, 64 if kind is Long else 32)


def _compare_doubles(left: float, right: float) -> int:
    """Compare two numbers as Double.compare does: NaN is the greatest and equals itself, and -0.0 is below
    0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    return (_order(left) > _order(right)) - (_order(left) < _order(right))


def _order(value: float) -> int:
    """Return a number by which two values are ordered of which neither is greater. NaN comes last, and -0.0
    comes before 0.0."""
    if value != value:
        return 2
    return 0 if value == 0 and str(value)[0] == "-" else 1

"""Values of SQL92 filters, compared as RocketMQ's brokers compare them (ComparisonExpression.__compare).

A property is a text. If it is compared with a number, the kind of the number decides how the text is parsed:
as Integer, Long or Double. A text that Java's `valueOf` refuses is an error (`Unmatched`), and a message with
an error does not match, whatever else the expression says. Integer is `int`, Long is `Long`, Double is
`float`, Boolean is `bool`, String is `str`.
"""

from __future__ import annotations

import re
from typing import Final

MAX_NUMBER = 400
"""Characters of a property that is parsed as a number; a longer one is not a number. The largest Double has
309."""
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?[fd]?", re.IGNORECASE | re.ASCII)
_HEXADECIMAL: Final = re.compile(
    r"[+-]?0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)p[+-]?\d+[fd]?", re.IGNORECASE | re.ASCII
)
_NAMED: Final = {"NaN": "nan", "Infinity": "inf"}
_BLANKS: Final = "".join(map(chr, range(0x21)))
"""The characters that String.trim removes."""


class Long(int):
    """A java.lang.Long: literals beyond 32 bits, and their negatives."""


Value = str | int | float | bool | None


class Unmatched(Exception):
    """Evaluation failed, where RocketMQ throws an exception: the message does not match."""


def parse_integer(text: str, bits: int) -> int:
    """Integer.valueOf and Long.valueOf: an optional sign and digits of any script. Unmatched if the text is
    not such a number."""
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
    """Double.valueOf: accepts blanks around the number, a suffix f or d, NaN, Infinity and hexadecimal.
    Unmatched if the text is not such a number."""
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
    """Boolean.valueOf: anything but "true" is false."""
    return text.lower() == "true"


def compare(left: str | int | float | bool, right: str | int | float | bool) -> int:
    """Negative, zero or positive as `left` is below, equal to or above `right`. Unmatched if a text cannot be
    parsed."""
    kind, other = type(left), type(right)
    if kind is not other:
        if kind is bool:
            if other is str:
                raise Unmatched(right)  # a ClassCastException there
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
    """Double.compare: NaN is the largest and equals itself, -0.0 is below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    return (_order(left) > _order(right)) - (_order(left) < _order(right))


def _order(value: float) -> int:
    """Order of two values of which neither is above the other: NaN is the highest, -0.0 is below 0.0."""
    if value != value:
        return 2
    return 0 if value == 0 and str(value)[0] == "-" else 1

"""The grammar of conditions in SQL92 (rocketmq-filter, SelectorParser.jj), for the parser library lark.

It differs from RocketMQ's grammar in one point: the expression must end where the text ends. RocketMQ reads
`a = 1 b = 2` as `a = 1` and ignores the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, cast

from lark import Lark, Token, Transformer, UnexpectedInput, v_args
from lark.exceptions import VisitError
from lark.lexer import Lexer

from dledger.broker.filter import sql_nodes
from dledger.broker.filter.sql_nodes import InvalidSelector, Node

MAX_TOKENS = 1000
"""Largest number of words, literals and signs in an expression; one with more is invalid. There is a limit
because an expression is parsed on the event loop, at its first use."""
SHOWN = 40
"""Limit, in characters, of an expression in an error message; a longer one is cut."""

GRAMMAR: Final = r"""
?start: any_of
?any_of: all_of (OR all_of)*
?all_of: equality (AND equality)*
?equality: comparison
    | equality EQUAL comparison                            -> equal
    | equality UNEQUAL comparison                          -> not_equal
    | equality IS NULL                                     -> is_null
    | equality IS NOT NULL                                 -> is_not_null
?comparison: unary
    | comparison GREATER unary                             -> greater
    | comparison GREATER_EQUAL unary                       -> greater_equal
    | comparison LESS unary                                -> less
    | comparison LESS_EQUAL unary                          -> less_equal
    | comparison CONTAINS STRING                           -> contains
    | comparison STARTSWITH STRING                         -> starts_with
    | comparison ENDSWITH STRING                           -> ends_with
    | comparison NOT CONTAINS STRING                       -> contains
    | comparison NOT STARTSWITH STRING                     -> starts_with
    | comparison NOT ENDSWITH STRING                       -> ends_with
    | comparison BETWEEN unary AND unary                   -> between
    | comparison NOT BETWEEN unary AND unary               -> not_between
    | comparison IN OPEN STRING (COMMA STRING)* CLOSE      -> within
    | comparison NOT IN OPEN STRING (COMMA STRING)* CLOSE  -> within
?unary: primary
    | PLUS unary                                           -> positive
    | MINUS unary                                          -> negative
    | NOT unary                                            -> not_
?primary: STRING                                           -> string
    | INTEGER                                              -> integer
    | DOUBLE                                               -> double
    | TRUE                                                 -> true
    | FALSE                                                -> false
    | NULL                                                 -> null
    | ID                                                   -> property_
    | OPEN any_of CLOSE                                    -> group

%declare OR AND EQUAL UNEQUAL IS NULL NOT GREATER GREATER_EQUAL LESS LESS_EQUAL CONTAINS STARTSWITH ENDSWITH
%declare BETWEEN IN OPEN COMMA CLOSE PLUS MINUS STRING INTEGER DOUBLE TRUE FALSE ID
"""
_WORDS: Final = frozenset(
    ["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"]
)
_SIGNS: Final = {
    "=": "EQUAL",
    "<>": "UNEQUAL",
    ">=": "GREATER_EQUAL",
    "<=": "LESS_EQUAL",
    ">": "GREATER",
    "<": "LESS",
    "(": "OPEN",
    ")": "CLOSE",
    ",": "COMMA",
    "+": "PLUS",
    "-": "MINUS",
}
_TOKEN: Final = re.compile(
    r"""(?P<BLANK>[ \t\n\r\f]+|/\*[^*]*\*+(?:[^*/][^*]*\*+)*/)
    |(?P<DOUBLE>\d+\.\d*(?:E[+-]?\d+)?|\.\d+(?:E[+-]?\d+)?|\d+E[+-]?\d+)
    |(?P<INTEGER>0|[1-9]\d*L?)
    |(?P<STRING>'(?:''|[^'])*')
    |(?P<ID>[A-Z_$][A-Z0-9_$]*)
    |(?P<SIGN><>|>=|<=|[=<>(),+-])""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_LINE_END: Final = re.compile(r"\r\n|\n|\r")


class _Words(Lexer):
    """Lexer that takes the longest match, as JavaCC does. The text `--` begins a comment if there is a line
    end behind it. Otherwise it is two signs."""

    def __init__(self, conf: object) -> None:
        """Take lark's configuration, and ignore it."""

    def lex(self, data: str) -> Iterator[Token]:  # type: ignore[override]  # what lark gives to a lexer of one's own
        at, count, last_line = 0, 0, max(data.rfind("\n"), data.rfind("\r"))
        while at < len(data):
            if data.startswith("--", at) and at < last_line:
                end = _LINE_END.search(data, at)
                at = end.end() if end else len(data)
                continue
            found = _TOKEN.match(data, at)
            if found is None:
                raise InvalidSelector(f"Lexical error at column {at + 1}: {data[at : at + SHOWN]!r}")
            kind, text = found.lastgroup or "", found.group()
            if kind != "BLANK":
                count += 1
                if count > MAX_TOKENS:
                    raise InvalidSelector(f"the expression has more than {MAX_TOKENS} words and signs")
                if kind == "SIGN":
                    kind = _SIGNS[text]
                elif kind == "ID" and text.upper() in _WORDS:
                    kind = text.upper()
                yield Token(kind, text, at)
            at = found.end()


@v_args(inline=True)
class _Builder(Transformer[Any, Any]):
    """Turns rules of the grammar into nodes while lark parses, so that no parse tree is built and nothing
    recurses. Each token carries its position in the text."""

    def any_of(self, *parts: Any) -> Node:
        return sql_nodes.any_of(parts[::2])

    def all_of(self, *parts: Any) -> Node:
        return sql_nodes.all_of(parts[::2])

    def equal(self, left: Node, _: Token, right: Node) -> Node:
        return sql_nodes.equal(left, right)

    def not_equal(self, left: Node, _: Token, right: Node) -> Node:
        return sql_nodes.not_equal(left, right)

    def is_null(self, node: Node, *_: Token) -> Node:
        return sql_nodes.is_null(node)

    def is_not_null(self, node: Node, *_: Token) -> Node:
        return sql_nodes.is_not_null(node)

    def greater(self, left: Node, _: Token, right: Node) -> Node:
        return sql_nodes.greater(left, right)

    def greater_equal(self, left: Node, _: Token, right: Node) -> Node:
        return sql_nodes.greater_equal(left, right)

    def less(self, left: Node, _: Token, right: Node) -> Node:
        return sql_nodes.less(left, right)

    def less_equal(self, left: Node, _: Token, right: Node) -> Node:
        return sql_nodes.less_equal(left, right)

    def contains(self, node: Node, *words: Token) -> Node:
        return sql_nodes.contains(node, _text(words[-1]), len(words) == 3)

    def starts_with(self, node: Node, *words: Token) -> Node:
        return sql_nodes.starts_with(node, _text(words[-1]), len(words) == 3)

    def ends_with(self, node: Node, *words: Token) -> Node:
        return sql_nodes.ends_with(node, _text(words[-1]), len(words) == 3)

    def between(self, node: Node, _: Token, low: Node, __: Token, high: Node) -> Node:
        return sql_nodes.between(node, low, high)

    def not_between(self, node: Node, _: Token, __: Token, low: Node, ___: Token, high: Node) -> Node:
        return sql_nodes.not_between(node, low, high)

    def within(self, node: Node, *words: Token) -> Node:
        elements = [_text(word) for word in words if word.type == "STRING"]
        return sql_nodes.within(node, elements, words[0].type == "NOT")

    def positive(self, _: Token, node: Node) -> Node:
        return node

    def negative(self, _: Token, node: Node) -> Node:
        return sql_nodes.negative(node)

    def not_(self, _: Token, node: Node) -> Node:
        return sql_nodes.not_(node)

    def group(self, _: Token, node: Node, __: Token) -> Node:
        return node

    def string(self, token: Token) -> Node:
        return sql_nodes.constant(_text(token))

    def integer(self, token: Token) -> Node:
        return sql_nodes.integer(token)

    def double(self, token: Token) -> Node:
        return sql_nodes.double(token)

    def true(self, _: Token) -> Node:
        return sql_nodes.constant(True)

    def false(self, _: Token) -> Node:
        return sql_nodes.constant(False)

    def null(self, _: Token) -> Node:
        return sql_nodes.constant(None)

    def property_(self, token: Token) -> Node:
        return sql_nodes.property_(str(token))


_PARSER: Final = Lark(GRAMMAR, parser="lalr", lexer=_Words, transformer=_Builder())


def parse(expression: str) -> Node:
    """Return the condition that an expression contains. Raises InvalidSelector if the expression is invalid;
    the text of the error is for the author of the expression."""
    try:
        node = cast(Node, _PARSER.parse(expression))  # made by the transformer
    except UnexpectedInput as error:
        token = getattr(error, "token", None)
        if token is None or token.type == "$END":
            raise InvalidSelector("the expression ends too early") from error
        at = token.start_pos or 0
        raise InvalidSelector(f"Encountered {str(token)[:SHOWN]!r} at column {at + 1}") from error
    except VisitError as error:
        if isinstance(error.orig_exc, InvalidSelector):
            raise error.orig_exc from None
        raise
    return sql_nodes.condition(node)


def _text(token: Token) -> str:
    return token[1:-1].replace("''", "'")

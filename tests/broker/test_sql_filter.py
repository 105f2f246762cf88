"""SQL92 filters: what matches, what is refused, as RocketMQ's brokers have it, and at what cost."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker.filter.sql_filter import SqlFilter, SqlFilters, sql_filter
from dledger.broker.filter.sql_grammar import MAX_TOKENS, parse
from dledger.broker.filter.sql_nodes import MAX_DEPTH, MAX_SCANS, InvalidSelector
from dledger.broker.filter.sql_values import Long, Unmatched, compare, parse_double, parse_integer
from dledger.broker.longpolling import subscription_wait
from dledger.broker.store.reader import MAX_LOOK_COST
from dledger.formats.properties import encode_properties
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import PULL_CLASS_FILTER, PULL_SUBSCRIPTION, PULL_SUSPEND
from tests.broker.harness import World, run
from tests.broker.turns import MAX_STEPS, Steps

SQL = {"expressionType": "SQL92"}


def matches(expression: str, properties: Mapping[str, str]) -> bool:
    return sql_filter(expression).by_properties(encode_properties(properties).encode())


@pytest.mark.parametrize(
    ("expression", "properties", "expected"),
    [
        ("a=3 and b<>4 And c>5 AND d<=4", "a=3 b=5 c=6 d=1", True),
        ("a=3 and b<>4 And c>5 AND d<=4", "a=4 b=5 c=6 d=1", False),
        ("a=3 or b<>4 Or c>5 OR d<=4", "a=4 b=4 c=3 d=2", True),
        ("a=3 or b<>4 Or c>5 OR d<=4", "a=4 b=4 c=3 d=10", False),
        # Numbers.
        ("a > 3.14", "a=3.1415", True),
        ("a > 3.1E10", "a=3.1415e10", True),
        ("a > .5", "a=1", True),
        ("a > 5.", "a=5.5", True),
        ("a > 2.5", "a=+2.6f", True),
        ("a < 2.5", "a=NaN", False),
        ("a > 2.5", "a=Infinity", True),
        ("a = 5", "a=+5", True),
        ("a = 5", "a=5.0", False),  # Integer.valueOf
        ("a > 5", "a=3000000000", False),  # no Integer
        ("a > 5L", "a=3000000000", False),  # a small literal is an Integer, L or not
        ("a > 2147483648", "a=3000000000", True),
        ("a > -5", "a=-4", True),
        ("a > - -5", "a=6", True),
        ("a > +5", "a=6", True),
        ("5 < a", "a=6", True),
        ("3 < 5.5", "", True),
        ("a > b", "a=10 b=9", True),  # two properties: as doubles
        ("a > b", "a=10 b=x", False),
        ("-a = 5", "a=-5", False),  # a property is text, its negative is NULL
        # An error spoils the whole; what is decided before it is not looked at.
        ("a > 5 or b = 1", "a=x b=1", False),
        ("b = 1 or a > 5", "a=x b=1", True),
        ("not (a > 5)", "a=x", False),
        # NULL.
        ("a > 5", "", False),
        ("not (a > 5)", "", False),
        ("a > 5 or b = 1", "b=1", True),
        ("a is null", "", True),
        ("a is null", "a=1", False),
        ("a is not null", "a=1", True),
        ("a is not null", "", False),
        ("a is null OR a='hello'", "a=abc", False),
        ("a = b", "", True),  # both missing
        ("a = b", "a=1", False),
        ("not (a = b)", "a=1", True),  # missing on the right: not equal
        ("not (a = b)", "b=1", False),  # missing on the left: unknown
        ("NULL", "", False),
        ("NULL is null", "", True),
        # Booleans.
        ("TRUE", "", True),
        ("a = TRUE", "a=True", True),
        ("a = FALSE", "a=no", True),
        ("TRUE = a", "a=true", False),  # a ClassCastException
        ("a", "a=true", False),
        ("not a", "a=true", True),
        ("not a", "", False),
        ("NOT a = 1", "a=2", False),  # (NOT a) = 1
        ("(a > 1) = TRUE", "a=2", True),
        ("(a > 1) = (b > 1)", "a=2 b=2", True),
        # BETWEEN and IN.
        ("a between 2 and 10", "a=2", True),
        ("a between 2 and 10", "a=10", True),
        ("a between 2 and 10", "a=11", False),
        ("a not between 2 and 10", "a=1", True),
        ("a not between 2 and 10", "a=3", False),
        ("a between b and c", "a=3 b=1 c=5", True),
        ("a in ('3', '4', '5')", "a=3", True),
        ("a in ('3', '4', '5')", "a=8", False),
        ("(a) not in ('3')", "a=8", True),
        ("a not in ('3')", "", False),
        # Texts.
        ("TAGS is not null and TAGS='''''tag'''''", "TAGS=''tag''", True),
        ("a contains 'b'", "a=abc", True),
        ("a not contains 'b'", "a=ac", True),
        ("a not contains 'b'", "", False),
        ("a contains ''", "a=abc", False),
        ("a startswith 'ab'", "a=abc", True),
        ("a not startswith 'ab'", "a=abc", False),
        ("a endswith 'bc'", "a=abc", True),
        ("a NOT EndsWith 'ab'", "a=abc", True),
        ("a='x' -- a comment\n and b /* and * another */ = 'y'", "a=x b=y", True),
        ("$a_1='x'", "$a_1=x", True),
        ("now > 5", "now=6", True),
    ],
)
def test_what_matches(expression: str, properties: str, expected: bool) -> None:
    pairs = (pair.split("=", 1) for pair in properties.split())
    assert matches(expression, dict(pairs)) is expected


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("", "the expression ends too early"),
        ("a =", "the expression ends too early"),
        ("a and between 2 and 10", "Encountered 'between' at column 7"),
        ("a = 1 b = 2", "Encountered 'b' at column 7"),
        ("a # 1", "Lexical error at column 3"),
        ("a = 'x", "Lexical error at column 5"),
        ("a.b = 1", "Lexical error at column 2"),
        ("a ſ 'x'", "Lexical error at column 3"),
        ("a = 007", "Encountered '0' at column 6"),
        (" a between 10 and 0", "left value(10) must less than or equal to right value(0)"),
        ("a between NULL and 0", "values can not be null"),
        ("a between 1 and 'x'", "Illegal values of between"),
        ("a > 100000000000000000000000", "For input string"),
        ("a > 9223372036854775808", "For input string"),
        ("a > " + "1" * 400 + ".", "is greater than"),
        ("a > 0.0", "0.0 is less than 4.9E-324"),
        ("a > 'x'", "Value ''x'' cannot be compared."),
        ("a > TRUE", "Value 'TRUE' cannot be compared."),
        ("a > (b = 1)", "Value '(b == 1)' cannot be compared."),
        ("NOT a > 1", "Value '(NOT a)' cannot be compared."),
        ("a = NULL", "'NULL' cannot be compared."),
        ("TRUE = 'x'", "'TRUE' cannot be compared with ''x''"),
        ("1", "Expression will not result in a boolean value: 1"),
        ("a and 'x'", "Expression will not result in a boolean value: 'x'"),
        ("1 in ('x')", "Expected a property for In expression, got: 1"),
        ("a in (1)", "Encountered '1' at column 7"),
        ("a like 'x'", "Encountered 'like' at column 3"),
        ("a in ()", "Encountered ')' at column 7"),
    ],
)
def test_what_is_refused(expression: str, text: str) -> None:
    with pytest.raises(RemotingError, match="Invalid MessageSelector") as refused:
        sql_filter(expression)
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert text in refused.value.remark


# -- against a naive evaluator ----------------------------------------------------------------------------

NAMES = st.sampled_from("abc")
TEXTS = st.sampled_from(["1", "2", "-1", "2.5", "x", "true", "3000000000", "1x"])
NUMBERS = st.sampled_from(["0", "1", "2", "2147483647", "3000000000", "2.5", "1e1"])
Tree = tuple[Any, ...]


def operands() -> st.SearchStrategy[Tree]:
    return st.one_of(
        NAMES.map(lambda name: ("property", name)),
        NUMBERS.map(lambda text: ("number", text)),
        NUMBERS.map(lambda text: ("negative", ("number", text))),
    )


def conditions() -> st.SearchStrategy[Tree]:
    leaf = st.one_of(
        st.tuples(st.sampled_from(["=", "<>", ">", ">=", "<", "<="]), operands(), operands()),
        st.tuples(st.just("="), NAMES.map(lambda name: ("property", name)), TEXTS.map(lambda t: ("text", t))),
        st.tuples(st.just("is null"), operands()),
        st.tuples(st.just("in"), NAMES.map(lambda name: ("property", name)), st.lists(TEXTS, min_size=1)),
        st.tuples(st.just("contains"), operands(), TEXTS),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(["and", "or"]), inner, inner), st.tuples(st.just("not"), inner)
        ),
        max_leaves=8,
    )


def written(tree: Tree) -> str:
    kind, *parts = tree
    if kind == "text":
        return f"'{parts[0]}'"
    if kind in ("property", "number"):
        return str(parts[0])
    if kind == "negative":
        return f"- {written(parts[0])}"
    if kind == "not":
        return f"NOT ({written(parts[0])})"
    if kind == "is null":
        return f"({written(parts[0])} IS NULL)"
    if kind == "in":
        return f"({written(parts[0])} IN ({', '.join(repr(text) for text in parts[1])}))"
    if kind == "contains":
        return f"({written(parts[0])} CONTAINS '{parts[1]}')"
    return f"({written(parts[0])} {kind} {written(parts[1])})"


class Error(Exception):
    pass


def naive(tree: Tree, properties: Mapping[str, str]) -> Any:
    """Rules of RocketMQ's, written down a second time. Values: (Java class, value), or None."""
    kind, *parts = tree
    if kind == "property":
        text = properties.get(parts[0])
        return None if text is None else ("String", text)
    if kind == "text":
        return "String", parts[0]
    if kind == "number":
        if any(sign in parts[0] for sign in ".e"):
            return "Double", float(parts[0])
        return ("Integer" if int(parts[0]) < 2**31 else "Long"), int(parts[0])
    if kind == "negative":
        name, value = naive(parts[0], properties)
        return name, -value
    if kind == "not":
        value = naive(parts[0], properties)
        return None if value is None else not value
    if kind in ("and", "or"):
        first = naive(parts[0], properties)
        if first is (kind == "or"):
            return first
        second = naive(parts[1], properties)
        if second is (kind == "or"):
            return second
        return None if first is None or second is None else kind == "and"
    if kind == "is null":
        return naive(parts[0], properties) is None
    value = naive(parts[0], properties)
    if kind == "in":
        return None if value is None else value[1] in parts[1]
    if kind == "contains":
        return value is not None and value[0] == "String" and parts[1] in value[1]
    other = naive(parts[1], properties)
    if kind in ("=", "<>"):
        if value is None:
            found = True if other is None else None
        else:
            found = other is not None and (value == other or difference(value, other) == 0)
        return found if kind == "=" or found is None else not found
    if value is None or other is None:
        return None
    if value[0] == other[0] == "String":
        value, other = ("Double", double(value[1])), ("Double", double(other[1]))
    sign = difference(value, other)
    return {">": sign > 0, ">=": sign >= 0, "<": sign < 0, "<=": sign <= 0}[kind]


def double(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Error from None


def difference(one: tuple[str, Any], other: tuple[str, Any]) -> float:
    def number(text: str, kind: str) -> float:
        if kind == "Double":
            return double(text)
        try:
            value = int(text)
        except ValueError:
            raise Error from None
        if abs(value) >= 2 ** (31 if kind == "Integer" else 63):
            raise Error
        return value

    (kind, value), (other_kind, other_value) = one, other
    if kind == other_kind == "String":
        return 0 if value == other_value else 1
    if kind == "String":
        value = number(value, other_kind)
    if other_kind == "String":
        other_value = number(other_value, kind)
    return float(value - other_value)


@settings(deadline=None, max_examples=300)
@given(conditions(), st.dictionaries(NAMES, TEXTS))
def test_a_filter_says_what_a_naive_evaluator_says(tree: Tree, properties: dict[str, str]) -> None:
    try:
        expected = naive(tree, properties) is True
    except Error:
        expected = False
    assert matches(written(tree), properties) is expected


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet="ab 12.'()=<>,-+/*\nNOTANDORIS", max_size=60))
def test_whatever_the_text_it_is_a_condition_or_refused(text: str) -> None:
    try:
        node = parse(text)
    except InvalidSelector:
        return
    node.text()
    SqlFilter(node).by_properties(b"a\x011\x02b\x01x\x02")


# -- Java's numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 1.5\t", 1.5),
        ("1e400", math.inf),
        ("-1e400", -math.inf),
        ("0x1.8p1", 3.0),
        ("0x1p9999", math.inf),
        ("1d", 1.0),
        ("-Infinity", -math.inf),
        (".5F", 0.5),
    ],
)
def test_doubles_are_read_as_java_reads_them(text: str, value: float) -> None:
    assert parse_double(text) == value


@pytest.mark.parametrize("text", ["", "x", "1_0", "inf", "nan", "1e", "0x1", "1.5 .", "٣", "1" * 401, "--1"])
def test_what_is_no_double(text: str) -> None:
    with pytest.raises(Unmatched):
        parse_double(text)


@pytest.mark.parametrize("text", ["", "-", " 1", "1.0", "1_0", "2147483648", "²", "9" * 500])
def test_what_is_no_integer(text: str) -> None:
    with pytest.raises(Unmatched):
        parse_integer(text, 32)
    assert parse_integer("٣", 32) == 3  # Character.digit
    assert parse_integer("-2147483648", 32) == -(2**31)


def test_values_of_two_kinds() -> None:
    assert compare(math.nan, math.inf) > 0 and compare(math.nan, math.nan) == 0
    assert compare(-0.0, 0.0) < 0 and compare(1, 1.0) == 0 and compare(Long(5), 5) == 0
    assert compare(True, 1) < 0 and compare(1, True) < 0 and compare("true", True) == 0


# -- bounds -----------------------------------------------------------------------------------------------


def words(count: int) -> str:
    return "a in (" + ",".join(f"'{number}'" for number in range((count - 4) // 2)) + ")"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (words(MAX_TOKENS + 3), f"more than {MAX_TOKENS} words"),
        ("not " * (MAX_DEPTH + 1) + "a", f"the limit is {MAX_DEPTH} levels"),
        ("- " * 200 + "1 > 1", f"the limit is {MAX_DEPTH} levels"),
        (" or ".join(["a contains 'x'"] * (MAX_SCANS + 1)), f"the limit is {MAX_SCANS}"),
    ],
)
def test_what_would_cost_too_much_is_refused(expression: str, text: str) -> None:
    with pytest.raises(RemotingError, match=text):
        sql_filter(expression)


HOSTILE = [
    "(" * 16_384,
    "(" * 499 + "a" + ")" * 499,
    "-" * 16_384,
    "--" + "-" * 16_000 + "\n" + "a",
    "-- \n" * 4000 + "a=1",
    "/*" * 8192,
    "/*" + "*" * 16_000,
    "'" + "x" * 16_383,
    "''" * 8192,
    "9" * 16_384,
    "a > " + "9" * 16_000 + ".",
    "not " * 4000,
    words(MAX_TOKENS),
    " and ".join(["a=1"] * (MAX_TOKENS // 4)),
    " or ".join(["a > 1.5"] * (MAX_TOKENS // 4)),
    " or ".join(["a > b"] * (MAX_TOKENS // 4)),
    " or ".join(["a contains '%s'" % ("x" * 30 + "y")] * MAX_SCANS),
    " or ".join(["a endswith 'y'"] * (MAX_TOKENS // 4)),
]
PROPERTIES = [
    b"a\x01" + b"x" * 32_000,
    b"a\x01b\x02" * 8000,
    b"a\x01" + b"1" * 390 + b"\x02b\x01" + b"1" * 390 + b"\x02",
]


def test_a_hostile_expression_takes_no_longer_than_a_turn_may() -> None:
    """Parsing is once; a read looks through messages until `MAX_LOOK_COST` is spent, and at least one."""
    SqlFilters().get("a = 1")  # the grammar is built once in a process
    steps = Steps()
    for expression in HOSTILE:

        def compiled(expression: str = expression) -> SqlFilter | None:
            try:
                return SqlFilters().get(expression)
            except RemotingError:
                return None

        assert steps.of(compiled) < MAX_STEPS, expression[:40]
        one = compiled()
        for properties in PROPERTIES if one else ():
            assert one is not None
            count = max(1, MAX_LOOK_COST // one.cost(properties))
            spent = steps.of(lambda one=one, properties=properties: one.by_properties(properties)) * count
            assert spent < MAX_STEPS, (expression[:40], properties[:10], count)


def test_compiled_expressions_are_remembered_up_to_a_limit() -> None:
    filters = SqlFilters(limit=6)
    first = filters.get("a = 1")
    assert filters.get("a = 1") is first and filters.size == first.size == 3
    filters.get("a = 2")
    assert filters.get("a = 1") is first
    filters.get("a = 3")
    assert filters.size == 6 and filters.get("a = 1") is first


# -- at the broker ----------------------------------------------------------------------------------------


def bodies(reply: Any) -> list[bytes]:
    return [record.body for record in reply.records]


def test_a_pull_by_sql_gets_what_matches(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        for number in range(6):
            await world.send(body=b"%d" % number, properties=f"a\x01{number}\x02")
        reply = await world.pull(subscription="a > 3", **SQL)
        assert bodies(reply) == [b"4", b"5"] and reply.ext["nextBeginOffset"] == "6"
        nothing = await world.pull(subscription="a > 30", **SQL)
        assert nothing.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert nothing.ext["nextBeginOffset"] == "6"

    run(test)


def test_a_held_pull_wakes_for_what_matches_only(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send(properties="a\x019\x02")
        held = PULL_SUBSCRIPTION | PULL_SUSPEND
        waiting = world.pull(offset=1, subscription="a > 3", sysFlag=held, suspendTimeoutMillis=60_000, **SQL)
        await world.send(properties="a\x011\x02")
        await world.send(body=b"unnamed")
        assert not waiting.done and world.features.longpolling.pulls.held.count == 1
        await world.send(body=b"now", properties="a\x014\x02")
        assert bodies(await waiting) == [b"now"]

    run(test)


def test_many_held_pulls_by_sql_are_looked_at_one_a_turn(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        await world.send()
        held = PULL_SUBSCRIPTION | PULL_SUSPEND
        more = {"sysFlag": held, "suspendTimeoutMillis": 60_000, **SQL}
        waiting = [
            world.pull(offset=1, subscription="a > 3", consumerGroup=f"G{number}", **more)
            for number in range(5)
        ]
        served: list[int] = []
        serve = world.features.longpolling.pulls._serve
        world.features.longpolling.pulls._serve = lambda pull: (served.append(turns), serve(pull))  # type: ignore[method-assign,assignment,return-value]
        turns = 0
        world.send(properties="a\x014\x02")
        while not all(one.done for one in waiting):
            await asyncio.sleep(0)
            turns += 1
            assert turns < 20
        assert len(served) == len(set(served)) == 5
        again = [
            world.pull(offset=2, subscription="a > 3", consumerGroup=f"G{number}", **more)
            for number in range(3)
        ]
        world.send(properties="a\x014\x02")
        world.node.follow("n1")
        assert {(await one).code for one in again} <= {
            ResponseCode.SUCCESS,
            ResponseCode.SERVICE_NOT_AVAILABLE,
        }

    run(test)


def heartbeat(expression: str, version: int, topic: str = "T", **more: object) -> bytes:
    wanted = {"topic": topic, "subString": expression, "subVersion": version, **SQL, **more}
    consumers = [{"groupName": "CG", "subscriptionDataSet": [wanted]}]
    return json.dumps({"clientID": "c", "consumerDataSet": consumers}).encode()


def test_a_pull_without_its_condition_goes_by_the_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_wait, "WAIT_S", 0.01)

    async def test() -> None:
        world = await World(str(tmp_path)).open()
        for number in range(4):
            await world.send(body=b"%d" % number, properties=f"a\x01{number}\x02")
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("a >= 2", 5))
        assert bodies(await world.pull(sysFlag=0, subscription="", subVersion=5)) == [b"2", b"3"]
        late = await world.pull(sysFlag=0, subscription="", subVersion=6)
        assert late.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("a >=", 7))
        wrong = await world.pull(sysFlag=0, subscription="", subVersion=7)
        assert wrong.code == ResponseCode.FILTER_DATA_NOT_EXIST and "ends too early" in (wrong.remark or "")
        await world.call(RequestCode.HEART_BEAT, None, heartbeat("X", 8, classFilterMode=True))
        by_class = await world.pull(sysFlag=0, subscription="", subVersion=8)
        assert by_class.code == ResponseCode.SYSTEM_ERROR
        assert (by_class.remark or "").endswith("by class filter: subscribe by SQL92 or by tags")

    run(test)


@pytest.mark.parametrize(("on", "code"), [(True, ResponseCode.SUCCESS), (False, ResponseCode.SYSTEM_ERROR)])
def test_filters_by_property_can_be_turned_off(tmp_path: Path, on: bool, code: int) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), property_filter=on).open()
        await world.send(properties="a\x019\x02")
        reply = await world.pull(subscription="a > 3", **SQL)
        assert reply.code == code
        if not on:
            assert reply.remark == "The broker does not support consumer to filter message by SQL92"
        assert (await world.pull(subscription="*")).code == ResponseCode.SUCCESS
        by_class = await world.pull(sysFlag=PULL_SUBSCRIPTION | PULL_CLASS_FILTER)
        assert by_class.code == ResponseCode.SYSTEM_ERROR

    run(test)


@pytest.mark.parametrize(("on", "expected"), [(True, [b"1", b"2"]), (False, [b"0"])])
def test_retries_are_selected_by_the_condition_of_their_topic(
    tmp_path: Path, on: bool, expected: list[bytes]
) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), filter_retry=on).open()
        wanted = [
            {"topic": "T", "subString": "a = 1", "subVersion": 1, **SQL},
            {"topic": "%RETRY%CG", "subString": "a = 2", "subVersion": 1, **SQL},
        ]
        consumers = [{"groupName": "CG", "subscriptionDataSet": wanted}]
        body = json.dumps({"clientID": "c", "consumerDataSet": consumers}).encode()
        await world.call(RequestCode.HEART_BEAT, None, body)
        for number, (a, origin) in enumerate([("2", "T"), ("1", "T"), ("3", "U")]):
            properties = f"a\x01{a}\x02RETRY_TOPIC\x01{origin}\x02"
            await world.send("%RETRY%CG", body=b"%d" % number, properties=properties)
        reply = await world.pull("%RETRY%CG", sysFlag=0, subscription="", subVersion=1)
        assert bodies(reply) == expected

    run(test)


def test_one_read_looks_through_so_much_and_the_next_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path)).open()
        padding = "x" * 30_000
        for number in range(8):
            await world.send(body=b"%d" % number, properties=f"a\x01{number}\x02p\x01{padding}\x02")
        offset, asked = 0, 0
        found: list[bytes] = []
        while not found:
            reply = await world.pull(offset=offset, subscription="a = 7", **SQL)
            found += bodies(reply)
            assert int(reply.ext["nextBeginOffset"]) > offset
            offset, asked = int(reply.ext["nextBeginOffset"]), asked + 1
        assert found == [b"7"] and asked == 2

    run(test)

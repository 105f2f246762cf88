"""Values of options: convert texts to numbers, lists, ranges and offsets. BadOption names the option and
the remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches

from dledger.client.errors import ClientError
from dledger.client.message import check_topic
from dledger.client.times import check_time

EARLIEST = -2
LATEST = -1
"""LATEST and EARLIEST: numbers that stand for the end and the beginning of a queue in `startingOffsets`
and `endingOffsets`, as in Spark's Kafka source."""

KEY_SEPARATOR = " "
"""Separates the keys of one message (MessageConst.KEY_SEPARATOR)."""

_NOT_IN_TAGS = re.compile(r"""[\s,;<>=()'"]""")
"""Characters by which an expression of SQL92, or a list in another form, is told from a tag. A tag that has
one of them is given in a JSON list."""
_NOT_IN_KEYS = re.compile(r"[,;]")
"""Characters that probably separate keys in a form that is not RocketMQ's."""

_UNITS_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
"""Units of durations, as Spark writes them, in ms."""
_DURATION = re.compile(rf"([0-9]{{1,15}})\s*({'|'.join(_UNITS_MS)})?")

Queue = tuple[str, int]
"""A queue as (topic, queue id)."""


class BadOption(ValueError):
    """An option that is unknown, missing or has a wrong value. The text names it."""


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return a hint about the unknown `word`: the most similar word of `known` or, if none is similar, all
    of them. It is appended to the error text."""
    lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), list(lower), n=1)
    return f": did you mean {lower[close[0]]!r}?" if close else f"; known are {', '.join(known)}"


def choice(name: str, value: str, known: tuple[str, ...]) -> str:
    """Return the value in lower case if it is one of `known`. Raises BadOption otherwise."""
    if value.lower() not in known:
        close = get_close_matches(value.lower(), known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise BadOption(f"option {name}: {value!r} is not one of {', '.join(known)}{hint}")
    return value.lower()


def flag(name: str, value: str) -> bool:
    """Convert the text `true` or `false`. Raises BadOption for other texts."""
    return choice(name, value, ("true", "false")) == "true"


def positive(name: str, value: str) -> int:
    """Convert a text to a number, which must be at least 1."""
    if not value.isdecimal() or int(value) < 1:
        raise BadOption(f"option {name}: {value!r} is not a positive number")
    return int(value)


def milliseconds(name: str, value: str) -> int:
    """Convert a text to a time in ms since the epoch: a number of ms, or a time in ISO form, which is in UTC
    unless it names another zone."""
    text = value.strip()
    if not text.isdecimal():
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            raise BadOption(
                f"option {name}: {value!r} is not a time: give milliseconds since 1970-01-01 UTC, or a time "
                "such as 2026-11-21T15:30:00 (UTC) or 2026-11-21T15:30:00+01:00"
            ) from None
        text = str(round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000))
    try:
        return check_time(int(text), f"option {name}")
    except ClientError as error:
        raise BadOption(str(error)) from None


def duration_ms(name: str, value: str) -> int:
    """Convert a duration in Spark's form to ms: `15m`, `30s`, `500ms`. A number without a unit is in ms."""
    found = _DURATION.fullmatch(value.strip().lower())
    if found is None:
        units = ", ".join(_UNITS_MS)
        raise BadOption(
            f"option {name}: {value!r} is not a duration: give a number with a unit ({units}), such as 15m"
        )
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]


def names(value: str) -> tuple[str, ...]:
    """Split a list such as `a, b` into names."""
    return tuple(item.strip() for item in value.split(",") if item.strip())


def listed(name: str, value: str) -> tuple[str, ...]:
    """Split a list of names: `a, b`, or a JSON list."""
    return names(value) if not _is_list(value) else tuple(one.strip() for one in _texts(name, value))


def topics(name: str, value: str) -> tuple[str, ...]:
    """Split a list of topics: `a, b`, or a JSON list. Raises BadOption for a text that cannot be the name of
    a topic, as reading it would give nothing."""
    found = listed(name, value)
    for topic in found:
        try:
            check_topic(topic)
        except ClientError as error:
            raise BadOption(f"option {name}: {error}; several topics are separated by commas") from None
    return found


def _is_list(value: str) -> bool:
    return value.lstrip().startswith("[")


def _texts(name: str, value: str) -> list[str]:
    """Convert a JSON list of texts."""
    try:
        found = json.loads(value)
    except ValueError as error:
        raise BadOption(f"option {name}: {value!r} is not a JSON list: {error}") from error
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise BadOption(f"option {name}: {value!r} is not a list of texts")
    return found


def paths(value: str) -> tuple[str, ...]:
    """Split a list of paths. They are separated by commas; if paths contain commas, the value is a JSON
    list."""
    return tuple(_texts("path", value)) if _is_list(value) else names(value)


def pattern(name: str, value: str) -> str:
    """Compile a regular expression."""
    try:
        re.compile(value)
    except re.error as error:
        raise BadOption(f"option {name}: {value!r} is not a regular expression: {error}") from error
    return value


def tags(name: str, value: str) -> tuple[str, ...]:
    """Split tags such as `A || B`, or a JSON list. Returns the empty tuple for `*`, which means all
    messages."""
    text = value.strip()
    if text in ("", "*"):
        return ()
    if _is_list(text):
        found = tuple(dict.fromkeys(_texts(name, text)))
        if not found or not all(found):
            raise BadOption(f"option {name}: {value!r} must name at least one tag, and no empty one")
        return found
    found = tuple(dict.fromkeys(tag.strip() for tag in text.split("||")))
    if any(not tag or "|" in tag or tag == "*" for tag in found):
        raise BadOption(f"option {name}: {value!r} is not a tag expression: write '*', 'A' or 'A || B'")
    for tag in found:
        if _NOT_IN_TAGS.search(tag):
            raise BadOption(
                f"option {name}: {tag!r} is no tag: write 'A || B' for several tags, and a tag that has "
                "blanks or such characters as a JSON list; expressions of SQL92 are not evaluated here, so "
                "filter the rows by the column headers (includeHeaders)"
            )
    return found


def keys(name: str, value: str) -> frozenset[str]:
    """Split message keys: `A B` as RocketMQ writes several keys, or a JSON list. A key cannot contain a
    space."""
    found = _texts(name, value) if _is_list(value) else value.split()
    if not _is_list(value) and _NOT_IN_KEYS.search(value):
        raise BadOption(
            f"option {name}: {value!r}: separate keys by single spaces, and give keys that hold commas or "
            "semicolons as a JSON list"
        )
    wrong = [key for key in found if not key or KEY_SEPARATOR in key]
    if wrong or not found:
        raise BadOption(f"option {name}: {value!r} must have the form 'A B': keys separated by single spaces")
    return frozenset(found)


def ranges(name: str, value: str) -> tuple[tuple[int, int], ...]:
    """Convert a text such as `0-99,200-299` to inclusive ranges. They are sorted, and adjacent or
    overlapping ranges are joined."""
    try:
        if value.lstrip().startswith("["):
            pairs = [(int(first), int(last)) for first, last in json.loads(value)]
        else:
            split = [item.partition("-") for item in names(value)]
            pairs = [(int(first), int(last) if dash else int(first)) for first, dash, last in split]
    except (ValueError, TypeError) as error:
        raise BadOption(f"option {name}: {value!r} must have the form '0-99,200-299'") from error
    if any(first < 0 or last < first for first, last in pairs):
        raise BadOption(f"option {name}: {value!r} has an empty or negative range")
    merged: list[tuple[int, int]] = []
    for first, last in sorted(pairs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def assignment(name: str, value: str) -> dict[str, tuple[int, ...]]:
    """Convert queues by topic, such as `{"topic": [0, 1]}`."""
    found = {}
    for topic, queues in sorted(_object(name, value, '{"topic": [0, 1]}').items()):
        if not isinstance(queues, list) or not queues or not all(_is_number(queue) for queue in queues):
            raise BadOption(
                f'option {name}: {topic!r} needs a list of queue ids, such as {{"topic": [0, 1]}}'
            )
        found[topic] = tuple(sorted(dict.fromkeys(queues)))
    return found


def offsets(name: str, value: str) -> dict[Queue, int]:
    """Convert offsets such as `{"topic": {"0": 23, "1": -2}}`, or in the form of a checkpoint:
    `{"topic/0": 23}`."""
    example = '{"topic": {"0": 23, "1": -2}}'
    found: dict[Queue, int] = {}
    for queue, offset in _by_queue(name, value, example):
        if not isinstance(offset, int) or not _is_number(offset, EARLIEST):
            raise BadOption(f"option {name}: {queue[0]!r}: {offset!r} must have the form {example}")
        found[queue] = offset
    return dict(sorted(found.items()))


def times(name: str, value: str) -> dict[Queue, int]:
    """Convert times by queue, such as `{"topic": {"0": 1774828800000}}`, to ms since the epoch. A time is a
    number of ms, or a text that `milliseconds` converts."""
    example = '{"topic": {"0": 1774828800000, "1": "2026-03-30T00:00:00Z"}}'
    found: dict[Queue, int] = {}
    for queue, time in _by_queue(name, value, example):
        if not isinstance(time, str) and not _is_number(time):
            raise BadOption(f"option {name}: {queue[0]!r}: {time!r} must have the form {example}")
        found[queue] = milliseconds(name, str(time))
    return dict(sorted(found.items()))


def _by_queue(name: str, value: str, example: str) -> Iterator[tuple[Queue, object]]:
    """Yield what a JSON object says about each queue: `{"topic": {"0": x}}`, or `{"topic/0": x}` as in a
    checkpoint."""
    for topic, queues in _object(name, value, example).items():
        if isinstance(queues, Mapping):
            rows = [(topic, queue_id, one) for queue_id, one in queues.items()]
        else:
            rows = [(*_split(topic), queues)]
        for topic_name, queue_id, one in rows:
            if not topic_name or not str(queue_id).isdecimal():
                raise BadOption(f"option {name}: {topic!r}: {queues!r} must have the form {example}")
            yield (topic_name, int(queue_id)), one


def _split(key: str) -> tuple[str, str]:
    topic, _, queue_id = key.rpartition("/")
    return topic, queue_id


def _object(name: str, value: str, example: str) -> dict[str, object]:
    try:
        found = json.loads(value)
    except ValueError as error:
        raise BadOption(f"option {name}: {value!r} is not JSON of the form {example}: {error}") from error
    if not isinstance(found, dict) or not found:
        raise BadOption(f"option {name}: {value!r} must have the form {example}")
    return found


def _is_number(value: object, lowest: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= lowest

"""Options of the data source `dledger`. An unknown name or value is refused with a hint: never ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from audit.digests import BLOCK_ENTRIES

VIEWS = ("messages", "entries", "scan")
ISOLATION = ("committed", "all")
CORRUPT = {"messages": ("fail", "skip"), "entries": ("fail", "include"), "scan": ("fail",)}
"""View -> values of corruptRecords; `scan` reports damage as rows whatever is set."""

NAMES = {
    "path": "store directories (storePathRootDir), comma separated or a JSON list",
    "view": "messages (default), entries or scan",
    "subscribe": "messages: topics, comma separated; default all",
    "topic": "the same as subscribe",
    "isolation": "entries: committed (default) or all",
    "indexRanges": 'entries, messages: log indexes, inclusive: "0-99,200-299" or [[0,99],[200,299]]',
    "includeHeaders": "messages: true adds the column headers (properties)",
    "includeValue": "messages: false leaves the column value out",
    "corruptRecords": "fail (default), messages: skip; entries: include, as a row with damage 8 and index -1",
    "blockRows": f"scan: entries of a digest block, default {BLOCK_ENTRIES}",
}
"""Name -> what it means."""


class BadOption(ValueError):
    """An option that is unknown, missing or has a wrong value. The text names it."""


@dataclass(frozen=True)
class Options:
    """Checked options."""

    paths: tuple[str, ...]
    view: str = "messages"
    topics: tuple[str, ...] = ()
    isolation: str = "committed"
    index_ranges: tuple[tuple[int, int], ...] | None = None
    include_headers: bool = False
    include_value: bool = True
    corrupt_records: str = "fail"
    block_rows: int = BLOCK_ENTRIES


def parse(options: Mapping[str, str]) -> Options:
    """Check everything; BadOption names what is wrong."""
    by_lower = {name.lower(): name for name in NAMES}
    given: dict[str, str] = {}
    for name, value in options.items():
        known = by_lower.get(name.lower())
        if known is None:
            raise BadOption(f"unknown option {name!r}{_hint(name, list(NAMES))}")
        given[known] = value
    if "subscribe" in given and "topic" in given:
        raise BadOption("subscribe and topic mean the same: give one")
    view = _choice("view", given.get("view", "messages"), VIEWS)
    corrupt = _choice("corruptRecords", given.get("corruptRecords", "fail"), CORRUPT[view])
    return Options(
        paths=_paths(given.get("path", "")),
        view=view,
        topics=tuple(_list(given.get("subscribe", given.get("topic", "")))),
        isolation=_choice("isolation", given.get("isolation", "committed"), ISOLATION),
        index_ranges=_ranges(given["indexRanges"]) if "indexRanges" in given else None,
        include_headers=_flag("includeHeaders", given.get("includeHeaders", "false")),
        include_value=_flag("includeValue", given.get("includeValue", "true")),
        corrupt_records=corrupt,
        block_rows=_positive("blockRows", given.get("blockRows", str(BLOCK_ENTRIES))),
    )


def _hint(word: str, known: list[str]) -> str:
    lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), list(lower), n=1)
    return f": did you mean {lower[close[0]]!r}?" if close else f"; known are {', '.join(known)}"


def _choice(name: str, value: str, known: tuple[str, ...]) -> str:
    if value.lower() not in known:
        raise BadOption(f"option {name}: {value!r} is not one of {', '.join(known)}{_near(value, known)}")
    return value.lower()


def _near(value: str, known: tuple[str, ...]) -> str:
    close = get_close_matches(value.lower(), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _flag(name: str, value: str) -> bool:
    return _choice(name, value, ("true", "false")) == "true"


def _positive(name: str, value: str) -> int:
    if not value.isdigit() or int(value) < 1:
        raise BadOption(f"option {name}: {value!r} is not a positive number")
    return int(value)


def _list(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]


def _paths(value: str) -> tuple[str, ...]:
    if value.lstrip().startswith("["):
        try:
            paths = json.loads(value)
        except ValueError as error:
            raise BadOption(f"option path: not a JSON list: {error}") from error
        if not all(isinstance(path, str) for path in paths):
            raise BadOption("option path: a JSON list of texts is wanted")
    else:
        paths = _list(value)
    if not paths:
        raise BadOption("option path is missing: the store directories (storePathRootDir)")
    return tuple(paths)


def _ranges(value: str) -> tuple[tuple[int, int], ...]:
    try:
        if value.lstrip().startswith("["):
            pairs = [(int(first), int(last)) for first, last in json.loads(value)]
        else:
            split = [item.partition("-") for item in _list(value)]
            pairs = [(int(first), int(last) if dash else int(first)) for first, dash, last in split]
    except (ValueError, TypeError) as error:
        raise BadOption(f"option indexRanges: {value!r} is not like '0-99,200-299'") from error
    if any(first < 0 or last < first for first, last in pairs):
        raise BadOption(f"option indexRanges: {value!r} has an empty or negative range")
    return tuple(sorted(pairs))

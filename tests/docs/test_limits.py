"""Pages that state limits against the feature table: a limit goes when its row works."""

from __future__ import annotations

import re

import pytest

from tests.docs.generated import DOCS, Feature, features

README = DOCS.parent / "README.md"
_MARK = re.compile(r"\((not yet|limit of):? ([A-Z]\d+(?:, [A-Z]\d+)*)\)$")


def limits_in(text: str) -> list[str]:
    """The items of the lists in a part of a page."""
    return [line.removeprefix("* ") for line in text.splitlines() if line.startswith("* ")]


def faults(limit: str, table: dict[str, Feature]) -> list[str]:
    """What is wrong with one stated limit; nothing, if it agrees with the feature table."""
    mark = _MARK.search(limit)
    if mark is None:
        return [f"names no row of docs/features.md; end it with `(not yet: X1)` or `(limit of X1)`: {limit}"]
    kind, rows = mark[1], mark[2].split(", ")
    wrong = []
    for name in rows:
        if name not in table:
            wrong.append(f"docs/features.md has no row {name}: {limit}")
        elif kind == "not yet" and table[name].works:
            wrong.append(f"row {name} of docs/features.md works, so remove or reword this limit: {limit}")
        elif kind == "limit of" and not table[name].works:
            state = table[name].state
            wrong.append(f"row {name} of docs/features.md is {state!r}, so say `not yet: {name}`: {limit}")
    if kind == "limit of" and re.match(r"\*\*(?:No|Not yet)\b", limit):
        wrong.append(f"it says that something is missing, so it must end with `(not yet: ROW)`: {limit}")
    return wrong


def part(text: str, begin: str, end: str) -> str:
    """What stands between two lines of a page."""
    return text.split(f"{begin}\n", 1)[1].split(f"\n{end}", 1)[0]


STATED = {
    "README.md": part(README.read_text(), "**Limits**", "**Read on**"),
    "explanation/known-limits.md": (DOCS / "explanation/known-limits.md").read_text(),
    "internals/known-limits.md": (DOCS / "internals/known-limits.md").read_text(),
    "comparison.md": part(
        (DOCS / "explanation/comparison.md").read_text(), "## Where the others are better, plainly", "### "
    ),
}
"""The text of each place that states limits, by its page."""


@pytest.mark.parametrize("page", STATED)
def test_each_stated_limit_agrees_with_the_feature_table(page: str) -> None:
    limits = limits_in(STATED[page])
    assert len(limits) >= 8, f"the limits of {page} were not found"
    table = features()
    wrong = [fault for limit in limits for fault in faults(limit, table)]
    assert not wrong, "\n".join(f"{page}: {fault}" for fault in wrong)


TABLE = {
    "X1": Feature("X1", "access control", "works"),
    "X2": Feature("X2", "TLS", "partial"),
    "M11": Feature("M11", "classic groups", "not yet"),
}


@pytest.mark.parametrize(
    ("limit", "fault"),
    [
        ("No dashboard.", "names no row"),
        ("No groups of master and slave. (M11)", "names no row"),
        (
            "**No authentication**: keep it on a private network. (not yet: X1)",
            "row X1 of docs/features.md works",
        ),
        ("**No authentication**: keep it on a private network. (limit of X1)", "something is missing"),
        ("Neither users nor TLS for HTTP. (not yet: X2, X1)", "row X1 of docs/features.md works"),
        ("The HTTP port has no TLS. (limit of X2)", "is 'partial'"),
        ("No groups of master and slave. (limit of M11)", "is 'not yet'"),
        ("No erasure. (not yet: X9)", "has no row X9"),
    ],
)
def test_a_false_limit_is_found(limit: str, fault: str) -> None:
    (found,) = faults(limit, TABLE)
    assert fault in found


@pytest.mark.parametrize(
    "limit",
    [
        "No groups of master and slave. (not yet: M11)",
        "The HTTP port has no TLS (see [there](tls.md)). (not yet: X2)",
        "Accounts are off by default. (limit of X1)",
    ],
)
def test_a_true_limit_is_accepted(limit: str) -> None:
    assert faults(limit, TABLE) == []

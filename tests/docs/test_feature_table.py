"""The feature table: each row has its words, short cells, and a paragraph below the table."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.docs.generated import DOCS, MATURITIES, Feature, features

STATES = ("works", "partial", "not yet")
LONGEST_TITLE = 45
"""Characters of a cell, so that the table is read at a glance."""


def faults(one: Feature) -> list[str]:
    """What is wrong with a row of docs/features.md."""
    wrong = []
    if one.state not in STATES:
        wrong.append(f"its state is {one.state!r}, not one of {', '.join(STATES)}: put more below the table")
    elif one.state == "not yet" and one.maturity != "-":
        wrong.append(f"it is {one.maturity!r} and does not work: write `-`")
    elif one.state != "not yet" and one.maturity not in MATURITIES:
        wrong.append(f"its maturity is {one.maturity!r}, not one of {', '.join(MATURITIES)}")
    if len(one.title) > LONGEST_TITLE:
        wrong.append(f"its name has {len(one.title)} characters; at most {LONGEST_TITLE} fit")
    if not one.text:
        wrong.append(f"no line below the table begins with `* **{one.name}**` and ends with a full stop")
    if one.state != "not yet" and not one.shown_by:
        wrong.append("nothing shows it: end its line with `**Shown by:** ...`")
    if one.state == "partial" and not one.remark:
        wrong.append("it is partial: say with `**State:** ...` what works")
    return wrong


def test_each_row_has_its_words_and_its_paragraph() -> None:
    wrong = [f"docs/features.md, {one.name}: {fault}" for one in features().values() for fault in faults(one)]
    assert not wrong, "\n".join(wrong)


def test_each_paragraph_has_its_row() -> None:
    named = re.findall(r"^\* \*\*([A-Z]\d+)\*\*", (DOCS / "features.md").read_text(), re.MULTILINE)
    assert named == list(features()), "rows and the lines below the tables are in the same order"


GOOD = Feature("X1", "access control", "partial", "new", "Accounts.", "Users.", "`test_x.py`")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, ""),
        ({"state": "works", "remark": ""}, ""),
        ({"state": "works: users"}, "put more below the table"),
        ({"state": "not yet"}, "does not work: write `-`"),
        ({"state": "not yet", "maturity": "-", "shown_by": ""}, ""),
        ({"maturity": "-"}, "its maturity is '-'"),
        ({"title": "x" * 46}, "46 characters"),
        ({"text": ""}, "no line below the table"),
        ({"shown_by": ""}, "nothing shows it"),
        ({"remark": ""}, "say with `**State:** ...` what works"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(changes: dict[str, str], fault: str) -> None:
    found = faults(dataclasses.replace(GOOD, **changes))
    assert ([fault in one for one in found] == [True]) if fault else not found, found

"""Pure parts of `dledger admin`: where a reset goes, what is shown, and what is asked."""

from __future__ import annotations

import json
import sys

import click
import pytest

from dledger.admin import OffsetChange
from dledger.admin.offsets import END
from dledger.client import ClientError
from dledger.commands.admin.offset import _row, _shown, when
from dledger.commands.admin.running import Told, did_you_mean
from dledger.commands.admin.showing import Table, show
from dledger.commands.mqadmin.messages import file_name
from dledger.commands.terminal import plain
from dledger.remoting.bodies import MessageQueue
from tests.uninstalled import run_without

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("earliest", (0, None)),
        ("latest", (END, None)),
        ("now", (NOW_MS, None)),
        ("1676730526212", (1676730526212, None)),
        ("-90s", (NOW_MS - 90_000, None)),
        ("-2h", (NOW_MS - 7_200_000, None)),
        ("-1d", (NOW_MS - 86_400_000, None)),
        ("2026-05-01T12:00:00+00:00", (1777636800000, None)),
        ("offset:17", (None, 17)),
    ],
)
def test_where_a_reset_goes(text: str, wanted: tuple[int | None, int | None]) -> None:
    assert when(text, NOW_MS) == wanted


@pytest.mark.parametrize("text", ["yesterday", "offset:-1", "-2x", "", "12:00"])
def test_what_is_no_place_to_go_to(text: str) -> None:
    with pytest.raises(ClientError, match="give earliest, latest, now"):
        when(text, NOW_MS)


@pytest.mark.parametrize("text", ["0", "1000", "99999999999"])
def test_a_bare_offset_is_no_time(text: str) -> None:
    with pytest.raises(ClientError, match=f"give offset:{text}, or a time"):
        when(text, NOW_MS)


@pytest.mark.parametrize(
    ("before", "after", "again", "text"),
    [(7, 2, 5, "5 again"), (2, 7, -5, "5 skipped"), (3, 3, 0, ""), (-1, 3, None, "")],
)
def test_what_a_reset_does_to_a_queue(before: int, after: int, again: int | None, text: str) -> None:
    row = _row(OffsetChange(MessageQueue("T", "b", 1), 9, before, after, after))
    assert row["again"] == again and _shown(row)[-1] == text
    assert row["before"] == (None if before < 0 else before)


def test_a_table_and_its_json(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("title", ("name", "count"), [("a", 3), ("[b]", 123_456)])
    show(False, {"rows": 2}, [table, "the end", Table("nothing", ("x",), [], "none here")])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "title",
        "name    count",
        "a           3",
        "[b]   123 456",
        "the end",
        "nothing: none here",
    ]
    show(True, {"rows": 2}, [table])
    assert json.loads(capsys.readouterr().out) == {"rows": 2}


def test_a_table_is_the_same_without_rich() -> None:
    """The recommended installation does not bring it."""
    program = (
        "from dledger.commands.admin.showing import Table, fields, show\n"
        "rows = [('x', 123456), ('long', True), ('\\x1b[2J', 1.5)]\n"
        "show(False, None, [Table('title', ('a', 'count'), rows)])\n"
        "show(False, None, [fields('', {'id': 'M1', 'properties': 'A=1\\nB=2', 'tag': None})])"
    )
    without, with_it = run_without(["rich"], program), run_without([], program)
    assert (without.returncode, without.stderr) == (0, "") and without.stdout == with_it.stdout
    assert [line.rstrip() for line in without.stdout.splitlines()] == [
        "title",
        "a          count",
        "x        123 456",
        "long         yes",
        "\\x1b[2J     1.50",
        "id          M1",
        "properties  A=1",
        "            B=2",
        "tag",
    ]


def test_what_destroys_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    Told(None, False, yes=True).agreed("Delete it?")
    with pytest.raises(click.ClickException, match="give --yes"):
        Told(None, False).agreed("Delete it?")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(click, "confirm", lambda question, **more: _refuse())
    with pytest.raises(click.Abort):
        Told(None, False).agreed("Delete it?")


def _refuse() -> None:
    raise click.Abort


def test_a_name_that_is_near_is_meant() -> None:
    assert did_you_mean("ordres", ["orders", "bills"]) == "; did you mean 'orders'?"
    assert did_you_mean("x", ["orders"]) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\x1b[2Jb", "a\\x1b[2Jb"), ("zwei\nZeilen\t", "zwei\nZeilen\t"), ("grün", "grün"), ("\r", "\\x0d")],
)
def test_a_terminal_is_not_steered(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("7F00000106941CB156401678F0030000", "7F00000106941CB156401678F0030000"),
        ("127.0.0.1@DEFAULT#1", "127.0.0.1@DEFAULT#1"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ("..", "_"),
        ("a/b\x00c", "a_b_c"),
        ("x" * 500, "x" * 128),
    ],
)
def test_a_file_is_not_named_by_a_stranger(text: str, name: str) -> None:
    assert file_name(text) == name

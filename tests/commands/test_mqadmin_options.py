"""Command lines of `dledger mqadmin` against those of Apache's: `mqadmin_options.jsonl` is what RocketMQ
5.4.0 and 4.9.5 declare of each command (short, long, takes a value, required, one of), told by their own
classes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dledger.commands.app import main
from dledger.commands.declared.mqadmin.table import COMMANDS, find
from dledger.commands.mqadmin.call import millis
from dledger.commands.mqadmin.options import EVERYWHERE, Option, WrongOptions, help_text, parse
from dledger.commands.mqadmin.versions import version_name

RECORDED = [
    json.loads(line) for line in (Path(__file__).parent / "mqadmin_options.jsonl").read_text().splitlines()
]
ONLY_NEWER = {row["name"] for row in RECORDED if row["version"] == "5.4.0"}
REMOVED = {("resetOffsetByTime", "c", "cplus")}
"""Options of 4.9 whose letter means another thing in 5.4."""


def declared(name: str) -> set[tuple[object, ...]]:
    options = COMMANDS[name].options
    groups: dict[str, list[str]] = {}
    for option in options:
        if option.one_of:
            groups.setdefault(option.one_of, []).append(option.short)
    return {
        (one.short, one.long, one.value, one.required, tuple(sorted(groups.get(one.one_of, []))))
        for one in options
    }


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: f"{row['name']}-{row['version']}")
def test_every_command_has_the_options_of_apaches(row: dict[str, Any]) -> None:
    command = find(row["name"])
    assert command is not None and command.name == row["name"]
    assert row["alias"] is None or find(row["alias"]) is command
    wanted = {(*option[:4], tuple(option[4])) for option in row["options"]}
    if row["version"] == "5.4.0" or row["name"] not in ONLY_NEWER:
        assert declared(row["name"]) == wanted
    else:
        plain = {option[:3] for option in declared(row["name"])}
        assert {option[:3] for option in wanted if (row["name"], *option[:2]) not in REMOVED} <= plain


def test_there_are_no_others() -> None:
    assert {row["name"] for row in RECORDED} == set(COMMANDS) and len(COMMANDS) == 95


OPTIONS = (
    Option("t", "topic", "", required=True),
    Option("b", "brokerAddr", "", one_of="where"),
    Option("c", "clusterName", "", one_of="where"),
    Option("bn", "brokerName", ""),
    Option("l", "list", "", value=False),
    Option("", "attributes", ""),
)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("-t T -b a:1", {"t": "T", "b": "a:1"}),
        ("-tT -b=a:1", {"t": "T", "b": "a:1"}),
        ("--topic T --brokerAddr=a:1 -l", {"t": "T", "b": "a:1", "l": ""}),
        ("-topic T -c C", {"t": "T", "c": "C"}),
        ("--top T --cl C", {"t": "T", "c": "C"}),
        ("-t T -c C -bn B --attributes +a=b", {"t": "T", "c": "C", "bn": "B", "attributes": "+a=b"}),
        ("-t -5 -c C", {"t": "-5", "c": "C"}),
        ("-t T rest -c C", {"t": "T", "c": "C"}),
        ('-t "T" -c C', {"t": "T", "c": "C"}),
        ("-h", {"h": ""}),
        ("-t T -c C --json -n x:1", {"t": "T", "c": "C", "json": "", "n": "x:1"}),
    ],
)
def test_a_command_line_is_read_as_apaches_does(words: str, wanted: dict[str, str]) -> None:
    given = parse(OPTIONS, words.split())
    assert {key: given.text(key) for key in wanted} == wanted
    keys = [option.key for option in (*OPTIONS, *EVERYWHERE)]
    assert {key for key in keys if key in given} == wanted.keys()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("-b a", "Missing required option: t"),
        ("-t T", "Missing required option: [-b,--brokerAddr, -c,--clusterName]"),
        (
            "-t T -b a -c C",
            "The option 'c' was specified but an option from this group has already been selected",
        ),
        ("-t", "Missing argument for option: t"),
        ("-t -c C", "Missing argument for option: t"),
        ("-t T -c C --nothing", "Unrecognized option: --nothing"),
        ("-x", "Unrecognized option: -x"),
        ("-t T --broker a", "Ambiguous option: '--broker'  (could be: 'brokerAddr', 'brokerName')"),
    ],
)
def test_a_wrong_command_line_is_refused_as_apaches_does(words: str, text: str) -> None:
    with pytest.raises(WrongOptions) as refused:
        parse(OPTIONS, words.split())
    assert str(refused.value).startswith(text)


def test_numbers_and_times() -> None:
    given = parse(OPTIONS, ["-t", "x", "-c", "True"])
    assert given.true("c") and not given.true("t") and given.true("b", True)
    with pytest.raises(WrongOptions, match='For input string: "x"'):
        given.number("t")
    assert millis("1676730526212") == 1676730526212 and millis("2026-01-02#03:04:05:678") % 1000 == 678
    with pytest.raises(WrongOptions):
        millis("yesterday")


def ended(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["mqadmin", *words])
    told = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, told.out, told.err


def test_what_it_says_before_it_asks_anybody(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ended([], capsys)
    assert code == 0 and all(f"   {name} " in out for name in COMMANDS)
    assert ended(["help", "topicRoute"], capsys)[1] == ended(["topicroute", "-h"], capsys)[1]
    assert ended(["topicRote"], capsys)[::2] == (
        1,
        "The sub command topicRote not exist. Did you mean topicRoute?\n",
    )
    code, _, err = ended(["topicRoute"], capsys)
    assert code == 1 and err.startswith("Missing required option: t\nusage: dledger mqadmin topicRoute")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option(name: str) -> None:
    text = help_text(name, COMMANDS[name].options)
    assert all(option.names in text and option.text in text for option in COMMANDS[name].options)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "V3_0_0_SNAPSHOT"),
        (401, "V4_9_4"),
        (459, "V5_2_3"),
        (479, "V5_3_3"),
        (611, "V5_9_9"),
        (9999, "HIGHER_VERSION"),
    ],
)
def test_versions_have_their_names(number: int, name: str) -> None:
    assert version_name(number) == name

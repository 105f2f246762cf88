"""Parts of pages that follow from the code or from docs/data.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`. `PARTS` has the function that makes each.
`scripts/check --write` writes all of them, and test_generated_pages.py compares them with the pages.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from dledger.audit.findings import CODES, VERDICTS, Severity
from dledger.commands.app import COMMANDS, MESSAGES, SHORT_FOR, load
from dledger.commands.declared.mqadmin import options as mqadmin_call
from dledger.commands.declared.mqadmin import table as mqadmin
from dledger.commands.declaring import Command, Declared
from dledger.commands.exit_codes import TABLE
from dledger.commands.mqadmin.options import EVERYWHERE
from dledger.spark import column_meanings
from dledger.spark.kafka_options import OF_CONSUMER, OF_SINK, OF_SOURCE, KafkaOption
from dledger.spark.options import OPTIONS, VIEWS
from tests.docs import declared_tables, error_tables, trial_tables

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"(<!-- generated: ([\w-]+) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)
MQADMIN = "mqadmin"
"""Has its own page: 95 commands of RocketMQ's."""
ALIAS = "admin"
"""Has groups of commands that are also at the top."""
OF_ROCKETMQ = frozenset(["S4", "N6", "M5", "M11", "M13", "M14", "M15", "A3", "A4", "A8", "A9", "L8"])
"""Rows of the feature table about something that Apache RocketMQ has and that was once missing here."""


def data(name: str) -> dict[str, Any]:
    """A file of docs/data."""
    return tomllib.loads((DOCS / "data" / name).read_text())


def row(*cells: object) -> str:
    """A row of a Markdown table. A bar inside of a cell is escaped, since it would end the cell."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    return "\n".join([row(*heads), "|" + "---|" * len(heads), *(row(*cells) for cells in rows)]) + "\n"


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(name, content) of each generated part of a page."""
    for match in _BLOCK.finditer(text):
        yield match[2], match[3]


def rewritten(text: str, render: Callable[[str], str]) -> str:
    """The page with its generated parts written anew."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{render(match[2])}\n{match[4]}", text)


# Figures and limits


def results() -> str:
    """docs/data/results.toml."""
    known = data("results.toml")
    parts = [known["machine"]["text"] + "\n"]
    for section in known["section"]:
        rows = [
            (what, f"{value} {unit}".strip(), command if command.startswith("the same") else f"`{command}`")
            for what, value, unit, command in section["figures"]
        ]
        parts += [
            f"## {section['title']}\n",
            f"{section['text']}\n",
            table(("what", "figure", "command"), rows),
        ]
    return "\n".join(parts)


def value_of(place: str) -> Any:
    """What `module:NAME` or `module:Class.field` (its default) is."""
    module, _, name = place.partition(":")
    name, _, attribute = name.partition(".")
    found = getattr(import_module(module), name)
    if not attribute:
        return found
    return next(one.default for one in dataclasses.fields(found) if one.name == attribute)


def amount(value: float, unit: str) -> str:
    """For people."""
    if unit == "bytes":
        for factor, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value >= factor and value * 100 % factor == 0:
                return f"{value / factor:g} {name}"
    return f"{value:,g}".replace(",", " ") + (f" {unit}" if unit else "")


def limits() -> str:
    """docs/data/limits.toml, with the values of the code."""
    parts = []
    for section in data("limits.toml")["section"]:
        rows = [
            (what, amount(value_of(place), unit), then, f"`{place.partition(':')[2]}`")
            for what, place, unit, then in section["limits"]
        ]
        parts += [f"## {section['title']}\n", table(("limit", "value", "what happens there", "name"), rows)]
    return "\n".join(parts)


# Features


MATURITIES = ("stable", "new", "experimental")
"""What docs/features.md says of a row that works, wholly or in part. One that does not work has `-`."""


@dataclasses.dataclass(frozen=True)
class Feature:
    """One row of docs/features.md, with the paragraph below the table that describes it."""

    name: str
    """Such as M11."""
    title: str
    state: str
    """`works`, `partial` or `not yet`."""
    maturity: str = "-"
    text: str = ""
    """What belongs to the feature."""
    remark: str = ""
    """What is there, where the state needs more than a word."""
    shown_by: str = ""

    @property
    def works(self) -> bool:
        return self.state == "works"


def features() -> dict[str, Feature]:
    """The feature table, by the names of its rows."""
    page = (DOCS / "features.md").read_text()
    rows = re.findall(r"^\| ([A-Z]\d+) \| (.*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    paragraph = r"^\* \*\*([A-Z]\d+)\*\* (.*?)\.(?: \*\*State:\*\* (.*?)\.)?(?: \*\*Shown by:\*\* (.*)\.)?$"
    texts = {name: rest for name, *rest in re.findall(paragraph, page, re.MULTILINE)}
    return {row[0]: Feature(*row, *texts.get(row[0], ())) for row in rows}


def unfinished() -> str:
    """What RocketMQ has and this project does not have, or has only in part."""
    rows = [
        (
            one.name,
            one.text.replace("](", "](../"),
            ". ".join(filter(None, (one.state, one.remark))).replace("](", "](../"),
        )
        for one in features().values()
        if one.name in OF_ROCKETMQ and not one.works
    ]
    return table(("row", "feature", "state"), rows)


# Audit and Spark


def findings() -> str:
    """By severity, the worst first; in words of docs/data/findings.toml."""
    meanings: dict[str, str] = data("findings.toml")
    missing, gone = sorted(CODES.keys() - meanings.keys()), sorted(meanings.keys() - CODES.keys())
    assert not missing, f"say in docs/data/findings.toml what the finding {missing[0]} has seen"
    assert not gone, (
        f"{gone[0]} of docs/data/findings.toml is no finding of dledger/audit/findings.py: remove it"
    )
    parts = []
    for severity in sorted(Severity, reverse=True):
        of_it = [name for name in CODES if CODES[name].severity is severity]
        rows = [(f"`{name}`", meanings[name], CODES[name].advice) for name in of_it]
        title = f"{severity.name.capitalize()} (verdict: {VERDICTS[severity]})"
        parts += [f"## {title}\n", table(("code", "what was seen", "what to do"), rows)]
    return "\n".join(parts)


def spark_options() -> str:
    """Options of the data source."""
    rows = []
    for name, option in OPTIONS.items():
        views = "all" if option.views == VIEWS else ", ".join(option.views)
        where = "" if len(option.of) > 1 else option.of[0]
        mode = "" if len(option.mode) > 1 else option.mode[0]
        meaning = re.sub(r"\{.*\}", r"`\g<0>`", option.meaning)  # attr_list would take the braces for its own
        rows.append((f"`{name}`", meaning, views, where, mode))
    return table(("option", "meaning", "views", "only with", "only in a"), rows)


def kafka_options() -> str:
    """Options of Spark's Kafka source, and what they are here."""
    return _options_of_kafka({**OF_SOURCE, **OF_CONSUMER})


def kafka_sink_options() -> str:
    """Options of Spark's Kafka sink, and what they are here."""
    return _options_of_kafka(OF_SINK)


def _options_of_kafka(options: Mapping[str, KafkaOption]) -> str:
    rows = []
    for name, option in options.items():
        here = ", ".join(f"`{one}`" for one in option.here.split(", ") if one)
        if option.accepted:
            answer = "the same" if option.here == name else f"accepted; {here}"
        else:
            answer = here or "none"
        rows.append((f"`{name}`", answer, option.note))
    return table(("Kafka's option", "here", "note"), rows)


def spark_columns() -> str:
    """Columns of the data source's views."""
    parts = []
    for view, found in column_meanings.COLUMNS.items():
        meanings = column_meanings.MEANINGS[view]
        names = [name for name, _ in found]
        assert set(meanings) == set(names), (
            f"view {view}: add to or remove from dledger/spark/column_meanings.py: "
            f"{set(meanings) ^ set(names)}"
        )
        rows = [(f"`{name}`", f"`{kind}`", meanings[name]) for name, kind in found]
        parts += [f"### `{view}`\n", table(("column", "type", "meaning"), rows)]
    assert set(column_meanings.COLUMNS) == set(VIEWS)
    return "\n".join(parts)


# Commands


def options_of(command: click.Command) -> list[tuple[str, str]]:
    """(how it is written, what it means) of each argument and option."""
    context = click.Context(command, info_name=command.name)
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or "--help" in parameter.opts:
            continue
        written, meaning = record
        text = " ".join(meaning.split()).replace("<", "&lt;")
        # A range such as `[x>=0]` is no reference to something in the documentation.
        rows.append((f"`{written}`", re.sub(r"\[([^\]]*)\](?!\()", r"(\1)", text)))
    return rows


def every_click_command() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """(words, command) of each command that can be typed, in the order of `dledger --help`."""
    for name, program in COMMANDS.items():
        yield from _in((name,), load(program))


def _in(words: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield words, command
        return
    for name, inner in command.commands.items():
        yield from _in((*words, name), inner)


def every_command() -> Iterator[tuple[tuple[str, ...], list[tuple[str, str]], str]]:
    """(words, options, summary) of each command that can be typed. RocketMQ's are listed one by one."""
    for words, command in every_click_command():
        name = words[0]
        if name == MQADMIN:
            yield words, [], COMMANDS[name].summary + "; [all of them](mqadmin.md)"
            for one in mqadmin.COMMANDS.values():
                yield (name, one.name), mqadmin_options_of(one), one.text
        elif name in SHORT_FOR:
            yield words, [], f"{COMMANDS[name].summary}: `dledger {SHORT_FOR[name]}`"
        elif isinstance(command, Declared) or len(words) == 1:
            yield words, options_of(command), command.short_help or ""
        else:
            yield words, options_of(command), command.help or ""


def mqadmin_options_of(command: mqadmin_call.Command) -> list[tuple[str, str]]:
    """(names, text) of each option of a command of RocketMQ's."""
    rows = []
    for option in (*command.options, *EVERYWHERE):
        names = [f"`-{option.short}`"] if option.short else []
        words = f"`--{option.long.split()[0]}`"
        rows.append((", ".join([*names, words]) + (" `ARG`" if option.value else ""), option.text))
    return rows


def mqadmin_commands() -> str:
    """RocketMQ's commands with their options, by section."""
    parts = []
    for section, commands_there in mqadmin.SECTIONS.items():
        parts.append(f"## {section}\n")
        rows = []
        for command in commands_there:
            options = []
            for option in command.options:
                shown = (f"`-{option.short}`" if option.short else f"`--{option.long}`") + " " + option.text
                options.append(f"**{shown}**" if option.required or option.one_of else shown)
            name = f"`{command.name}`" + (f" (`{command.alias}`)" if command.alias else "")
            rows.append((name, command.text, "<br>".join(options).replace("|", "\\|")))
        parts.append(table(("command", "what it does", "options"), rows))
    return "\n".join(parts)


def commands() -> str:
    """Every command with its options."""
    parts = []
    same: list[str] = []
    section = ""
    for words, rows, summary in every_command():
        program = COMMANDS[words[0]]
        if words[0] == MQADMIN and words[1:]:
            continue
        if program.section != section:
            section = program.section
            parts.append(f"## {section}\n")
        if words[0] == ALIAS and COMMANDS.get(words[1], program).section == MESSAGES:
            if words[1] not in same:
                same.append(words[1])
                parts.append(f"### dledger {ALIAS} {words[1]}\n\nThe same as `dledger {words[1]}`.\n")
            continue
        parts.append(f"### dledger {' '.join(words)}\n")
        text = summary[:1].upper() + summary[1:]
        parts.append(text + ("" if text.endswith(".") else ".") + "\n")
        if rows:
            parts.append(table(("option", "meaning"), rows))
    return "\n".join(parts)


def exit_codes() -> str:
    """The table of exit codes: each family of commands with its codes."""
    used: dict[str, list[str]] = {one.title: [] for one in TABLE}
    for words, command in every_click_command():
        assert isinstance(command, Command), f"{words}: declare it with dledger.commands.declaring"
        used[command.codes.title].append(" ".join(words))
    parts = []
    for one in TABLE:
        assert used[one.title], f"{one.title}: no command has these exit codes"
        names = ", ".join(f"`{name}`" for name in _shortened(used[one.title]))
        rows = [(code.number, code.name, code.meaning) for code in one.codes]
        parts += [f"### {one.title}\n", f"{names}:\n", table(("exit code", "name", "meaning"), rows)]
    return "\n".join(parts)


def _shortened(names: Sequence[str]) -> list[str]:
    """The names; `admin topic ...` stands for all commands of a group of many."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition(" ")[0], []).append(name)
    found = []
    for group, inside in groups.items():
        found += [f"{group} ..."] if group and len(inside) > 2 else inside
    return found


PARTS: dict[str, Callable[[], str]] = {
    "results": results,
    "limits": limits,
    "unfinished": unfinished,
    "audit-findings": findings,
    "spark-options": spark_options,
    "spark-columns": spark_columns,
    "kafka-options": kafka_options,
    "kafka-sink-options": kafka_sink_options,
    "commands": commands,
    "mqadmin": mqadmin_commands,
    "exit-codes": exit_codes,
    **declared_tables.PARTS,
    **error_tables.PARTS,
    **trial_tables.PARTS,
}

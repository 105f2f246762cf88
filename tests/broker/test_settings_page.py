"""The settings in docs/reference/settings.md are the declared ones. Run as a program, this writes them."""

from __future__ import annotations

import re
from pathlib import Path

from dledger.broker import config as broker
from dledger.commands import standalone
from dledger.namesrv import config as namesrv
from dledger.runtime.settings_page import table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
LOG = ("node", "tls")
"""Groups of a broker's settings that a stand-alone node has, too."""


def tables() -> dict[str, str]:
    ignored = [("broker", broker.IGNORED), ("NameServer", namesrv.IGNORED)]
    rows = [
        f"| `{name}` | {program} | {why} |\n" for program, names in ignored for name, why in names.items()
    ]
    return {
        "broker": table(broker.SETTINGS, lambda one: one.path[0] not in LOG),
        "log": table(broker.SETTINGS, lambda one: one.path[0] in LOG),
        "namesrv": table(namesrv.SETTINGS),
        "protective": "| name | may be | why |\n|---|---|---|\n"
        + "".join(
            f"| `{name}` | {' or '.join(f'`{value}`' for value in one.harmless if value)} | {one.why} |\n"
            for name, one in broker.PROTECTIVE.items()
        ),
        "ignored": "| name | of | why |\n|---|---|---|\n" + "".join(rows),
    }


def written(page: str) -> str:
    """The page with the tables of now."""
    for name, text in tables().items():
        marks = rf"(<!-- settings: {name} -->\n).*?(<!-- end -->\n)"
        page, count = re.subn(marks, lambda found, text=text: found[1] + text + found[2], page, flags=re.S)
        assert count == 1, f"{PAGE} has no place for the settings of {name}"
    return page


def test_the_page_has_the_settings_as_they_are_declared() -> None:
    page = PAGE.read_text()
    assert written(page) == page, f"write it anew: python tests/broker/{Path(__file__).name}"


def test_what_a_stand_alone_node_takes_is_in_the_page_too() -> None:
    known = [one.setting.name for one in broker.SETTINGS.settings]
    assert [one.setting.name for one in standalone.SETTINGS.settings if one.setting.name not in known] == []


def test_defaults_that_differ_for_stand_alone_nodes_are_named() -> None:
    differ = [
        one.setting.name
        for one in broker.SETTINGS.settings
        if one.path[0] in LOG and one.value(broker.BrokerConfig()) != one.value(standalone.StandaloneConfig())
    ]
    assert differ == ["mapedFileSizeCommitLog", "fileReservedTime", "cleanFileForciblyEnable"]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))

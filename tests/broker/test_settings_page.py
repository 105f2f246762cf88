"""The settings of a stand-alone node, against those of a broker. The page itself: tests/docs."""

from __future__ import annotations

from dledger.broker import config as broker
from dledger.commands import standalone
from tests.docs.declared_tables import LOG


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

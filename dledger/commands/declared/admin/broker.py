"""`dledger admin broker`: list brokers, show their figures and settings, change a setting."""

from __future__ import annotations

import click

from dledger.commands.declared.admin.options import action, group, where

BROKER = group("broker", "Brokers: list, show, config, set, replication, clean.")


def _place() -> click.Argument:
    return click.Argument(["broker"], metavar="BROKER", required=False)


action(BROKER, "list", "List brokers with their figures.", "broker:list_brokers")


action(
    BROKER,
    "show",
    "Show all figures of a broker (given a name: of the master).",
    "broker:show_broker",
    _place(),
    *where()[:1],
)


action(
    BROKER,
    "config",
    "Show settings of brokers.",
    "broker:show_config",
    _place(),
    *where()[:1],
    click.Option(["--key"], help="Only settings whose name contains this text."),
)


action(
    BROKER,
    "set",
    "Change a setting of running brokers.",
    "broker:set_config",
    click.Argument(["key"], metavar="KEY"),
    click.Argument(["value"], metavar="VALUE"),
    *where(),
    changes=True,
)


action(
    BROKER,
    "replication",
    "Show how far followers are, and which terms wrote the log.",
    "broker:replication",
    _place(),
    *where()[:1],
)


action(
    BROKER,
    "clean",
    "Remove expired segments now.",
    "broker:clean",
    _place(),
    *where()[:1],
)

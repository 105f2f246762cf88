"""`dledger admin namesrv`: settings and key-values of NameServers, and whether producers may write to a
broker."""

from __future__ import annotations

import click

from dledger.commands.declared.admin.options import action, group

NAMESRV = group("namesrv", "NameServers: config, set, key-values, write permission of brokers.")
KV = group("kv", "Key-values: list, get, put, delete.")
_NAMESPACE = click.Argument(["namespace"], metavar="NAMESPACE")
_KEY = click.Argument(["key"], metavar="KEY")

action(NAMESRV, "config", "Show settings of NameServers.", "namesrv:show_config")


action(
    NAMESRV,
    "set",
    "Change a setting of all NameServers while they run.",
    "namesrv:set_config",
    _KEY,
    click.Argument(["value"], metavar="VALUE"),
    changes=True,
)


action(
    NAMESRV,
    "stop-writes",
    "Have no producer write to a broker group any more, as before its end.",
    "namesrv:stop_writes",
    click.Argument(["broker"], metavar="BROKER"),
    changes=True,
)


action(
    NAMESRV,
    "resume-writes",
    "Have producers write to a broker group again.",
    "namesrv:resume_writes",
    click.Argument(["broker"], metavar="BROKER"),
)


action(KV, "list", "List the key-values of a namespace.", "namesrv:list_kv", _NAMESPACE)


action(KV, "get", "Show a value.", "namesrv:get_kv", _NAMESPACE, _KEY)


action(
    KV,
    "put",
    "Set a value at all NameServers.",
    "namesrv:put_kv",
    _NAMESPACE,
    _KEY,
    click.Argument(["value"], metavar="VALUE"),
    changes=True,
)


action(
    KV, "delete", "Remove a value at all NameServers.", "namesrv:delete_kv", _NAMESPACE, _KEY, changes=True
)

NAMESRV.add_command(KV)

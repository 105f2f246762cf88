"""`dledger admin namesrv`: settings and key-values of NameServers, and whether producers may write to a
broker."""

from __future__ import annotations

import click

from dledger.commands.declared.admin.options import action, group

NAMESRV = group("namesrv", "NameServers: config, set, stop-writes, resume-writes, kv.")
KV = group("kv", "Key-values: list, get, put, delete.")
_NAMESPACE = click.Argument(["namespace"], metavar="NAMESPACE")
_KEY = click.Argument(["key"], metavar="KEY")

action(NAMESRV, "config", "Show settings of NameServers.", "namesrv:show_config")


action(
    NAMESRV,
    "set",
    "Change a setting of all running NameServers.",
    "namesrv:set_config",
    _KEY,
    click.Argument(["value"], metavar="VALUE"),
    changes=True,
)


action(
    NAMESRV,
    "stop-writes",
    "Stop producers from writing to a broker group, for example before it is shut down.",
    "namesrv:stop_writes",
    click.Argument(["broker"], metavar="BROKER"),
    changes=True,
)


action(
    NAMESRV,
    "resume-writes",
    "Let producers write to a broker group again.",
    "namesrv:resume_writes",
    click.Argument(["broker"], metavar="BROKER"),
)


action(KV, "list", "List the key-values of a namespace.", "namesrv:list_kv", _NAMESPACE)


action(KV, "get", "Show a value.", "namesrv:get_kv", _NAMESPACE, _KEY)


action(
    KV,
    "put",
    "Set a value on all NameServers.",
    "namesrv:put_kv",
    _NAMESPACE,
    _KEY,
    click.Argument(["value"], metavar="VALUE"),
    changes=True,
)


action(
    KV, "delete", "Remove a value on all NameServers.", "namesrv:delete_kv", _NAMESPACE, _KEY, changes=True
)

NAMESRV.add_command(KV)

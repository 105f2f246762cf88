"""Declares commands about NameServers, such as getNamesrvConfig, updateKvConfig and wipeWritePerm."""

from __future__ import annotations

from dledger.commands.declared.mqadmin.options import (
    Command,
)
from dledger.commands.mqadmin.options import Option

_NAMESPACE = Option("s", "namespace", "Namespace", required=True)
_KEY = Option("k", "key", "Key", required=True)
_VALUE = Option("v", "value", "Value", required=True)
_NAME = Option("b", "brokerName", "Broker name", required=True)

COMMANDS = (
    Command("updateKvConfig", "Set a key-value", (_NAMESPACE, _KEY, _VALUE), "namesrv:update_kv"),
    Command("deleteKvConfig", "Remove a key-value", (_NAMESPACE, _KEY), "namesrv:delete_kv"),
    Command("wipeWritePerm", "Stop producers from writing to a broker", (_NAME,), "namesrv:wipe"),
    Command("addWritePerm", "Let producers write to a broker again", (_NAME,), "namesrv:add"),
    Command("getNamesrvConfig", "Show settings of NameServers", (), "namesrv:namesrv_config"),
    Command(
        "updateNamesrvConfig",
        "Change a setting of NameServers",
        (_KEY, _VALUE),
        "namesrv:update_namesrv_config",
    ),
)

"""Generated parts of pages that follow from declarations: settings, requests, the states of an election."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dledger.broker import config as broker
from dledger.broker.requests import declarations, document
from dledger.election import transitions
from dledger.namesrv import config as namesrv
from dledger.runtime.settings_page import table
from tests.broker.harness import processor_kinds

LOG = ("node", "tls")
"""Groups of a broker's settings that a stand-alone node has, too."""

PURPOSES = {
    "intake": "Send messages",
    "longpolling": "Pull messages, and read one by its place",
    "pop": "Pop messages and acknowledge them",
    "timer": "Messages that wait for their time",
    "transaction": "Transactions",
    "offset": "Offsets of queues and of consumer groups",
    "clients": "Heartbeats, consumers, producers and queue locks",
    "loadbalance": "Division of queues among consumers",
    "topic": "Topics and consumer groups",
    "auth": "Users, permissions and accounts",
    "stats": "Statistics and backlogs",
    "admin": "Settings, state and tables of a broker; search by key",
    "audit": "Audits and the Spark data source",
}
"""What the requests of each folder of dledger/broker/ are for, in the order of the index."""


def settings(name: str) -> str:
    """One table of docs/reference/settings.md."""
    if name == "broker":
        return table(broker.SETTINGS, lambda one: one.path[0] not in LOG)
    if name == "log":
        return table(broker.SETTINGS, lambda one: one.path[0] in LOG)
    return table(namesrv.SETTINGS)


def protective_settings() -> str:
    """Settings whose harmless values a broker accepts, because another value would protect something."""
    rows = [
        f"| `{name}` | {' or '.join(f'`{value}`' for value in one.harmless if value)} | {one.why} |\n"
        for name, one in broker.PROTECTIVE.items()
    ]
    return "| name | may be | why |\n|---|---|---|\n" + "".join(rows)


def ignored_settings() -> str:
    """RocketMQ's settings that have no counterpart here."""
    both = [("broker", broker.IGNORED), ("NameServer", namesrv.IGNORED)]
    rows = [f"| `{name}` | {program} | {why} |\n" for program, names in both for name, why in names.items()]
    return "| name | of | why |\n|---|---|---|\n" + "".join(rows)


def request_codes() -> str:
    """Every code that a broker answers, with its read point."""
    return "".join(f"{line}\n" for line in document(processor_kinds()))


def request_purposes() -> str:
    """The codes by purpose, which is that of the folder whose processor answers them."""
    found: dict[str, list[str]] = {}
    for declared, (kind, _) in declarations(processor_kinds()).items():
        folder = kind.__module__.split(".")[2]
        found.setdefault(folder, []).append(f"{int(declared.code)} {declared.code.name}")
    unknown = sorted(found.keys() - PURPOSES.keys())
    assert not unknown, (
        f"requests are answered in dledger/broker/{unknown[0]}/: say what they are for in PURPOSES of "
        "tests/docs/declared_tables.py"
    )
    rows = [
        f"| {purpose} | {', '.join(found[folder])} | `dledger/broker/{folder}/` |\n"
        for folder, purpose in PURPOSES.items()
    ]
    return "| purpose | requests | answered in |\n|---|---|---|\n" + "".join(rows)


def election_diagram() -> str:
    """The states of an election and the steps between them, as a drawing."""
    return f"```mermaid\n{transitions.diagram()}\n```\n"


def election_table() -> str:
    """The steps of an election as a table."""
    return transitions.table() + "\n"


PARTS: dict[str, Callable[[], str]] = {
    "settings-broker": partial(settings, "broker"),
    "settings-log": partial(settings, "log"),
    "settings-namesrv": partial(settings, "namesrv"),
    "settings-protective": protective_settings,
    "settings-ignored": ignored_settings,
    "request-codes": request_codes,
    "request-purposes": request_purposes,
    "election-diagram": election_diagram,
    "election-table": election_table,
}

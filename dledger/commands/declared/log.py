"""Declares the commands of the replicated log: some work on a running group, some on a stand-alone node,
some on a store directory."""

from __future__ import annotations

from typing import Any

import click

from dledger.commands import exit_codes
from dledger.commands.declaring import Declared, Group, argument, flag, json_option, option

PEERS = "Members, written as in dLegerPeers: n0-host:port;n1-host:port;..."
TLS = (
    ("cert", "PEM certificate"),
    ("key", "PEM key of the certificate"),
    ("ca", "PEM certificate of the authority that signed all nodes"),
)
_RUN = "dledger.commands.log:run"


def _tls(when: str = "") -> list[click.Parameter]:
    return [
        option(f"--tls-{name}", metavar="FILE", help=f"{text[:1].upper()}{text[1:]}{when}.")
        for name, text in TLS
    ]


def access() -> list[click.Parameter]:
    """Return the options `--peers`, `--group`, `--timeout` and `--tls-...` of a command that sends
    requests to a group."""
    return [
        option("--peers", required=True, help=PEERS),
        option("--group", metavar="NAME", help="Name of the group, if several groups share the ports."),
        option("--timeout", type=float, default=3.0, show_default=True, help="Seconds to wait."),
        *_tls(", if the group uses TLS"),
    ]


def _of_a_group(name: str, summary: str, *params: click.Parameter, action: str = "", **more: Any) -> Declared:
    """Declare a command that sends requests to a running group."""
    return Declared(
        name,
        _RUN,
        [*params, *access(), json_option()],
        codes=exit_codes.LOG,
        summary=summary,
        always={"command": "member" if action else name, "action": action},
        **more,
    )


APPEND = _of_a_group(
    "append",
    "append one entry to the group's log",
    argument("body", "Bytes to append, or - for standard input."),
)
GET = _of_a_group(
    "get",
    "read one committed entry",
    argument("index", "Index of the entry.", type=int),
    option("--node", metavar="ID", help="Ask this node of --peers. [default: the leader]"),
)
DELETE_BEFORE = _of_a_group(
    "delete-before",
    "remove the segments that hold only entries before an index",
    argument("index", "The first index that must be kept.", type=int),
    option("--node", metavar="ID", help="Only on this node. [default: on all]"),
)


def _node() -> click.Argument:
    return argument("node", "Node id, such as n3.")


def members() -> list[click.Command]:
    """Return the commands `list`, `add`, `remove` and `promote`."""
    return [
        _of_a_group("list", "the members as the leader sees them", action="list"),
        _of_a_group(
            "add",
            "add a member: it receives the log, and votes when it has caught up",
            _node(),
            argument("address", "host:port of its peer port."),
            flag("--learner", help="Keep it a learner until it is promoted."),
            option("--wait", type=float, default=0.0, help="Seconds to wait until it is a voter."),
            action="add",
        ),
        _of_a_group(
            "remove",
            "remove a member; a leader transfers leadership first",
            _node(),
            flag(
                "--force",
                help="Remove it even if the other voters have no live majority (then writes stop "
                "until they have), or if some of them may run a version that cannot read the "
                "change.",
            ),
            action="remove",
        ),
        _of_a_group("promote", "make a voter of a learner that has caught up", _node(), action="promote"),
    ]


def leadership() -> list[click.Command]:
    """Return the commands `transfer` and `prefer`."""
    return [
        _of_a_group(
            "transfer",
            "transfer leadership",
            argument("node", "The new leader (default: the most advanced voter).", required=False),
        ),
        _of_a_group(
            "prefer",
            "set the preferred leaders",
            argument(
                "nodes",
                "Node ids: a leader that is not one of them transfers leadership to the first "
                "healthy one. Without ids, no node is preferred.",
                nargs=-1,
            ),
            flag("--reset", help="Remove this setting, so that the setting of each node applies."),
            wrong=lambda given: (
                "give either --reset or node ids, not both" if given.reset and given.nodes else ""
            ),
        ),
    ]


MEMBER = Group("member", "List, add, remove or promote members of a running group.", members())
TRANSFER, PREFER = leadership()

SERVE = Declared(
    "serve",
    _RUN,
    [
        option("-c", "--config", metavar="FILE", help="File with lines key=value; options override them."),
        option("--group", metavar="NAME", multiple=True, help="A group; may be given several times."),
        option("--id", metavar="ID", help="Id of this node in --peers, such as n0."),
        option("--peers", help=PEERS),
        option("--store", metavar="DIR", help="Directory that holds a directory for each group."),
        option("--bind", metavar="ADDRESS", help="Address to listen on. [default: all addresses]"),
        option("--segment-size", metavar="BYTES", help="Size of a log file; the same on all nodes."),
        *_tls(),
    ],
    codes=exit_codes.SERVER,
    summary="run a stand-alone node, or one for each of several groups",
    text="Run stand-alone nodes, one for each group, until SIGTERM. The exit code is the highest one "
    "of the failed nodes.",
    server=True,
    always={"command": "serve"},
)
DUMP = Declared(
    "dump",
    _RUN,
    [
        argument("store", "storePathRootDir of a node, or its dledger-<id> directory."),
        option("--from", "start", type=int, default=0, show_default=True, help="First index."),
        option("--count", type=int, default=0, help="Largest number of entries. [default: all]"),
        json_option(),
    ],
    codes=exit_codes.COPY,
    summary="list the entries of a store directory",
    always={"command": "dump"},
)
BACKUP = Declared(
    "backup",
    _RUN,
    [
        option("--store", metavar="DIR", required=True, help="storePathRootDir of the node."),
        option("--to", metavar="DIR", required=True, help="Directory that gets dledger-<id>."),
        option("--as", "node", metavar="ID", help="New node id, if the copy will be another member."),
        json_option(),
    ],
    codes=exit_codes.COPY,
    summary="copy the store of a running node of this machine",
    always={"command": "backup"},
)
RECOVER = Declared(
    "recover",
    _RUN,
    [
        flag("--force-single", help="Make the node of this store the only member of a new cluster."),
        flag(
            "--reset-term",
            help="Reset a term that is too high to be reached by elections (one set by an outsider).",
        ),
        option("--store", metavar="DIR", required=True, help="storePathRootDir of the stopped node."),
        option("--term", type=int, help="With --reset-term: the new term."),
        flag("--yes", help="Do it. Without this option, only report what would be lost."),
        flag("--cut-damage", help="Discard everything from the first damaged entry on."),
        json_option(),
    ],
    codes=exit_codes.RECOVER,
    summary="continue with one store after the loss of a majority, or reset a forged term",
    wrong=lambda given: (
        "give either --force-single or --reset-term" if given.force_single == given.reset_term else ""
    ),
    always={"command": "recover"},
)

"""`dledger import`, `dledger export` and `dledger mirror`: they move messages between clusters of Apache
RocketMQ and of this project."""

from __future__ import annotations

from collections.abc import Sequence

import click

from dledger.commands import exit_codes
from dledger.commands.declaring import Declared, argument, flag, json_option, option
from dledger.commands.moving.defaults import CHECKPOINT_BYTES, LOOK_BACK
from dledger.config import NodeConfig

_PLACE = "dledger.commands.moving.cli"
_NODES = "the ids are n0, n1, ... in the given order, unless you write ID=DIR."
SEGMENT_SIZE = NodeConfig.__dataclass_fields__["segment_size"].default


def _common(leavable: Sequence[str]) -> list[click.Parameter]:
    return [
        option(
            "--leave",
            multiple=True,
            type=click.Choice(leavable),
            help="Kind of messages in flight that cannot be taken over and are left behind: the new "
            "stores never deliver them.",
        ),
        option(
            "--checkpoint",
            type=int,
            default=CHECKPOINT_BYTES,
            show_default=True,
            metavar="BYTES",
            help="Amount that is written between two points from which an interrupted run can continue.",
        ),
        flag("--no-audit", help="Do not audit the new stores."),
        json_option(),
        flag("--quiet", help="No progress on standard error."),
    ]


IMPORT = Declared(
    "import",
    f"{_PLACE}:import_command",
    [
        argument("source", "storePathRootDir of the old broker."),
        argument(
            "stores",
            f"storePathRootDir of each member of the new group; {_NODES}",
            metavar="[ID=]DIR",
            nargs=-1,
            required=True,
        ),
        option("--group", metavar="NAME", required=True, help="dLegerGroup of the new group."),
        option(
            "--segment-size",
            type=int,
            default=SEGMENT_SIZE,
            show_default=True,
            metavar="BYTES",
            help="mapedFileSizeCommitLog of the new group.",
        ),
        option(
            "--commitlog",
            multiple=True,
            metavar="DIR",
            help="Directory of CommitLog files, if not SOURCE/commitlog; once for each directory.",
        ),
        option(
            "--replica",
            multiple=True,
            metavar="DIR",
            help="Store of another member of the old DLedger group: refuse if it is ahead of SOURCE.",
        ),
        flag("--unclean", help="The old broker was killed and cannot be started: import what its log holds."),
        *_common(["pop"]),
    ],
    codes=exit_codes.MOVING,
    summary="make a group from a store of Apache RocketMQ",
    text="Make the stores of a new broker group from the store of a stopped broker of Apache "
    "RocketMQ: a CommitLog, a DLedger log, or one after the other. Run the same command again "
    "to continue an interrupted run.",
    extra="server",
)
EXPORT = Declared(
    "export",
    f"{_PLACE}:export_command",
    [
        argument("store", "storePathRootDir of the most advanced member."),
        argument(
            "targets",
            f"storePathRootDir of each member of Apache's group; {_NODES}",
            metavar="[ID=]DIR",
            nargs=-1,
            required=True,
        ),
        option(
            "--broker-conf",
            metavar="FILE",
            type=click.Path(dir_okay=False),
            help="broker.conf of Apache's brokers, for the sizes of their files. [default: theirs]",
        ),
        *_common(["accounts", "pop", "timers", "transactions"]),
    ],
    codes=exit_codes.MOVING,
    summary="make stores for Apache RocketMQ from one of ours",
    text="Make the stores of a group of Apache RocketMQ's brokers in DLedger mode from the store of "
    "a stopped broker of ours. Run the same command again to continue an interrupted run.",
    extra="server",
)
MIRROR = Declared(
    "mirror",
    f"{_PLACE}:mirror_command",
    [
        argument("old", "NameServer addresses of the old cluster, separated by ;."),
        argument("new", "NameServer addresses of the new cluster."),
        option(
            "--topic",
            multiple=True,
            metavar="NAME",
            help="A topic to copy. [default: all topics of applications]",
        ),
        option(
            "--group",
            multiple=True,
            metavar="NAME",
            help="A consumer group that moves: its offsets are translated, at the end and every --every "
            "seconds, and its retries and dead letters are copied.",
        ),
        option(
            "--look-back",
            type=int,
            default=LOOK_BACK,
            show_default=True,
            metavar="N",
            help="Number of messages at the end of each new queue that are searched for the last copy.",
        ),
        flag("--once", help="End when everything that is stored now is copied."),
        flag(
            "--check",
            help="Copy and change nothing; report messages of the old cluster that are not copied or "
            "still wait there. Exit code 1 if there are any.",
        ),
        option(
            "--every",
            type=click.FloatRange(0.1),
            default=10.0,
            show_default=True,
            metavar="S",
            help="Seconds between two reports.",
        ),
        json_option(),
    ],
    codes=exit_codes.MIRROR,
    summary="copy topics to another cluster while both run",
    text="Copy topics of one cluster to another while both run. Run it again to continue from the "
    "messages that the new cluster has. It can be ended at any time with Ctrl-C or SIGTERM.",
    extra="server",
)

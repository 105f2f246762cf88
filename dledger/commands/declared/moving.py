"""`dledger import`, `dledger export` and `dledger mirror`: between clusters of Apache RocketMQ and ours."""

from __future__ import annotations

from collections.abc import Sequence

import click

from dledger.commands import exit_codes
from dledger.commands.declaring import Declared, argument, flag, json_option, option
from dledger.commands.moving.defaults import CHECKPOINT_BYTES, LOOK_BACK
from dledger.config import NodeConfig

_PLACE = "dledger.commands.moving.cli"
_NODES = "ids are n0, n1, ... in the order given, or stand before it."
SEGMENT_SIZE = NodeConfig.__dataclass_fields__["segment_size"].default


def _common(leavable: Sequence[str]) -> list[click.Parameter]:
    return [
        option(
            "--leave",
            multiple=True,
            type=click.Choice(leavable),
            help="What is in flight, cannot be taken over, and is to be left behind: it never comes from the "
            "new stores.",
        ),
        option(
            "--checkpoint",
            type=int,
            default=CHECKPOINT_BYTES,
            show_default=True,
            metavar="BYTES",
            help="How much is written between two points from which a cut run goes on.",
        ),
        flag("--no-audit", help="Do not audit what was written."),
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
            help="Where CommitLog files are, if not in SOURCE/commitlog; once for each path.",
        ),
        option(
            "--replica",
            multiple=True,
            metavar="DIR",
            help="Store of another member of the old DLedger group: refuse where that one is ahead of "
            "SOURCE.",
        ),
        flag("--unclean", help="The old broker was killed and cannot be started: take what its log holds."),
        *_common(["pop"]),
    ],
    codes=exit_codes.MOVING,
    summary="make a group of a store of Apache's",
    text="Make the stores of a new broker group from the store of a broker of Apache RocketMQ, which must "
    "not run: a CommitLog, a DLedger log, or one behind the other. A run that was cut short goes on when the "
    "same command is given again.",
    extra="server",
)
EXPORT = Declared(
    "export",
    f"{_PLACE}:export_command",
    [
        argument("store", "storePathRootDir of the member that is furthest."),
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
    summary="make stores of Apache's of one of ours",
    text="Make the stores of a group of Apache RocketMQ's brokers in DLedger mode from the store of a broker "
    "of ours, which must not run. A run that was cut short goes on when the same command is given again.",
    extra="server",
)
MIRROR = Declared(
    "mirror",
    f"{_PLACE}:mirror_command",
    [
        argument("old", "NameServer addresses of the old cluster, with ; between."),
        argument("new", "NameServer addresses of the new cluster."),
        option(
            "--topic", multiple=True, metavar="NAME", help="A topic to copy. [default: all of applications]"
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
            help="Messages at the end of each new queue among which the last copy is looked for.",
        ),
        flag("--once", help="End when all is copied that is there now."),
        flag(
            "--check",
            help="Copy nothing, and change nothing: say what the old cluster has that is not copied, or "
            "still waits there. Exit code 1 while there is something.",
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
    text="Copy topics of one cluster to another while both run. Started again, it goes on where the new "
    "cluster says that it was. Ctrl-C and SIGTERM end it at any time.",
    extra="server",
)

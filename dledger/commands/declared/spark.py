"""`dledger spark`: audits of groups, and jobs over topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from dledger.audit.defaults import DIGESTS_MAX_AGE_S
from dledger.commands import exit_codes
from dledger.commands.declared.checks import TABLE_FORMATS, TIME, fail_on, of_audits, report, stores
from dledger.commands.declaring import (
    NOT_NEGATIVE,
    PATH,
    POSITIVE,
    Checked,
    Declared,
    Group,
    flag,
    json_option,
    namesrv_option,
    option,
)
from dledger.commands.exit_codes import ExitCodes

_CODE = exit_codes.AUDIT.usage
BATCH_MB = 4096
BATCH_MESSAGES = 2_000_000


def _source(archive: bool = True) -> list[click.Parameter]:
    """Return the options that say where a job reads messages from."""
    found: list[click.Parameter] = [
        stores("Store directory (storePathRootDir)."),
        namesrv_option("NameServers of live brokers: host:port.", "where no other source is given"),
    ]
    if archive:
        found.append(
            option("--archive", metavar="DIR", default="", help="An archive of `dledger spark archive`.")
        )
    return [
        *found,
        option("--topics", metavar="A,B", help="Topics to read. [default: all but system topics]"),
        option(
            "--option",
            metavar="NAME=VALUE",
            type=Checked("dledger.spark.commands.words:name_and_value"),
            multiple=True,
            help="An option of the data source; may be given several times.",
        ),
    ]


_READS = (
    "STORE is the storePathRootDir of a node, which may be running. Of several replicas of one group "
    "the one that knows the highest committed index is read."
)


def _master() -> click.Option:
    return option(
        "--master",
        metavar="URL",
        help="Spark master, such as local[4] or spark://host:7077, or a Spark Connect server, such "
        "as sc://host:15002. [default: SPARK_REMOTE, else all cores of this machine]",
    )


def _job(
    name: str,
    summary: str,
    params: list[click.Parameter],
    *,
    codes: ExitCodes = exit_codes.JOB,
    text: str = "",
    epilog: str = _READS,
    reports: bool = False,
    judges: bool = False,
    program: str = "dledger.spark.commands.program:run",
    wrong: Callable[[Any], str] = lambda given: "",
) -> Declared:
    """Declare a command of `dledger spark`. If `reports` is set, the command has the option `--report`; if
    `judges` is set, it has `--fail-on`."""
    more = [*([report()] if reports else []), *([fail_on()] if judges else [])]
    return Declared(
        name,
        program,
        [json_option(), *more, *params],
        codes=codes,
        summary=summary,
        text=text,
        epilog=epilog,
        extra="spark",
        always={"command": name},
        wrong=wrong,
    )


_CONSUMER = {"metavar": "GROUP", "multiple": True, "help": "Consumer group; may be given several times."}

SPARK_AUDIT = _job(
    "audit",
    "check the replicas of a group and compare them",
    [
        stores(
            "storePathRootDir of a node, or a URL of a copy of it; with --namesrv it replaces a "
            "broker that is down."
        ),
        namesrv_option(
            "NameServers as host:port;host:port: audit live brokers, which scan their own disks.",
            "where neither STORE nor --digests is given",
        ),
        option(
            "--digests",
            metavar="PATH",
            type=PATH,
            help="Compare the digests that brokers shipped to this directory or URL (their "
            "digestShipPath); STORE and --namesrv are then used only to read entries whose "
            "digests differ.",
        ),
        option("--cluster", metavar="NAME", help="With --namesrv: only groups of this cluster."),
        option(
            "--group", metavar="NAME", help="With --namesrv, --digests: only the group of this brokerName."
        ),
        option(
            "--max-age",
            metavar="SECONDS",
            type=NOT_NEGATIVE,
            help="With --namesrv: reuse rows that a broker read for an earlier audit, if they are "
            "not older than this [default: 0, everything is read again]; with --digests: older "
            f"digests are a finding [default: {DIGESTS_MAX_AGE_S}].",
        ),
        *of_audits(),
        option(
            "--engine",
            type=click.Choice(["spark", "local"]),
            default="spark",
            show_default=True,
            help="local: in this process, without Spark and Java.",
        ),
        _master(),
    ],
    codes=exit_codes.AUDIT,
    text="Check the replicas of a group, in directories or behind live brokers, and compare them.",
    epilog="STORE is the storePathRootDir of a node; running nodes may be audited. One store is verified, "
    "several are verified and compared by content. With --namesrv the brokers registered there are audited "
    "over the network; directories given beside it stand in for brokers that are down. With --digests only "
    "what the brokers have shipped is read. Both engines give the same report.",
    reports=True,
    judges=True,
)
READ = _job(
    "read",
    "rows of a view: messages, entries, queues, state ...",
    [
        *_source(),
        option("--view", default="messages", show_default=True, help="View of the data source."),
        option(
            "--where",
            metavar="SQL",
            default="",
            help="Condition, such as \"topic = 'orders' and offset > 9\".",
        ),
        option("--order-by", metavar="COLUMN", default="", help="Sort by this column."),
        option("--limit", metavar="N", type=POSITIVE, default=20, show_default=True, help="Rows."),
        _master(),
    ],
)


def _archive_wrong(given: Any) -> str:
    if given.format != "parquet":
        ours = {"stored_before": None, "batch_mb": BATCH_MB, "batch_messages": BATCH_MESSAGES}
        named = [name for name, default in ours.items() if getattr(given, name) != default]
        return f"--{named[0].replace('_', '-')} has no effect on a table: leave it out" if named else ""
    named = [name for name in ("table_option", "schema", "no_roots") if getattr(given, name)]
    return f"--{named[0].replace('_', '-')} is for a table: give --format delta or iceberg" if named else ""


ARCHIVE = _job(
    "archive",
    "archive topics to Parquet, by topic and day",
    [
        *_source(archive=False),
        option(
            "--to",
            metavar="DIR",
            required=True,
            help="The archive, or the table as in `dledger lake`; created if it does not exist.",
        ),
        option(
            "--format",
            type=click.Choice(["parquet", *TABLE_FORMATS]),
            default="parquet",
            show_default=True,
            help="Files in directories by topic and day, or a table as `dledger lake` makes it. A table "
            "needs --topics, and dledger[lake] on this machine and on all workers.",
        ),
        option(
            "--table-option",
            metavar="NAME=VALUE",
            type=Checked("dledger.spark.commands.words:name_and_value"),
            multiple=True,
            help="For a table: an option of the storage or the catalog, as --option of `dledger lake`; may "
            "be given several times.",
        ),
        option(
            "--schema",
            metavar="SCHEMA",
            default="",
            help="For a table: type of JSON bodies, as in `dledger lake`.",
        ),
        flag("--no-roots", help="For a table: write no roots, as in `dledger lake`."),
        option(
            "--batch-mb",
            metavar="N",
            type=POSITIVE,
            default=BATCH_MB,
            show_default=True,
            help="Size of a batch in MiB of log.",
        ),
        option(
            "--batch-messages",
            metavar="N",
            type=POSITIVE,
            default=BATCH_MESSAGES,
            show_default=True,
            help="Messages in a batch from live brokers.",
        ),
        option(
            "--stored-before",
            metavar="TIME",
            type=TIME,
            help="Archive only whole segments whose messages were all stored before (UTC): 2026-11-21 or "
            "2026-11-21T15:30:00. Not with --namesrv.",
        ),
        _master(),
    ],
    codes=exit_codes.ARCHIVE,
    text="Archive topics to Parquet, by topic and day, or put them into a table of Delta Lake or Iceberg. "
    "Run it again (for example from a timer) to continue: every committed message is archived exactly once, "
    "even if the job is killed.",
    program="dledger.lake.spark_archive:run",
    wrong=_archive_wrong,
)
REPLAY = _job(
    "replay",
    "send messages of an archive or a log into a topic",
    [
        *_source(),
        option("--to-namesrv", metavar="ADDR", required=True, help="NameServers of the target."),
        option("--to-topic", metavar="TOPIC", default="", help="[default: the topic of each message]"),
        option(
            "--stored-from",
            metavar="TIME",
            type=TIME,
            help="Stored at or after (UTC): 2026-11-21 or 2026-11-21T15:30:00.",
        ),
        option("--stored-before", metavar="TIME", type=TIME, help="Stored before."),
        flag("--resume", help="Skip messages that an earlier replay has already sent to the target."),
        option(
            "--create-queues",
            metavar="N",
            type=POSITIVE,
            default=None,
            help="Create a missing topic with N queues.",
        ),
        _master(),
    ],
    text="Send messages of an archive or a log into a topic of live brokers, each queue in order. At least "
    "once: after a failure run it again with --resume.",
)
STATS = _job(
    "stats",
    "statistics of topics: rates, sizes, keys, tags, latencies",
    [
        *_source(),
        option(
            "--bucket",
            metavar="SECONDS",
            type=POSITIVE,
            help="Time span of one point of the series. [default: chosen by the length of the series]",
        ),
        _master(),
    ],
    reports=True,
)
LAG = _job(
    "lag",
    "how far consumer groups are and were behind",
    [
        *_source(archive=False),
        option("--consumer", **_CONSUMER),
        option(
            "--warn-above",
            metavar="N",
            type=NOT_NEGATIVE,
            help="Warn of queues that are more than N messages behind.",
        ),
        option(
            "--bucket",
            metavar="SECONDS",
            type=POSITIVE,
            help="Time span of one point of the history. [default: chosen by the length of the history]",
        ),
        _master(),
    ],
    codes=exit_codes.LAG,
    text="Over store directories: the lag of consumer groups over time, from the log itself, as far back as "
    "it goes. Over live brokers (--namesrv, with --consumer and --topics): the present.",
    reports=True,
    judges=True,
)
ACCOUNT = _job(
    "account",
    "produced = stored = consumed, message by message",
    [
        *_source(),
        option(
            "--acknowledged",
            metavar="FILE",
            required=True,
            type=PATH,
            help="JSON lines or Parquet: id, topic, queueId, queueOffset, brokerName of acknowledged "
            "messages.",
        ),
        option("--consumer", **_CONSUMER),
        option(
            "--consumed",
            metavar="FILE",
            type=PATH,
            help="ids (and consumers) of the messages that were processed.",
        ),
        flag(
            "--strict",
            help="Report every message without an acknowledgement, even before the first and after "
            "the last acknowledged one.",
        ),
        _master(),
    ],
    codes=exit_codes.AUDIT,
    text="Compare the acknowledgements of a producer, the log, and the offsets of consumer groups.",
    reports=True,
    judges=True,
)
DOCTOR = _job(
    "doctor",
    "check what Spark needs on this machine and on a cluster",
    [
        stores("storePathRootDir of a node: also check that it is visible on all executors."),
        _master(),
        flag("--no-spark", help="Check only this machine; start no session."),
    ],
    codes=exit_codes.DOCTOR,
    text="Check everything that Spark needs: Java, Python, packages, memory, disk; then run a small "
    "job. With --master, the executors of that cluster are checked, too.",
    epilog="",
)
SPARK = Group(
    "spark",
    "Jobs over logs on Spark.",
    [SPARK_AUDIT, READ, ARCHIVE, REPLAY, STATS, LAG, ACCOUNT, DOCTOR],
    usage=_CODE,
)

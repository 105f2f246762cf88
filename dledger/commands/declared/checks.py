"""`dledger audit` and `dledger spark`: audits of stores and groups, and jobs over topics."""

from __future__ import annotations

import click

from dledger.audit.defaults import DIGESTS_MAX_AGE_S, FAIL_ON, LAG_WARNING_ENTRIES, RESCAN_HOURS
from dledger.commands import exit_codes
from dledger.commands.declaring import (
    NOT_NEGATIVE,
    PATH,
    POSITIVE,
    Checked,
    Declared,
    Group,
    argument,
    flag,
    json_option,
    namesrv_option,
    option,
)
from dledger.commands.exit_codes import ExitCodes

_CODE = exit_codes.AUDIT.usage
TABLE_FORMATS = ("delta", "iceberg")
_STORE = "storePathRootDir of a node"
_TIME = Checked("dledger.spark.commands.words:moment_ms")


# Options of several commands


def _report() -> click.Option:
    return option(
        "--report",
        metavar="FILE",
        type=Checked("dledger.audit.report_files:report_path", "file"),
        multiple=True,
        help="Also write the result there: .html, .json, .parquet or .txt; may be given several times.",
    )


def _fail_on() -> click.Option:
    return option(
        "--fail-on",
        type=click.Choice(list(FAIL_ON)),
        default="warning",
        show_default=True,
        help="Exit with 0 if every finding is below this severity; exit code 4 (could not look) stays.",
    )


def _of_audits() -> list[click.Parameter]:
    """Return the options that the audit has both with and without Spark."""
    return [
        option(
            "--lag-warning",
            type=NOT_NEGATIVE,
            default=LAG_WARNING_ENTRIES,
            show_default=True,
            metavar="N",
            help="Warn of a replica that is more than N entries behind.",
        ),
        flag(
            "--same-time",
            help="The directories belong to stopped or running nodes and are not copies taken one "
            "after the other, so entries that a replica lacks at its end count as missing.",
        ),
        option(
            "--keep",
            metavar="DIR",
            type=Checked("dledger.audit.arguments:keep_root", "dir"),
            help="Directory or URL that keeps the scans of full, committed, clean segments: these "
            "are not scanned again until they change or --rescan-hours have passed.",
        ),
        option(
            "--rescan-hours",
            metavar="N",
            type=NOT_NEGATIVE,
            help="With --keep: scan a segment again N hours after its last scan at the latest, "
            f"because disks can corrupt data; 0: never. [default: {RESCAN_HOURS}]",
        ),
    ]


def _master() -> click.Option:
    return option(
        "--master",
        metavar="URL",
        help="Spark master, such as local[4] or spark://host:7077, or a Spark Connect server, such "
        "as sc://host:15002. [default: SPARK_REMOTE, else all cores of this machine]",
    )


def _stores(text: str) -> click.Argument:
    return argument("stores", text, metavar="[STORE]", nargs=-1, type=PATH)


def _source(archive: bool = True) -> list[click.Parameter]:
    """Return the options that say where a job reads messages from."""
    found: list[click.Parameter] = [
        _stores("Store directory (storePathRootDir)."),
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


class AuditGroup(Group):
    """The group `dledger audit`. `--table PATH` is another way to write its command `table`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].partition("=")[0] == "--table":
            _, equals, place = args.pop(0).partition("=")
            args[:0] = ["table", *([place] if equals else [])]
        return super().parse_args(ctx, args)


# The audit of stores


def _audit(name: str, summary: str, text: str) -> Declared:
    return Declared(
        name,
        "dledger.audit.command:run",
        [
            argument("stores", f"{_STORE}.", metavar="STORE", nargs=1 if name == "verify" else -1, type=PATH),
            json_option(),
            _report(),
            _fail_on(),
            *_of_audits(),
            option(
                "--jobs",
                type=POSITIVE,
                metavar="N",
                help="Processes that scan segments, some 150 MB each. [default: one for each core]",
            ),
        ],
        codes=exit_codes.AUDIT,
        summary=summary,
        text=text,
        epilog=f"STORE is the {_STORE}; a running node may be audited.",
        extra="server",
        always={"command": name},
        wrong=lambda given: "give at least two stores" if name == "compare" and len(given.stores) < 2 else "",
    )


VERIFY = _audit(
    "verify",
    "check one store directory",
    "Check one store: structure, CRCs, chain, index files, ConsumeQueues.",
)
COMPARE = _audit(
    "compare",
    "check the stores of a group and compare them",
    "Check the stores of a group, compare by content.",
)


# Tables of topics


def _table_place() -> list[click.Parameter]:
    return [
        option(
            "--format",
            type=click.Choice(list(TABLE_FORMATS)),
            help="Format of the table. [default: that of a table that exists; for a new one delta]",
        ),
        option(
            "--option",
            metavar="NAME=VALUE",
            type=Checked("dledger.spark.commands.words:name_and_value"),
            multiple=True,
            help="An option of the storage (such as aws_region) or, for Iceberg, of the catalog; may be "
            "given several times.",
        ),
        option(
            "--store",
            metavar="DIR",
            type=PATH,
            multiple=True,
            help=f"Read the log from this {_STORE} (or a backup of it) and not from brokers; may be given "
            "several times.",
        ),
        json_option(),
    ]


TABLE = Declared(
    "table",
    "dledger.lake.command:audit",
    [
        argument(
            "to", "Path or URL of the table; for Iceberg the catalog, as in `dledger lake`.", metavar="TABLE"
        ),
        *_table_place(),
        namesrv_option(
            "NameServers of the brokers whose log the table is compared with.", "where --store is not given"
        ),
        _fail_on(),
    ],
    codes=exit_codes.AUDIT,
    summary="compare a table of a topic with its certificates and with the log",
    text="Compare a table that `dledger lake` filled with its certificates and, if --namesrv or --store is "
    "given, with the log. Rows that were dropped, doubled or changed are named. Each range says what it was "
    "compared with: the log, or only the table's own certificate.",
    extra="lake",
)
AUDIT = AuditGroup(
    "audit",
    "Check log stores on this machine, compare replicas, and compare tables of topics with the log.",
    [VERIFY, COMPARE, TABLE],
    usage=_CODE,
)
LAKE = Declared(
    "lake",
    "dledger.lake.command:run",
    [
        argument(
            "topics",
            "A topic. Several topics are put into one table.",
            metavar="TOPIC",
            nargs=-1,
            required=True,
        ),
        option(
            "--to",
            metavar="TABLE",
            required=True,
            help="Path or URL of the table; it is made if it does not exist.",
        ),
        *_table_place(),
        namesrv_option("NameServers of the brokers to read from.", "where --store is not given"),
        option(
            "--schema",
            metavar="SCHEMA",
            default="",
            help="Type of JSON bodies, which become the column `value`: a file with a JSON Schema, "
            "MODULE:TYPE for a Python type, or `infer` to infer it from the oldest messages. It is fixed "
            "when the table is made. [default: bodies are not typed]",
        ),
        flag("--compact", help="At the end, write small files together into larger ones."),
        flag(
            "--drop-deleted",
            help="At the end, remove the messages of topics that were deleted, also of those that were made "
            "again since. Without this option they stay.",
        ),
        flag("--follow", help="Do not end: add new messages as they come."),
        option(
            "--every",
            type=click.FloatRange(0.1),
            default=10.0,
            show_default=True,
            metavar="S",
            help="With --follow: seconds between two commits.",
        ),
    ],
    codes=exit_codes.LAKE,
    summary="put topics into a Delta Lake or Iceberg table, each message once",
    text="Put the messages of topics into a table, from the oldest one that the log has. Run it again, or "
    "with --follow, to add what came since. It can be killed at any time: each message is in the table "
    "exactly once, and `dledger audit table` proves it against the log.",
    extra="lake",
    wrong=lambda given: (
        "--compact and --drop-deleted are done at the end, which --follow does not have: run them beside it"
        if given.follow and (given.compact or given.drop_deleted)
        else ""
    ),
)


# Spark


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
) -> Declared:
    """Declare a command of `dledger spark`. If `reports` is set, the command has the option `--report`; if
    `judges` is set, it has `--fail-on`."""
    more = [*([_report()] if reports else []), *([_fail_on()] if judges else [])]
    return Declared(
        name,
        "dledger.spark.commands.program:run",
        [json_option(), *more, *params],
        codes=codes,
        summary=summary,
        text=text,
        epilog=epilog,
        extra="spark",
        always={"command": name},
    )


_CONSUMER = {"metavar": "GROUP", "multiple": True, "help": "Consumer group; may be given several times."}

SPARK_AUDIT = _job(
    "audit",
    "check the replicas of a group and compare them",
    [
        _stores(
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
        *_of_audits(),
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
ARCHIVE = _job(
    "archive",
    "archive topics to Parquet, by topic and day",
    [
        *_source(archive=False),
        option(
            "--to", metavar="DIR", required=True, type=PATH, help="The archive; created if it does not exist."
        ),
        option(
            "--batch-mb",
            metavar="N",
            type=POSITIVE,
            default=4096,
            show_default=True,
            help="Size of a batch in MiB of log.",
        ),
        option(
            "--batch-messages",
            metavar="N",
            type=POSITIVE,
            default=2_000_000,
            show_default=True,
            help="Messages in a batch from live brokers.",
        ),
        option(
            "--stored-before",
            metavar="TIME",
            type=_TIME,
            help="Archive only whole segments whose messages were all stored before (UTC): 2026-11-21 or "
            "2026-11-21T15:30:00. Not with --namesrv.",
        ),
        _master(),
    ],
    codes=exit_codes.ARCHIVE,
    text="Archive topics to Parquet, by topic and day. Run it again (for example from a timer) to "
    "continue: every committed message is archived exactly once, even if the job is killed.",
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
            type=_TIME,
            help="Stored at or after (UTC): 2026-11-21 or 2026-11-21T15:30:00.",
        ),
        option("--stored-before", metavar="TIME", type=_TIME, help="Stored before."),
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
        _stores("storePathRootDir of a node: also check that it is visible on all executors."),
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

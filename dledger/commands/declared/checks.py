"""`dledger audit` and `dledger lake`: audits of stores, and topics as tables."""

from __future__ import annotations

import click

from dledger.audit.defaults import FAIL_ON, LAG_WARNING_ENTRIES, RESCAN_HOURS
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

_CODE = exit_codes.AUDIT.usage
TABLE_FORMATS = ("delta", "iceberg")
_STORE = "storePathRootDir of a node"
TIME = Checked("dledger.spark.commands.words:moment_ms")


# Options of several commands


def report() -> click.Option:
    return option(
        "--report",
        metavar="FILE",
        type=Checked("dledger.audit.report_files:report_path", "file"),
        multiple=True,
        help="Also write the result there: .html, .json, .parquet or .txt; may be given several times.",
    )


def fail_on() -> click.Option:
    return option(
        "--fail-on",
        type=click.Choice(list(FAIL_ON)),
        default="warning",
        show_default=True,
        help="Exit with 0 if every finding is below this severity; exit code 4 (could not look) stays.",
    )


def of_audits() -> list[click.Parameter]:
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


def stores(text: str) -> click.Argument:
    return argument("stores", text, metavar="[STORE]", nargs=-1, type=PATH)


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
            report(),
            fail_on(),
            *of_audits(),
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
        fail_on(),
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
        option(
            "--archive",
            metavar="DIR",
            default="",
            help="For a new table: take messages that the log has deleted from this archive, which `dledger "
            "spark archive` made from store directories.",
        ),
        flag("--compact", help="At the end, write small files together into larger ones."),
        flag(
            "--drop-deleted",
            help="At the end, remove the messages of topics that were deleted, also of those that were made "
            "again since. Without this option they stay.",
        ),
        flag(
            "--no-roots",
            help="Write no roots. By default the sum of all certificates is written to the topic "
            "dledger_table_roots once a day, so that the table can be proven also after the log has deleted "
            "its messages.",
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

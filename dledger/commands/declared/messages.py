"""Declares `dledger produce` and `dledger consume`."""

from __future__ import annotations

import click

from dledger.commands import exit_codes
from dledger.commands.declared.admin.options import operation, topic_name
from dledger.commands.declaring import NOT_NEGATIVE, POSITIVE, Checked, argument, flag, option
from dledger.commands.messages.records import FORMATS, LINES

_PLACE = "dledger.commands.messages"


_OF_KAFKA = {
    "--bootstrap-server": "it is --namesrv here, with the addresses of NameServers (host:port)",
    "--broker-list": "it is --namesrv here, with the addresses of NameServers (host:port)",
    "--topic": "the topic is an argument: give its name alone",
}
"""Options of Kafka's console producer and consumer, and what is used here."""


def field(text: str) -> tuple[str, str]:
    """Parse `--field PART=NAME`. Raises ValueError for any other text."""
    from dledger.commands.messages.records import PARTS

    part, equals, name = text.partition("=")
    if not equals or not name or part not in PARTS:
        raise ValueError(f"{text!r} is not PART=NAME with one of {', '.join(PARTS)}")
    return part, name


def delimiter(text: str) -> str:
    """Parse `--delimiter CHAR`; a tab may be written as a backslash and t. Raises ValueError for anything
    but one character that can separate columns."""
    found = "\t" if text == r"\t" else text
    if len(found) != 1 or found in '"\r\n':
        raise ValueError(f"{text!r} is not a single character that can separate columns")
    return found


PRODUCE = operation(
    "produce",
    "Send each line, JSON object or CSV row of FILE, or of standard input, as a message.\n\n\b\n  "
    "dledger produce orders < lines.txt\n  dledger produce orders orders.csv --field body='*' "
    "--field key=order_id\n  dledger consume orders --format json | dledger produce other --format "
    "json\n\nJSON objects and CSV rows have body, key (or keys), tag (or tags), orderingKey and "
    "properties; a JSON object may have bodyBase64 in place of body. The topic must exist. After an "
    "error the command waits for the messages in flight and prints the --skip with which to continue.",
    f"{_PLACE}.produce:produce",
    topic_name(),
    argument(
        "file",
        "Input; - is standard input.",
        metavar="[FILE]",
        default="-",
        required=False,
        type=click.Path(allow_dash=True),
    ),
    option(
        "--format",
        type=click.Choice(FORMATS),
        help="Format of the input. [default: by the ending of FILE: .json, .jsonl, .ndjson, .csv, "
        ".tsv; else lines]",
    ),
    option(
        "-k",
        "--key",
        multiple=True,
        help="Key for messages whose record has none; may be given several times.",
    ),
    option("--tag", help="Tag for messages whose record has none."),
    option(
        "--ordering-key",
        help="Ordering key for messages whose record has none; messages with the same one go to one queue.",
    ),
    option(
        "-K",
        "--key-separator",
        default="",
        metavar="TEXT",
        help="In lines: the separator between key and body.",
    ),
    option(
        "--field",
        multiple=True,
        metavar="PART=NAME",
        type=Checked("dledger.commands.declared.messages:field"),
        help="Take the body, key, tag or ordering-key from this column or field; body=* is the whole record "
        "as JSON.",
    ),
    option(
        "--delimiter",
        metavar="CHAR",
        type=Checked("dledger.commands.declared.messages:delimiter"),
        help="Separator of CSV columns. [default: a comma; a tab for .tsv]",
    ),
    flag("--ignore-other", help="Ignore columns and fields that are not parts of a message."),
    flag("--skip-empty", help="Skip empty lines; without this option they are an error."),
    option("-c", "--count", type=POSITIVE, metavar="N", help="Send at most this number of records."),
    option(
        "--skip",
        type=NOT_NEGATIVE,
        default=0,
        metavar="N",
        help="Skip the first N records, which an earlier run has sent.",
    ),
    flag("--check", help="Read the whole input, and send nothing."),
    codes=exit_codes.MESSAGES,
    foreign=_OF_KAFKA,
    short_help="send lines, JSON lines or CSV as messages",
)
CONSUME = operation(
    "consume",
    "Print the messages of a topic as lines, JSON lines or CSV: those that are stored now, or with "
    "--follow also new ones.\n\n\b\n  dledger consume orders --follow\n  dledger consume orders "
    "--from -1h --tag 'paid || sent' --format csv\n\nWithout --group nothing is committed, and each "
    "run begins at --from. With it a run begins at the offsets of the group, and commits what it has "
    "printed.",
    f"{_PLACE}.consume:consume",
    topic_name(),
    option(
        "--format",
        type=click.Choice(FORMATS),
        default=LINES,
        show_default=True,
        help="Format of the output; lines hold only the bodies.",
    ),
    option(
        "--from",
        "start",
        default="earliest",
        show_default=True,
        metavar="TIME",
        help="earliest, latest, a time (2026-05-01T12:00, ms since 1970) or an age (-30m, -2h, -1d).",
    ),
    option("-g", "--group", metavar="GROUP", help="Begin at the offsets of this consumer group, and commit."),
    option("--tag", default="*", metavar="EXPRESSION", help="Only messages with these tags: TagA || TagB."),
    option("-k", "--key", help="Only messages with this key."),
    option("-c", "--count", type=POSITIVE, metavar="N", help="End after this number of messages."),
    flag("-f", "--follow", help="Continue with new messages, until Ctrl-C or --count."),
    codes=exit_codes.MESSAGES,
    foreign={
        **_OF_KAFKA,
        "--from-beginning": "that is the default, --from earliest; --follow also prints new messages",
        "--partition": "all queues of the topic are read; `dledger spark read --topics TOPIC --where "
        "'partition = 0'` reads one of them",
        "--offset": "--from takes a time, earliest or latest; `dledger spark read --topics TOPIC --where "
        "'offset >= 5'` chooses by offset",
        "--max-messages": "it is --count here",
        "--property": "--format json prints keys, tags and properties too",
        "--timeout-ms": "the command ends behind the stored messages, unless --follow is given",
    },
    short_help="print messages as lines, JSON lines or CSV",
)

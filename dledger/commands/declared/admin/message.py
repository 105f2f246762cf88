"""`dledger admin message`: find, show, track, send and resend messages."""

from __future__ import annotations

import click

from dledger.commands.declared.admin.options import action, group, group_name, topic_name

MESSAGE = group("message", "Messages: list, find, show, send, resend, redeliver, consume.")
MAX_LISTED = 10_000


def _id() -> click.Argument:
    return click.Argument(["message_id"], metavar="ID")


action(
    MESSAGE,
    "list",
    "List the newest messages of a topic, or those since a time.",
    "message:list_messages",
    topic_name(),
    click.Option(
        ["--since"],
        metavar="TIME",
        help="Only messages stored at this time or later: a time, or an age (-1h).",
    ),
    click.Option(["--until"], metavar="TIME", help="Only messages stored before this time."),
    click.Option(["--tags", "expression"], default="*", metavar="EXPRESSION", help="TagA || TagB."),
    click.Option(
        ["--limit"],
        type=click.IntRange(1, MAX_LISTED),
        default=20,
        show_default=True,
        help="Largest number of messages.",
    ),
)


action(
    MESSAGE,
    "find",
    "Find messages by a key, or by the unique id that the sender assigned.",
    "message:find",
    topic_name(),
    click.Argument(["key"], metavar="KEY"),
    click.Option(
        ["--limit"],
        type=click.IntRange(1, 64),
        default=64,
        help="Largest number of messages from each broker.",
    ),
)


action(
    MESSAGE,
    "show",
    "Show a message, and whether each group has consumed it.",
    "message:show_message",
    topic_name(),
    _id(),
)


action(
    MESSAGE,
    "send",
    "Send a message.",
    "message:send",
    topic_name(),
    click.Argument(["body"], metavar="BODY"),
    click.Option(["--tag"], help="Tag of the message."),
    click.Option(["--key"], multiple=True, help="A key of the message; may be given several times."),
    click.Option(
        ["--property"],
        multiple=True,
        metavar="KEY=VALUE",
        help="A property of the message; may be given several times.",
    ),
    click.Option(["--ordering-key"], help="Messages with the same ordering key go to one queue."),
)


action(
    MESSAGE,
    "resend",
    "Send a message again to its topic: every group that consumes the topic receives it once more.",
    "message:resend",
    topic_name(),
    _id(),
    changes=True,
)


action(
    MESSAGE,
    "redeliver",
    "Redeliver the dead letters of a group to it, each once: they are delivered at once, with all "
    "retries left.",
    "message:redeliver",
    group_name(),
    click.Option(
        ["--since"],
        metavar="TIME",
        help="Only dead letters of this time or later, also those already redelivered: a time, or "
        "an age (-1h).",
    ),
    click.Option(["--until"], metavar="TIME", help="Only dead letters from before this time."),
    click.Option(
        ["--limit"],
        type=click.IntRange(1, MAX_LISTED),
        default=MAX_LISTED,
        help="Largest number of messages.",
    ),
    changes=True,
)


action(
    MESSAGE,
    "consume",
    "Deliver a message to one consumer now, and show the result.",
    "message:consume",
    topic_name(),
    _id(),
    click.Option(
        ["-g", "--group", "group_name"], required=True, metavar="GROUP", help="Group of the consumer."
    ),
    click.Option(["--client"], metavar="ID", help="Id of the consumer. [default: the first]"),
)

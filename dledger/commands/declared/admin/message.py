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
    click.Option(["--since"], metavar="TIME", help="Stored then or later: a time, or an age (-1h)."),
    click.Option(["--until"], metavar="TIME", help="Stored before."),
    click.Option(["--tags", "expression"], default="*", metavar="EXPRESSION", help="TagA || TagB."),
    click.Option(
        ["--limit"],
        type=click.IntRange(1, MAX_LISTED),
        default=20,
        show_default=True,
        help="Messages at most.",
    ),
)


action(
    MESSAGE,
    "find",
    "Find messages by a key, or by the unique id that the sender gave.",
    "message:find",
    topic_name(),
    click.Argument(["key"], metavar="KEY"),
    click.Option(["--limit"], type=click.IntRange(1, 64), default=64, help="Messages of each broker."),
)


action(
    MESSAGE,
    "show",
    "Show a message, and what became of it in each group.",
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
    click.Option(["--tag"], help="Its tag."),
    click.Option(["--key"], multiple=True, help="A key of its."),
    click.Option(["--property"], multiple=True, metavar="KEY=VALUE", help="A property of its."),
    click.Option(["--ordering-key"], help="All with the same key go to one queue."),
)


action(
    MESSAGE,
    "resend",
    "Send a message again, to its topic: all that consume it get it once more.",
    "message:resend",
    topic_name(),
    _id(),
    changes=True,
)


action(
    MESSAGE,
    "redeliver",
    "Give the dead letters of a group back to it, once each: they come at once, with all tries before them.",
    "message:redeliver",
    group_name(),
    click.Option(
        ["--since"], metavar="TIME", help="Dead then or later: a time, or an age (-1h); those given back too."
    ),
    click.Option(["--until"], metavar="TIME", help="Dead before."),
    click.Option(
        ["--limit"], type=click.IntRange(1, MAX_LISTED), default=MAX_LISTED, help="Messages at most."
    ),
    changes=True,
)


action(
    MESSAGE,
    "consume",
    "Hand a message to one consumer now, and show what it made of it.",
    "message:consume",
    topic_name(),
    _id(),
    click.Option(["-g", "--group", "group_name"], required=True, metavar="GROUP", help="Its group."),
    click.Option(["--client"], metavar="ID", help="Which consumer. [default: the first]"),
)

"""`dledger admin topic`: list, show, create, update, delete."""

from __future__ import annotations

import click

from dledger.commands.admin.completing import complete_topics
from dledger.commands.declared.admin.options import action, group, topic_name, where

TOPIC = group("topic", "Topics: list, show, create, update, delete.")
PERMS = {"r": 4, "w": 2, "rw": 6, "none": 0}
_SETTINGS = (
    click.Option(["--queues"], type=click.IntRange(1, 1024), help="Queues to read and to write."),
    click.Option(["--read-queues"], type=click.IntRange(1, 1024), help="Queues to read."),
    click.Option(["--write-queues"], type=click.IntRange(1, 1024), help="Queues to write."),
    click.Option(["--perm"], type=click.Choice(list(PERMS)), help="What clients may do with it."),
    click.Option(["--order/--no-order"], default=None, help="Whether it is an ordered topic."),
    click.Option(
        ["--attribute"], multiple=True, metavar="KEY=VALUE", help="Set an attribute; KEY= removes it."
    ),
)

action(
    TOPIC,
    "list",
    "List topics with their queues and what is in them.",
    "topic:list_topics",
    click.Option(["--all", "every"], is_flag=True, help="Also those of retries, dead letters and brokers."),
)


action(
    TOPIC,
    "show",
    "Show a topic: how it is set up, its queues, and who consumes it.",
    "topic:show_topic",
    topic_name(),
)


action(
    TOPIC, "create", "Create a topic.", "topic:create_topic", topic_name(), *_SETTINGS, *where(), changes=True
)


action(
    TOPIC,
    "update",
    "Change a topic. What is not named stays as it is.",
    "topic:update_topic",
    topic_name(),
    *_SETTINGS,
    *where(),
    changes=True,
)


action(
    TOPIC,
    "delete",
    "Delete topics with their messages.",
    "topic:delete_topics",
    click.Argument(["topics"], nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics),
    *where(),
    changes=True,
)

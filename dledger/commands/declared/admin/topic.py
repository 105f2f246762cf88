"""`dledger admin topic`: list, show, create, update, delete."""

from __future__ import annotations

import click

from dledger.commands.admin.completing import complete_topics
from dledger.commands.declared.admin.options import action, group, topic_name, where

TOPIC = group("topic", "Topics: list, show, create, update, delete.")
PERMS = {"r": 4, "w": 2, "rw": 6, "none": 0}
_SETTINGS = (
    click.Option(["--queues"], type=click.IntRange(1, 1024), help="Number of queues to read and to write."),
    click.Option(["--read-queues"], type=click.IntRange(1, 1024), help="Number of queues to read."),
    click.Option(["--write-queues"], type=click.IntRange(1, 1024), help="Number of queues to write."),
    click.Option(["--perm"], type=click.Choice(list(PERMS)), help="Permission of clients."),
    click.Option(["--order/--no-order"], default=None, help="Whether the topic is ordered."),
    click.Option(
        ["--attribute"], multiple=True, metavar="KEY=VALUE", help="Set an attribute; KEY= removes it."
    ),
)

action(
    TOPIC,
    "list",
    "List topics with their queues, permissions and broker groups; `topic show` counts messages.",
    "topic:list_topics",
    click.Option(
        ["--all", "every"], is_flag=True, help="Also list topics of retries, dead letters and brokers."
    ),
)


action(
    TOPIC,
    "show",
    "Show a topic: its settings, its queues, and the groups that consume it.",
    "topic:show_topic",
    topic_name(),
)


action(
    TOPIC, "create", "Create a topic.", "topic:create_topic", topic_name(), *_SETTINGS, *where(), changes=True
)


action(
    TOPIC,
    "update",
    "Change a topic. Settings that are not given stay as they are.",
    "topic:update_topic",
    topic_name(),
    *_SETTINGS,
    *where(),
    changes=True,
)


action(
    TOPIC,
    "delete",
    "Delete topics and their messages.",
    "topic:delete_topics",
    click.Argument(["topics"], nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics),
    *where(),
    changes=True,
)

"""`dledger admin group`: list, show, create, update, delete consumer groups."""

from __future__ import annotations

import click

from dledger.commands.declared.admin.options import action, group, group_name, where

GROUP = group("group", "Consumer groups: list, show, create, update, delete.")
_SETTINGS = (
    click.Option(
        ["--enable/--disable", "consumeEnable"], default=None, help="Whether the group may consume."
    ),
    click.Option(
        ["--from-min/--no-from-min", "consumeFromMinEnable"],
        default=None,
        help="Whether a new consumer may begin at the oldest message. No effect on brokers of dledger.",
    ),
    click.Option(
        ["--broadcast/--no-broadcast", "consumeBroadcastEnable"],
        default=None,
        help="Whether consumers may use broadcasting mode.",
    ),
    click.Option(
        ["--orderly/--no-orderly", "consumeMessageOrderly"],
        default=None,
        help="Whether the group consumes in order.",
    ),
    click.Option(
        ["--retry-queues", "retryQueueNums"],
        type=click.IntRange(1),
        help="Number of queues of the retry topic.",
    ),
    click.Option(
        ["--max-retries", "retryMaxTimes"],
        type=click.IntRange(0),
        help="Number of retries before a message becomes a dead letter.",
    ),
)

action(
    GROUP,
    "list",
    "List consumer groups: their online consumers, and how far behind they are.",
    "group:list_groups",
)


action(
    GROUP,
    "show",
    "Show a group: its offsets, its consumers and its settings.",
    "group:show_group",
    group_name(),
)


action(
    GROUP,
    "create",
    "Create a consumer group.",
    "group:create_group",
    group_name(),
    *_SETTINGS,
    *where(),
    changes=True,
)


action(
    GROUP,
    "update",
    "Change a consumer group. Settings that are not given stay as they are.",
    "group:update_group",
    group_name(),
    *_SETTINGS,
    *where(),
    changes=True,
)


action(
    GROUP,
    "delete",
    "Delete a consumer group.",
    "group:delete_group",
    group_name(),
    click.Option(
        ["--keep-offsets"], is_flag=True, help="Keep its offsets, its retries and its dead letters."
    ),
    *where(),
    changes=True,
)

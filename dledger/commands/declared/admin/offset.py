"""`dledger admin offset`: show the consumer offsets of groups, and set them to other values."""

from __future__ import annotations

import click

from dledger.commands.admin.completing import complete_groups
from dledger.commands.declared.admin.options import action, group, group_name, topic_name

OFFSET = group("offset", "Offsets of consumer groups: show, reset, clone.")

action(
    OFFSET,
    "show",
    "Show the offsets of a group.",
    "offset:show_offsets",
    group_name(),
    click.Option(["-t", "--topic"], help="Only in this topic."),
)


action(
    OFFSET,
    "reset",
    "Move the offsets of a group, in all queues of a topic or in one of them.",
    "offset:reset",
    group_name(),
    topic_name(),
    click.Option(
        ["--to", "target"],
        required=True,
        metavar="WHERE",
        help="earliest, latest, now, a time (2026-05-01T12:00), an age (-2h), or offset:N with --queue.",
    ),
    click.Option(["--queue"], type=click.IntRange(0), help="Only this queue, with --broker."),
    click.Option(["-b", "--broker"], metavar="NAME", help="Only on this broker group."),
    click.Option(
        ["--only-back"], is_flag=True, help="Do not change queues in which the group would move forward."
    ),
    changes=True,
)


action(
    OFFSET,
    "clone",
    "Copy the offsets of one group to another.",
    "offset:clone",
    click.Argument(["source"], metavar="FROM", shell_complete=complete_groups),
    click.Argument(["target"], metavar="TO", shell_complete=complete_groups),
    click.Option(["-t", "--topic"], help="Only in this topic. [default: all]"),
    changes=True,
)

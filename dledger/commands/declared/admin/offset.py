"""`dledger admin offset`: show offsets of groups, and move groups to other offsets."""

from __future__ import annotations

import click

from dledger.commands.admin.completing import complete_groups
from dledger.commands.declared.admin.options import action, group, group_name, topic_name

OFFSET = group("offset", "Offsets of consumer groups: show, reset, clone.")

action(
    OFFSET,
    "show",
    "Show where a group stands.",
    "offset:show_offsets",
    group_name(),
    click.Option(["-t", "--topic"], help="Only in this topic."),
)


action(
    OFFSET,
    "reset",
    "Have a group go on elsewhere: all queues of a topic, or one of them.",
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
    click.Option(["-b", "--broker"], metavar="NAME", help="Only at this broker group."),
    click.Option(["--only-back"], is_flag=True, help="Leave queues alone where the group would go forward."),
    changes=True,
)


action(
    OFFSET,
    "clone",
    "Have a group go on where another one stands.",
    "offset:clone",
    click.Argument(["source"], metavar="FROM", shell_complete=complete_groups),
    click.Argument(["target"], metavar="TO", shell_complete=complete_groups),
    click.Option(["-t", "--topic"], help="Only in this topic. [default: all]"),
    changes=True,
)

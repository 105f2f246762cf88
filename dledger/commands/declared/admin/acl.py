"""`dledger admin acl`: users and what they may do, where brokers have access control 2.0."""

from __future__ import annotations

import click

from dledger.commands.declared.admin.options import action, group, where

ACL = group("acl", "Access control: users, and what they may do.")
USER = group("user", "Users: list, create, update, delete.")
POLICY = group("policy", "What subjects may do: list, create, update, delete.")
_NAME = click.Argument(["name"], metavar="USER")
_PASSWORD = click.Option(["--password"], help="Its password. [asked for where it is needed]")
_TYPE = click.Option(["--type", "kind"], type=click.Choice(["Normal", "Super"]), help="Super: may do all.")
_SUBJECT = click.Argument(["subject"], metavar="SUBJECT")
_WHAT = (
    click.Option(
        ["--resource"],
        multiple=True,
        required=True,
        metavar="KIND:NAME",
        help="Topic:orders, Group:billing, Topic:dev* ...",
    ),
    click.Option(
        ["--action"],
        multiple=True,
        required=True,
        type=click.Choice(["All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"]),
        help="What it may do.",
    ),
    click.Option(["--from", "source"], multiple=True, metavar="ADDRESS", help="Only from there."),
    click.Option(["--deny"], is_flag=True, help="It may not."),
)

action(USER, "list", "List users.", "acl:list_users", *where())


action(USER, "create", "Create a user.", "acl:create_user", _NAME, _PASSWORD, _TYPE, *where(), changes=True)


action(
    USER,
    "update",
    "Change a user: password, type, or whether it counts.",
    "acl:update_user",
    _NAME,
    _PASSWORD,
    _TYPE,
    click.Option(["--enable/--disable", "enable"], default=None, help="Whether it may connect."),
    *where(),
    changes=True,
)


action(USER, "delete", "Delete a user.", "acl:delete_user", _NAME, *where(), changes=True)


action(
    POLICY,
    "list",
    "List what subjects may do.",
    "acl:list_policies",
    click.Option(["--subject"], help="Only subjects with this in them."),
    click.Option(["--resource"], help="Only resources with this in them."),
    *where(),
)


action(
    POLICY,
    "create",
    "Say what a subject may do.",
    "acl:create_policy",
    _SUBJECT,
    *_WHAT,
    *where(),
    changes=True,
)


action(
    POLICY,
    "update",
    "Change what a subject may do with resources.",
    "acl:update_policy",
    _SUBJECT,
    *_WHAT,
    *where(),
    changes=True,
)


action(
    POLICY,
    "delete",
    "Say no more what a subject may do: with one resource, or at all.",
    "acl:delete_policy",
    _SUBJECT,
    click.Option(["--resource"], metavar="KIND:NAME", help="Only of this one."),
    *where(),
    changes=True,
)

ACL.add_command(USER)
ACL.add_command(POLICY)

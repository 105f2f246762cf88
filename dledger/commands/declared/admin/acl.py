"""`dledger admin acl`: users and their permissions, at brokers that have access control 2.0."""

from __future__ import annotations

import click

from dledger.commands.declared.admin.options import action, group, where

ACL = group("acl", "Access control: user, policy.")
USER = group("user", "Users: list, create, update, delete.")
POLICY = group("policy", "Permissions of subjects: list, create, update, delete.")
_NAME = click.Argument(["name"], metavar="USER")
_PASSWORD = click.Option(["--password"], help="Password of the user. [asked for if it is needed]")
_TYPE = click.Option(
    ["--type", "kind"], type=click.Choice(["Normal", "Super"]), help="Super: everything is permitted."
)
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
        help="Actions that are permitted.",
    ),
    click.Option(
        ["--from", "source"], multiple=True, metavar="ADDRESS", help="Permit requests only from this address."
    ),
    click.Option(["--deny"], is_flag=True, help="Deny these actions instead."),
)

action(USER, "list", "List users.", "acl:list_users", *where())


action(USER, "create", "Create a user.", "acl:create_user", _NAME, _PASSWORD, _TYPE, *where(), changes=True)


action(
    USER,
    "update",
    "Change a user: password, type, or whether it is enabled.",
    "acl:update_user",
    _NAME,
    _PASSWORD,
    _TYPE,
    click.Option(["--enable/--disable", "enable"], default=None, help="Whether the user may connect."),
    *where(),
    changes=True,
)


action(USER, "delete", "Delete a user.", "acl:delete_user", _NAME, *where(), changes=True)


action(
    POLICY,
    "list",
    "List the permissions of subjects.",
    "acl:list_policies",
    click.Option(["--subject"], help="Only subjects that contain this text."),
    click.Option(["--resource"], help="Only resources that contain this text."),
    *where(),
)


action(
    POLICY,
    "create",
    "Set the permissions of a subject.",
    "acl:create_policy",
    _SUBJECT,
    *_WHAT,
    *where(),
    changes=True,
)


action(
    POLICY,
    "update",
    "Change the permissions of a subject for resources.",
    "acl:update_policy",
    _SUBJECT,
    *_WHAT,
    *where(),
    changes=True,
)


action(
    POLICY,
    "delete",
    "Delete the permissions of a subject, for one resource or for all.",
    "acl:delete_policy",
    _SUBJECT,
    click.Option(["--resource"], metavar="KIND:NAME", help="Only the permission for this resource."),
    *where(),
    changes=True,
)

ACL.add_command(USER)
ACL.add_command(POLICY)

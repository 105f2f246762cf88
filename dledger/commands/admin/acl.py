"""`dledger admin acl`: users and their permissions, at brokers that have access control 2.0."""

from __future__ import annotations

import click
import msgspec

from dledger.admin import AsyncAdminClient
from dledger.admin.accounts import policy
from dledger.client import ClientError
from dledger.commands.admin.places import addresses, each, masters
from dledger.commands.admin.running import Told, did_you_mean
from dledger.commands.admin.showing import Table
from dledger.remoting.auth_bodies import AclInfo, UserInfo


async def list_users(admin: AsyncAdminClient, told: Told, cluster: str | None, broker: str | None) -> None:
    rows = []
    for name, address in (await masters(admin, cluster, broker)).items():
        for user in await admin.accounts.users(address):
            rows.append((name, user.username, user.userType, user.userStatus))
    data = [{"broker": row[0], "user": row[1], "type": row[2], "status": row[3]} for row in rows]
    told.show({"users": data}, Table("", ("broker", "user", "type", "status"), rows, "no users"))


async def create_user(
    admin: AsyncAdminClient,
    told: Told,
    name: str,
    password: str | None,
    kind: str | None,
    cluster: str | None,
    broker: str | None,
) -> None:
    if password is None:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    user = UserInfo(name, password, kind)
    places = await addresses(admin, cluster, broker)
    if not told.dry_run:
        await each(places, lambda address: admin.accounts.create_user(address, user))
    verb = "would be created" if told.dry_run else "is created"
    told.show(
        {"user": name, "brokers": places, "dryRun": told.dry_run}, f"{name} {verb} at {', '.join(places)}"
    )


async def update_user(
    admin: AsyncAdminClient,
    told: Told,
    name: str,
    password: str | None,
    kind: str | None,
    enable: bool | None,
    cluster: str | None,
    broker: str | None,
) -> None:
    if (password, kind, enable) == (None, None, None):
        raise ClientError(
            "nothing to change: give at least one of --password, --type, --enable and --disable"
        )
    await _user(admin, name, cluster, broker)
    status = None if enable is None else "enable" if enable else "disable"
    user = UserInfo(name, password, kind, status)
    places = await addresses(admin, cluster, broker)
    if not told.dry_run:
        await each(places, lambda address: admin.accounts.update_user(address, user))
    data = {"user": name, "type": kind, "status": status, "brokers": places, "dryRun": told.dry_run}
    told.show(data, f"{name} {'would be' if told.dry_run else 'is'} changed at {', '.join(places)}")


async def delete_user(
    admin: AsyncAdminClient, told: Told, name: str, cluster: str | None, broker: str | None
) -> None:
    await _user(admin, name, cluster, broker)
    places = await addresses(admin, cluster, broker)
    if not told.dry_run:
        told.agreed(f"Delete the user {name}?")
        await each(places, lambda address: admin.accounts.delete_user(address, name))
    verb = "would be deleted" if told.dry_run else "is deleted"
    told.show(
        {"user": name, "brokers": places, "dryRun": told.dry_run}, f"{name} {verb} at {', '.join(places)}"
    )


async def _user(admin: AsyncAdminClient, name: str, cluster: str | None, broker: str | None) -> None:
    """Check that a user exists at one of the brokers; raises ClientError if not."""
    known: list[str] = []
    for address in (await masters(admin, cluster, broker)).values():
        known += [user.username or "" for user in await admin.accounts.users(address)]
    if name not in known:
        raise ClientError(f"there is no user {name!r}{did_you_mean(name, known)}")


async def list_policies(
    admin: AsyncAdminClient,
    told: Told,
    subject: str | None,
    resource: str | None,
    cluster: str | None,
    broker: str | None,
) -> None:
    rows, data = [], []
    for name, address in (await masters(admin, cluster, broker)).items():
        for acl in await admin.accounts.acls(address, subject, resource):
            data.append({"broker": name, **msgspec.to_builtins(acl)})
            rows += [(name, *row) for row in _rows(acl)]
    columns = ("broker", "subject", "resource", "actions", "from", "decision")
    told.show({"policies": data}, Table("", columns, rows, "no policies"))


def _rows(acl: AclInfo) -> list[tuple[object, ...]]:
    return [
        (acl.subject, one.resource, " ".join(one.actions or ()), " ".join(one.sourceIps or ()), one.decision)
        for part in acl.policies or ()
        for one in part.entries or ()
    ]


async def _put(
    admin: AsyncAdminClient, told: Told, acl: AclInfo, cluster: str | None, broker: str | None, new: bool
) -> None:
    places = await addresses(admin, cluster, broker)
    change = admin.accounts.create_acl if new else admin.accounts.update_acl
    if not told.dry_run:
        await each(places, lambda address: change(address, acl))
    table = Table(
        "would be set" if told.dry_run else "is set",
        ("subject", "resource", "actions", "from", "decision"),
        _rows(acl),
    )
    told.show({"acl": msgspec.to_builtins(acl), "brokers": places, "dryRun": told.dry_run}, table)


def _subject(text: str) -> str:
    return text if ":" in text else f"User:{text}"


async def create_policy(
    admin: AsyncAdminClient,
    told: Told,
    subject: str,
    resource: tuple[str, ...],
    action: tuple[str, ...],
    source: tuple[str, ...],
    deny: bool,
    cluster: str | None,
    broker: str | None,
) -> None:
    acl = policy(_subject(subject), resource, action, source, "Deny" if deny else "Allow")
    await _put(admin, told, acl, cluster, broker, new=True)


async def update_policy(
    admin: AsyncAdminClient,
    told: Told,
    subject: str,
    resource: tuple[str, ...],
    action: tuple[str, ...],
    source: tuple[str, ...],
    deny: bool,
    cluster: str | None,
    broker: str | None,
) -> None:
    acl = policy(_subject(subject), resource, action, source, "Deny" if deny else "Allow")
    await _put(admin, told, acl, cluster, broker, new=False)


async def delete_policy(
    admin: AsyncAdminClient,
    told: Told,
    subject: str,
    resource: str | None,
    cluster: str | None,
    broker: str | None,
) -> None:
    name = _subject(subject)
    places = await addresses(admin, cluster, broker)
    if not told.dry_run:
        told.agreed(f"Delete {'all' if resource is None else resource} of {name}?")
        await each(places, lambda address: admin.accounts.delete_acl(address, name, resource))
    data = {"subject": name, "resource": resource, "brokers": places, "dryRun": told.dry_run}
    verb = "would be deleted" if told.dry_run else "deleted"
    told.show(data, f"{resource or 'all'} of {name}: {verb} at {', '.join(places)}")

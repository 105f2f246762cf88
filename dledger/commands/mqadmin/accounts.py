"""Commands of access control: users and policies (version 2.0), and accounts in plain_acl.yml (version
1.0, as in mqadmin 4.9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from dledger.admin.accounts import PlainAccount, policy
from dledger.client import ClientError
from dledger.commands.mqadmin.call import Call, seconds
from dledger.commands.mqadmin.output import Table
from dledger.remoting.auth_bodies import AclInfo, UserInfo

USERS = Table.of(
    "users", ("#UserName", "#Password", "#UserType", "#UserStatus"), "%-16s  %-22s  %-22s  %-22s"
)
ACLS = Table.of(
    "acls",
    ("#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision"),
    "%-16s  %-10s  %-22s  %-20s  %-24s  %-10s",
)
VERSIONS = Table.of(
    "versions",
    (
        "#Cluster Name",
        "#Broker Name",
        "#Broker Addr",
        "#AclFilePath",
        "#AclConfigVersionNum",
        "#AclLastUpdateTime",
    ),
    "%-16s  %-22s  %-22s  %-20s  %-22s  %-22s",
)


async def _change(call: Call, what: str, change: Callable[[str], Awaitable[None]]) -> None:
    async def done(address: str) -> None:
        await change(address)
        call.out.line(f"{what} to {address} success.")

    await call.each(await call.brokers(), done)


def _user(call: Call) -> UserInfo:
    given = call.given
    return UserInfo(given.text("u"), given.maybe("p"), given.maybe("t"), given.maybe("s"))


async def create_user(call: Call) -> None:
    user = _user(call)
    await _change(call, "create user", lambda at: call.admin.accounts.create_user(at, user))


async def update_user(call: Call) -> None:
    user = _user(call)
    await _change(call, "update user", lambda at: call.admin.accounts.update_user(at, user))


async def delete_user(call: Call) -> None:
    name = call.given.text("u")
    await _change(call, "delete user", lambda at: call.admin.accounts.delete_user(at, name))


async def get_user(call: Call) -> None:
    name = call.given.maybe("u") or ""
    for address in await call.masters():
        found = await call.admin.accounts.user(address, name)
        if found is not None:
            _show_users(call, [found])
            return
    raise ClientError(f"there is no user {name!r}")


async def list_user(call: Call) -> None:
    for address in await call.masters():
        found = await call.admin.accounts.users(address, call.given.maybe("f"))
        if found:
            _show_users(call, found)
            if "c" in call.given:
                call.out.line(f"get user from {address} success.")
            return


def _show_users(call: Call, users: list[UserInfo]) -> None:
    call.out.table(USERS, [(one.username, one.password, one.userType, one.userStatus) for one in users])


async def copy_user(call: Call) -> None:
    source, target, accounts = call.given.text("f"), call.given.text("t"), call.admin.accounts
    names = call.given.words("u")
    found = [await accounts.user(source, name) for name in names] if names else await accounts.users(source)
    for user in found:
        if user is None or user.username is None:
            continue
        there = await accounts.user(target, user.username)
        await (accounts.create_user if there is None else accounts.update_user)(target, user)
        call.out.line(f"copy user of {user.username} from {source} to {target} success.")


def _policy(call: Call) -> AclInfo:
    given = call.given
    return policy(given.text("s"), given.words("r"), given.words("a"), given.words("i"), given.text("d"))


async def create_acl(call: Call) -> None:
    acl = _policy(call)
    await _change(call, "create acl", lambda at: call.admin.accounts.create_acl(at, acl))


async def update_acl(call: Call) -> None:
    acl = _policy(call)
    await _change(call, "update acl", lambda at: call.admin.accounts.update_acl(at, acl))


async def delete_acl(call: Call) -> None:
    subject, resource = call.given.text("s"), call.given.maybe("r")
    await _change(call, "delete acl", lambda at: call.admin.accounts.delete_acl(at, subject, resource))


async def get_acl(call: Call) -> None:
    for address in await call.masters():
        found = await call.admin.accounts.acl(address, call.given.maybe("s") or "")
        if found is not None:
            _show_acls(call, [found])


async def list_acl(call: Call) -> None:
    for address in await call.masters():
        found = await call.admin.accounts.acls(address, call.given.maybe("s"), call.given.maybe("r"))
        if found:
            _show_acls(call, found)


def _show_acls(call: Call, acls: list[AclInfo]) -> None:
    call.out.head(ACLS)
    for acl in acls:
        if not acl.policies:
            call.out.row(ACLS, acl.subject, "", "", "", "", "")
        for one in acl.policies or ():
            for entry in one.entries or ():
                actions, addresses = (_list(part) for part in (entry.actions, entry.sourceIps))
                call.out.row(
                    ACLS, acl.subject, one.policyType, entry.resource, actions, addresses, entry.decision
                )


def _list(values: list[str] | None) -> str:
    return "null" if values is None else f"[{', '.join(values)}]"


async def copy_acl(call: Call) -> None:
    source, target, accounts = call.given.text("f"), call.given.text("t"), call.admin.accounts
    names = call.given.words("s")
    found = [await accounts.acl(source, name) for name in names] if names else await accounts.acls(source)
    for acl in found:
        if acl is None or acl.subject is None:
            continue
        there = await accounts.acl(target, acl.subject)
        await (accounts.create_acl if there is None else accounts.update_acl)(target, acl)
        call.out.line(f"copy acl of {acl.subject} from {source} to {target} success.")


# --- 1.0 ----------------------------------------------------------------------------------------------


async def update_account(call: Call) -> None:
    given = call.given
    account = PlainAccount(
        given.text("a"),
        given.text("s"),
        given.maybe("w"),
        given.true("m") if "m" in given else None,
        given.maybe("i"),
        given.maybe("u"),
        tuple(given.words("t")) if "t" in given else None,
        tuple(given.words("g")) if "g" in given else None,
    )
    await _change(call, "create or update plain access config",
                  lambda at: call.admin.accounts.put_account(at, account))  # fmt: skip


async def delete_account(call: Call) -> None:
    key = call.given.text("a")
    await _change(call, "delete plain access config account",
                  lambda at: call.admin.accounts.delete_account(at, key))  # fmt: skip


async def white_addresses(call: Call) -> None:
    addresses, path = call.given.words("g"), call.given.maybe("p")
    await _change(call, "update global white remote addresses",
                  lambda at: call.admin.accounts.set_white_addresses(at, addresses, path))  # fmt: skip


async def account_versions(call: Call) -> None:
    call.out.head(VERSIONS)

    async def show(address: str) -> None:
        found = await call.admin.accounts.account_version(address)
        for path, version in sorted(found.versions.items()):
            when = seconds(version.timestamp)
            where = (found.clusterName, found.brokerName, found.brokerAddr)
            call.out.row(VERSIONS, *where, path, version.counter, when)

    await call.each(await call.brokers(), show)


async def accounts(call: Call) -> None:
    async def show(address: str) -> None:
        found = await call.admin.accounts.accounts(address)
        lines = [f"\n{'globalWhiteRemoteAddresses':<20}: {found.globalWhiteAddrs}", "\naccounts:"]
        for account in found.plainAccessConfigs:
            for name, value in msgspec.to_builtins(account).items():
                lines.append(f"{'':1} {name:<18}: {_hidden(name, value)}")
            lines.append("")
        shown = [
            {name: _hidden(name, value) for name, value in msgspec.to_builtins(account).items()}
            for account in found.plainAccessConfigs
        ]
        row = {"address": address, "globalWhiteAddrs": found.globalWhiteAddrs, "accounts": shown}
        call.out.item("brokers", row, "\n".join(lines))

    await call.each(await call.masters(), show)


def _hidden(name: str, value: object) -> object:
    """Return the value, or asterisks if the name says that it is a secret, as Apache's mqadmin shows it."""
    return "******" if name == "secretKey" and value else value

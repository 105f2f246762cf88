"""Access control at one broker: users and policies (version 2.0, requests 3001 to 3010), and the accounts of
`plain_acl.yml` (version 1.0, requests 50 to 54)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from dledger.admin.asking import Asking, Refused, read_body
from dledger.admin.blocking import Blocking, Face
from dledger.client.errors import BrokerRefused
from dledger.remoting.apache_headers import AccessConfigHeader, AccessKeyHeader, WhiteAddressesHeader
from dledger.remoting.auth_bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.operator_bodies import AclConfig, AclVersion, DataVersionInfo
from dledger.remoting.operator_headers import (
    DeleteAclHeader,
    ListAclsHeader,
    ListUsersHeader,
    SubjectHeader,
    UserHeader,
)

MAX_CHANGE_ATTEMPTS = 3
"""How often a change of users is tried if each attempt meets another change at the same time."""
NONE_THERE = (ResponseCode.USER_NOT_EXIST, ResponseCode.POLICY_NOT_EXIST)


@dataclass(frozen=True)
class PlainAccount:
    """An account of access control 1.0. Permissions have the form `name=PUB|SUB`. Fields that are None leave
    the account's value unchanged."""

    access_key: str
    secret_key: str | None = None
    white_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: tuple[str, ...] | None = None
    group_perms: tuple[str, ...] | None = None


class Accounts:
    """Operations on accounts. Raises ClientError if a server refuses or does not answer."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    # --- users (2.0) ----------------------------------------------------------------------------------

    async def create_user(self, address: str, user: UserInfo) -> None:
        """Create a user with a name and a password (request 3001 AUTH_CREATE_USER). `userType` is Normal or
        Super."""
        await self._put_user(address, RequestCode.AUTH_CREATE_USER, user)

    async def update_user(self, address: str, user: UserInfo) -> None:
        """Change those fields of a user that are given (request 3002 AUTH_UPDATE_USER). `userStatus` is
        enable or disable."""
        await self._put_user(address, RequestCode.AUTH_UPDATE_USER, user)

    async def delete_user(self, address: str, name: str) -> None:
        """Delete a user (request 3003 AUTH_DELETE_USER)."""

        async def delete(version: int | None) -> None:
            await self._asking.broker(address, RequestCode.AUTH_DELETE_USER, UserHeader(name, version))

        await self._change(address, name, delete)

    async def user(self, address: str, name: str) -> UserInfo | None:
        """The user with this name (request 3004 AUTH_GET_USER); None if there is none."""
        code = RequestCode.AUTH_GET_USER
        answer = await self._asking.broker(address, code, UserHeader(name), accept=NONE_THERE)
        return read_body("user", UserInfo, answer.body) if answer.body and not answer.code else None

    async def users(self, address: str, name_part: str | None = None) -> list[UserInfo]:
        """All users (request 3005 AUTH_LIST_USER), or those whose names contain `name_part`."""
        answer = await self._asking.broker(address, RequestCode.AUTH_LIST_USER, ListUsersHeader(name_part))
        return read_body("users", list[UserInfo], answer.body) if answer.body else []

    # --- policies (2.0) -------------------------------------------------------------------------------

    async def create_acl(self, address: str, acl: AclInfo) -> None:
        """Create the policies of a subject (request 3006 AUTH_CREATE_ACL)."""
        await self._put_acl(address, RequestCode.AUTH_CREATE_ACL, acl)

    async def update_acl(self, address: str, acl: AclInfo) -> None:
        """Change the policies of a subject, resource by resource, or add policies (request 3007
        AUTH_UPDATE_ACL)."""
        await self._put_acl(address, RequestCode.AUTH_UPDATE_ACL, acl)

    async def delete_acl(self, address: str, subject: str, resource: str | None = None) -> None:
        """Delete the policies of a subject for one resource, or for all resources (request 3008
        AUTH_DELETE_ACL)."""

        async def delete(version: int | None) -> None:
            header = DeleteAclHeader(subject, None, resource, version)
            await self._asking.broker(address, RequestCode.AUTH_DELETE_ACL, header)

        await self._change(address, subject.removeprefix("User:"), delete)

    async def acl(self, address: str, subject: str) -> AclInfo | None:
        """The policies of a subject (request 3009 AUTH_GET_ACL); None if it has none."""
        code = RequestCode.AUTH_GET_ACL
        answer = await self._asking.broker(address, code, SubjectHeader(subject), accept=NONE_THERE)
        return read_body("acl", AclInfo, answer.body) if answer.body and not answer.code else None

    async def acls(
        self, address: str, subject: str | None = None, resource: str | None = None
    ) -> list[AclInfo]:
        """The policies of all subjects, or of those whose subject or resource contains these texts (request
        3010 AUTH_LIST_ACL)."""
        header = ListAclsHeader(subject, resource)
        answer = await self._asking.broker(address, RequestCode.AUTH_LIST_ACL, header)
        return read_body("acls", list[AclInfo], answer.body) if answer.body else []

    async def _put_user(self, address: str, code: RequestCode, user: UserInfo) -> None:
        name = user.username or ""

        async def put(version: int | None) -> None:
            await self._asking.broker(address, code, UserHeader(name, version), user.encode())

        await self._change(address, name, put)

    async def _put_acl(self, address: str, code: RequestCode, acl: AclInfo) -> None:
        subject = acl.subject or ""

        async def put(version: int | None) -> None:
            await self._asking.broker(address, code, SubjectHeader(subject, version), acl.encode())

        await self._change(address, subject.removeprefix("User:"), put)

    async def _change(self, address: str, name: str, send: Callable[[int | None], Awaitable[None]]) -> None:
        """Change a user or its policies. The request carries the broker's current version of the users, so
        that a request which arrives late changes nothing. If another change came first, it is repeated with
        the new version."""
        for attempt in range(1, MAX_CHANGE_ATTEMPTS + 1):
            try:
                await send(await self._version(address, name))
                return
            except Refused as error:
                if error.code != ResponseCode.SYSTEM_BUSY or attempt == MAX_CHANGE_ATTEMPTS:
                    raise

    async def _version(self, address: str, name: str) -> int | None:
        """The version of a broker's users. None if the broker does not report it, because it is a broker of
        Apache or because this account may not read users."""
        unsaid = (*NONE_THERE, ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR)
        answer = await self._asking.broker(
            address, RequestCode.AUTH_GET_USER, UserHeader(name), accept=unsaid
        )
        text = answer.ext.get("version", "")
        return int(text) if text.isascii() and text.isdecimal() else None

    # --- accounts (1.0) -------------------------------------------------------------------------------

    async def put_account(self, address: str, account: PlainAccount) -> None:
        """Create an account, or change it (request 50 UPDATE_AND_CREATE_ACL_CONFIG). Lists of permissions
        replace the previous ones."""
        header = AccessConfigHeader(
            account.access_key,
            account.secret_key,
            account.white_address,
            account.admin,
            account.default_topic_perm,
            account.default_group_perm,
            None if account.topic_perms is None else ",".join(account.topic_perms),
            None if account.group_perms is None else ",".join(account.group_perms),
        )
        await self._asking.broker(address, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header)

    async def delete_account(self, address: str, access_key: str) -> None:
        """Delete an account (request 51 DELETE_ACL_CONFIG)."""
        await self._asking.broker(address, RequestCode.DELETE_ACL_CONFIG, AccessKeyHeader(access_key))

    async def set_white_addresses(
        self, address: str, addresses: Sequence[str], path: str | None = None
    ) -> None:
        """Set the addresses from which clients need no account (request 53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG).
        `path` names the broker's file to change."""
        header = WhiteAddressesHeader(",".join(addresses), path)
        await self._asking.broker(address, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)

    async def account_version(self, address: str) -> AclVersion:
        """The version of a broker's accounts (request 52 GET_BROKER_CLUSTER_ACL_INFO)."""
        answer = await self._asking.broker(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        ext = answer.ext
        return AclVersion(
            ext.get("clusterName", ""), ext.get("brokerName", ""), ext.get("brokerAddr", ""), _versions(ext)
        )

    async def accounts(self, address: str) -> AclConfig:
        """All accounts of a broker (request 54 GET_BROKER_CLUSTER_ACL_CONFIG)."""
        answer = await self._asking.broker(address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        return read_body("accounts", AclConfig, answer.body)


def policy(
    subject: str,
    resources: Sequence[str],
    actions: Sequence[str],
    addresses: Sequence[str],
    decision: str,
) -> AclInfo:
    """Make policies as mqadmin's createAcl does, with the same entry for each resource."""
    entries = [PolicyEntryInfo(one, list(actions), list(addresses) or None, decision) for one in resources]
    return AclInfo(subject, [PolicyInfo("Custom", entries)])


def _versions(ext: dict[str, str]) -> dict[str, DataVersionInfo]:
    """Maps a file with accounts to its version, as newer brokers report them. Older brokers report one
    version; its file name is empty."""
    try:
        if "allAclFileVersion" in ext:
            by_file = ext["allAclFileVersion"].encode()
            return msgspec.json.decode(by_file, type=dict[str, DataVersionInfo])
        if "version" in ext:
            return {"": msgspec.json.decode(ext["version"].encode(), type=DataVersionInfo)}
    except msgspec.DecodeError as error:
        raise BrokerRefused(f"the version of the accounts cannot be read: {error}") from error
    return {}


class BlockingAccounts(Face[Accounts]):
    """The methods of `Accounts` as blocking methods."""

    create_user = Blocking(Accounts.create_user)
    update_user = Blocking(Accounts.update_user)
    delete_user = Blocking(Accounts.delete_user)
    user = Blocking(Accounts.user)
    users = Blocking(Accounts.users)
    create_acl = Blocking(Accounts.create_acl)
    update_acl = Blocking(Accounts.update_acl)
    delete_acl = Blocking(Accounts.delete_acl)
    acl = Blocking(Accounts.acl)
    acls = Blocking(Accounts.acls)
    put_account = Blocking(Accounts.put_account)
    delete_account = Blocking(Accounts.delete_account)
    set_white_addresses = Blocking(Accounts.set_white_addresses)
    account_version = Blocking(Accounts.account_version)
    accounts = Blocking(Accounts.accounts)

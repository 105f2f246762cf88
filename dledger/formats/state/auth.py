"""Users and their policies: RocketMQ's ACL 2.0 (LocalAuthenticationMetadataProvider), stored in the log.

A password is stored unchanged, because a broker checks a signature by computing it from the password. So
anybody who can read the log or a snapshot can read the passwords; views leave them out.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from dledger.formats.state.table import Declared, Name, Row

MAX_PASSWORD = 255
"""Limit, in characters, of a password."""
MAX_RESOURCE = 300
"""Limit, in characters, of a resource (its kind and a name)."""
MAX_SOURCES = 32
"""Largest number of addresses and networks in one ACL entry."""
MAX_SOURCE = 64
"""Limit, in characters, of an address or network."""
USER_DELETE, ACL_DELETE = "user_delete", "acl_delete"
_SINCE = 7

PolicyType = Literal["Custom", "Default"]
ActionName = Literal["All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"]
Source = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SOURCE)]


class User(Row, frozen=True):
    """A user that may sign requests. A `superuser` may do everything; a user that is not enabled may do
    nothing."""

    operation: ClassVar[str] = "user"
    secret: ClassVar[frozenset[str]] = frozenset(("password",))
    name: Name
    password: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PASSWORD)]
    superuser: bool = False
    enabled: bool = True


class AclEntry(Row, frozen=True):
    """A permission or prohibition for a user (PolicyEntry). It covers `actions` on a `resource` such as
    `Topic:orders*`, from the addresses and networks in `sources`, or from anywhere if `sources` is empty.
    Entries with the policy "Default" apply only where no entry with "Custom" matches."""

    operation: ClassVar[str] = "acl"
    user: Name
    policy: PolicyType
    resource: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_RESOURCE)]
    actions: Annotated[tuple[ActionName, ...], msgspec.Meta(min_length=1, max_length=8)]
    allow: bool
    sources: Annotated[tuple[Source, ...], msgspec.Meta(max_length=MAX_SOURCES)] = ()


AclKey = tuple[str, str, str]
"""Key of an ACL entry: user, policy type, resource."""

USERS = Declared[str, User]("users", User, key=("name",), since=_SINCE, remove=USER_DELETE)
ACLS = Declared[AclKey, AclEntry](
    "acls",
    AclEntry,
    key=("user", "policy", "resource"),
    since=_SINCE,
    remove=ACL_DELETE,
    of={"user": "user"},
)

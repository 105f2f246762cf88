"""Users and their policies: RocketMQ's ACL 2.0 (LocalAuthenticationMetadataProvider), here in the log.

A password is kept as it is: a signature is checked by computing it, which needs the secret. Whoever reads the
log or a snapshot reads the passwords; views leave them out.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from dledger.formats.state.table import Declared, Name, Row

MAX_PASSWORD = 255
"""Characters of a password."""
MAX_RESOURCE = 300
"""Characters of a resource: its kind, and a name."""
MAX_SOURCES = 32
"""Addresses and networks of one entry."""
MAX_SOURCE = 64
"""Characters of one."""
USER_DELETE, ACL_DELETE = "user_delete", "acl_delete"
_SINCE = 7

PolicyType = Literal["Custom", "Default"]
ActionName = Literal["All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"]
Source = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SOURCE)]


class User(Row, frozen=True):
    """Who may sign requests. A `superuser` may do everything; one that is not enabled, nothing."""

    operation: ClassVar[str] = "user"
    secret: ClassVar[frozenset[str]] = frozenset(("password",))
    name: Name
    password: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PASSWORD)]
    superuser: bool = False
    enabled: bool = True


class AclEntry(Row, frozen=True):
    """What a user may do, or may not (PolicyEntry): `actions` on what `resource` means, as `Topic:orders*`,
    from the addresses and networks `sources`, where there are some. Entries of the policy "Default" count
    where none of "Custom" fits."""

    operation: ClassVar[str] = "acl"
    user: Name
    policy: PolicyType
    resource: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_RESOURCE)]
    actions: Annotated[tuple[ActionName, ...], msgspec.Meta(min_length=1, max_length=8)]
    allow: bool
    sources: Annotated[tuple[Source, ...], msgspec.Meta(max_length=MAX_SOURCES)] = ()


AclKey = tuple[str, str, str]
"""User, policy type, resource."""

USERS = Declared[str, User]("users", User, key=("name",), since=_SINCE, remove=USER_DELETE)
ACLS = Declared[AclKey, AclEntry](
    "acls",
    AclEntry,
    key=("user", "policy", "resource"),
    since=_SINCE,
    remove=ACL_DELETE,
    of={"user": "user"},
)

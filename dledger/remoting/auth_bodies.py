"""Bodies of users and policies (UserInfo, AclInfo)."""

from __future__ import annotations

from dledger.remoting.bodies import Body


class UserInfo(Body):
    """Body of 3001 AUTH_CREATE_USER and 3002 AUTH_UPDATE_USER, and answer to 3004 AUTH_GET_USER. The answer
    to 3005 AUTH_LIST_USER is a list of them. A change leaves omitted fields as they are."""

    username: str | None = None
    password: str | None = None
    userType: str | None = None
    """`Super` or `Normal`."""
    userStatus: str | None = None
    """`enable` or `disable`."""


class PolicyEntryInfo(Body):
    """One entry of a policy: the decision about one resource."""

    resource: str | None = None
    actions: list[str] | None = None
    sourceIps: list[str] | None = None
    decision: str | None = None
    """`Allow` or `Deny`."""


class PolicyInfo(Body):
    """One policy with its entries."""

    policyType: str | None = None
    """`Custom` or `Default`; Custom when it is omitted."""
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(Body):
    """Body of 3006 AUTH_CREATE_ACL and 3007 AUTH_UPDATE_ACL, and answer to 3009 AUTH_GET_ACL. The answer to
    3010 AUTH_LIST_ACL is a list of them."""

    subject: str | None = None
    """`User:` followed by a name."""
    policies: list[PolicyInfo] | None = None

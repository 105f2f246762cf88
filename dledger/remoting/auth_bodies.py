"""Bodies of users and policies (UserInfo, AclInfo)."""

from __future__ import annotations

from dledger.remoting.bodies import Body


class UserInfo(Body):
    """Body of 3001 and 3002, answer to 3004; the answer to 3005 is a list of them. A change leaves omitted
    fields as they are."""

    username: str | None = None
    password: str | None = None
    userType: str | None = None
    """`Super` or `Normal`."""
    userStatus: str | None = None
    """`enable` or `disable`."""


class PolicyEntryInfo(Body):
    """One entry of a policy."""

    resource: str | None = None
    actions: list[str] | None = None
    sourceIps: list[str] | None = None
    decision: str | None = None
    """`Allow` or `Deny`."""


class PolicyInfo(Body):
    """Entries of one policy."""

    policyType: str | None = None
    """`Custom` or `Default`; Custom when it is omitted."""
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(Body):
    """Body of 3006 and 3007, answer to 3009; the answer to 3010 is a list of them."""

    subject: str | None = None
    """`User:` followed by a name."""
    policies: list[PolicyInfo] | None = None

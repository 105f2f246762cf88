"""Accounts and white lists of RocketMQ's ACL 1.0. They are read from `plain_acl.yml` and from further files
of the same form.

Such a file is for example:

    globalWhiteRemoteAddresses:
      - 10.10.103.*
    accounts:
      - accessKey: RocketMQ
        secretKey: 12345678
        whiteRemoteAddress:
        admin: false
        defaultTopicPerm: DENY
        defaultGroupPerm: SUB
        topicPerms: [topicA=DENY, topicB=PUB|SUB]
        groupPerms: [groupA=DENY]

A misspelt or missing value is an error, whose text names the place in the file. RocketMQ takes such a value
for DENY, or ignores it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import yaml

from dledger.broker.auth.address_rules import AddressRule
from dledger.broker.topic.topic_names import RETRY_PREFIX
from dledger.remoting.signing import SigningKey

MAX_FILE = 1 << 20
"""Limit, in bytes, of one file; a longer one is an error. A file of this size has room for about 5,000
accounts, which a worker parses in about one second."""
MIN_KEY = 7
"""Smallest number of characters of an access key and of a secret key (AclConstants requires more than 6)."""

DENY, PUB, SUB = 1, 4, 8
"""Permission bits, with the values that RocketMQ uses."""
_PERMS = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB, "ANY": PUB | SUB}
_FLAGS = {"true": True, "false": False, "": False}
_FILE_FIELDS = {"globalWhiteRemoteAddresses", "accounts", "dataVersion"}
_ACCOUNT_FIELDS = {
    *("accessKey", "secretKey", "whiteRemoteAddress", "admin"),
    *("defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms"),
}


class AclError(ValueError):
    """Raised if a file cannot be used. The text names the place in the file and says how to correct it."""


@dataclass(frozen=True)
class Account:
    """One account. `perms` maps a topic, or the retry topic of a group, to permission bits."""

    access_key: str
    secret: bytes
    key: SigningKey
    white: AddressRule
    admin: bool
    topic_perm: int
    group_perm: int
    perms: Mapping[str, int]

    def perm(self, resource: str) -> int:
        """Return the permission bits for a topic or, if `resource` is a retry topic, for its group."""
        default = self.group_perm if resource.startswith(RETRY_PREFIX) else self.topic_perm
        return self.perms.get(resource, default)


@dataclass(frozen=True)
class Accounts:
    """The accounts and white lists of all files together."""

    white: tuple[AddressRule, ...]
    by_key: Mapping[str, Account]


NOBODY = Accounts((), MappingProxyType({}))


def parse_accounts(files: Iterable[tuple[str, bytes]]) -> Accounts:
    """Parse files, each given as its path and content, and return the accounts of all of them. Raises
    AclError if a file cannot be used."""
    white: list[AddressRule] = []
    found: dict[str, Account] = {}
    for path, data in files:
        try:
            for account in _parse(data, white):
                if account.access_key in found:
                    raise AclError(f"accessKey {account.access_key} is given twice")
                found[account.access_key] = account
        except AclError as error:
            raise AclError(f"{path}: {error}") from None
    return Accounts(tuple(white), MappingProxyType(found))


def _parse(data: bytes, white: list[AddressRule]) -> Iterable[Account]:
    if len(data) > MAX_FILE:
        raise AclError(f"the file has {len(data)} bytes; the limit is {MAX_FILE}")
    try:
        # All scalars stay texts as they are written: 012345678 is a secret, not a number.
        value = yaml.load(data.decode(), Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise AclError(f"not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise AclError("expected globalWhiteRemoteAddresses and accounts")
    _known(value, _FILE_FIELDS, "the file")
    name = "globalWhiteRemoteAddresses"
    white += [_rule(text, name) for text in _texts(value, name)]
    accounts = value.get("accounts") or []
    if not isinstance(accounts, list):
        raise AclError("accounts: expected a list")
    return [_account(item, number) for number, item in enumerate(accounts, 1)]


def _account(item: Any, number: int) -> Account:
    if not isinstance(item, dict):
        raise AclError(f"account {number}: expected accessKey, secretKey and so on")
    key = _text(item, "accessKey")
    where = f"account {key}" if key else f"account {number}"
    try:
        _known(item, _ACCOUNT_FIELDS, "an account")
        secret = _text(item, "secretKey")
        for name, text in (("accessKey", key), ("secretKey", secret)):
            if len(text) < MIN_KEY:
                raise AclError(f"{name} must be longer than {MIN_KEY - 1} characters")
        admin = _FLAGS.get(_text(item, "admin").lower())
        if admin is None:
            raise AclError("admin: expected true or false")
        perms = {
            **_perms(item, "topicPerms", ""),
            **_perms(item, "groupPerms", RETRY_PREFIX),
        }
        return Account(
            key,
            secret.encode(),
            SigningKey(secret.encode()),
            _rule(_text(item, "whiteRemoteAddress"), "whiteRemoteAddress"),
            admin,
            _perm(_text(item, "defaultTopicPerm") or "DENY", "defaultTopicPerm"),
            _perm(_text(item, "defaultGroupPerm") or "DENY", "defaultGroupPerm"),
            MappingProxyType(perms),
        )
    except AclError as error:
        raise AclError(f"{where}: {error}") from None


def _perms(item: Mapping[str, Any], name: str, prefix: str) -> dict[str, int]:
    found = {}
    for text in _texts(item, name):
        resource, separator, perm = text.rpartition("=")
        if not separator or not resource.strip():
            raise AclError(f"{name}: {text!r}: expected name=PERM")
        found[prefix + resource.strip()] = _perm(perm, f"{name}: {text}")
    return found


def _perm(text: str, where: str) -> int:
    perm = _PERMS.get("".join(text.split()))
    if perm is None:
        raise AclError(f"{where}: {text.strip()!r} is not one of {', '.join(_PERMS)}")
    return perm


def _rule(text: str, where: str) -> AddressRule:
    try:
        return AddressRule(text)
    except ValueError as error:
        raise AclError(f"{where}: {error}") from None


def _known(value: Mapping[str, Any], names: set[str], what: str) -> None:
    for name in value:
        if name not in names:
            raise AclError(f"{name!r} is not a field of {what}; known are {', '.join(sorted(names))}")


def _text(value: Mapping[str, Any], name: str) -> str:
    text = value.get(name, "")
    if not isinstance(text, str):
        raise AclError(f"{name}: expected a text")
    return text.strip()


def _texts(value: Mapping[str, Any], name: str) -> list[str]:
    texts = value.get(name) or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise AclError(f"{name}: expected a list")
    return texts

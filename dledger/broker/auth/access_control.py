"""Access control 1.0 (`aclEnable`): checks that a request is signed by an account, and that the account may
make it.

The checks have the order of PlainPermissionManager.validate:

1. A client whose address is in the global white list may do everything.
2. The request must name a known account.
3. The signature must be right. This is not checked if the client's address is in the white list of the
account.
4. The account must have the permissions that the request needs.

A forwarded request is checked by the follower and by the leader. Its signature is that of the client, so it
does not cover the fields that the follower added. The client address in a forwarded request is believed only
if a member of the group forwarded it (`Origins`). A worker reads the files again within 2 s of a change. If a
changed file cannot be used, the accounts stay as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from hashlib import blake2b
from hmac import compare_digest
from posixpath import dirname, join
from typing import Protocol

from dledger.broker.auth.address_rules import Segments, segments_of
from dledger.broker.auth.permissions import Permissions
from dledger.broker.auth.plain_acl import MAX_FILE, NOBODY, PUB, Account, Accounts, AclError, parse_accounts
from dledger.broker.auth.required import Needed, Rule
from dledger.broker.forwarding import ADDED_FIELDS, Origins
from dledger.broker.topic.topic_names import RETRY_PREFIX
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.errors import RemotingError
from dledger.remoting.server import Connection
from dledger.remoting.signing import ACCESS_KEY, SIGNATURE, SigningKey
from dledger.runtime.atomic_file import read_file
from dledger.runtime.env import Env
from dledger.runtime.files import Files
from dledger.runtime.settings import ConfigError
from dledger.runtime.workers import Lane

WATCH_INTERVAL_S = 1.0
"""Seconds between two checks whether the files have changed."""
MAX_FILES = 100
"""Largest number of files with accounts; more are an error."""
MAX_TEXT = 200
"""Limit, in characters, of a key or a resource in the text of a refusal; a longer one is cut."""
_SEGMENTS = "acl-address"
_BEAT = "acl-heartbeat"
_Files = tuple[tuple[str, bytes], ...]


class Access(Protocol):
    """Decides which requests may be made."""

    denied: int
    """Number of requests refused since the start."""

    def check(self, connection: Connection, request: Request) -> None:
        """Raises RemotingError 16 (NO_PERMISSION) if the request may not be made."""

    def check_needed(self, connection: Connection, request: Request, needed: Needed) -> None:
        """Raises RemotingError 16 (NO_PERMISSION) if the client of this request does not have the permission
        `needed`. For permissions that become known only when a message is read, after `check` has accepted
        the request."""

    def key_of(self, connection: Connection, name: str, topic: str) -> SigningKey | None:
        """Return the signing key of an account that may send to this topic over this connection with the
        request SEND_MESSAGE_V2. The topic is never a retry topic. None does not mean that the request is
        refused, but that `check` has to decide."""


class AccessDenied(RemotingError):
    """Raised if a request may not be made. The request is answered with code 16 NO_PERMISSION, as by RocketMQ
    5. (RocketMQ 4.9 answers with code 1, from which a client cannot see whether the request was executed.)"""

    def __init__(self, reason: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, f"AclException: {reason}")


class AccessControl:
    """Access control 1.0: holds the current accounts and checks each request."""

    def __init__(self, env: Env, path: str, origins: Origins, permissions: Permissions) -> None:
        """`path` is the path of `plain_acl.yml`. Files in a directory `acl` beside it are read as well."""
        self._permissions = permissions
        self._env = env
        self._path = path
        self._origins = origins
        self._read: _Files = ()
        self._accounts = NOBODY
        self.denied: int = 0
        """Number of requests refused since the start."""

    def load(self) -> None:
        """Read the files at the start. Raises ConfigError if there is no file, or if one cannot be used."""
        self._read, self._accounts = read_accounts(self._env.files, self._path, "aclEnable")

    async def run(self) -> None:
        """Read the files again whenever they have changed, until cancelled."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            try:
                accounts = await self._env.workers.run(Lane.DISK, self._changed)
            except (OSError, AclError) as error:
                self._env.log.warning(
                    "accounts not reloaded: the changed file cannot be used, so the previous accounts stay",
                    error=error,
                )
                continue
            if accounts is not None:
                self._accounts = accounts
                self._env.log.info("accounts reloaded", accounts=len(accounts.by_key))

    def _changed(self) -> Accounts | None:
        read = _read(self._env.files, self._path)
        if read == self._read:
            return None
        self._read = read  # so that an unusable file is reported only once
        if not read:
            raise AclError(f"{self._path}: the file is gone")
        return parse_accounts(read)

    def check(self, connection: Connection, request: Request) -> None:
        """Raises AccessDenied if the request may not be made."""
        try:
            self._check(connection, request)
        except AccessDenied:
            self.denied += 1
            raise

    def _check(self, connection: Connection, request: Request) -> None:
        accounts, fields = self._accounts, request.ext()
        if self._is_white(accounts, connection, request):
            return
        key = fields.get(ACCESS_KEY)
        if not key:  # C++ clients without a key send an empty one
            raise AccessDenied("No accessKey is configured")
        account = accounts.by_key.get(key)
        if account is None:
            raise AccessDenied(f"No acl config for {key[:MAX_TEXT]}")
        if not (account.white.text and account.white.matches(self._address(connection, request))):
            signed = fields.pop(SIGNATURE, "").encode("utf-8", "replace")
            for added in ADDED_FIELDS:
                fields.pop(added, None)
            if not compare_digest(account.key.signature(fields, request.body), signed):
                raise AccessDenied(f"Check signature failed for accessKey={key[:MAX_TEXT]}")
        _permit(self._permissions.rule(request.code), account, request, fields, connection)

    def check_needed(self, connection: Connection, request: Request, needed: Needed) -> None:
        """See `Access`."""
        accounts, key = self._accounts, request.ext().get(ACCESS_KEY, "")
        if self._is_white(accounts, connection, request):
            return
        account = accounts.by_key.get(key)
        try:
            if account is None:
                raise AccessDenied(f"No acl config for {key[:MAX_TEXT]}")  # deleted since `check`
            if not account.admin or account.perms:
                _need(account, needed)
        except AccessDenied:
            self.denied += 1
            raise

    def _is_white(self, accounts: Accounts, connection: Connection, request: Request) -> bool:
        if not accounts.white:
            return False
        address = self._address(connection, request)
        return any(rule.matches(address) for rule in accounts.white)

    def key_of(self, connection: Connection, name: str, topic: str) -> SigningKey | None:
        """See `Access`."""
        accounts = self._accounts
        account = accounts.by_key.get(name)
        if account is None or account.white.text:
            return None  # in a white list: the signature may be wrong
        if accounts.white:
            address = _address_of(connection)
            if any(rule.matches(address) for rule in accounts.white):
                return None
        if (account.admin and not account.perms) or account.perm(topic) & PUB:
            return account.key
        return None

    def _address(self, connection: Connection, request: Request) -> Segments:
        """Return the address of the client. For a forwarded request it is the address that the forwarding
        member reports."""
        forwarded = self._origins.forwarded_for(connection, request)
        if forwarded is not None:
            return segments_of(forwarded.rpartition(":")[0])
        return _address_of(connection)


def _address_of(connection: Connection) -> Segments:
    """Return the address of the client at the other end of a connection. It is computed once for each
    connection."""
    known = connection.attributes.get(_SEGMENTS)
    if not isinstance(known, tuple):
        known = connection.attributes[_SEGMENTS] = segments_of(connection.peer.rpartition(":")[0])
    return known


def _permit(
    rule: Rule, account: Account, request: Request, fields: Mapping[str, str], connection: Connection
) -> None:
    if account.admin and not account.perms:
        return
    if rule.admin and not account.admin:
        who = f"accessKey={account.access_key} is not"
        raise AccessDenied(f"Need admin permission for request code={request.code}, but {who}")
    if rule.plain_topic:  # a send: faster than the iterator below
        topic = fields.get(rule.topic, "")
        if not topic.startswith(RETRY_PREFIX) and account.perms.get(topic, account.topic_perm) & rule.perm:
            return
    beat = None
    if request.code == RequestCode.HEART_BEAT:  # large, and mostly unchanged
        beat = account, blake2b(request.body, digest_size=16).digest()
        if connection.attributes.get(_BEAT) == beat:
            return
    for needed in rule.needed(request, fields):
        _need(account, needed)
    if beat is not None:
        connection.attributes[_BEAT] = beat


def _need(account: Account, needed: Needed) -> None:
    resource, perm = needed
    if not account.perm(resource) & perm:
        explicit = "" if resource in account.perms else "default "
        raise AccessDenied(f"No {explicit}permission for {_name(resource)}")


def _name(resource: str) -> str:
    if not resource:
        return "topics in general (the topic of the message is known only after it is read)"
    if resource.startswith(RETRY_PREFIX):
        return f"group:{resource.removeprefix(RETRY_PREFIX)[:MAX_TEXT]}"
    return f"topic:{resource[:MAX_TEXT]}"


def read_accounts(files: Files, path: str, setting: str) -> tuple[_Files, Accounts]:
    """Return the files with accounts, and the accounts in them. Raises ConfigError, which names `setting`, if
    there is no file, or if one cannot be used."""
    try:
        read = _read(files, path)
        if not read:
            raise AclError(f"{path}: there is no such file")
        return read, parse_accounts(read)
    except (OSError, AclError) as error:
        raise ConfigError(f"{setting}: {error}") from error


def _read(files: Files, path: str) -> _Files:
    """Return the paths and contents of the files that exist. `plain_acl.yml` comes first, the files of the
    directory `acl` follow in the order of their names."""
    folder = join(dirname(path), "acl")
    paths = [path] if files.exists(path) else []
    if files.exists(folder):
        names = sorted(name for name in files.listdir(folder) if name.endswith((".yml", ".yaml")))
        paths += [join(folder, name) for name in names if join(folder, name) != path]
    if len(paths) > MAX_FILES:
        raise AclError(f"{folder}: {len(paths)} files of accounts; the limit is {MAX_FILES}")
    found = []
    for one in paths:
        size = files.size(one)
        if size > MAX_FILE:
            raise AclError(f"{one}: the file has {size} bytes; the limit is {MAX_FILE}")
        found.append((one, read_file(files, one) or b""))
    return tuple(found)

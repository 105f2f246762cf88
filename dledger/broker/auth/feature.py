"""Access control, as a feature of the broker."""

from __future__ import annotations

from collections.abc import Mapping
from posixpath import dirname, join

from dledger.broker.auth.access_control import Access, AccessControl, read_accounts
from dledger.broker.auth.auth_processor import AuthProcessor
from dledger.broker.auth.init_users import InitUsers
from dledger.broker.auth.permissions import Permissions
from dledger.broker.auth.required import Needed
from dledger.broker.auth.user_access import UserAccess
from dledger.broker.core import Core
from dledger.broker.feature import Feature, Task
from dledger.broker.forwarding import Origins
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection

BETWEEN_BROKERS = frozenset(
    {RequestCode.TELL_CONSUMERS, RequestCode.TELL_PULLS, RequestCode.CHECK_TRANSACTION_STATE}
)
"""Requests that other brokers of the group send. They are not checked like the requests of an account,
because a broker has no account. Their processors require a proof that the sender is a member of the group."""


class AuthFeature(Feature):
    """Decides which client may make which request."""

    def __init__(self, core: Core, origins: Origins, settings_file: str) -> None:
        """`settings_file` is the file from which the settings were read, or empty if there is none. The file
        with accounts is in the same directory."""
        config = core.settings.now
        file = config.acl_file or join(dirname(settings_file), "plain_acl.yml")
        self.permissions: Permissions = Permissions()
        self.access: Access | None = None
        """Decides which requests may be made. None if everybody may make every request."""
        self.accounts: AccessControl | None = None
        """Access control by accounts in a file (ACL 1.0); None if it is not used."""
        self.users: UserAccess | None = None
        """Access control by users in the replicated state (ACL 2.0); None if it is not used."""
        if config.acl_enable:
            self.access = self.accounts = AccessControl(core.env, file, origins, self.permissions)
            self.accounts.load()
        if config.authentication_enabled:
            self.access = self.users = UserAccess(
                core.store,
                origins,
                self.permissions,
                config.cluster_name,
                config.authorization_enabled,
                config.authentication_whitelist,
                config.authorization_whitelist,
            )
        migrated = None
        if config.migrate_auth:
            _, migrated = read_accounts(core.env.files, file, "migrateAuthFromV1Enabled")
        self.processors = (AuthProcessor(core, self._by_super_user),)
        self.services = (InitUsers(config, migrated, core.env.log.child("auth")),)

    def tasks(self) -> Mapping[str, Task]:
        """See `Feature`."""
        return {} if self.accounts is None else {"accounts": self.accounts.run}

    def authorize(self, connection: Connection, request: Request) -> None:
        """Raises RemotingError 16 (NO_PERMISSION) if the sender of the request may not make it."""
        if self.access is not None and request.code not in BETWEEN_BROKERS:
            self.access.check(connection, request)

    def check_needed(self, connection: Connection, request: Request, needed: Needed) -> None:
        """See `dledger.broker.core.CheckNeeded`."""
        if self.access is not None:
            self.access.check_needed(connection, request, needed)

    def _by_super_user(self, request: Request) -> bool:
        return self.users is None or self.users.is_super(request)

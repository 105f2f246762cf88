"""Users that a leader creates if they do not exist. They come from `initAuthenticationUser`, from
`innerClientAuthenticationCredentials`, and from a file of accounts (`migrateAuthFromV1Enabled`,
AuthMigrator)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from dledger.broker.auth.auth_processor import MAX_ENTRIES, MAX_USERS, versioned
from dledger.broker.auth.plain_acl import DENY, PUB, SUB, Account, Accounts
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.config import BrokerConfig
from dledger.broker.services import LeaderService
from dledger.broker.topic.topic_names import RETRY_PREFIX
from dledger.formats.state import USERS, AclEntry, Op, PolicyType, User
from dledger.remoting.errors import RemotingError
from dledger.runtime.cooperative import Pace
from dledger.runtime.log import Log

RETRY_S = 1.0
"""Seconds until the broker tries again to write a user that could not be written, because a voter was too old
or the disk full."""
Made = tuple[User, Sequence[AclEntry]]


class InitUsers(LeaderService):
    """Creates the users of the settings and of the file of accounts. It does so once whenever this broker
    becomes leader."""

    def __init__(self, config: BrokerConfig, accounts: Accounts | None, log: Log) -> None:
        """`accounts` are the accounts of ACL 1.0 that become users; None if no accounts are migrated."""
        self._log = log
        self._required = config.authentication_enabled
        users = (config.init_user, config.inner_user)
        self._made: list[Made] = [(user, ()) for user in users if user is not None]
        if accounts is not None:
            if accounts.white or any(account.white.text for account in accounts.by_key.values()):
                log.warning(
                    "white lists of addresses are not migrated: give policies source addresses instead"
                )
            self._made += [made for account in accounts.by_key.values() if (made := self._migrated(account))]
        self._writer: CommitLogWriter | None = None

    def begin(self, writer: CommitLogWriter) -> None:
        """See `LeaderService`."""
        self._writer = writer

    async def run(self) -> None:
        """See `LeaderService`."""
        writer = self._writer
        assert writer is not None
        pace = Pace(1)
        for user, entries in self._made:
            said = False
            while user.name not in writer.pending[USERS].rows:
                refused = self._create(writer, user, entries)
                if not refused:
                    self._log.info(
                        "user created", user=user.name, superuser=user.superuser, entries=len(entries)
                    )
                    break
                if not said:
                    said = True
                    self._log.warning("user not created now, trying again", user=user.name, why=refused)
                await asyncio.sleep(RETRY_S)
            await pace.step()
        if self._required and not writer.pending[USERS].rows:
            self._log.warning(
                "authenticationEnabled is set and there is no user, so no request can be signed. Set "
                "initAuthenticationUser and restart the leader"
            )

    def end(self, reason: str) -> None:
        """See `LeaderService`."""
        self._writer = None

    def _create(self, writer: CommitLogWriter, user: User, entries: Iterable[AclEntry]) -> str:
        """Append a user with its policies. Returns the reason if that is not possible, or an empty text on
        success."""
        if not writer.room:
            return writer.refused.remark
        if writer.pending.at_most(USERS) >= MAX_USERS:
            return f"the limit of {MAX_USERS} users is reached"
        ops: list[Op] = [user.op(), *(entry.op() for entry in entries)]
        try:
            writer.note_version(User.operation)
            writer.add_together((), [*ops, *versioned(writer)])
        except RemotingError as error:
            return error.remark
        return ""

    def _migrated(self, account: Account) -> Made | None:
        name = account.access_key
        entries = list(entries_of(account))
        if len(entries) > MAX_ENTRIES:
            self._log.warning("account not migrated", user=name, entries=len(entries), limit=MAX_ENTRIES)
            return None
        if account.admin and account.perms:
            self._log.warning(
                "the permissions of an administrator were dropped: a super user may do everything", user=name
            )
        return User(name, account.secret.decode(), superuser=account.admin), entries


def entries_of(account: Account) -> Iterable[AclEntry]:
    """Yield the policy entries that replace an account of ACL 1.0. Its permissions go to the policy "Custom",
    its default permissions to the policy "Default"."""
    for resource, perm in account.perms.items():
        is_group = resource.startswith(RETRY_PREFIX)
        name = f"Group:{resource.removeprefix(RETRY_PREFIX)}" if is_group else f"Topic:{resource}"
        yield _entry(account, "Custom", name, perm)
    yield _entry(account, "Default", "Topic:*", account.topic_perm)
    yield _entry(account, "Default", "Group:*", account.group_perm)


def _entry(account: Account, policy: PolicyType, resource: str, perm: int) -> AclEntry:
    if perm == DENY:
        return AclEntry(account.access_key, policy, resource, ("All",), allow=False)
    if perm == PUB | SUB:
        return AclEntry(account.access_key, policy, resource, ("Pub", "Sub"), allow=True)
    return AclEntry(account.access_key, policy, resource, ("Pub",) if perm == PUB else ("Sub",), allow=True)

"""Requests 3001 to 3010, which show and change users and policies (AdminBrokerProcessor,
AuthenticationMetadataManagerImpl, AuthorizationMetadataManagerImpl).

A change is answered when the leader has applied it. mqadmin sends each change to all brokers of a cluster,
although the first one that executes it changes the replicated state of the whole group. So a change that has
already been made is answered with success.

A user's password is shown only to super users. Without authentication (`authenticationEnabled=false`) it is
shown to everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from dledger.broker.auth import actions, required
from dledger.broker.auth.policies import action_of, resource_of, source_of
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.core import BySuperUser, Core
from dledger.broker.requests import Call, LeaderCall, Needs, handles
from dledger.formats.state import (
    ACLS,
    MAX_PASSWORD,
    MAX_SOURCES,
    USER_VERSIONS,
    USERS,
    USERS_KEY,
    AclEntry,
    AclKey,
    Declared,
    Op,
    PolicyType,
    Row,
    User,
    UserVersion,
)
from dledger.remoting.auth_bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from dledger.remoting.bodies import Body, decode_body
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.operator_headers import (
    DeleteAclHeader,
    ListAclsHeader,
    ListUsersHeader,
    SubjectHeader,
    UserHeader,
)
from dledger.runtime.cooperative import Pace

APPLIED = "applied index of the leader"
MAX_USERS = 10_000
MAX_ENTRIES = 256
"""Largest number of entries in the policies of one user; more are refused."""
MAX_ACL_ENTRIES = 50_000
"""Largest number of entries in the policies of all users together; more are refused."""
MAX_USER_NAME = 255
"""Limit, in characters, of a user name; a longer one is refused."""
MAX_USER_BODY = 4 * 1024
"""Limit, in bytes, of a body with a user; a longer one is refused."""
MAX_ACL_BODY = 32 * 1024
"""Limit, in bytes, of a body with policies; a longer one is refused."""
MAX_NETWORKS = 500
"""Largest number of different source addresses in one request; more are refused."""
MAX_ANSWER = 8 * 1024 * 1024
"""Limit, in bytes, of a list in an answer. The request for a longer list is refused."""
ROWS_A_TURN = 200
"""Number of rows that are processed before the event loop turns to other work."""
USER = "User:"
VERSION = "version"
"""Field of answers and requests. It contains how often users and policies have changed."""
_TYPES = {"super": True, "normal": False}
_STATUS = {"enable": True, "disable": False}
_DECISIONS = {"allow": True, "deny": False}
_POLICIES: Mapping[str, PolicyType] = {"custom": "Custom", "default": "Default"}
K = TypeVar("K")
R = TypeVar("R", bound=Row)
P = TypeVar("P")


class AuthProcessor:
    """Handlers of the requests that show and change users and policies."""

    def __init__(self, core: Core, by_super_user: BySuperUser) -> None:
        self._store = core.store
        self._gate = core.gate
        self._applied = core.applied
        self._background = core.background
        self._by_super_user = by_super_user
        self._log = core.env.log.child("auth")

    # -- users ----------------------------------------------------------------------------------------

    @handles(
        RequestCode.AUTH_CREATE_USER,
        UserHeader,
        needs=Needs.LEADER,
        max_body=MAX_USER_BODY,
        may=required.ADMIN,
        does=actions.CHANGED,
    )
    def create_user(self, call: LeaderCall[UserHeader]) -> None:
        """Create a user. If the same user exists already, the answer is success."""
        info = decode_body(call.request.body, UserInfo, "user")
        name = _checked_name(call.header.username)
        user = User(
            name,
            _password(info.password, "password can not be blank"),
            _word(_TYPES, info.userType, "userType") or False,
            _word(_STATUS, info.userStatus, "userStatus") is not False,
        )
        if user.superuser and not self._by_super_user(call.request):
            raise _refused("The super user can only be create by super user", ResponseCode.SYSTEM_ERROR)
        writer = call.writer
        known = writer.pending[USERS].rows.get(name)
        if known is None and writer.pending.at_most(USERS) >= MAX_USERS:
            raise _refused(f"the limit of {MAX_USERS} users is reached", ResponseCode.SYSTEM_ERROR)
        if known is not None and known != user:
            raise _refused("The user is existed")
        done = self._is(writer, USERS, name, user)
        self._change(call, [] if done else [user.op()], "user created", user=name)

    @handles(
        RequestCode.AUTH_UPDATE_USER,
        UserHeader,
        needs=Needs.LEADER,
        max_body=MAX_USER_BODY,
        may=required.ADMIN,
        does=actions.CHANGED,
    )
    def update_user(self, call: LeaderCall[UserHeader]) -> None:
        """Change a user. Fields that the request leaves out stay as they are."""
        info = decode_body(call.request.body, UserInfo, "user")
        known = call.writer.pending[USERS].rows.get(_checked_name(call.header.username))
        if known is None:
            raise _refused("The user is not exist")
        superuser, enabled = (
            _word(_TYPES, info.userType, "userType"),
            _word(_STATUS, info.userStatus, "userStatus"),
        )
        user = User(
            known.name,
            _password(info.password, "") if (info.password or "").strip() else known.password,
            known.superuser if superuser is None else superuser,
            known.enabled if enabled is None else enabled,
        )
        if (known.superuser or user.superuser) and not self._by_super_user(call.request):
            raise _refused("The super user can only be update by super user", ResponseCode.SYSTEM_ERROR)
        done = self._is(call.writer, USERS, user.name, user)
        self._change(call, [] if done else [user.op()], "user changed", user=known.name)

    @handles(
        RequestCode.AUTH_DELETE_USER, UserHeader, needs=Needs.LEADER, may=required.ADMIN, does=actions.CHANGED
    )
    def delete_user(self, call: LeaderCall[UserHeader]) -> None:
        """Delete a user with all its policies. If there is no such user, the answer is success."""
        name = _checked_name(call.header.username)
        known = call.writer.pending[USERS].rows.get(name)
        if known is not None and known.superuser and not self._by_super_user(call.request):
            raise _refused("The super user can only be update by super user")
        ops = [] if self._is(call.writer, USERS, name, None) else [USERS.removal(name)]
        self._change(call, ops, "user deleted", user=name)

    @handles(
        RequestCode.AUTH_GET_USER,
        UserHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.ADMIN,
        does=actions.SHOWN,
    )
    def get_user(self, call: LeaderCall[UserHeader]) -> None:
        """Show a user. The answer has no body if there is no such user."""
        user = self._store.state[USERS].rows.get(_checked_name(call.header.username))
        body = b"" if user is None else self._shown(call, user).encode()
        call.respond(ext=self._applied_version(), body=body)

    def _applied_version(self) -> dict[str, str]:
        """Return the version of all users and policies as a field of an answer."""
        return {VERSION: str(self._version(self._store.state[USER_VERSIONS].rows))}

    def _version(self, rows: Mapping[str, UserVersion]) -> int:
        return rows[USERS_KEY].changes if USERS_KEY in rows else 0

    @handles(
        RequestCode.AUTH_LIST_USER,
        ListUsersHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.ADMIN,
        does=actions.SHOWN,
    )
    def list_users(self, call: LeaderCall[ListUsersHeader]) -> None:
        """List users. The answer has no body if there are none."""
        wanted = (call.header.filter or "").strip()
        rows = list(self._store.state[USERS].rows.values())

        async def answer() -> None:
            listed, pace = _Listed(), Pace(ROWS_A_TURN)
            for user in sorted(rows, key=lambda row: row.name):
                await pace.step()
                if wanted in user.name:
                    listed.add(self._shown(call, user))
            call.respond(body=listed.body)

        self._background.start(call.connection, call.request, answer())

    def _shown(self, call: Call[UserHeader] | Call[ListUsersHeader], user: User) -> UserInfo:
        return UserInfo(
            user.name,
            user.password if self._by_super_user(call.request) else None,
            "Super" if user.superuser else "Normal",
            "enable" if user.enabled else "disable",
        )

    # -- policies -------------------------------------------------------------------------------------

    @handles(
        RequestCode.AUTH_CREATE_ACL,
        SubjectHeader,
        needs=Needs.LEADER,
        max_body=MAX_ACL_BODY,
        may=required.ADMIN,
        does=actions.CHANGED,
    )
    def create_acl(self, call: LeaderCall[SubjectHeader]) -> None:
        """Add entries to the policies of a user; an entry for the same resource is replaced."""
        self._put_acl(call)

    @handles(
        RequestCode.AUTH_UPDATE_ACL,
        SubjectHeader,
        needs=Needs.LEADER,
        max_body=MAX_ACL_BODY,
        may=required.ADMIN,
        does=actions.CHANGED,
    )
    def update_acl(self, call: LeaderCall[SubjectHeader]) -> None:
        """Does the same as `create_acl`, as in RocketMQ's brokers."""
        self._put_acl(call)

    def _put_acl(self, call: LeaderCall[SubjectHeader]) -> None:
        writer = call.writer
        info = decode_body(call.request.body, AclInfo, "acl")
        user = _subject(info.subject or call.header.subject)
        if not info.policies:
            raise _refused("The policies is empty.")
        sources = _Sources()
        entries = {
            (entry.policy, entry.resource): entry
            for policy in info.policies
            for entry in _entries(user, policy, sources)
        }
        if user not in writer.pending[USERS].rows:
            raise _refused(f"The subject of {USER}{user} is not exist.")
        keys, total = set(_keys_of(writer, user)), writer.pending.at_most(ACLS)
        changed = [one for one in entries.values() if not self._is(writer, ACLS, ACLS.key_of(one), one)]
        new = sum(ACLS.key_of(one) not in keys for one in changed)
        if len(keys) + new > MAX_ENTRIES or (new and total + new > MAX_ACL_ENTRIES):
            limits = f"{MAX_ENTRIES} entries of one user, {MAX_ACL_ENTRIES} of all"
            raise _refused(f"the limit of policies is reached: {limits}", ResponseCode.SYSTEM_ERROR)
        self._change(call, [one.op() for one in changed], "policies changed", user=user)

    @handles(
        RequestCode.AUTH_DELETE_ACL,
        DeleteAclHeader,
        needs=Needs.LEADER,
        may=required.ADMIN,
        does=actions.CHANGED,
    )
    def delete_acl(self, call: LeaderCall[DeleteAclHeader]) -> None:
        """Delete the entry for a resource from a user's policy (from the policy Custom if the request names
        no policy). If the request names no resource, delete all entries of the user. If there is no such
        entry, the answer is success."""
        user, writer = _subject(call.header.subject), call.writer
        if user not in writer.pending[USERS].rows:
            raise _refused("The subject is not exist.")
        keys = _keys_of(writer, user)
        resource = call.header.resource or ""
        if resource.strip():
            wanted = user, _policy(call.header.policyType), _parsed(resource_of, resource)
            keys = [] if self._is(writer, ACLS, wanted, None) else [wanted]
        ops = [ACLS.removal(key) for key in keys]
        self._change(call, ops, "policies deleted", user=user, resource=resource or "all")

    @handles(
        RequestCode.AUTH_GET_ACL,
        SubjectHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.ADMIN,
        does=actions.SHOWN,
    )
    def get_acl(self, call: LeaderCall[SubjectHeader]) -> None:
        """Show the policies of a user. The answer has no body if there are none."""
        user = _subject(call.header.subject)
        if user not in self._store.state[USERS].rows:
            raise _refused("The subject is not exist.")
        table = self._store.state[ACLS]
        rows = [table.rows[key] for key in sorted(table.keys_of("user", user))]
        call.respond(ext=self._applied_version(), body=_acl(user, rows).encode() if rows else b"")

    @handles(
        RequestCode.AUTH_LIST_ACL,
        ListAclsHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.ADMIN,
        does=actions.SHOWN,
    )
    def list_acls(self, call: LeaderCall[ListAclsHeader]) -> None:
        """List policies. The answer has no body if there are none."""
        subject = (call.header.subjectFilter or "").strip()
        resource = (call.header.resourceFilter or "").strip()
        table = self._store.state[ACLS]
        users = list(self._store.state[USERS].rows)

        async def answer() -> None:
            listed, pace = _Listed(), Pace(ROWS_A_TURN)
            for user in sorted(users):
                keys = sorted(table.keys_of("user", user)) if subject in USER + user else []
                rows = [row for key in keys if (row := table.rows.get(key)) and resource in row.resource]
                await pace.step(1 + len(keys))
                if rows:
                    listed.add(_acl(user, rows))
            call.respond(body=listed.body)

        self._background.start(call.connection, call.request, answer())

    def _is(self, writer: CommitLogWriter, table: Declared[K, R], key: K, row: R | None) -> bool:
        """Return whether the table contains this row already, both in the applied state and after the pending
        changes. `row` None: whether there is no row."""
        return self._store.state[table].rows.get(key) == row == writer.pending[table].rows.get(key)

    def _change(
        self,
        call: LeaderCall[UserHeader] | LeaderCall[SubjectHeader] | LeaderCall[DeleteAclHeader],
        ops: Sequence[Op],
        what: str,
        **fields: object,
    ) -> None:
        """Append a change. Raises RemotingError 2 SYSTEM_BUSY if the request was made from an older version
        of the users and policies. Such a request may have been delayed and would undo later changes."""
        writer = call.writer
        if not writer.room:
            raise writer.refused
        if not ops:
            self._gate.confirm(call.connection, call.request, call.respond)
            return
        version = self._version(writer.pending[USER_VERSIONS].rows)
        if call.header.version not in (None, version):
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY,
                "users or policies have changed since this request was made (version "
                f"{call.header.version}, now {version}): nothing was changed; read them and try again",
            )
        writer.note_version(User.operation)
        index = writer.add_together((), [*ops, *versioned(writer)])
        self._log.info(what, by=call.connection.peer, **fields)
        self._applied.add(index, call.connection, call.request, call.respond)


def versioned(writer: CommitLogWriter) -> Sequence[Op]:
    """Return the operation that increases the version of users and policies. It is left out until all voters
    know the operation."""
    if not writer.may_write(UserVersion.operation):
        return ()
    writer.note_version(UserVersion.operation)
    row = writer.pending[USER_VERSIONS].rows.get(USERS_KEY)
    return (UserVersion(USERS_KEY, 1 if row is None else row.changes + 1).op(),)


class _Listed:
    """A JSON list that is written item by item, with a limit on its size."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, one: Body) -> None:
        part = one.encode()
        self._size += len(part) + 1
        if self._size > MAX_ANSWER:
            text = f"the list has more than {MAX_ANSWER} bytes: ask with a filter"
            raise RemotingError(ResponseCode.SYSTEM_ERROR, text)
        self._parts.append(part)

    @property
    def body(self) -> bytes:
        """The list as JSON text; empty if the list has no items."""
        return b"[" + b",".join(self._parts) + b"]" if self._parts else b""


def _keys_of(writer: CommitLogWriter, user: str) -> list[AclKey]:
    return writer.pending.keys_of(ACLS, "user", user)


def _acl(user: str, rows: Iterable[AclEntry]) -> AclInfo:
    """Return the policies of one user, ordered by policy and resource."""
    policies: dict[str, list[PolicyEntryInfo]] = {}
    for row in rows:
        decision = "Allow" if row.allow else "Deny"
        entry = PolicyEntryInfo(row.resource, list(row.actions), list(row.sources) or None, decision)
        policies.setdefault(row.policy, []).append(entry)
    return AclInfo(USER + user, [PolicyInfo(name, entries) for name, entries in policies.items()])


class _Sources(dict[str, str]):
    """Maps each source address of one request to its stored form. Each address is parsed once."""

    def __missing__(self, text: str) -> str:
        if len(self) >= MAX_NETWORKS:
            raise _invalid(f"more than {MAX_NETWORKS} source addresses in one request")
        found = self[text] = _parsed(source_of, text)
        return found


def _entries(user: str, policy: PolicyInfo, known: _Sources) -> Iterator[AclEntry]:
    kind = _policy(policy.policyType)
    if not policy.entries:
        raise _refused("The policy entries is empty.")
    for entry in policy.entries:
        if not (entry.resource or "").strip():
            raise _refused("The resource is null.")
        if not entry.actions:
            raise _refused("The actions is empty.")
        actions = dict.fromkeys(_parsed(action_of, one) for one in entry.actions)
        sources = tuple(dict.fromkeys(known[one] for one in entry.sourceIps or ()))
        if len(sources) > MAX_SOURCES:
            raise _invalid(f"the entry has {len(sources)} source addresses; the limit is {MAX_SOURCES}")
        allow = _word(_DECISIONS, entry.decision, "decision")
        if allow is None:
            raise _refused("The decision is null or illegal.")
        yield AclEntry(user, kind, _parsed(resource_of, entry.resource or ""), tuple(actions), allow, sources)


def _policy(text: str | None) -> PolicyType:
    return _word(_POLICIES, text, "policyType") or "Custom"


def _parsed(parse: Callable[[str], P], text: str) -> P:
    try:
        return parse(text)
    except ValueError as error:
        raise _invalid(f"{error}") from None


def _word(words: Mapping[str, P], text: str | None, what: str) -> P | None:
    """Return the value that belongs to a word; None if the text is empty. Raises RemotingError if the word is
    unknown."""
    if not (text or "").strip():
        return None
    found = words.get((text or "").strip().lower())
    if found is None:
        raise _refused(
            f"{what} {(text or '')[:40]!r}: expected {' or '.join(words)}", ResponseCode.INVALID_PARAMETER
        )
    return found


def _checked_name(name: str) -> str:
    if not name.strip():
        raise _invalid("The username is blank")
    if len(name) > MAX_USER_NAME or not name.isprintable() or name != name.strip():
        text = f"a user name may have at most {MAX_USER_NAME} printable characters, and no blanks at its ends"
        raise _invalid(text)
    return name


def _subject(text: str) -> str:
    """Return the user name in a subject such as `User:name`."""
    kind, _, name = text.partition(":")
    if kind.lower() != "user":
        raise _refused(
            f"the subject {text[:40]!r}: expected User: and a name", ResponseCode.INVALID_PARAMETER
        )
    return _checked_name(name)


def _password(text: str | None, blank: str) -> str:
    if text is None or not text.strip():
        raise _refused(blank)
    if len(text) > MAX_PASSWORD:
        text = f"the password has {len(text)} characters; the limit is {MAX_PASSWORD}"
        raise _invalid(text)
    return text


def _invalid(text: str) -> RemotingError:
    return RemotingError(ResponseCode.INVALID_PARAMETER, text)


def _refused(text: str, code: ResponseCode = ResponseCode.NO_PERMISSION) -> RemotingError:
    """Return an error with the code that RocketMQ uses; by default 16, with which RocketMQ's managers
    refuse."""
    return RemotingError(code, text)

"""Access control 2.0 (`authenticationEnabled`, `authorizationEnabled`): checks requests by the users and
policies in the replicated state.

A request must be signed by a user that is enabled. A super user may do everything; what another user may do,
its policies say. Every broker of the group decides by the state that it has applied. A forwarded request is
checked by the follower and by the leader (as in `access_control`). Decisions are cached until users or
policies change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import blake2b
from hmac import compare_digest

from dledger.broker.auth.actions import TOPIC, done_by, done_with
from dledger.broker.auth.permissions import Permissions
from dledger.broker.auth.policies import Policies
from dledger.broker.auth.required import Needed
from dledger.broker.forwarding import ADDED_FIELDS, Origins
from dledger.broker.store.message_store import MessageStore
from dledger.formats.state import ACLS, USERS, ReplicatedState, User
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.errors import RemotingError
from dledger.remoting.server import Connection
from dledger.remoting.signing import ACCESS_KEY, SIGNATURE, SigningKey

MAX_DECISIONS = 10_000
"""Largest number of cached decisions; when it is reached, the cache is emptied
(statefulAuthorizationCacheMaxNum)."""
MAX_TEXT = 200
"""Limit, in characters, of a name in the text of a refusal; a longer one is cut."""
_BEAT = "acl-heartbeat"
_UNKNOWN = object()
_Decision = tuple[str, str, int, str]
"""Key of a cached decision: user name, resource, actions, address of the client."""


class _Who:
    """A user with its signing key and its policies, prepared for checks."""

    __slots__ = ("key", "policies", "sends", "user")

    def __init__(self, user: User, policies: Policies) -> None:
        self.user = user
        self.sends: set[str | None] = set()
        """Topics to which the user may send from any address. They are the fast path for sends, the most
        frequent requests."""
        self.key = SigningKey(user.password.encode())
        self.policies = policies


class _View:
    """The users and policies of one version of the state, with the decisions cached for that version."""

    def __init__(self, state: ReplicatedState, serial: int) -> None:
        self.state = state
        self.serial = serial
        self.users = state[USERS]
        self.acls = state[ACLS]
        self.versions = self.users.version, self.acls.version
        self.decided: dict[_Decision, bool | None] = {}
        self._kept = 0
        self._known: dict[str, _Who] = {}

    def current(self, state: ReplicatedState) -> bool:
        users, acls = self.versions
        return self.state is state and self.users.version == users and self.acls.version == acls

    def keep(self) -> None:
        """Count one more decision in the cache. If the cache is full, it is emptied first."""
        if self._kept >= MAX_DECISIONS:
            self._kept = 0
            self.decided.clear()
            for who in self._known.values():
                who.sends.clear()
        self._kept += 1

    def who(self, name: str) -> _Who | None:
        found = self._known.get(name)
        if found is None:
            user = self.users.rows.get(name)
            if user is None:
                return None
            rows = (self.acls.rows[key] for key in self.acls.keys_of("user", name))
            found = self._known[name] = _Who(user, Policies(rows))
        return found


class UserAccess:
    """Access control 2.0: checks each request."""

    def __init__(
        self,
        store: MessageStore,
        origins: Origins,
        permissions: Permissions,
        cluster: str,
        authorize: bool,
        unsigned: Collection[int],
        unjudged: Collection[int],
    ) -> None:
        """`authorize` says whether policies are checked; if they are not, every user with a valid signature
        may do everything. `unsigned` are codes of requests that need no signature (authenticationWhitelist).
        `unjudged` are codes of requests that every user may make, whatever its policies say
        (authorizationWhitelist)."""
        self._store = store
        self._origins = origins
        self._permissions = permissions
        self._cluster = cluster
        self._authorize = authorize
        self._unjudged = frozenset(unjudged)
        self._open = frozenset(code for code in unsigned if not authorize or code in self._unjudged)
        """Codes of requests that are not checked at all. If policies are checked, a code must be in both
        lists, because policies need to know the user. A request whose code is only in `unsigned` must then be
        signed."""
        self._view = _View(store.state, 0)
        self.denied: int = 0
        """Number of requests refused since the start."""

    def check(self, connection: Connection, request: Request) -> None:
        """Raises RemotingError 16 (NO_PERMISSION) if the request may not be made."""
        if request.code in self._open:
            return
        try:
            self._check(connection, request)
        except RemotingError as error:
            if error.code == ResponseCode.NO_PERMISSION:
                self.denied += 1
            raise

    def check_needed(self, connection: Connection, request: Request, needed: Needed) -> None:
        """See `Access`."""
        if request.code in self._open or request.code in self._unjudged or not self._authorize:
            return
        view, name = self._current(), request.ext().get(ACCESS_KEY, "")
        who = view.who(name)
        try:
            if who is None:
                raise _denied(f"User:{name[:MAX_TEXT]} is not found.")  # deleted since `check`
            if not who.user.superuser:
                resource, actions = done_with(needed)
                host = self._host(connection, request) if who.policies.by_address else ""
                self._decide(view, who, resource, actions, host, connection, request)
        except RemotingError:
            self.denied += 1
            raise

    def is_super(self, request: Request) -> bool:
        """Return whether the user of this request is a super user. `check` has accepted the request before.
        For requests that are not checked at all, the result is False."""
        who = self._current().who(request.ext().get(ACCESS_KEY, ""))
        return who is not None and who.user.superuser and request.code not in self._open

    def key_of(self, connection: Connection, name: str, topic: str) -> SigningKey | None:
        """See `Access`. Returns None for the first send of a user to a topic, so that `check` asks the
        policies."""
        if RequestCode.SEND_MESSAGE_V2 in self._open:
            return None  # signatures are not checked, so they may be wrong
        who = self._current().who(name)
        if who is None or not who.user.enabled:
            return None
        everything = who.user.superuser or not self._authorize
        known = everything or topic in who.sends or RequestCode.SEND_MESSAGE_V2 in self._unjudged
        return who.key if known else None

    def _current(self) -> _View:
        view = self._view
        if not view.current(self._store.state):
            view = self._view = _View(self._store.state, view.serial + 1)
        return view

    def _check(self, connection: Connection, request: Request) -> None:
        view, fields = self._current(), request.ext()
        name = fields.get(ACCESS_KEY)
        if not name:
            raise _denied("username cannot be null.")
        who = view.who(name)
        if who is None:
            raise _denied(f"User:{name[:MAX_TEXT]} is not found.")
        user = who.user
        if not user.enabled:
            raise _denied(f"User:{name[:MAX_TEXT]} is disabled.")
        signed = fields.pop(SIGNATURE, "").encode("utf-8", "replace")
        for added in ADDED_FIELDS:
            fields.pop(added, None)
        if not compare_digest(who.key.signature(fields, request.body), signed):
            raise _denied("check signature failed.")
        if user.superuser or not self._authorize:
            return
        sent = self._permissions.sends.get(request.code)
        if sent is not None and fields.get(sent) in who.sends:
            return
        if request.code not in self._unjudged:
            self._permit(view, who, connection, request, fields)

    def _permit(
        self, view: _View, who: _Who, connection: Connection, request: Request, fields: Mapping[str, str]
    ) -> None:
        host = self._host(connection, request) if who.policies.by_address else ""
        code = request.code
        beat = None
        if code == RequestCode.HEART_BEAT:  # large, and mostly unchanged
            beat = view.serial, who.user.name, host, blake2b(request.body, digest_size=16).digest()
            if connection.attributes.get(_BEAT) == beat:
                return
        rule, does = self._permissions.rule(code), self._permissions.does(code)
        done = done_by(rule, does, request, fields, self._cluster)
        if done is None:
            raise _denied(f"{_subject(who)} is not a super user, which request code {code} requires.")
        for resource, actions in done:
            self._decide(view, who, resource, actions, host, connection, request)
        if beat is not None:
            connection.attributes[_BEAT] = beat
        elif code in self._permissions.sends and not host:
            topic = fields.get(self._permissions.sends[code])
            if topic is not None:
                view.keep()
                who.sends.add(topic)

    def _decide(
        self,
        view: _View,
        who: _Who,
        resource: str,
        actions: int,
        host: str,
        connection: Connection,
        request: Request,
    ) -> None:
        key = who.user.name, resource, actions, host
        decided = view.decided
        allowed = decided.get(key, _UNKNOWN)
        if allowed is True:
            return
        if allowed is _UNKNOWN:
            allowed = who.policies.decide(resource, actions, host)
            view.keep()
            decided[key] = allowed
            if allowed:
                return
        why = "no matched policies." if allowed is None else "the decision is deny."
        what = (
            resource[:MAX_TEXT]
            if resource != TOPIC
            else ("Topic:* (the place of a message does not tell its topic)")
        )
        place = self._host(connection, request)
        raise _denied(f"{_subject(who)} has no permission to access {what} from {place}, {why}")

    def _host(self, connection: Connection, request: Request) -> str:
        """Return the address of the client. For a forwarded request it is the address that the forwarding
        member reports."""
        forwarded = self._origins.forwarded_for(connection, request)
        return (connection.peer if forwarded is None else forwarded).rpartition(":")[0]


def _subject(who: _Who) -> str:
    return f"User:{who.user.name[:MAX_TEXT]}"


def _denied(reason: str) -> RemotingError:
    return RemotingError(ResponseCode.NO_PERMISSION, reason)

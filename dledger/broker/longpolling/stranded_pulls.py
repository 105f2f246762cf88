"""Pulls that wait at a leader that is lost: its successor answers them.

Java clients before 5.0, and those in C++ and Go, do not notice that the connection of a pull is gone: they
wait for their own time-out of 30 s, and read nothing of that queue meanwhile. But they take an answer by
its number alone, over whichever connection it comes, and they hold one to each broker of the group, for
their heartbeats. So a leader tells the others of such pulls while they wait (28102), and who leads next
answers them: nothing has come, ask again. Of a client that has no connection to the new leader, as that was
away until just now, another follower does. The answer suggests to ask where it comes from
(`suggestWhichBrokerId`), and so do the next ones over that connection until the client has looked for
routes: the address that it takes for the leader's may be dead.

Two things keep an answer from meeting another request of that number. It goes to a connection that was
there when it was told, to the same client id at the same address. And numbers go up: an answer that
comes after that of the leader is one that nobody waits for, which clients ignore.

Nothing here is state of the group. What is not told costs a client its time-out, as it did without this.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from dledger.broker.auth import required
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.core import Core, Members
from dledger.broker.forwarding import Origins, peer_ip
from dledger.broker.longpolling.pull_hold import Pull
from dledger.broker.longpolling.suggestions import pull_fields, suggest_here
from dledger.broker.member_requests import with_proof
from dledger.broker.requests import Call, Needs, handles
from dledger.broker.services import LeaderService
from dledger.remoting.bodies import PullsHeld, WaitingPull, decode_held
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import LanguageCode, RequestCode, ResponseCode
from dledger.remoting.commands import FLAG_FORWARDED, FLAG_REDIRECT, Request, Response
from dledger.remoting.errors import RemotingError
from dledger.remoting.server import Connection

DEAF = (LanguageCode.JAVA.name, LanguageCode.CPP.name, LanguageCode.GO.name)
"""Clients that do not notice the loss of a connection, Java up to `NOTICES`."""
NOTICES = 412
"""V5_0_0: Java clients from here on do."""
SETTLE_S = 0.01
"""Pulls that begin to wait within this time are told together; one that is answered within it need not be."""
RETRY_S = 1.0
"""After a member that did not take it."""
OLDER_S = 60.0
"""After one that does not know the request, and may be another version by then."""
TIMEOUT_S = 3.0
SLICE = 200
"""Pulls of a request, and answers of a turn of the loop."""
PACE_S = 0.005
"""Between two such turns."""
LEADER_FIRST_S = 0.3
"""So long the new leader has to answer them; what its clients ask it then it tells."""
MAX_TELL = 384 * 1024
"""Bytes of a request: more than `SLICE` pulls with the longest names have."""
MAX_UNTOLD = 20_000
"""Pulls that wait to be told to a member; one more is not told to it."""
MAX_KEPT = 100_000
"""Pulls of the leader that this broker knows of; one more takes the place of the oldest."""
MAX_TERMS_AHEAD = 1000
"""A term that is so far ahead of this broker's own is none: the two come over different connections, but not
with so many elections between them."""
PULL_LIVES_S = 60.0
"""What is older is over: clients wait for 30 s."""
_Key = tuple[str, str, str, int]
"""Client id, group, topic, queue id: of which a client has one pull under way."""


@dataclass(slots=True)
class _Member:
    """Another broker of the group, as the leader sees it."""

    address: str
    untold: dict[_Key, tuple[WaitingPull, Connection]] = field(default_factory=dict)
    busy: bool = False
    """It was told something and has not answered, or is left alone for a while."""
    able: bool = True
    """It knows the request."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A pull that the leader has, and this broker's own connection to its client."""

    pull: WaitingPull
    connection: Connection
    told: float
    """Loop time."""


class StrandedPulls(LeaderService):
    """Tells while this broker leads, is told while it follows, and answers when it takes over."""

    def __init__(self, core: Core, client: RemotingClient, members: Members, origins: Origins) -> None:
        self._clients = core.clients
        self._client = client
        self._gate = core.gate
        self._members = members
        self._node = core.node
        self._origins = origins
        self._settings = core.settings
        self._store = core.store
        self._log = core.env.log.child("stranded")
        self._others: dict[str, _Member] = {}
        """By node id."""
        self._term = 0
        """Of this leadership."""
        self._wake = asyncio.Event()
        self._looked_at = 0.0
        """Loop time at which the members of the group were looked at."""
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        """The oldest first."""
        self._of_term = 0
        """In which they were told."""
        self._stranded: dict[_Key, _Kept] = {}
        """Those of a leader that is lost, until they are answered."""
        self._timer: asyncio.TimerHandle | None = None
        self.answered: int = 0
        """Since start."""

    # -- the leader -----------------------------------------------------------------------------------

    def waits(self, pull: Pull) -> None:
        """A pull began to wait here."""
        request = pull.request
        if (
            request.flag & (FLAG_REDIRECT | FLAG_FORWARDED)
            or request.language not in DEAF
            or (request.language == LanguageCode.JAVA.name and request.version >= NOTICES)
        ):
            return
        self._wake.set()
        client = self._clients.client_over(pull.connection, pull.group)
        if client is None or not (client.isascii() and client.isprintable()):
            return  # any other name takes up to six times its length
        key = client, pull.group, pull.topic, pull.queue_id
        one = WaitingPull(*key, pull.offset, request.opaque, request.serialize, peer_ip(pull.connection))
        for other in self._others.values():
            if other.able and (key in other.untold or len(other.untold) < MAX_UNTOLD):
                other.untold[key] = one, pull.connection

    def begin(self, writer: CommitLogWriter) -> None:
        """What waited at the leader before is answered, and who follows is told from now on."""
        self._term = writer.term
        self._others = {}
        self._strand(0.0)
        self._look_for_others()

    async def run(self) -> None:
        """Tell who follows."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if asyncio.get_running_loop().time() - self._looked_at > RETRY_S:
                self._look_for_others()
            for other in self._others.values():
                self._tell(other)
            await asyncio.sleep(SETTLE_S)

    def end(self, reason: str) -> None:
        """Another one tells."""
        self._others = {}

    def _look_for_others(self) -> None:
        self._looked_at = asyncio.get_running_loop().time()
        known = self._members()
        for node in list(self._others):
            if node not in known:
                del self._others[node]
        for node, address in known.items():
            other = self._others.get(node)
            if not address or node == self._settings.now.self_id:
                continue  # one that is not connected is still a member
            if other is None or other.address != address:
                self._others[node] = _Member(address)

    def _tell(self, other: _Member) -> None:
        if other.busy or not other.untold:
            return
        taken = [other.untold.pop(key) for key in list(islice(other.untold, SLICE))]
        waiting = [one for one, connection in taken if not connection.closed]
        if not waiting:
            self._free(other)
            return
        body = PullsHeld(self._term, waiting).encode()
        other.busy = True
        code = RequestCode.TELL_PULLS
        fields = with_proof(self._node, other.address, code, {}, body)
        self._client.invoke_nowait(other.address, code, fields, body, TIMEOUT_S, partial(self._told, other))

    def _told(self, other: _Member, result: Response | RemotingError) -> None:
        """What a member that is away was not told it is not told again: there will be newer ones."""
        if isinstance(result, Response) and result.code == ResponseCode.SUCCESS:
            self._free(other)
            return
        wait_s = RETRY_S
        if isinstance(result, Response) and result.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            other.able, wait_s = False, OLDER_S
            other.untold.clear()
        asyncio.get_running_loop().call_later(wait_s, self._free, other)

    def _free(self, other: _Member) -> None:
        other.busy, other.able = False, True
        if other.untold:
            self._wake.set()

    # -- a follower -----------------------------------------------------------------------------------

    def leads(self, term: int) -> None:
        """Another broker leads in this term."""
        if term > self._of_term:
            self._strand_unless_silent()

    @handles(
        RequestCode.TELL_PULLS, needs=Needs.ANY, reads="its memory", max_body=MAX_TELL, may=required.ADMIN
    )
    def take(self, call: Call[None]) -> None:
        """Pulls that wait at the leader."""
        if not self._origins.is_members_own(call.connection, call.request):
            raise RemotingError(ResponseCode.NO_PERMISSION, "only brokers of this group tell of pulls")
        held = decode_held(call.request.body)
        ahead = held.term - self._node.term
        if self._gate.writer is None and held.term >= self._of_term and ahead < MAX_TERMS_AHEAD:
            if held.term > self._of_term:
                self._strand_unless_silent()  # what was told before is of a leader before
                self._of_term = held.term
            self._keep(held.pulls, asyncio.get_running_loop().time())
        call.respond()

    def _keep(self, pulls: list[WaitingPull], now: float) -> None:
        kept = self._kept
        for pull in pulls:
            key = pull.clientId, pull.group, pull.topic, pull.queueId
            self._stranded.pop(key, None)
            kept.pop(key, None)
            for _ in range(2):  # more go than come
                oldest = next(iter(kept.values()), None)
                if oldest is None or not (
                    len(kept) >= MAX_KEPT or oldest.connection.closed or now - oldest.told > PULL_LIVES_S
                ):
                    break
                kept.popitem(last=False)
            connection = self._clients.connection_of(pull.clientId)
            if connection is not None and peer_ip(connection) == pull.host:
                kept[key] = _Kept(pull, connection, now)

    def _strand_unless_silent(self) -> None:
        """Where this broker does not forward, who asks here gets nowhere: only the new leader answers."""
        if self._settings.now.forward_to_leader:
            self._strand(LEADER_FIRST_S)
        else:
            self._kept.clear()

    # -- both -----------------------------------------------------------------------------------------

    def _strand(self, wait_s: float) -> None:
        """The leader is lost: its pulls are answered after so long."""
        if self._kept or self._stranded:
            self._stranded |= self._kept
            self._kept.clear()
            self._set_timer(wait_s)

    def _set_timer(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._answer_some)

    def _answer_some(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        some = [self._stranded.pop(key) for key in list(islice(self._stranded, SLICE))]
        if self._stranded:
            self._set_timer(PACE_S)
        for one in some:
            if now - one.told < PULL_LIVES_S and not one.connection.closed:
                self._answer(one)
        if not self._stranded:
            self._log.info("pulls of the leader before are answered", pulls=self.answered)

    def _answer(self, one: _Kept) -> None:
        pull = one.pull
        low, high = self._store.queues.range_of(pull.topic, pull.queueId)
        if pull.offset > high:
            return  # here is less than there was, or it is no offset
        own_id = self._settings.now.follower_id  # it was one when the client last looked for routes
        suggest_here(one.connection, own_id)
        request = Request(RequestCode.PULL_MESSAGE, opaque=pull.opaque, serialize=pull.serialize)
        one.connection.respond(
            request,
            ResponseCode.PULL_NOT_FOUND,
            ext=pull_fields(own_id, pull.offset, low, high),
            remark="the leader that had it is not heard here: ask again",
        )
        self.answered += 1

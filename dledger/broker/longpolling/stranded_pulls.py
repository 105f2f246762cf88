"""Answers to pulls that wait at a leader that was lost. The next leader answers them.

Java clients before 5.0, and clients in C++ and Go, do not notice that the connection of a pull is lost. They
wait for their own time-out of 30 s, and meanwhile read nothing of that queue. But they accept an answer over
any connection if it has the number of the request, and they have a connection to each broker of the group for
their heartbeats. So a leader reports the waiting pulls of such clients to the other brokers (request 28102
TELL_PULLS). The next leader answers these pulls: there are no messages, pull again. If a client has no
connection to the new leader, because the new leader was down until a moment ago, another follower answers the
pull.

The address at which the client expects the leader may be that of the lost one. So the answer suggests pulling
from the broker that sends it (`suggestWhichBrokerId`). Later answers over the same connection suggest this as
well, until the client has fetched a new route.

Another request of a client could have the same number as the pull. Two rules keep the answer from being taken
for the answer to that request. First, the answer is sent only over a connection that existed when the pull
was reported, to the same client id at the same address. Second, the numbers of a client only grow: if the
lost leader did answer the pull, no request with this number waits, and the client ignores the second answer.

None of this is replicated. If a pull was not reported, its client waits for its own time-out, as it would
without this module.
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
"""Languages of clients that do not notice the loss of a connection. For Java this is true only in versions
below `NOTICES`."""
NOTICES = 412
"""Number of the version V5_0_0. Java clients from this version on notice the loss of a connection."""
SETTLE_S = 0.01
"""Pulls that begin to wait within this many seconds are reported together. A pull that is answered within
this time is not reported."""
RETRY_S = 1.0
"""Seconds until reports are sent again to a member that did not accept one."""
OLDER_S = 60.0
"""Seconds until reports are sent again to a member that does not know the request. By then it may run a newer
version."""
TIMEOUT_S = 3.0
SLICE = 200
"""Largest number of pulls in one report, and of answers in one turn of the event loop."""
PACE_S = 0.005
"""Seconds between two turns of the event loop in which answers are sent."""
LEADER_FIRST_S = 0.3
"""Seconds for which followers leave the pulls of the lost leader to the new leader. If a client pulls from
the new leader meanwhile, this leader reports the new pull, and followers no longer answer the old one."""
MAX_TELL = 384 * 1024
"""Limit, in bytes, of a report. It is enough for `SLICE` pulls with the longest names. A longer report is
refused."""
MAX_UNTOLD = 20_000
"""Largest number of pulls that wait to be reported to one member; one more is not reported."""
MAX_KEPT = 100_000
"""Largest number of reported pulls that this broker keeps; one more replaces the oldest."""
MAX_TERMS_AHEAD = 1000
"""A report is ignored if its term is higher than this broker's own term by this number or more. The report
and the term arrive over different connections, so a report may be ahead, but never by so many elections."""
PULL_LIVES_S = 60.0
"""Seconds after which a reported pull is dropped. Clients wait for only 30 s."""
_Key = tuple[str, str, str, int]
"""Client id, group, topic and queue id, which identify a pull, because a client has at most one pull in
flight for each queue."""


@dataclass(slots=True)
class _Member:
    """Another broker of the group, to which the leader sends reports."""

    address: str
    untold: dict[_Key, tuple[WaitingPull, Connection]] = field(default_factory=dict)
    busy: bool = False
    """Whether a report to this broker is in flight, or no reports are sent to it for a while."""
    able: bool = True
    """Whether this broker knows the request."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A pull that waits at the leader, with the connection between this broker and the pull's client."""

    pull: WaitingPull
    connection: Connection
    told: float
    """Loop time at which the pull was reported."""


class StrandedPulls(LeaderService):
    """Reports waiting pulls while this broker leads. While it follows, it keeps the pulls that the leader
    reports, and answers them when that leader is lost."""

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
        """Maps the node ids of the other members to what is known about them."""
        self._term = 0
        """The term in which this broker leads or last led."""
        self._wake = asyncio.Event()
        self._looked_at = 0.0
        """Loop time at which the list of members was last read."""
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        """Reported pulls of the present leader, the oldest first."""
        self._of_term = 0
        """The term of the leader that reported the pulls in `_kept`."""
        self._stranded: dict[_Key, _Kept] = {}
        """Pulls of a lost leader that must still be answered."""
        self._timer: asyncio.TimerHandle | None = None
        self.answered: int = 0
        """Number of pulls answered since the start."""

    # -- the leader -----------------------------------------------------------------------------------

    def waits(self, pull: Pull) -> None:
        """Note that a pull begins to wait at this broker. It is reported to the other members if its client
        does not notice the loss of a connection."""
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
            return  # other names can take six times their length
        key = client, pull.group, pull.topic, pull.queue_id
        one = WaitingPull(*key, pull.offset, request.opaque, request.serialize, peer_ip(pull.connection))
        for other in self._others.values():
            if other.able and (key in other.untold or len(other.untold) < MAX_UNTOLD):
                other.untold[key] = one, pull.connection

    def begin(self, writer: CommitLogWriter) -> None:
        """Start as leader: answer the pulls that waited at the previous leader, and from now on report pulls
        to the followers."""
        self._term = writer.term
        self._others = {}
        self._strand(0.0)
        self._look_for_others()

    async def run(self) -> None:
        """Report waiting pulls to the followers, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if asyncio.get_running_loop().time() - self._looked_at > RETRY_S:
                self._look_for_others()
            for other in self._others.values():
                self._tell(other)
            await asyncio.sleep(SETTLE_S)

    def end(self, reason: str) -> None:
        """Stop reporting pulls, because this broker no longer leads."""
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
                continue  # without an address: not connected, but still a member
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
        """Handle the answer to a report, or its failure. A failed report is not sent again, because the
        member will get reports of newer pulls."""
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
        """Note that another broker leads in this term. If the kept pulls were reported in an earlier term,
        their leader is lost."""
        if term > self._of_term:
            self._strand_unless_silent()

    @handles(
        RequestCode.TELL_PULLS, needs=Needs.ANY, reads="its memory", max_body=MAX_TELL, may=required.ADMIN
    )
    def take(self, call: Call[None]) -> None:
        """Accept the leader's report of pulls that wait at the leader."""
        if not self._origins.is_members_own(call.connection, call.request):
            raise RemotingError(ResponseCode.NO_PERMISSION, "only brokers of this group may report pulls")
        held = decode_held(call.request.body)
        ahead = held.term - self._node.term
        if self._gate.writer is None and held.term >= self._of_term and ahead < MAX_TERMS_AHEAD:
            if held.term > self._of_term:
                self._strand_unless_silent()  # the kept pulls are of an earlier leader
                self._of_term = held.term
            self._keep(held.pulls, asyncio.get_running_loop().time())
        call.respond()

    def _keep(self, pulls: list[WaitingPull], now: float) -> None:
        kept = self._kept
        for pull in pulls:
            key = pull.clientId, pull.group, pull.topic, pull.queueId
            self._stranded.pop(key, None)
            kept.pop(key, None)
            for _ in range(2):  # so more pulls are dropped than added
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
        """Treat the kept pulls as pulls of a lost leader. If this broker does not forward requests to the
        leader, forget them instead. A client that then pulled from this broker would get no messages, so only
        the new leader answers these pulls."""
        if self._settings.now.forward_to_leader:
            self._strand(LEADER_FIRST_S)
        else:
            self._kept.clear()

    # -- both -----------------------------------------------------------------------------------------

    def _strand(self, wait_s: float) -> None:
        """Treat the kept pulls as pulls of a lost leader, and answer them after `wait_s` seconds."""
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
            self._log.info("pulls of the previous leader are answered", pulls=self.answered)

    def _answer(self, one: _Kept) -> None:
        pull = one.pull
        low, high = self._store.queues.range_of(pull.topic, pull.queueId)
        if pull.offset > high:
            return  # this broker's log is shorter, or the offset is wrong
        own_id = self._settings.now.follower_id  # a follower when the client fetched its route
        suggest_here(one.connection, own_id)
        request = Request(RequestCode.PULL_MESSAGE, opaque=pull.opaque, serialize=pull.serialize)
        one.connection.respond(
            request,
            ResponseCode.PULL_NOT_FOUND,
            ext=pull_fields(own_id, pull.offset, low, high),
            remark="the leader that held this pull is out of reach: pull again",
        )
        self.answered += 1

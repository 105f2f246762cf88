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
there when the pull waited, to the same client id at the same address. And numbers go up: an answer that
comes after that of the leader is one that nobody waits for, which clients ignore.

Nothing here is state of the group. What is not told costs a client its time-out, as it did without this.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.context import BrokerContext
from dledger.broker.longpolling.pull_hold import Pull
from dledger.broker.longpolling.suggestions import SUGGESTED, suggest_here
from dledger.broker.requests import Call, Needs, handles
from dledger.broker.services import LeaderService
from dledger.remoting.bodies import PullsHeld, WaitingPull, decode_held
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
TIMEOUT_S = 3.0
SLICE = 200
"""Pulls of a request, and answers of a turn of the loop."""
PACE_S = 0.005
"""Between two such turns."""
LEADER_FIRST_S = 0.3
"""So long the new leader has to answer them; what its clients ask it then it tells."""
MAX_TELL = 256 * 1024
"""Bytes of a request: more than `SLICE` pulls with the longest names have."""
MAX_UNTOLD = 20_000
"""Pulls that wait to be told to a member; one more is not told to it."""
MAX_KEPT = 100_000
"""Pulls of the leader that this broker knows of; one more is not kept."""
PULL_LIVES_S = 60.0
"""What is older is over: clients wait for 30 s."""
_Key = tuple[str, str, str, int]
"""Client id, group, topic, queue id: of which a client has one pull under way."""


@dataclass(slots=True)
class _Member:
    """Another broker of the group, as the leader sees it."""

    address: str
    untold: dict[_Key, WaitingPull] = field(default_factory=dict)
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

    def __init__(self, context: BrokerContext) -> None:
        self._clients = context.clients
        self._client = context.client
        self._gate = context.gate
        self._members = context.members
        self._origins = context.origins
        self._settings = context.settings
        self._store = context.store
        self._log = context.env.log.child("stranded")
        self._others: dict[str, _Member] = {}
        """By node id."""
        self._term = 0
        """Of this leadership."""
        self._wake = asyncio.Event()
        self._looked_at = 0.0
        """Loop time at which the members of the group were looked at."""
        self._kept: dict[_Key, _Kept] = {}
        self._of_term = 0
        """In which they were told."""
        self._leader: str | None = None
        """Where the last one listens that this broker followed."""
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
            or not self._others
        ):
            return
        client = self._clients.client_over(pull.connection, pull.group)
        if client is None:
            return
        key = client, pull.group, pull.topic, pull.queue_id
        one = WaitingPull(*key, pull.offset, request.opaque, request.serialize, _host(pull.connection))
        for other in self._others.values():
            if other.able and (key in other.untold or len(other.untold) < MAX_UNTOLD):
                other.untold[key] = one
        self._wake.set()

    def begin(self, writer: CommitLogWriter) -> None:
        """What waited at the leader before is answered, and who follows is told from now on."""
        self._term = writer.term
        self._others = {}
        self._leader = None
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
        own = self._settings.now.self_id
        known = {node: address for node, address in self._members().items() if address and node != own}
        for node in self._others.keys() - known.keys():
            del self._others[node]
        for node, address in known.items():
            other = self._others.get(node)
            if other is None or other.address != address:
                self._others[node] = _Member(address)

    def _tell(self, other: _Member) -> None:
        if other.busy or not other.untold:
            return
        keys = list(other.untold)[:SLICE]
        body = PullsHeld(self._term, [other.untold.pop(key) for key in keys]).encode()
        other.busy = True
        self._client.invoke_nowait(
            other.address, RequestCode.TELL_PULLS, None, body, TIMEOUT_S, partial(self._told, other)
        )

    def _told(self, other: _Member, result: Response | RemotingError) -> None:
        """What a member that is away was not told it is not told again: there will be newer ones."""
        if isinstance(result, Response) and result.code == ResponseCode.SUCCESS:
            self._free(other)
            return
        if isinstance(result, Response) and result.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            other.able = False  # an older one
            other.untold.clear()
        asyncio.get_running_loop().call_later(RETRY_S, self._free, other)

    def _free(self, other: _Member) -> None:
        other.busy = False
        if other.untold:
            self._wake.set()

    # -- a follower -----------------------------------------------------------------------------------

    def leads(self, address: str | None) -> None:
        """Who else leads, as far as this broker knows."""
        if address is None or address == self._leader:
            return
        before, self._leader = self._leader, address
        if before is not None:
            self._strand(LEADER_FIRST_S)

    @handles(RequestCode.TELL_PULLS, needs=Needs.ANY, reads="its memory", max_body=MAX_TELL)
    def take(self, call: Call[None]) -> None:
        """Pulls that wait at the leader."""
        if not self._origins.is_member(call.connection):
            raise RemotingError(ResponseCode.NO_PERMISSION, "only brokers of this group tell of pulls")
        held = decode_held(call.request.body)
        if self._gate.writer is None and held.term >= self._of_term:
            self._of_term = held.term
            self._keep(held.pulls, asyncio.get_running_loop().time())
        call.respond()

    def _keep(self, pulls: list[WaitingPull], now: float) -> None:
        if len(self._kept) + len(pulls) > MAX_KEPT:
            self._kept = {
                key: one
                for key, one in self._kept.items()
                if not one.connection.closed and now - one.told < PULL_LIVES_S
            }
        for pull in pulls[: max(0, MAX_KEPT - len(self._kept))]:
            key = pull.clientId, pull.group, pull.topic, pull.queueId
            self._stranded.pop(key, None)
            connection = self._clients.connection_of(pull.clientId)
            if connection is not None and _host(connection) == pull.host:
                self._kept[key] = _Kept(pull, connection, now)
            else:
                self._kept.pop(key, None)

    # -- both -----------------------------------------------------------------------------------------

    def _strand(self, wait_s: float) -> None:
        """The leader is lost: its pulls are answered after so long."""
        if self._kept or self._stranded:
            self._stranded, self._kept = self._stranded | self._kept, {}
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._answer_some)

    def _answer_some(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        keys = list(self._stranded)
        for key in keys[:SLICE]:
            one = self._stranded.pop(key)
            if now - one.told < PULL_LIVES_S and not one.connection.closed:
                self._answer(one)
        if self._stranded:
            self._timer = loop.call_later(PACE_S, self._answer_some)
        else:
            self._log.info("pulls of the leader before are answered", pulls=self.answered)

    def _answer(self, one: _Kept) -> None:
        pull = one.pull
        queue = self._store.queues.get(pull.topic, pull.queueId)
        low, high = (0, 0) if queue is None else (queue.bounds.min, queue.bounds.next)
        own_id = self._settings.now.follower_id  # it was one when the client last looked for routes
        suggest_here(one.connection, own_id)
        request = Request(RequestCode.PULL_MESSAGE, opaque=pull.opaque, serialize=pull.serialize)
        one.connection.respond(
            request,
            ResponseCode.PULL_NOT_FOUND,
            ext={
                SUGGESTED: str(own_id),
                "nextBeginOffset": str(pull.offset),
                "minOffset": str(low),
                "maxOffset": str(high),
            },
            remark="the leader that had it is lost",
        )
        self.answered += 1


def _host(connection: Connection) -> str:
    return connection.peer.rpartition(":")[0]

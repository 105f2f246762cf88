"""The common part of producers and consumers: connections, routes, known leaders, heartbeats, tasks."""

from __future__ import annotations

import asyncio
from asyncio.events import _get_running_loop
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dledger.client.broker_group import LEADER_HINT, BrokerGroup
from dledger.client.errors import (
    BrokerRefused,
    ClientClosed,
    ClientError,
    NoBroker,
    NoNameServer,
    OutcomeUnknown,
    TopicNotFound,
    outcome_unknown,
    refused_text,
)
from dledger.client.heartbeat_answers import HeartbeatAnswers
from dledger.client.name_servers import NameServers, Size, successful, where_name_servers_are
from dledger.client.options import ClientOptions
from dledger.client.routes import (
    groups_in_cluster,
    groups_of_answer,
    groups_of_route,
    merge_clusters,
    merge_routes,
    parse_route,
)
from dledger.remoting.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumerData,
    Heartbeat,
    ProducerData,
    TopicRoute,
    decode_body,
)
from dledger.remoting.client import ClientHandler, RemotingClient
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request, Response
from dledger.remoting.errors import (
    BadBody,
    ConnectionLost,
    Overloaded,
    RemotingError,
    RequestTimeout,
    WrongTls,
)
from dledger.remoting.frames import Fields
from dledger.remoting.headers import GetRouteHeader, UnregisterClientHeader
from dledger.runtime import Env
from dledger.runtime.env import production_env
from dledger.runtime.forks import FORKS
from dledger.runtime.log import Log
from dledger.runtime.workers import close_meanwhile

if TYPE_CHECKING:
    from ssl import SSLContext

NOT_OPEN = (
    "this client is not started, or already closed: use it inside its `with` block, or "
    "between start() and close()"
)
OPENED_BEFORE_FORK = (
    "this client was opened before os.fork(), and belongs to the parent process: open another one in "
    "the child process"
)
OTHER_LOOP = (
    "this client was opened in another event loop, and can only be used there: call it in that loop "
    "(asyncio.run_coroutine_threadsafe), or use a client for threads (Producer and its `asend`, "
    "PushConsumer, PullConsumer), which any loop and any thread may call"
)

_Waiting = asyncio.Future[Response | RemotingError | None]
OnRoute = Callable[[str, TopicRoute], None]
"""Called with a topic and its new route; must not raise."""


POLL_GRACE_S = 1.0
"""How long a broker that is no longer the leader may still answer a waiting request, in seconds. Without its
answer, messages that it handed out in a pop would come again only after their invisible time."""
REFUSED_BEATS = 2
"""How many heartbeat intervals the brokers have to refuse all heartbeats of a client, before the client ends.
This applies to a client whose heartbeats were accepted before."""
CHANGE_TRIES = 3
"""How often a request that changes something is tried, if the leader is lost each time while it works on the
request."""
PASSING = frozenset((ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY))
"""Answers to a heartbeat that are temporary and do not mean that the client is refused."""
COMPARE_EVERY = 10
"""Every 10th poll of the routes asks all NameServers: the current one may not know all brokers."""


class ClientCore:
    """One client's view of the cluster; `async with` starts and ends its background tasks.

    A client learns of a leader change in three ways: from a broker's answer (`leader_is`, after an accepted
    message or a hint), from a new leader that receives no heartbeats from us (request 40
    NOTIFY_CONSUMER_IDS_CHANGED with the field `leaderAddr`), and from a changed route. In each case the
    client ends the `long_poll`s that wait at other brokers of the group. It also sends heartbeats at once,
    because the new leader may not know this client.
    """

    def __init__(
        self,
        env: Env | None,
        namesrv: str | Sequence[str] | None,
        options: ClientOptions,
        handlers: dict[int, ClientHandler] | None = None,
        disk_threads: int = 2,
    ) -> None:
        """If no `env` is given, the client makes one with this many `disk_threads`, and ends those threads
        when it is closed."""
        self._own_env = env is None
        env = env or production_env("rocketmq", disk_threads)
        self.env = env
        self.options = options
        self.log: Log = env.log.child("client")
        self.client_id: str = client_id(env, options)
        self.remoting: RemotingClient = RemotingClient(
            env,
            limits=options.limits,
            handlers={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ids_changed, **(handlers or {})},
            redirect=options.redirect,
            credentials=options.credentials,
            tls=_tls_context(options),
        )
        self.groups: dict[str, BrokerGroup] = {}
        self.routes: dict[str, TopicRoute] = {}
        self.watched: dict[str, None] = {}
        """Topics that have no route yet and are polled for one."""
        self.on_route: list[OnRoute] = []
        self.on_members: list[Callable[[str], None]] = []
        """Called with the name of a consumer group whose members changed; must not raise."""
        self.producer_groups: list[str] = []
        self.consumers: Callable[[], list[ConsumerData]] = list
        """Returns the consumer groups that heartbeats report."""
        self.unanswered: int = 0
        """Attempts of requests to leaders that were sent and then lost: they may have been carried out, or
        may be later."""
        addresses, address_server = where_name_servers_are(namesrv, options)
        self.cluster_id: tuple[str, ...] = addresses or (address_server,)
        """Equal for clients that were given the same addresses of NameServers, or the same address server."""
        self.name_servers: NameServers = NameServers(
            env, self.remoting, self.log, addresses, address_server, options.namesrv_timeout_s
        )
        self._polls: dict[_Waiting, tuple[BrokerGroup, str, float]] = {}
        """Waiting `long_poll` -> its broker group, the broker's address, and its grace time in seconds."""
        self._tasks: asyncio.TaskGroup | None = None
        self._owned: dict[asyncio.Task[None], None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which the client was opened."""
        self._wanted: dict[str | None, None] = {}  # topics whose route is to be asked for at once
        self._wake = asyncio.Event()
        self._beat = asyncio.Event()
        self._answers = HeartbeatAnswers(REFUSED_BEATS * options.heartbeat_s)
        self.on_refused: Callable[[BrokerRefused], None] = lambda refusal: None
        """Called when no broker accepts our heartbeats: at once if none ever did, otherwise when that has
        lasted for `REFUSED_BEATS`."""
        self._closed = False
        self._forks = FORKS.count
        self.failure: BaseException | None = None
        """The unexpected exception that ended a task of this client. The client cannot go on."""

    # --- life -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> ClientCore:
        self._loop = asyncio.get_running_loop()
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self.spawn(self.remoting.run(), "connections")
        if self.name_servers.address_server:
            self.spawn(self.name_servers.poll_address_server(), "poll address server")
        self.spawn(self._poll_routes(), "poll routes")
        self.spawn(self._refresh_wanted(), "refresh routes")
        self.spawn(self._heartbeats(), "heartbeats")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        try:
            await self.remoting.close()
            for task in list(self._owned):
                task.cancel()
            if self._tasks is not None:
                # An error of the application is not an error of this group's tasks, so it is not passed on.
                if kind is None or not issubclass(kind, asyncio.CancelledError):
                    kind = error = trace = None
                await self._tasks.__aexit__(kind, error, trace)
        finally:
            if self._own_env:
                # Waits for running listeners, without blocking the application's loop.
                await close_meanwhile(self.env.workers)

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a task that ends with this client at the latest. Raises ClientClosed if the client is closed or
        not open."""
        if self._tasks is None or self._closed:
            coroutine.close()
            raise ClientClosed(NOT_OPEN)
        task = self._tasks.create_task(coroutine, name=name)
        self._owned[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._owned.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self.failure = self.failure or task.exception()

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the process that made this client."""
        return FORKS.count != self._forks

    def check_open(self) -> None:
        """Raise ClientClosed unless the client is started, not closed, and in the process that opened it.
        Raise ClientError if the caller is in another event loop than the one in which it was opened."""
        if self._forks != FORKS.count:
            raise ClientClosed(OPENED_BEFORE_FORK)
        if self._tasks is None or self._closed:
            raise ClientClosed(NOT_OPEN)
        self.check_loop()

    def check_loop(self) -> None:
        """Raise ClientError if the caller is in another event loop than the one in which this client was
        opened. Raise ClientClosed in a fork of the process."""
        if self._forks != FORKS.count:
            raise ClientClosed(OPENED_BEFORE_FORK)
        if self._loop is not None and _get_running_loop() not in (self._loop, None):
            raise ClientError(OTHER_LOOP)

    @property
    def namesrv(self) -> tuple[str, ...]:
        """Addresses of the NameServers."""
        return self.name_servers.addresses

    def now(self) -> float:
        """The loop time in seconds."""
        return asyncio.get_running_loop().time()

    # --- routes ---------------------------------------------------------------------------------------

    async def ask_namesrv(self, code: int, header: Fields) -> Response:
        """Ask the current NameServer, and then the others until one answers. Raises NoNameServer if none
        answers."""
        self.check_open()
        return await self.name_servers.ask(code, header)

    async def ask_namesrvs(self, code: int, header: Fields, size: Size) -> list[Response]:
        """Ask all NameServers and return the answers (`NameServers.ask_all`). Raises NoNameServer if none
        answers."""
        self.check_open()
        return await self.name_servers.ask_all(code, header, size)

    async def refresh(self, topic: str, *, compare: bool = False) -> TopicRoute:
        """Ask for a topic's route now. Raises TopicNotFound, NoNameServer or BrokerRefused.

        For a known topic it asks one NameServer. It asks all of them for a new topic, if that one NameServer
        knows fewer broker groups than before, or if `compare` is set. The answers are merged, because a
        NameServer that was just started knows only a part of the brokers.
        """
        zone = self.options.zone
        header = GetRouteHeader(topic, True, "true", zone) if zone else GetRouteHeader(topic, True)
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        known = self.routes.get(topic)
        if known is not None and not compare:
            answer = await self.ask_namesrv(code, header)
            if (there := groups_of_answer(answer)) and there >= groups_of_route(known):
                return self._take(topic, parse_route(answer.body))
        answers = await self.ask_namesrvs(code, header, lambda answer: len(groups_of_answer(answer)))
        if all(answer.code == ResponseCode.TOPIC_NOT_EXIST for answer in answers):
            raise TopicNotFound(
                f"no broker serves the topic {topic!r}: create it with create_topic(), or start the brokers",
                answers[0].code,
            )
        known_there = [answer for answer in answers if answer.code != ResponseCode.TOPIC_NOT_EXIST]
        try:
            route = merge_routes([parse_route(answer.body) for answer in successful(known_there)])
        except BadBody as error:
            raise BrokerRefused(
                f"the route of {topic!r} from the NameServer cannot be read: {error}"
            ) from error
        return self._take(topic, route)

    async def route(self, topic: str) -> TopicRoute:
        """Return the topic's route; ask for it when it is not known yet."""
        known = self.routes.get(topic)
        return known if known is not None else await self.refresh(topic)

    async def refresh_quietly(self, topic: str | None, *, compare: bool = False) -> None:
        """Ask for a topic's route. If `topic` is None, or neither known nor watched, ask for all brokers
        instead. Errors are logged, and then nothing changes."""
        try:
            if topic is None or (topic not in self.routes and topic not in self.watched):
                await self.cluster()
            else:
                await self.refresh(topic, compare=compare)
        except (TopicNotFound, NoNameServer, BrokerRefused) as error:
            self.log.debug("route not refreshed", topic=topic, error=error)

    async def cluster(self) -> dict[str, BrokerData]:
        """All broker groups that any NameServer knows, by name. Raises NoNameServer or BrokerRefused."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        answers = successful(await self.ask_namesrvs(code, None, groups_in_cluster))
        try:
            found = [decode_body(answer.body, ClusterInfo, "cluster info") for answer in answers]
        except BadBody as error:
            raise BrokerRefused(f"the list of brokers from the NameServer cannot be read: {error}") from error
        brokers = merge_clusters(found).brokerAddrTable
        self._register(list(brokers.values()))
        return dict(sorted(brokers.items()))

    def refresh_soon(self, topic: str | None) -> None:
        """Make the background task ask for the route at once."""
        self._wanted[topic] = None
        self._wake.set()

    def group(self, name: str) -> BrokerGroup:
        """The broker group with this name."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = BrokerGroup(name)
        return group

    def _take(self, topic: str, route: TopicRoute) -> TopicRoute:
        changed = self.routes.get(topic) != route
        self.routes[topic] = route
        if changed:
            for on_route in self.on_route:
                on_route(topic, route)
        self._register(route.brokerDatas)
        return route

    def _register(self, brokers: Sequence[BrokerData]) -> None:
        for data in brokers:
            group = self.group(data.brokerName)
            if group.registered(data.brokerAddrs):
                self._moved(group)

    async def _poll_routes(self) -> None:
        for turn in count(1):
            await asyncio.sleep(self.options.route_poll_s)
            for topic in {**self.routes, **self.watched}:
                await self.refresh_quietly(topic, compare=turn % COMPARE_EVERY == 0)

    async def _refresh_wanted(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            wanted, self._wanted = self._wanted, {}
            for topic in wanted:
                await self.refresh_quietly(topic)
            await asyncio.sleep(self.options.search_first_s)

    # --- leaders --------------------------------------------------------------------------------------

    def leader_is(self, group: BrokerGroup, address: str) -> None:
        """Note which broker is the leader. It has said so itself by accepting a write, or another broker
        named it in a hint."""
        if group.accepted(address):
            self._moved(group)

    def leader_failed(self, group: BrokerGroup, address: str, topic: str | None) -> None:
        """Note that the broker at this address is gone or no longer the leader, and ask the NameServers at
        once."""
        if group.leader == address:
            group.failed(address)
            self.log.info("leader lost", group=group.name, address=address)
            self.refresh_soon(topic)

    def _moved(self, group: BrokerGroup) -> None:
        self.log.info("leader", group=group.name, address=group.leader)
        self._beat.set()
        loop = asyncio.get_running_loop()
        for waiting, (polled, address, grace_s) in self._polls.items():
            if polled is group and address != group.leader:
                loop.call_later(grace_s, _give_up, waiting, group, address)

    def _ids_changed(self, address: str, request: Request) -> None:
        """Handle request 40 NOTIFY_CONSUMER_IDS_CHANGED: a broker reports that the consumers of a group
        changed, or that it is the new leader."""
        said = request.ext()
        leader = said.get(LEADER_HINT)
        for group in self.groups.values():
            if leader is not None and leader in group.addresses.values():
                self.leader_is(group, leader)
        for on_members in self.on_members:
            on_members(said.get("consumerGroup", ""))

    async def long_poll(
        self,
        group: BrokerGroup,
        address: str,
        code: int,
        header: Fields,
        timeout_s: float,
        grace_s: float = 0.0,
    ) -> Response | None:
        """Send a request that the broker holds until it has something to answer. Returns None if another
        broker becomes the leader meanwhile and no answer comes within `grace_s` after that. Raises
        RemotingError."""
        waiting: _Waiting = asyncio.get_running_loop().create_future()
        self._polls[waiting] = group, address, grace_s
        self.remoting.invoke_nowait(address, code, header, b"", timeout_s, partial(_end, waiting))
        try:
            outcome = await waiting
        finally:
            del self._polls[waiting]
        if isinstance(outcome, RemotingError):
            raise outcome
        return outcome

    async def invoke_leader(
        self,
        group: BrokerGroup,
        topic: str | None,
        code: int,
        header: Fields,
        body: bytes = b"",
        timeout_s: float | None = None,
        *,
        poll_s: float = 0.0,
        lost: list[str] | None = None,
    ) -> Response:
        """Send a request to the group's leader and return its answer. Raises NoBroker if no leader is found
        within `failover_timeout_s`.

        An answer with code 14 SERVICE_NOT_AVAILABLE means that the broker is not the leader, and is not
        returned. While no leader is known, the group's addresses are asked in turn; most followers name the
        leader in their answer. Meanwhile the NameServers are asked for the route of `topic`, or for all
        brokers if it is None. `poll_s` is how long the leader may hold the request until it has something to
        answer (`long_poll`); such a request has no body. If an attempt was sent and got no answer, the reason
        is appended to `lost`.
        """
        self.check_open()
        options = self.options
        deadline = self.now() + options.failover_timeout_s
        pause = options.search_first_s
        last = "no broker is registered"
        turn = 0
        while True:
            candidates = group.candidates()
            address = candidates[turn % len(candidates)] if candidates else None
            if address is not None:
                began = self.now()
                try:
                    answer = await self._ask(group, address, code, header, body, timeout_s, poll_s)
                except WrongTls as error:
                    raise NoBroker(error.remark) from error
                except RemotingError as error:
                    last = error.remark
                    if isinstance(error, ConnectionLost | RequestTimeout):
                        self.unanswered += 1
                        if lost is not None:
                            lost.append(last)
                    if poll_s:
                        deadline += self.now() - began  # held by the broker: this was no time of searching
                    if not isinstance(error, Overloaded):  # it says nothing about the broker
                        self.leader_failed(group, address, topic)
                else:
                    if answer.code != ResponseCode.SERVICE_NOT_AVAILABLE:
                        return answer
                    last = f"14 {answer.remark or ''} from {address}"
                    if poll_s:
                        deadline += self.now() - began
                    hint = answer.ext.get(LEADER_HINT)
                    if hint and hint != address and turn == 0:
                        self.leader_is(group, hint)
                        turn = 1
                        continue
                    self.leader_failed(group, address, topic)
            if self.now() + pause >= deadline:
                raise NoBroker(f"no leader of {group.name} answers ({last}): look at the brokers' /health")
            turn = 0 if group.leader is not None else turn + 1
            await self.refresh_quietly(topic)
            if group.leader is not None:
                turn = 0
            await asyncio.sleep(pause)
            pause = min(2 * pause, options.search_longest_s)

    async def change(
        self, group: BrokerGroup, topic: str | None, code: int, header: Fields, what: str
    ) -> Response:
        """Make the group's leader change something, and return its answer. It must do no harm to make the
        change twice.

        Raises BrokerRefused or NoBroker if the change was certainly not made. Raises OutcomeUnknown if it may
        have been made: an attempt was sent and got no answer, or the leader was lost while it worked on the
        request. `what` describes the change in error texts.
        """
        lost: list[str] = []
        for _ in range(CHANGE_TRIES):
            try:
                answer = await self.invoke_leader(group, topic, code, header, lost=lost)
            except NoBroker as error:
                if lost:
                    raise OutcomeUnknown(f"{what}: {_not_answered(lost)}, and then {error}") from error
                raise
            if answer.code == ResponseCode.SUCCESS:
                return answer
            text = refused_text(answer.code, answer.remark)
            if not outcome_unknown(answer):
                if lost:
                    raise OutcomeUnknown(f"{what}: {_not_answered(lost)}, and then {text}", answer.code)
                raise BrokerRefused(f"{what}: {text}", answer.code)
            lost.append(text)
        raise OutcomeUnknown(f"{what}: {_not_answered(lost)}")

    async def _ask(
        self,
        group: BrokerGroup,
        address: str,
        code: int,
        header: Fields,
        body: bytes,
        timeout_s: float | None,
        poll_s: float,
    ) -> Response:
        timeout_s = timeout_s or self.options.request_timeout_s
        if not poll_s:
            return await self.remoting.invoke(address, code, header, body, timeout_s)
        answer = await self.long_poll(group, address, code, header, timeout_s + poll_s, POLL_GRACE_S)
        if answer is None:
            raise ConnectionLost(f"{address} does not answer, and another broker leads now")
        return answer

    # --- heartbeats -----------------------------------------------------------------------------------

    def beat_soon(self) -> None:
        """Make the background task send heartbeats at once."""
        self._beat.set()

    async def beat(self) -> None:
        """Send heartbeats with our groups to all brokers. Followers get them too, because each may be the
        next leader."""
        heartbeat = Heartbeat(
            clientID=self.client_id,
            producerDataSet=[ProducerData(group) for group in self.producer_groups],
            consumerDataSet=self.consumers(),
        )
        if not heartbeat.producerDataSet and not heartbeat.consumerDataSet:
            return
        body = heartbeat.encode()
        answers = await self._tell_all(RequestCode.HEART_BEAT, None, body)
        refused: BrokerRefused | None = None
        taken = False
        for answer in answers:
            if answer.code == ResponseCode.SUCCESS:
                taken = True
                if answer.remark:
                    self._warn("warning from a broker", answer.remark)
            elif answer.code not in PASSING:
                text = refused_text(answer.code, answer.remark)
                self._warn("broker refused a heartbeat", text)
                refused = refused or BrokerRefused(
                    f"no broker accepts the heartbeats of this client: {text}", answer.code
                )
        if taken:
            self._answers.accepted()
        elif refused is not None and self._answers.refused(self.now()):
            self.on_refused(refused)

    def _warn(self, event: str, text: str) -> None:
        if self._answers.is_new_warning(text):
            self.log.warning(event, text=text)

    async def unregister(self, producer_group: str | None, consumer_group: str | None) -> None:
        """Notify all brokers that this client leaves a group, so that its other members take over at once."""
        header = UnregisterClientHeader(self.client_id, producer_group, consumer_group)
        await self._tell_all(RequestCode.UNREGISTER_CLIENT, header, b"")

    async def _tell_all(self, code: int, header: Fields, body: bytes) -> list[Response]:
        """Send a request to all brokers; returns the answers of those that answered."""
        addresses = dict.fromkeys(
            address for group in self.groups.values() for address in group.addresses.values()
        )
        outcomes = await asyncio.gather(
            *(
                self.remoting.invoke(address, code, header, body, self.options.probe_timeout_s)
                for address in addresses
            ),
            return_exceptions=True,
        )
        answers = []
        for address, outcome in zip(addresses, outcomes, strict=True):
            if isinstance(outcome, RemotingError):
                self.log.debug("broker not notified", address=address, error=outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                answers.append(outcome)
        return answers

    async def _heartbeats(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.options.heartbeat_s):
                    await self._beat.wait()
            except TimeoutError:
                pass
            self._beat.clear()
            await self.beat()


def _not_answered(lost: Sequence[str]) -> str:
    return f"an attempt was sent and not answered, so it may be carried out, now or later ({lost[0]})"


def _give_up(waiting: _Waiting, group: BrokerGroup, address: str) -> None:
    if group.leader != address:  # still
        _end(waiting, None)


def _end(waiting: _Waiting, outcome: Response | RemotingError | None) -> None:
    if not waiting.done():
        waiting.set_result(outcome)


def _tls_context(options: ClientOptions) -> SSLContext | None:
    try:
        return None if options.tls is None else options.tls.context()
    except OSError as error:
        raise ClientError(f"ClientOptions: tls: its files cannot be used: {error}") from error


def client_id(env: Env, options: ClientOptions) -> str:
    """The client id `ip@name`, by which brokers distinguish clients."""
    name = options.instance_name or f"{env.pid}#{env.random.getrandbits(64):016x}"
    return f"{options.client_ip}@{name}"

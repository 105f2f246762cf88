"""What producers and consumers share: connections, routes, the belief about leaders, heartbeats, tasks."""

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
from dledger.client.name_servers import NameServers, Size, successful
from dledger.client.options import ClientOptions, namesrv_addresses
from dledger.client.routes import (
    groups_in_cluster,
    groups_of_answer,
    groups_of_route,
    merge_clusters,
    merge_routes,
    parse_route,
)
from dledger.remoting.address_server import NoAddresses, load_http, url_of
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

NOT_OPEN = "not started, or closed: use it inside its `with` block, or between start() and close()"
OPENED_BEFORE_FORK = (
    "this client was opened before os.fork(), and lives in the parent process: open another one in the child"
)
OTHER_LOOP = (
    "this client was opened in another event loop, and can only be used there: call it in that loop "
    "(asyncio.run_coroutine_threadsafe), or take a client for threads (Producer and its `asend`, "
    "PushConsumer, PullConsumer), which any loop and any thread may call"
)

_Waiting = asyncio.Future[Response | RemotingError | None]
OnRoute = Callable[[str, TopicRoute], None]
"""Told the topic and its new route; must not raise."""


POLL_GRACE_S = 1.0
"""In which a broker that leads no more may answer what waits there: what it gave out in a pop would come
again only after its invisible time."""
REFUSED_BEATS = 2
"""For so many intervals of heartbeats all brokers refuse them before a client that was known to them ends."""
CHANGE_TRIES = 3
"""Tries of a request that changes something whose leader was lost while it worked on it."""
PASSING = frozenset((ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY))
"""Answers to a heartbeat that say nothing of the client."""
COMPARE_EVERY = 10
"""One of so many polls of the routes asks all NameServers: the current one may not hear of some brokers."""
MAX_WARNED = 64
"""Different warnings of brokers that are remembered, so that each is logged once."""


class ClientCore:
    """One client's view of the cluster; `async with` starts and ends its background tasks.

    Three things tell of a leader change: a broker's own word (`leader_is`, from an accepted message or a
    hint), that of a new leader that does not hear from us (40 with `leaderAddr`), and a changed route. All
    end the `long_poll`s that wait at others, and send heartbeats at once, since a new leader may not know us.
    """

    def __init__(
        self,
        env: Env | None,
        namesrv: str | Sequence[str] | None,
        options: ClientOptions,
        handlers: dict[int, ClientHandler] | None = None,
        disk_threads: int = 2,
    ) -> None:
        """Without `env` it makes one, with so many `disk_threads`, and ends its threads when it is closed."""
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
        """Topics to ask for that have no route yet."""
        self.on_route: list[OnRoute] = []
        self.on_members: list[Callable[[str], None]] = []
        """Told the consumer group some of whose members changed; must not raise."""
        self.producer_groups: list[str] = []
        self.consumers: Callable[[], list[ConsumerData]] = list
        """The consumer groups that heartbeats tell of."""
        self.unanswered: int = 0
        """Requests to leaders whose try was lost after it was sent: it may be carried out, now or later."""
        addresses = namesrv_addresses(namesrv, options)
        address_server = "" if addresses else url_of(options.address_server)
        if address_server:
            try:
                load_http()
            except NoAddresses as failure:
                raise ClientError(f"ClientOptions: address_server: {failure}") from None
        self.cluster_id: tuple[str, ...] = addresses or (address_server,)
        """Equal for clients that were told the same way where the NameServers are."""
        self._by_address_server = bool(address_server)
        self.name_servers: NameServers = NameServers(
            env, self.remoting, self.log, addresses, address_server, options.namesrv_timeout_s
        )
        self._polls: dict[_Waiting, tuple[BrokerGroup, str, float]] = {}
        """The broker at which each `long_poll` waits, and its grace."""
        self._tasks: asyncio.TaskGroup | None = None
        self._owned: dict[asyncio.Task[None], None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop in which it was opened."""
        self._wanted: dict[str | None, None] = {}  # topics whose route is to be asked for at once
        self._wake = asyncio.Event()
        self._beat = asyncio.Event()
        self._warned: dict[str, None] = {}
        """What brokers said of our groups in answers to heartbeats, each time again."""
        self.on_refused: Callable[[BrokerRefused], None] = lambda refusal: None
        """Told that no broker takes our heartbeats: at once where none ever did, else when that has lasted
        for `REFUSED_BEATS`."""
        self._heard = False
        """Whether a broker has taken a heartbeat."""
        self._refused_since: float | None = None
        """Loop time of the first heartbeat that all refused, since one was taken."""
        self._closed = False
        self._forks = FORKS.count
        self.failure: BaseException | None = None
        """What ended a task of this client, against all expectation: it cannot go on."""

    # --- life -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> ClientCore:
        self._loop = asyncio.get_running_loop()
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self.spawn(self.remoting.run(), "connections")
        if self._by_address_server:
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
                # An error of the application is its own affair, not one of this group's tasks.
                if kind is None or not issubclass(kind, asyncio.CancelledError):
                    kind = error = trace = None
                await self._tasks.__aexit__(kind, error, trace)
        finally:
            if self._own_env:
                # Waits for listeners that run: not here, where the application's loop would stand still.
                await close_meanwhile(self.env.workers)

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a task that ends with this client at the latest. ClientClosed when that has happened."""
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
        """Whether this process is a fork of the one that made this client."""
        return FORKS.count != self._forks

    def check_open(self) -> None:
        """ClientClosed unless started, not closed, and in the process that opened it; ClientError in another
        event loop than the one in which it was opened."""
        if self._forks != FORKS.count:
            raise ClientClosed(OPENED_BEFORE_FORK)
        if self._tasks is None or self._closed:
            raise ClientClosed(NOT_OPEN)
        self.check_loop()

    def check_loop(self) -> None:
        """ClientError in another event loop than the one in which this client was opened, ClientClosed in a
        fork of the process."""
        if self._forks != FORKS.count:
            raise ClientClosed(OPENED_BEFORE_FORK)
        if self._loop is not None and _get_running_loop() not in (self._loop, None):
            raise ClientError(OTHER_LOOP)

    @property
    def namesrv(self) -> tuple[str, ...]:
        """Addresses of the NameServers."""
        return self.name_servers.addresses

    def now(self) -> float:
        """Loop time in seconds."""
        return asyncio.get_running_loop().time()

    # --- routes ---------------------------------------------------------------------------------------

    async def ask_namesrv(self, code: int, header: Fields) -> Response:
        """An answer from the current NameServer, or from the next one that answers; NoNameServer."""
        self.check_open()
        return await self.name_servers.ask(code, header)

    async def ask_namesrvs(self, code: int, header: Fields, size: Size) -> list[Response]:
        """The answers of all NameServers that answer (`NameServers.ask_all`); NoNameServer."""
        self.check_open()
        return await self.name_servers.ask_all(code, header, size)

    async def refresh(self, topic: str, *, compare: bool = False) -> TopicRoute:
        """Ask for a topic's route now. TopicNotFound, NoNameServer, BrokerRefused.

        One NameServer is asked for the route of a known topic. All of them are asked where that one knows
        fewer broker groups than before, for a new topic, and when `compare` is set: the route is what they
        know together, as a NameServer that was just started knows a part only.
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
            raise BrokerRefused(f"the NameServer's route of {topic!r} is not readable: {error}") from error
        return self._take(topic, route)

    async def route(self, topic: str) -> TopicRoute:
        """The topic's route: as known, else asked for."""
        known = self.routes.get(topic)
        return known if known is not None else await self.refresh(topic)

    async def refresh_quietly(self, topic: str | None, *, compare: bool = False) -> None:
        """Ask for a topic's route, or for all brokers; what is known stays when there is no answer."""
        try:
            if topic is None or (topic not in self.routes and topic not in self.watched):
                await self.cluster()
            else:
                await self.refresh(topic, compare=compare)
        except (TopicNotFound, NoNameServer, BrokerRefused) as error:
            self.log.debug("route not refreshed", topic=topic, error=error)

    async def cluster(self) -> dict[str, BrokerData]:
        """All broker groups that any NameServer knows, by name. NoNameServer, BrokerRefused."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        answers = successful(await self.ask_namesrvs(code, None, groups_in_cluster))
        try:
            found = [decode_body(answer.body, ClusterInfo, "cluster info") for answer in answers]
        except BadBody as error:
            raise BrokerRefused(f"the NameServer's list of brokers is not readable: {error}") from error
        brokers = merge_clusters(found).brokerAddrTable
        self._register(list(brokers.values()))
        return dict(sorted(brokers.items()))

    def refresh_soon(self, topic: str | None) -> None:
        """Have the route asked for by the background task, at once."""
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
        """A broker said who leads: itself by taking a write, or by a hint."""
        if group.accepted(address):
            self._moved(group)

    def leader_failed(self, group: BrokerGroup, address: str, topic: str | None) -> None:
        """The broker there is gone or leads no more: ask the NameServers at once."""
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
        """A broker says that a consumer came or went, or that it leads now (40)."""
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
        """Ask a broker of a group what it answers when there is something. None when another one leads
        meanwhile, and there was no answer within `grace_s` from then. RemotingError."""
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
        """Ask the group's leader, looking for it until `failover_timeout_s`: then NoBroker.

        Answers with code 14 are not returned. While nobody is known to lead, the group's addresses take
        turns: followers refuse with code 14, and most say who leads. `topic` names the route to ask the
        NameServers for, None asks for all brokers. `poll_s`: how long the leader lets the request, which has
        no body, wait for what there is to answer (`long_poll`). `lost` gets why each try failed that was sent
        and not answered.
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
                        deadline += self.now() - began  # that it waited there was no search
                    if not isinstance(error, Overloaded):  # that says nothing of the broker
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
        """Have the group's leader change something, which may be done twice; the answer that it is done.

        BrokerRefused and NoBroker: it is certainly not done. OutcomeUnknown when a try was sent, and nobody
        said what became of it, or the leader was lost while it worked on it. `what`: for the texts.
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
            raise ConnectionLost(f"{address} does not answer, and leads no more")
        return answer

    # --- heartbeats -----------------------------------------------------------------------------------

    def beat_soon(self) -> None:
        """Send heartbeats at once."""
        self._beat.set()

    async def beat(self) -> None:
        """Tell every broker, followers too, of our groups: any of them may be the next leader."""
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
                    self._warn("a broker warns", answer.remark)
            elif answer.code not in PASSING:
                text = refused_text(answer.code, answer.remark)
                self._warn("a broker refuses our heartbeats", text)
                refused = refused or BrokerRefused(f"no broker takes our heartbeats: {text}", answer.code)
        if taken:
            self._heard, self._refused_since = True, None
        elif refused is not None:
            since = self._refused_since = self._refused_since or self.now()
            if not self._heard or self.now() - since >= REFUSED_BEATS * self.options.heartbeat_s:
                self.on_refused(refused)

    def _warn(self, event: str, text: str) -> None:
        """Log what brokers say again and again, each text once."""
        if text in self._warned:
            return
        if len(self._warned) >= MAX_WARNED:
            self._warned.clear()
        self._warned[text] = None
        self.log.warning(event, text=text)

    async def unregister(self, producer_group: str | None, consumer_group: str | None) -> None:
        """Tell every broker that a group of ours ends, so that others take over at once."""
        header = UnregisterClientHeader(self.client_id, producer_group, consumer_group)
        await self._tell_all(RequestCode.UNREGISTER_CLIENT, header, b"")

    async def _tell_all(self, code: int, header: Fields, body: bytes) -> list[Response]:
        """Ask every broker; the answers of those that gave one."""
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
                self.log.debug("broker not told", address=address, error=outcome)
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
    return f"a try was sent and not answered, so it may be done, now or later ({lost[0]})"


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
    """`ip@name`: the key by which brokers tell clients apart."""
    name = options.instance_name or f"{env.pid}#{env.random.getrandbits(64):016x}"
    return f"{options.client_ip}@{name}"

"""Settings of clients: every limit with its name, unit, default and what happens there. Times in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, TypeVar

from dledger.client.allocation import AllocateStrategy, strategy_of
from dledger.client.compression import CompressionType, NotInstalled, zstd
from dledger.client.errors import ClientError
from dledger.client.hooks import ConsumeHook, FilterHook, SendHook
from dledger.client.message import MAX_MESSAGE_SIZE, check_group, check_topic
from dledger.client.namespaces import SEPARATOR, with_namespace
from dledger.client.process_queue import FlowLimits
from dledger.client.trace_records import TRACE_TOPIC
from dledger.formats.addresses import split_addresses
from dledger.remoting.address_server import url_of
from dledger.remoting.limits import ClientLimits
from dledger.remoting.signing import Credentials
from dledger.runtime.environment_variables import NAMESRV_ADDR, namesrv_addr
from dledger.runtime.remoting_tls import TlsOptions

MAX_RECONSUME_TIMES = 16
"""RocketMQ's."""
OptionsT = TypeVar("OptionsT")
EnumT = TypeVar("EnumT", bound=Enum)


MAX_INSTANCE_NAME = 180
"""Characters of an instance name: with the address it is a name of a directory."""
MAX_HOLD_S = 30.0
"""Seconds that automatic batching may hold a message, at most."""
MAX_ASKED_S = 1e9
"""Seconds that a broker can be asked for, some thirty years: they travel as whole milliseconds."""
MAX_POP_BATCH = 32
"""Messages of one pop."""


@dataclass(frozen=True)
class ClientOptions:
    """What producers and consumers have in common."""

    client_ip: str = "127.0.0.1"
    """Our address as the client id and the unique ids of messages show it (IPv4); tools display it."""
    instance_name: str | None = None
    """Second part of the client id `ip@name`; by default the process id and a random number. Consumers of
    a group need different ids; a broadcasting consumer finds its offsets again only under the same name."""
    route_poll_s: float = 30.0
    """How often routes are asked anew (pollNameServerInterval); after a failure that happens at once."""
    heartbeat_s: float = 30.0
    """How often brokers hear of our groups (heartbeatBrokerInterval); after a leader change at once."""
    namesrv_timeout_s: float = 1.0
    """What one NameServer has to answer before the next is asked."""
    request_timeout_s: float = 3.0
    """One attempt of a request that is no send or pull: offsets, heartbeats, topics."""
    failover_timeout_s: float = 10.0
    """How long such a request looks for a leader before it fails with NoBroker."""
    search_first_s: float = 0.005
    """First pause between two rounds of looking for a leader; doubles from round to round."""
    search_longest_s: float = 0.025
    """The pause does not grow beyond."""
    probe_timeout_s: float = 0.5
    """What an address has to answer while a leader is looked for (brokers may hold a request for 0.2 s)."""
    redirect: bool = True
    """A broker that does not lead says who does, and we go there. False: it forwards what we ask to the
    leader, one hop more, as it does for other clients: for networks where not every broker can be reached."""
    namespace: str = ""
    """An instance's name that brokers see before our topics and groups: `namespace%topic`. The application
    does not: of what it gets, only a `MessageQueue` names a topic as brokers do."""
    trace: bool = False
    """Message trace (enableMsgTrace): who sent and who consumed each message goes to `trace_topic`."""
    trace_topic: str = TRACE_TOPIC
    """Where traces go (customizedTraceTopic)."""
    credentials: Credentials | None = field(default_factory=Credentials.from_environment)
    """Account whose key requests are signed with, where brokers have access control; by default that in
    ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY, if they are set."""
    zone: str = ""
    """Use brokers of this zone alone (`rocketmq.zone` with `rocketmq.zone.mode`), and groups that have no
    master."""
    address_server: str = ""
    """Who tells where the NameServers are, for clients that are given none: a domain, `domain:port`, or a
    URL (rocketmq.namesrv.domain). Asked when the client opens, and every 120 s."""
    tls: TlsOptions | None = field(default_factory=TlsOptions.from_environment)
    """TLS for all connections, to brokers and NameServers; by default where ROCKETMQ_TLS=true asks for it,
    with the authorities in ROCKETMQ_TLS_CA."""
    limits: ClientLimits = field(default_factory=lambda: ClientLimits(connect_timeout_s=1.0))
    """Bounds of the connections."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_instance_name(self.instance_name)
        check_topic(self.trace_topic)
        if self.address_server:
            try:
                url_of(self.address_server)
            except ValueError as error:
                raise ClientError(f"ClientOptions: address_server={error}") from None
        if self.namespace:
            check_topic(self.namespace)
            if SEPARATOR in self.namespace:
                raise ClientError(f"ClientOptions: namespace={self.namespace!r}: give a name without %")


@dataclass(frozen=True)
class ProducerOptions:
    """How messages are sent."""

    retry_times: int = 2
    """Further attempts after a failure that a leader change does not explain (retryTimesWhenSendFailed)."""
    timeout_s: float = 10.0
    """From send to acknowledgement or error, with all attempts and any failover."""
    attempt_timeout_s: float = 3.0
    """One attempt; then the message goes out again under the same unique id (sendMsgTimeout)."""
    resend_elsewhere: bool = False
    """Whether a message whose outcome is unknown may go to another broker group. That one does not know of
    the first attempt, so the message may be stored in both; without it the message waits for its group."""
    suspicion_s: float = 0.5
    """A message without an answer for that long makes us ask the NameServers whether the leader moved."""
    busy_pause_s: float = 0.05
    """Before sending again to a broker that said SYSTEM_BUSY; doubles with each attempt."""
    max_pending: int = 65535
    """Messages without an acknowledgement: `send` waits then, `send_nowait` raises Overflow."""
    max_message_size: int = MAX_MESSAGE_SIZE
    """Bytes of a body, before compression."""
    compress_over: int = 4096
    """Larger bodies are sent compressed, if that makes them smaller; 0 turns it off."""
    compress_type: CompressionType = CompressionType.ZLIB
    """With what. Consumers older than RocketMQ 5 read ZLIB only; ZSTD needs `dledger[zstd]`."""
    auto_batch: bool = False
    """Whether messages that are sent one by one travel together (autoBatch): fewer requests, and each waits
    up to `batch_hold_s`. Not those with an ordering key or a delay, and not large ones."""
    batch_hold_s: float = 0.01
    """How long a message waits for others, at most (holdMs)."""
    batch_hold_bytes: int = 32 * 1024
    """Bodies and properties of one batch; what is larger goes by itself (holdSize)."""
    batch_total_bytes: int = 32 * 1024 * 1024
    """All that waits for others; then messages go by themselves (totalHoldSize)."""
    send_latency_fault: bool = False
    """Whether messages go around broker groups that were slow or failed (sendLatencyFaultEnable)."""
    latency_steps_s: tuple[tuple[float, float], ...] = (
        (0.05, 0.0), (0.1, 0.0), (0.55, 2.0), (1.8, 5.0), (3.0, 6.0), (5.0, 10.0), (15.0, 30.0),
    )  # fmt: skip
    """A group that needed so long is passed over for so long (latencyMax, notAvailableDuration). A failed
    attempt counts as 10 s."""
    default_topic_queues: int = 4
    """Queues of a topic that the broker creates because we send to it (defaultTopicQueueNums)."""
    listener_threads: int = 20
    """Calls at once of a transaction listener, and of its check, where these are no coroutine functions."""
    close_timeout_s: float = 30.0
    """What messages under way get to be acknowledged at close. Those that are not end with an error then: not
    stored, or outcome unknown."""
    hooks: tuple[SendHook, ...] = ()
    """Called around each send, in this order before it and in the opposite one after it."""

    def __post_init__(self) -> None:
        _check_numbers(self, may_be_zero=("retry_times", "busy_pause_s", "compress_over", "close_timeout_s"))
        if self.batch_hold_s > MAX_HOLD_S:
            raise ClientError(
                f"ProducerOptions: batch_hold_s={self.batch_hold_s!r}: give {MAX_HOLD_S:g} at most"
            )
        if self.batch_hold_bytes > self.max_message_size:
            raise ClientError(
                f"ProducerOptions: batch_hold_bytes={self.batch_hold_bytes!r}: give no more than "
                f"max_message_size={self.max_message_size!r}"
            )
        latencies = [latency for latency, _ in self.latency_steps_s]
        if latencies != sorted(latencies) or any(pause < 0 for _, pause in self.latency_steps_s):
            raise ClientError(
                f"ProducerOptions: latency_steps_s={self.latency_steps_s!r}: give pairs of seconds, a rising "
                "latency and a pause of 0 or more"
            )
        kind = member_of(CompressionType, self.compress_type, "compress_type")
        object.__setattr__(self, "compress_type", kind)  # it may have been given by its name
        if self.compress_type is CompressionType.ZSTD:
            try:
                zstd()
            except NotInstalled as error:
                raise ClientError(f"ProducerOptions: compress_type=ZSTD: {error}") from error


@dataclass(frozen=True)
class PullOptions:
    """How messages are fetched."""

    batch_size: int = 32
    """Messages of one pull at most (pullBatchSize); the broker has a limit in bytes too."""
    suspend_s: float = 15.0
    """How long a broker holds a pull that finds nothing new."""
    timeout_s: float = 30.0
    """When a pull without an answer has failed; longer than `suspend_s`."""
    error_pause_s: float = 1.0
    """Before pulling again after an error that a leader change does not explain."""
    flow: FlowLimits = field(default_factory=FlowLimits)
    """When pulling pauses because the application is slower."""
    filters: tuple[FilterHook, ...] = ()
    """Look at what was pulled, one after the other; what they do not return counts as consumed."""

    def __post_init__(self) -> None:
        _check_numbers(self, may_be_zero=("suspend_s",))
        _check_asked(self, "suspend_s")
        options_of(FlowLimits, self.flow, "flow")
        _check_numbers(self.flow)
        if self.timeout_s <= self.suspend_s:
            raise ClientError(
                f"PullOptions: timeout_s={self.timeout_s!r} is not longer than suspend_s={self.suspend_s!r}: "
                "a pull that the broker holds would count as failed"
            )


@dataclass(frozen=True)
class PopOptions:
    """How a pop consumer works."""

    batch_size: int = 32
    """Messages of one pop, at most; brokers give no more than 32."""
    invisible_s: float = 60.0
    """For how long a message is ours; it comes again when it is not acknowledged by then."""
    poll_s: float = 15.0
    """How long a broker holds a pop that finds nothing."""
    timeout_s: float = 15.0
    """How much later a pop without an answer has failed."""
    error_pause_s: float = 1.0
    """Before popping again after an error, in `listen`."""
    concurrency: int = 20
    """Listener calls at once."""
    retry_s: tuple[float, ...] = (10.0, 30.0, *(60.0 * minutes for minutes in range(1, 11)), 1200.0, 1800.0)
    """After what a message comes again whose listener failed for the first time, the second, ... and all
    further times (popDelayLevel)."""
    hooks: tuple[ConsumeHook, ...] = ()
    """Called around each call of the listener of `listen`."""
    close_timeout_s: float = 10.0
    """How long `close` waits for listeners that run."""

    def __post_init__(self) -> None:
        _check_numbers(self, may_be_zero=("poll_s", "close_timeout_s"))
        _check_asked(self, "invisible_s", "poll_s")
        if self.batch_size > MAX_POP_BATCH:
            raise ClientError(f"PopOptions: batch_size={self.batch_size!r}: give {MAX_POP_BATCH} at most")
        if not self.retry_s or not all(again_s >= 0 for again_s in self.retry_s):
            raise ClientError(f"PopOptions: retry_s={self.retry_s!r}: give some seconds, 0 or more")


@dataclass(frozen=True)
class ConsumerOptions:
    """How a push consumer works."""

    concurrency: int = 20
    """Listener calls at once (consumeThreadMax)."""
    batch_size: int = 1
    """Messages of one call of a batch listener at most (consumeMessageBatchMaxSize)."""
    rebalance_s: float = 20.0
    """How often the division of queues is looked at; notices of the broker bring that forward."""
    rebalance_retry_s: float = 1.0
    """The same after an attempt that failed."""
    allocate: AllocateStrategy | str = "AVG"
    """How the queues of a topic are divided among the consumers of a group, all of which need the same:
    "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", a strategy with settings (`AllocateMessageQueueByConfig`,
    `AllocateMessageQueueByMachineRoom`, `AllocateMachineRoomNearby`), or a function of one's own."""
    consume_timeout_s: float = 900.0
    """A call of a listener that takes longer holds up its queue's position no more: its messages are given
    back, and its result does not count (consumeTimeout). Not where a consumer works in order."""
    commit_s: float = 5.0
    """How often consumed offsets go to the broker (persistConsumerOffsetInterval), and once at close."""
    local_retry_first_s: float = 1.0
    """A message that failed and that the broker does not take back is tried again after this; doubles."""
    local_retry_longest_s: float = 60.0
    """That pause does not grow beyond."""
    send_back_retry_s: float = 5.0
    """Before a message is given to the listener again because giving it back to the broker failed."""
    max_reconsume_times: int | None = None
    """Deliveries of a failed message before it is put aside (`%DLQ%<group>`). None: 16, and without end where
    a consumer works in order, so that nothing overtakes."""
    suspend_s: float = 1.0
    """Where a consumer works in order: pause of a queue whose message failed
    (suspendCurrentQueueTimeMillis)."""
    auto_commit: bool = True
    """False: where a consumer works in order its listener says with ConsumeOrderlyStatus.COMMIT that
    everything so far is consumed; of a lite pull consumer `commit` says it for what `poll` gave. As much as
    `pull.flow` allows may be without it."""
    lock_renew_s: float = 20.0
    """How often locks of queues that are consumed in order are asked for again."""
    lock_valid_s: float = 30.0
    """How long such a lock counts from when it was asked for (rebalance.lockMaxLiveTime); less than brokers
    keep it (60 s)."""
    close_timeout_s: float = 10.0
    """What running listeners get to end at close; their messages come again later otherwise."""
    offsets_dir: str = ".rocketmq_offsets"
    """Where a broadcasting consumer keeps its offsets: `<dir>/<client id>/<group>/offsets.json`."""
    hooks: tuple[ConsumeHook, ...] = ()
    """Called around each call of the listener, in this order before it and in the opposite one after it."""
    pull: PullOptions = field(default_factory=PullOptions)

    def __post_init__(self) -> None:
        _check_numbers(self, may_be_zero=("close_timeout_s",))
        options_of(PullOptions, self.pull, "pull")
        strategy_of(self.allocate)
        times = self.max_reconsume_times
        if times is not None and (not isinstance(times, int) or isinstance(times, bool) or times < 0):
            raise ClientError(
                f"ConsumerOptions: max_reconsume_times={times!r}: give a whole number, 0 or more, or None"
            )
        if self.lock_renew_s >= self.lock_valid_s:
            raise ClientError(
                f"ConsumerOptions: lock_renew_s={self.lock_renew_s!r} is not shorter than "
                f"lock_valid_s={self.lock_valid_s!r}: each lock would be lost before it is renewed"
            )

    def reconsume_limit(self, orderly: bool) -> int | None:
        """`max_reconsume_times` as it counts; None: without end."""
        if self.max_reconsume_times is not None:
            return self.max_reconsume_times
        return None if orderly else MAX_RECONSUME_TIMES


def check_group_of(group: str, client: ClientOptions | None) -> None:
    """InvalidMessage unless it is a legal name of a group, also with the namespace of these options."""
    check_group(group)
    if client is not None:
        check_group(with_namespace(group, options_of(ClientOptions, client, "client").namespace))


def namesrv_addresses(
    given: str | Sequence[str] | None, client: ClientOptions | None = None
) -> tuple[str, ...]:
    """Addresses from "host:port;host:port" or a sequence of them, from NAMESRV_ADDR where None is given;
    none where these options name an address server; else ClientError when there is none."""
    if not given and client is not None and client.address_server:
        return ()
    said = namesrv_addr() if given is None else given
    parts = [said] if isinstance(said, str) else list(said) if isinstance(said, Iterable) else [said]
    if isinstance(said, bytes) or not all(isinstance(part, str) for part in parts):
        raise ClientError(
            f"namesrv={said!r}: give text, as 'host:port' or 'host:port;host:port', or a list of such texts"
        )
    try:
        addresses = split_addresses(";".join(parts))
    except ValueError as error:
        where = f" ({NAMESRV_ADDR})" if given is None else ""
        raise ClientError(f"NameServer address {error}{where}") from error
    if not addresses:
        raise ClientError(
            f"no NameServer address: give namesrv='host:port' (several with ';'), or set {NAMESRV_ADDR}"
        )
    return addresses


def check_wait(timeout_s: object, max_messages: object = 1) -> None:
    """ClientError unless these are a time to wait, in seconds, and how many messages to return at most."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s >= 0:
        raise ClientError(f"timeout_s={timeout_s!r}: give seconds, 0 or more")
    if isinstance(max_messages, bool) or not isinstance(max_messages, int) or max_messages < 1:
        raise ClientError(f"max_messages={max_messages!r}: give a whole number, 1 or more")


def options_of(kind: type[OptionsT], given: OptionsT | None, name: str) -> OptionsT:
    """The options that a client was given, the defaults for None; ClientError when they are another's."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise ClientError(f"{name}= is {type(given).__name__}: give {kind.__name__}")
    return given


def member_of(kind: type[EnumT], given: EnumT | str, name: str) -> EnumT:
    """A member of an enumeration, given as such or by its name in any case; ClientError for anything else."""
    if isinstance(given, kind):
        return given
    found = kind.__members__.get(given.upper()) if isinstance(given, str) else None
    if found is None:
        choices = ", ".join(f"{kind.__name__}.{member}" for member in kind.__members__)
        raise ClientError(f"{name}={given!r}: give one of {choices}")
    return found


def _check_instance_name(name: object) -> None:
    """ClientError unless it can be part of the name of a file, which it is for broadcasting consumers."""
    if name is None:
        return
    if not isinstance(name, str):
        raise ClientError(f"ClientOptions: instance_name={name!r} is {type(name).__name__}: give text")
    if len(name) > MAX_INSTANCE_NAME:
        raise ClientError(
            f"ClientOptions: instance_name has {len(name)} characters; the limit is {MAX_INSTANCE_NAME}"
        )
    wrong = [one for one in name if one in "/\\" or not one.isprintable()]
    if wrong:
        raise ClientError(
            f"ClientOptions: instance_name={name!r} holds {wrong[0]!r}: give a name without slashes and "
            "control characters, as a directory is named after it"
        )


def _check_numbers(options: Any, may_be_zero: Sequence[str] = ()) -> None:
    """ClientError unless every limit is a positive number."""
    for each in fields(options):
        value = getattr(options, each.name)
        if each.type not in ("int", "float"):
            continue
        right = isinstance(value, int if each.type == "int" else int | float) and not isinstance(value, bool)
        if not right or not value >= 0 or (value == 0 and each.name not in may_be_zero):
            least = "0 or more" if each.name in may_be_zero else "more than 0"
            wanted = "a whole number" if each.type == "int" else "a number"
            raise ClientError(f"{type(options).__name__}: {each.name}={value!r}: give {wanted}, {least}")


def _check_asked(options: Any, *names: str) -> None:
    """ClientError for a time that no broker can be asked for."""
    for name in names:
        value = getattr(options, name)
        if value > MAX_ASKED_S:
            raise ClientError(f"{type(options).__name__}: {name}={value!r}: give {MAX_ASKED_S:g} at most")

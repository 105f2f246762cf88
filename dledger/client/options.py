"""Settings that all clients share, and checks of settings. Times are in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, TypeVar

from dledger.client.errors import ClientError
from dledger.client.message import check_group, check_topic
from dledger.client.namespaces import SEPARATOR, with_namespace
from dledger.client.trace_records import TRACE_TOPIC
from dledger.formats.addresses import split_addresses
from dledger.remoting.address_server import url_of
from dledger.remoting.limits import ClientLimits
from dledger.remoting.signing import Credentials
from dledger.runtime.environment_variables import NAMESRV_ADDR, namesrv_addr
from dledger.runtime.remoting_tls import TlsOptions

OptionsT = TypeVar("OptionsT")
EnumT = TypeVar("EnumT", bound=Enum)


MAX_INSTANCE_NAME = 180
"""Longest instance name, in characters. There is a limit because the name, with the address, becomes the name
of a directory."""
MAX_ASKED_S = 1e9
"""Longest time in seconds that may be sent to a broker, about thirty years. In requests, times are whole
milliseconds."""


@dataclass(frozen=True)
class ClientOptions:
    """The settings that producers and consumers share."""

    client_ip: str = "127.0.0.1"
    """IPv4 address of this client, which is part of the client id and of the unique ids of messages. Tools
    display it."""
    instance_name: str | None = None
    """Second part of the client id `ip@name`; by default the process id and a random number. Consumers of a
    group need different ids. A broadcasting consumer finds its offsets again only under the same name."""
    route_poll_s: float = 30.0
    """Interval at which routes are polled (pollNameServerInterval). After a failure they are polled at
    once."""
    heartbeat_s: float = 30.0
    """Interval of heartbeats to the brokers (heartbeatBrokerInterval); after a leader change one is sent at
    once."""
    namesrv_timeout_s: float = 1.0
    """How long one NameServer may take to answer before the next one is asked."""
    request_timeout_s: float = 3.0
    """Time-out of one attempt of a request other than a send or a pull, for example about offsets or
    topics."""
    failover_timeout_s: float = 10.0
    """How long a request other than a send or a pull looks for a leader before it fails with NoBroker."""
    search_first_s: float = 0.005
    """First pause between two rounds of looking for a leader. It doubles from round to round."""
    search_longest_s: float = 0.025
    """Longest pause between two rounds of looking for a leader."""
    probe_timeout_s: float = 0.5
    """How long an address may take to answer while a leader is looked for, or to answer a heartbeat (brokers
    may hold a request for 0.2 s)."""
    redirect: bool = True
    """Whether brokers that do not lead answer with the leader's address, which the client then uses. With
    False they forward requests to the leader, as they do for other clients. That costs one more hop, and is
    for networks where the client cannot reach every broker."""
    namespace: str = ""
    """Name of an instance that is put before our topics and groups at the brokers: `namespace%topic`. The
    application sees names without it, except in `MessageQueue`, which names a topic as brokers do."""
    trace: bool = False
    """Whether to record in `trace_topic` which client sent and which client consumed each message (message
    trace, enableMsgTrace)."""
    trace_topic: str = TRACE_TOPIC
    """Topic that trace records are sent to (customizedTraceTopic)."""
    credentials: Credentials | None = field(default_factory=Credentials.from_environment)
    """Account whose key signs all requests, for brokers with access control. By default the one in
    ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY, if they are set."""
    zone: str = ""
    """Zone of this client (`rocketmq.zone` with `rocketmq.zone.mode`). It uses only broker groups of this
    zone, and groups that have no master at the moment."""
    address_server: str = ""
    """Server that returns the addresses of the NameServers, for clients that are given none: a domain,
    `domain:port`, or a URL (rocketmq.namesrv.domain). It is asked when the client opens, and every 120 s."""
    tls: TlsOptions | None = field(default_factory=TlsOptions.from_environment)
    """TLS for all connections to brokers and NameServers. By default it is used when ROCKETMQ_TLS=true is
    set, with the authorities in ROCKETMQ_TLS_CA."""
    limits: ClientLimits = field(default_factory=lambda: ClientLimits(connect_timeout_s=1.0))
    """Limits of the connections."""

    def __post_init__(self) -> None:
        check_numbers(self)
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


def check_group_of(group: str, client: ClientOptions | None) -> None:
    """Raise InvalidMessage unless this is a legal name of a group, both alone and with the namespace of these
    options."""
    check_group(group)
    if client is not None:
        check_group(with_namespace(group, options_of(ClientOptions, client, "client").namespace))


def namesrv_addresses(
    given: str | Sequence[str] | None, client: ClientOptions | None = None
) -> tuple[str, ...]:
    """Read addresses from "host:port;host:port" or from a sequence of such texts. With None they are read
    from the environment variable NAMESRV_ADDR.

    If there are no addresses, returns () if the options name an address server, and raises ClientError
    otherwise.
    """
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
    """Raise ClientError unless `timeout_s` is a time in seconds (0 or more) and `max_messages` a whole number
    from 1."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s >= 0:
        raise ClientError(f"timeout_s={timeout_s!r}: give seconds, 0 or more")
    if isinstance(max_messages, bool) or not isinstance(max_messages, int) or max_messages < 1:
        raise ClientError(f"max_messages={max_messages!r}: give a whole number, 1 or more")


def options_of(kind: type[OptionsT], given: OptionsT | None, name: str) -> OptionsT:
    """Return the options that a client was given; None means the defaults. Raises ClientError if they are of
    another class."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise ClientError(f"{name}= is {type(given).__name__}: give {kind.__name__}")
    return given


def member_of(kind: type[EnumT], given: EnumT | str, name: str) -> EnumT:
    """Return a member of an enumeration. `given` is the member itself, or its name in upper or lower case.
    Raises ClientError for anything else."""
    if isinstance(given, kind):
        return given
    found = kind.__members__.get(given.upper()) if isinstance(given, str) else None
    if found is None:
        choices = ", ".join(f"{kind.__name__}.{member}" for member in kind.__members__)
        raise ClientError(f"{name}={given!r}: give one of {choices}")
    return found


def _check_instance_name(name: object) -> None:
    """Raise ClientError unless the name can be part of a file name. This is needed because a broadcasting
    consumer stores its offsets under this name."""
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
            f"ClientOptions: instance_name={name!r} holds {wrong[0]!r}: give a name without slashes "
            "and control characters, because a directory is named after it"
        )


def check_numbers(options: Any, may_be_zero: Sequence[str] = ()) -> None:
    """Raise ClientError unless every number among the options is positive. Those named in `may_be_zero` may
    also be 0."""
    for each in fields(options):
        value = getattr(options, each.name)
        if each.type not in ("int", "float"):
            continue
        right = isinstance(value, int if each.type == "int" else int | float) and not isinstance(value, bool)
        if not right or not value >= 0 or (value == 0 and each.name not in may_be_zero):
            least = "0 or more" if each.name in may_be_zero else "more than 0"
            wanted = "a whole number" if each.type == "int" else "a number"
            raise ClientError(f"{type(options).__name__}: {each.name}={value!r}: give {wanted}, {least}")


def check_asked(options: Any, *names: str) -> None:
    """Raise ClientError if one of the named options is longer than a time that may be sent to a broker
    (`MAX_ASKED_S`)."""
    for name in names:
        value = getattr(options, name)
        if value > MAX_ASKED_S:
            raise ClientError(f"{type(options).__name__}: {name}={value!r}: give {MAX_ASKED_S:g} at most")

"""Settings of a broker. They have RocketMQ's property names (BrokerConfig, MessageStoreConfig) where RocketMQ
has the setting.

Sizes are in bytes and times in seconds, unless the name of a field says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

from dledger.broker.auth.auth_settings import (
    AUTH_CLASSES,
    format_codes,
    format_init_user,
    format_inner_user,
    parse_codes,
    parse_init_user,
    parse_inner_user,
)
from dledger.broker.collisions import collisions_of
from dledger.broker.ignored_settings import IGNORED
from dledger.broker.schedule.delay_levels import DEFAULT_LEVELS, format_levels, parse_levels
from dledger.broker.setting_texts import (
    parse_address_server,
    parse_addresses,
    parse_host,
    parse_host_or_none,
    parse_ipv4,
    parse_name_or_none,
    parse_place,
    parse_rates,
    parse_region,
    parse_subgroup,
    parse_topics,
    rates_text,
)
from dledger.broker.store.message_store import StoreLimits
from dledger.config import MAX_RATE, BindAddress, NodeConfig, NodeSettings, Peers, SelfId, StoreRoot
from dledger.formats.addresses import join_address
from dledger.formats.message_ids import is_ipv4, pack_ipv4_host
from dledger.formats.record import MAX_TOPIC_V1
from dledger.formats.state import User
from dledger.log.retention import RetentionSettings
from dledger.remoting import rocketmq_names
from dledger.remoting.address_server import DOMAIN, SUBGROUP, url_of
from dledger.remoting.exposure import open_address
from dledger.remoting.limits import ServerLimits
from dledger.runtime.remoting_tls import TlsSettings
from dledger.runtime.settings import ConfigError, Protective, Schema, Setting, name
from dledger.runtime.tls import TlsFiles

MAX_MESSAGE_SIZE = 4 * 1024 * 1024
VIP_BELOW = 2
"""Difference between the port for clients and the port of the VIP channel."""
MAX_GROUP_NAME = 120
"""Largest number of characters of the name of a consumer or producer group. A longer name is refused
(Validators.CHARACTER_MAX_LENGTH)."""
MIN_LOCK_LIVE_MS = 35_000
"""Smallest value, in ms, for the time after which an idle lock of a queue expires. It must be longer than the
30 s for which clients use a lock without an answer. Otherwise two clients could own one queue."""
MAX_TOPICS = 50_000
"""Highest value of `maxTopics` and of `maxConsumerGroups`. It is limited because a snapshot of the state
copies all topics and groups in one step."""
MAX_POP_IN_FLIGHT = 50_000
"""Highest value of the limits of messages that are popped and not acknowledged. It is limited because each
such message may be a row of the state."""
MAX_OPEN_TRANSACTIONS = 50_000
"""Highest value of `maxOpenTransactions`. It is limited because each open transaction is a row of the
state."""
MAX_TIMER_DELAY_S = 366 * 24 * 3600
MAX_TIMER_PRECISION_MS = 60_000
MAX_PULL_BYTES = 8 * 1024 * 1024
MAX_TOPIC_TABLE_BYTES = 15 * 1024 * 1024
"""Highest value, in bytes, of `maxTopicTableBytes`. It is less than the 16 MiB of one frame, to leave room
for the header."""
NODE_DEFAULTS = NodeSettings(retention=RetentionSettings(reserved_hours=72, clean_forcibly=True))
_OFF = ("false", "")
_OWN_PROVIDER = (
    "users and policies are in the replicated log here, and each request is checked: remove this setting"
)
PROTECTIVE = MappingProxyType(
    {
        **{name: Protective((*values, ""), _OWN_PROVIDER) for name, values in AUTH_CLASSES.items()},
        "brokerPermission": Protective(
            ("6", ""),
            "a broker always accepts reads and writes. Change the permission of topics "
            "instead (updateTopic -p)",
        ),
        "allAckInSyncStateSet": Protective(
            _OFF,
            "an acknowledgement means that a majority of the group has the message, however "
            "many members are in sync",
        ),
        "inSyncReplicas": Protective(
            ("1", "2", ""),
            "an acknowledgement means that a majority of the group has the message: of three members, two",
        ),
        "minInSyncReplicas": Protective(
            ("1", "2", ""),
            "an acknowledgement means that a majority of the group has the message: of three members, two",
        ),
    }
)
"""Maps a setting of RocketMQ that protects data, or makes it durable, to the values that are accepted and a
reason. With any other value the broker refuses to start."""


def route_id(node: str) -> int:
    """Return the brokerId of a node that does not lead: K + 1 for node nK (DLedgerCommitLog.id)."""
    return int(node[1:]) + 1


@dataclass(frozen=True)
class BrokerConfig:
    """The settings of one broker. Defaults are RocketMQ's, unless the text of a field says otherwise.
    flushDiskType is SYNC_FLUSH by default (architecture rule 3)."""

    cluster_name: Annotated[str, Setting("brokerClusterName", parse=name, important=True)] = "DefaultCluster"
    """Name of the cluster, for clients and tools."""
    broker_name: Annotated[str, Setting("brokerName", parse=name, important=True)] = "broker-a"
    """Name of the broker group, equal on all its members."""
    broker_ip: Annotated[str, Setting("brokerIP1", parse=parse_host, important=True)] = "127.0.0.1"
    """IP address or host name of this broker, as clients and peers get it."""
    store_ip: Annotated[str, Setting("storeHostIP", parse=parse_ipv4)] = ""
    """IPv4 address of this broker in records and message ids. Empty: the address that `brokerIP1` has at the
    start."""
    listen_port: Annotated[int, Setting("listenPort", 1, 65535, important=True)] = 10911
    """Port for clients."""
    vip_channel: Annotated[bool, Setting("vipChannelEnabled")] = True
    """Whether clients are also served at `listenPort` - 2. RocketMQ's clients use that port for requests that
    must not wait behind others. The dashboard uses it for all requests by default."""
    bind_address: BindAddress = "0.0.0.0"
    """Address at which the broker listens for clients and peers. It need not be the address that they connect
    to."""
    delay_levels: Annotated[
        tuple[int, ...], Setting("messageDelayLevel", parse=parse_levels, format=format_levels)
    ] = parse_levels(DEFAULT_LEVELS)
    """How long messages of each delay level wait, beginning with level 1, for example `1s 5s 10s`."""
    namesrv_addr: Annotated[
        tuple[str, ...],
        Setting("namesrvAddr", parse=parse_addresses, format=";".join, hot=True, important=True),
    ] = ()
    """NameServers to register with, as `host:port;host:port`."""
    namesrv_by_dns: Annotated[bool, Setting("fetchNameSrvAddrByDnsLookup", hot=True)] = False
    """Whether a host name in `namesrvAddr` stands for all its IP addresses; they are looked up every
    `updateNameServerAddrPeriod`."""
    namesrv_dns_interval_s: Annotated[
        float, Setting("updateNameServerAddrPeriod", 100, 86_400_000, "ms", hot=True)
    ] = 120.0
    """Time between two look-ups of the host names in `namesrvAddr`."""
    namesrv_by_address_server: Annotated[bool, Setting("fetchNamesrvAddrByAddressServer", hot=True)] = False
    """Whether the NameServers are looked up at an address server if `namesrvAddr` is empty: `GET
    http://rmqAddressServerDomain:8080/rocketmq/rmqAddressServerSubGroup`."""
    address_server: Annotated[str, Setting("rmqAddressServerDomain", parse=parse_address_server)] = DOMAIN
    """Domain of the address server, `domain:port`, or a URL."""
    address_server_group: Annotated[str, Setting("rmqAddressServerSubGroup", parse=parse_subgroup)] = SUBGROUP
    """Name of the list of addresses at the address server."""
    address_server_interval_s: Annotated[
        float, Setting("fetchNamesrvAddrInterval", 100, 86_400_000, "ms", hot=True)
    ] = 10.0
    """Time between two requests to the address server. If it does not answer, the known addresses stay."""
    store_root: StoreRoot = "store"
    """Directory of the store."""
    dledger_enabled: Annotated[bool, Setting("enableDLegerCommitLog")] = True
    """RocketMQ's switch for a replicated log. It must be true, because this broker has no other commit
    log."""
    dledger_group: Annotated[str, Setting("dLegerGroup", parse=parse_name_or_none, important=True)] = ""
    """Name by which peers know the group. Empty: `brokerName`."""
    self_id: SelfId = "n0"
    """This node's id in `dLegerPeers`."""
    peers: Peers = field(default_factory=dict)
    """All members at the time when the group was founded, with their addresses for peers, as
    `n0-host:port;n1-host:port`."""
    region_id: Annotated[str, Setting("regionId", parse=parse_region, hot=True)] = "DefaultRegion"
    """Region that is stored in each message (MSG_REGION)."""
    trace_on: Annotated[bool, Setting("traceOn", hot=True)] = True
    """Whether clients that use message trace send traces of their messages."""
    trace_topic_enable: Annotated[bool, Setting("traceTopicEnable", hot=True)] = False
    """Whether the topic for traces exists from the start, with one queue. Otherwise the first trace creates
    the topic, if `autoCreateTopicEnable` allows that."""
    trace_topic: Annotated[str, Setting("msgTraceTopicName", parse=name)] = "RMQ_SYS_TRACE_TOPIC"
    """Name of the topic for traces."""
    zone: Annotated[str, Setting("rocketmq.zone", parse=parse_name_or_none)] = ""
    """Zone of the group, equal on all its members. It is for clients that use only brokers of their own zone
    (`rocketmq.zone.mode` of Java clients)."""
    http_port: Annotated[int, Setting("httpPort", 0, 65535, important=True)] = 0
    """Port of `/health` and `/metrics`; 0: off."""
    http_address: Annotated[str, Setting("httpAddress", parse=parse_host_or_none)] = ""
    """Address at which the broker listens for HTTP. Empty: `bindAddress`."""
    log_dir: Annotated[str, Setting("logDir", important=True)] = ""
    """Directory of broker.log and stats.log. Empty: logs go to standard error, without the statistics of
    stats.log."""

    # Access control.

    acl_enable: Annotated[bool, Setting("aclEnable", important=True)] = False
    """Whether each request must be signed by an account in `aclFile` that has the needed permission."""
    acl_file: Annotated[str, Setting("aclFile")] = ""
    """File with accounts, in the form of RocketMQ's plain_acl.yml. It is read again when it changes. Files in
    a directory `acl` beside it are read as well. Empty: `plain_acl.yml` beside the configuration file."""

    authentication_enabled: Annotated[bool, Setting("authenticationEnabled", important=True)] = False
    """Whether requests must be signed by a user of the replicated state (ACL 2.0). Cannot be combined with
    `aclEnable`."""
    authorization_enabled: Annotated[bool, Setting("authorizationEnabled", important=True)] = False
    """Whether users may do only what their policies allow; otherwise every user may do everything."""
    init_user: Annotated[
        User | None,
        Setting("initAuthenticationUser", parse=parse_init_user, format=format_init_user, secret=True),
    ] = None
    """A super user, as `{"username":"admin","password":"..."}`. The leader creates it if there is no user of
    that name."""
    inner_user: Annotated[
        User | None,
        Setting(
            "innerClientAuthenticationCredentials",
            parse=parse_inner_user,
            format=format_inner_user,
            secret=True,
        ),
    ] = None
    """A second super user, as `{"accessKey":"inner","secretKey":"..."}`. The brokers of a group do not need
    it among themselves."""
    authentication_whitelist: Annotated[
        tuple[int, ...], Setting("authenticationWhitelist", parse=parse_codes, format=format_codes)
    ] = ()
    """Request codes that need no signature, as `105,106`. With `authorizationEnabled`, such a code must also
    be in `authorizationWhitelist`."""
    authorization_whitelist: Annotated[
        tuple[int, ...], Setting("authorizationWhitelist", parse=parse_codes, format=format_codes)
    ] = ()
    """Request codes that every user may send."""
    migrate_auth: Annotated[bool, Setting("migrateAuthFromV1Enabled")] = False
    """Whether the leader makes users and policies from those accounts in `aclFile` that are not users yet."""

    # Topics and groups.

    auto_create_topic: Annotated[bool, Setting("autoCreateTopicEnable", hot=True, important=True)] = True
    """Whether a send to an unknown topic creates it. The send is acknowledged when the NameServers know the
    topic, after 1 s at most. If this is switched off while the broker runs, such sends are refused at once.
    Until a restart, clients still see TBW102, by which they find a broker for unknown topics."""
    auto_create_group: Annotated[bool, Setting("autoCreateSubscriptionGroup", hot=True, important=True)] = (
        True
    )
    """Whether a consumer of an unknown group creates it."""
    default_topic_queues: Annotated[int, Setting("defaultTopicQueueNums", 1, 1024, hot=True)] = 8
    """Number of queues of TBW102. A topic that is created automatically has at most as many."""
    max_topics: Annotated[int, Setting("maxTopics", 1, MAX_TOPICS, hot=True)] = MAX_TOPICS
    """Largest number of topics of the group, including retry and dead letter topics. A further topic is
    refused."""
    max_topic_table_bytes: Annotated[
        int, Setting("maxTopicTableBytes", 1, MAX_TOPIC_TABLE_BYTES, "bytes", hot=True)
    ] = MAX_TOPIC_TABLE_BYTES
    """Largest size of the encoded topic table. A topic that would make it larger is refused. A topic takes
    150 bytes, twice the length of its name, and its attributes."""
    max_groups: Annotated[int, Setting("maxConsumerGroups", 1, MAX_TOPICS, hot=True)] = MAX_TOPICS
    """Largest number of consumer groups. A further group is refused."""

    # Sending and pulling.

    max_message_size: Annotated[
        int, Setting("maxMessageSize", 1, MAX_MESSAGE_SIZE, "bytes", hot=True, important=True)
    ] = MAX_MESSAGE_SIZE
    """Largest size of the body of a message, and of the body of a batch. A larger body is refused."""
    fast_failure: Annotated[bool, Setting("brokerFastFailureEnable", hot=True)] = True
    """Whether sends are refused at once with 2 SYSTEM_BUSY and `[PCBUSY_CLEAN_QUEUE]` while the log is
    stalled."""
    page_cache_busy_s: Annotated[
        float, Setting("osPageCacheBusyTimeOutMills", 10, 600_000, "ms", hot=True)
    ] = 1.0
    """How long the oldest send must have waited for its commit before the log counts as stalled."""
    queue_wait_s: Annotated[float, Setting("waitTimeMillsInSendQueue", 10, 60_000, "ms", hot=True)] = 0.2
    """Longest time that a message which is sent again waits until the broker knows whether the message is
    already stored. After that time it is refused with 2 SYSTEM_BUSY and `[TIMEOUT_CLEAN_QUEUE]`, and its
    producer tries again."""
    topic_send_rates: Annotated[
        dict[str, int], Setting("sendRatesOfTopics", parse=parse_rates, format=rates_text, hot=True)
    ] = field(default_factory=dict)
    """Largest rates, in messages a second, at which topics accept messages, as `orders=1000;*=5000`. `*`
    stands for every topic that is not named. Messages beyond the rate are refused with 215 FLOW_CONTROL.
    Empty: no limit."""
    group_send_rates: Annotated[
        dict[str, int], Setting("sendRatesOfGroups", parse=parse_rates, format=rates_text, hot=True)
    ] = field(default_factory=dict)
    """Largest rates, in messages a second, at which messages of producer groups are accepted, written as in
    `sendRatesOfTopics`."""
    topic_pull_rates: Annotated[
        dict[str, int], Setting("pullRatesOfTopics", parse=parse_rates, format=rates_text, hot=True)
    ] = field(default_factory=dict)
    """Largest rates, in messages a second, at which the leader delivers messages of topics. Pulls and pops of
    all groups count together."""
    group_pull_rates: Annotated[
        dict[str, int], Setting("pullRatesOfGroups", parse=parse_rates, format=rates_text, hot=True)
    ] = field(default_factory=dict)
    """Largest rates, in messages a second, at which the leader delivers messages to consumer groups."""
    stop_slow_consumers: Annotated[bool, Setting("disableConsumeIfConsumerReadSlowly", hot=True)] = False
    """Whether the leader disables a consumer group that is further behind than `consumerFallbehindThreshold`.
    The leader checks this every three minutes. The group stays disabled until it is enabled again
    (`updateSubGroup -s true`)."""
    slow_consumer_bytes: Annotated[
        int, Setting("consumerFallbehindThreshold", 1, 1 << 62, "bytes", hot=True)
    ] = 16 << 30
    """If more bytes of the log than this follow the last message that a group was given, the group counts as
    too slow."""
    duplicate_check_topics: Annotated[
        tuple[str, ...], Setting("duplicateCheckTopics", parse=parse_topics, format=",".join, hot=True)
    ] = ()
    """Topics, as `orders,bills` or `*` for all, for which every message is looked up by its unique id before
    it is stored. So a repeated send of any client is recognized. Repeated sends of this project's client are
    recognized without this setting."""
    pull_max_count: Annotated[int, Setting("maxTransferCountOnMessageInMemory", 1, 65536, hot=True)] = 1024
    """Largest number of messages in one pull. Java clients ask for 32. The limit is higher because other
    clients may ask for more."""
    pull_max_bytes: Annotated[
        int, Setting("maxTransferBytesOnMessageInMemory", 1, MAX_PULL_BYTES, "bytes", hot=True)
    ] = 1024 * 1024
    """Largest number of bytes in one pull."""
    pull_max_count_cold: Annotated[int, Setting("maxTransferCountOnMessageInDisk", 1, 65536, hot=True)] = 256
    """Largest number of messages in one pull that must read from the disk."""
    pull_max_bytes_cold: Annotated[
        int, Setting("maxTransferBytesOnMessageInDisk", 1, MAX_PULL_BYTES, "bytes", hot=True)
    ] = 256 * 1024
    """Largest number of bytes in one pull that must read from the disk."""
    slave_read: Annotated[bool, Setting("slaveReadEnable", hot=True)] = False
    """Whether consumers that read messages which are no longer in memory are directed to a follower, which
    answers from its own log."""
    long_polling: Annotated[bool, Setting("longPollingEnable", hot=True)] = True
    """Whether a pull that finds no message waits as long as it asks for, at most a minute."""
    short_polling_ms: Annotated[int, Setting("shortPollingTimeMills", 1, 60_000, "ms", hot=True)] = 1000
    """How long a pull waits with `longPollingEnable=false`."""
    property_filter: Annotated[bool, Setting("enablePropertyFilter", hot=True)] = True
    """Whether consumers may select messages by conditions on properties (SQL92); off in RocketMQ. A pull with
    a condition reads the properties of each message that it passes."""
    filter_retry: Annotated[bool, Setting("filterSupportRetry", hot=True)] = False
    """Whether a retry topic to which a consumer subscribes by SQL92 is filtered, by the condition for the
    original topic of each message. Java clients subscribe to their retry topic by `*`, and get all of its
    messages."""
    max_held_pulls: Annotated[int, Setting("maxHeldPulls", 0, 1_000_000, hot=True)] = 20_000
    """Largest number of pulls that wait at the same time. A further pull is answered at once."""
    pop_in_flight_threshold: Annotated[
        int, Setting("popInflightMessageThreshold", 1, MAX_POP_IN_FLIGHT, hot=True)
    ] = 10_000
    """Largest number of messages of one queue that one group may have popped and not acknowledged. At the
    limit the group gets no more messages of that queue."""
    max_pop_in_flight: Annotated[int, Setting("maxPopInflightMessages", 2, MAX_POP_IN_FLIGHT, hot=True)] = (
        MAX_POP_IN_FLIGHT
    )
    """Largest number of messages of all queues that all groups together may have popped and not acknowledged.
    One group may have half of them."""
    timer_wheel_enable: Annotated[bool, Setting("timerWheelEnable", hot=True)] = True
    """Whether messages may have a delivery time. If not, they are refused with 1 SYSTEM_ERROR. Messages that
    already wait are still delivered."""
    timer_max_delay_s: Annotated[
        int, Setting("timerMaxDelaySec", 1, MAX_TIMER_DELAY_S, "seconds", hot=True)
    ] = 3 * 24 * 3600
    """How far ahead the delivery time of a message may be. A message with a later time is refused with 13
    MESSAGE_ILLEGAL."""
    timer_precision_ms: Annotated[
        int, Setting("timerPrecisionMs", 1, MAX_TIMER_PRECISION_MS, "ms", hot=True)
    ] = 1000
    """Precision of the delivery time. A message is delivered at the next multiple of this time, never
    early."""
    timer_roll_window_slots: Annotated[
        int, Setting("timerRollWindowSlot", 1, 366 * 24 * 3600 * 10, hot=True)
    ] = 2 * 24 * 3600
    """A message that waits longer than this many times `timerPrecisionMs` is stored in the log again, so that
    the older part of the log can be deleted. Choose a time below `fileReservedTime`. In any case, a waiting
    message is not deleted before it is stored again."""
    max_timer_messages: Annotated[int, Setting("maxTimerMessages", 1, 1_000_000_000, hot=True)] = 100_000_000
    """About how many messages may wait for a delivery time. A further message is refused with 1 SYSTEM_ERROR.
    Each takes 20 bytes of disk in addition to its record in the log."""
    recall_enable: Annotated[bool, Setting("recallMessageEnable", hot=True)] = True
    """Whether a message that waits for its delivery time can be recalled; off in RocketMQ."""
    reject_transactions: Annotated[bool, Setting("rejectTransactionMessage", hot=True)] = False
    """Whether half messages of transactions are refused with 16 NO_PERMISSION."""
    transaction_timeout_ms: Annotated[int, Setting("transactionTimeOut", 0, 86_400_000, "ms", hot=True)] = (
        6000
    )
    """Time until a producer is first asked about its half message, unless the message sets another time
    (CHECK_IMMUNITY_TIME_IN_SECONDS)."""
    transaction_check_interval_ms: Annotated[
        int, Setting("transactionCheckInterval", 100, 86_400_000, "ms", hot=True)
    ] = 30_000
    """Time between two later checks of the same half message."""
    transaction_check_max: Annotated[int, Setting("transactionCheckMax", 1, 1000, hot=True)] = 15
    """How often a producer is asked about a half message. After that the half message goes to
    TRANS_CHECK_MAX_TIME_TOPIC, and its transaction is rolled back."""
    max_open_transactions: Annotated[
        int, Setting("maxOpenTransactions", 1, MAX_OPEN_TRANSACTIONS, hot=True)
    ] = MAX_OPEN_TRANSACTIONS
    """Largest number of transactions that are not ended. A further half message is refused with 2
    SYSTEM_BUSY."""
    pop_polling_size: Annotated[int, Setting("popPollingSize", 1, 100_000, hot=True)] = 1024
    """Largest number of pops of one group and topic that wait at the same time. A further pop is answered
    POLLING_FULL."""
    max_pop_polling_size: Annotated[int, Setting("maxPopPollingSize", 0, 1_000_000, hot=True)] = 20_000
    """Largest number of pops of all groups that wait at the same time. A further pop is answered
    POLLING_FULL."""
    pop_from_retry_probability: Annotated[int, Setting("popFromRetryProbability", 0, 100, "%", hot=True)] = 20
    """Percentage of pops that take messages of retry topics before new messages."""
    retry_topic_v2: Annotated[bool, Setting("enableRetryTopicV2", hot=True)] = False
    """Whether retries of popped messages go to the topic `%RETRY%group+topic` instead of
    `%RETRY%group_topic`. Pops read both topics."""
    server_load_balancer: Annotated[bool, Setting("serverLoadBalancerEnable", hot=True)] = True
    """Whether the broker divides the queues among the consumers that ask it for their queues. Otherwise it
    assigns all queues to each of them."""
    stalled_loop_s: Annotated[float, Setting("stalledLoopMs", 500, 3_600_000, "ms", hot=True)] = 2.0
    """Longest time that the event loop may stand still, because the process was stopped or the machine
    suspended. After a longer time the broker closes all connections of clients. It executes nothing that they
    sent before, because such a request may be late."""
    hold_while_opening_s: Annotated[float, Setting("holdWhileOpeningMs", 0, 60_000, "ms", hot=True)] = 0.2
    """Longest time that a request waits for a new leader to open its term. After that it is answered 14
    SERVICE_NOT_AVAILABLE."""
    hold_while_opening_bytes: Annotated[
        int, Setting("holdWhileOpeningBytes", 0, 1 << 30, "bytes", hot=True)
    ] = 16 * 1024 * 1024
    """Largest number of bytes of the bodies of all requests that wait for a new leader to open its term.
    Beyond this, a request is answered 14 SERVICE_NOT_AVAILABLE at once."""
    hold_while_electing_s: Annotated[float, Setting("holdWhileElectingMs", 0, 60_000, "ms", hot=True)] = 1.0
    """Longest time that a request waits, at a node that does not lead, until a leader is known and the
    request can be forwarded."""
    forward_to_leader: Annotated[bool, Setting("forwardToLeader", hot=True)] = True
    """Whether a node that does not lead forwards requests to the leader, if their clients do not follow hints
    to the leader. Otherwise such requests are answered 14 SERVICE_NOT_AVAILABLE."""
    offset_flush_s: Annotated[float, Setting("flushConsumerOffsetInterval", 10, 60_000, "ms", hot=True)] = 0.2
    """Shortest time between two log entries with consumer offsets of one group."""
    client_expiry_s: Annotated[float, Setting("clientExpiryMs", 1000, 86_400_000, "ms", hot=True)] = 120.0
    """Time without a heartbeat after which a client is forgotten."""
    client_sweep_s: Annotated[float, Setting("clientSweepIntervalMs", 10, 3_600_000, "ms", hot=True)] = 10.0
    """Time between two searches for clients whose heartbeats have stopped (`clientExpiryMs`)."""
    config_export_s: Annotated[float, Setting("configExportIntervalMs", 0, 86_400_000, "ms", hot=True)] = 10.0
    """Time between two checks whether the files `config/*.json` must be written; 0: never. These files show
    the tables of topics, groups, consumer offsets and delays in RocketMQ's form, for tools."""
    lock_live_s: Annotated[
        float, Setting("rebalanceLockMaxLiveTime", MIN_LOCK_LIVE_MS, 3_600_000, "ms", hot=True)
    ] = 60.0
    """Time after which a queue that is consumed in order may get another owner, if its owner has sent no
    request. Clients use a lock for at most 30 s without an answer."""
    transfer_timeout_s: Annotated[float, Setting("handOverTimeoutMs", 0, 600_000, "ms", hot=True)] = 2.0
    """How long a stopping leader waits for another node to take over."""
    server: ServerLimits = field(default_factory=ServerLimits)
    client_tls: TlsSettings = field(default_factory=TlsSettings)
    """TLS of the client port, and of connections to NameServers and other brokers; `tls` is for the peers."""

    # Registration.

    register_first_s: Annotated[
        float, Setting("registerNameServerFirstPeriod", 100, 3_600_000, "ms", hot=True)
    ] = 10.0
    """Time between the first and the second registration with a NameServer."""
    register_interval_s: Annotated[
        float, Setting("registerNameServerPeriod", 100, 60_000, "ms", hot=True)
    ] = 30.0
    """Time between two registrations; a change of topics or roles is registered at once."""
    register_timeout_s: Annotated[
        float, Setting("registerBrokerTimeoutMills", 10, 60_000, "ms", hot=True)
    ] = 3.0
    """Time-out of a registration with a NameServer."""

    # Audit.

    audit_bytes_per_s: Annotated[int, Setting("auditBytesPerSecond", 0, MAX_RATE, "bytes/s", hot=True)] = (
        32 * 1024 * 1024
    )
    """Largest number of bytes a second that scans for auditors read from the store of this broker; 0: no
    limit."""
    digest_ship_path: Annotated[str, Setting("digestShipPath", parse=parse_place)] = ""
    """A directory or URL to which this broker writes digests of its store for auditors; empty: off."""
    digest_ship_interval_ms: Annotated[
        int, Setting("digestShipIntervalMs", 100, 7 * 24 * 3_600_000, "ms")
    ] = 600_000
    """Time between two rounds of writing digests."""
    digest_rescan_hours: Annotated[int, Setting("digestRescanHours", 0, 24 * 366, "hours")] = 168
    """Time after its last scan at which a segment is scanned again even if it did not change, because disks
    decay; 0: never."""

    store: StoreLimits = field(default_factory=StoreLimits)
    node: NodeSettings = NODE_DEFAULTS
    """Settings of the replicated log."""
    tls: TlsFiles = field(default_factory=TlsFiles)
    """TLS between the peers, not for clients."""

    def check(self, given: Collection[str]) -> None:
        """Check whether the settings fit together. Raises ConfigError, which names what is missing or does
        not fit."""
        if not self.dledger_enabled:
            raise ConfigError("enableDLegerCommitLog must be true: this broker has no other commit log")
        if not self.peers:
            raise ConfigError("dLegerPeers is missing; for a single node set dLegerPeers=n0-127.0.0.1:40911")
        if self.acl_enable and self.authentication_enabled:
            raise ConfigError(
                "authenticationEnabled and aclEnable exclude each other: use either users and "
                "policies (ACL 2.0) or accounts in a file (ACL 1.0). migrateAuthFromV1Enabled turns "
                "accounts into users"
            )
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled needs authenticationEnabled: without signatures the sender of "
                "a request is unknown"
            )
        if len(self.broker_name) > MAX_TOPIC_V1 or len(self.cluster_name) > MAX_TOPIC_V1:
            raise ConfigError(
                f"brokerName and brokerClusterName name topics: at most {MAX_TOPIC_V1} characters"
            )
        node = self.node_config()
        if collisions := collisions_of(self, node):
            raise ConfigError("\n".join(collisions))

    @property
    def client_addr(self) -> str:
        """The address at which clients reach this broker."""
        return join_address(self.broker_ip, self.listen_port)

    @property
    def vip_port(self) -> int | None:
        """Port of the VIP channel, or None if there is no VIP channel."""
        port = self.listen_port - VIP_BELOW
        return port if self.vip_channel and port > 0 else None

    @property
    def address_server_url(self) -> str:
        """URL at which the broker asks for the NameServers; empty if it does not ask an address server."""
        if self.namesrv_addr or not self.namesrv_by_address_server:
            return ""
        return url_of(self.address_server, self.address_server_group)

    @property
    def open_address(self) -> str:
        """An address at which anybody can read, send and administer without an account; empty if there is
        none."""
        if self.acl_enable or self.authentication_enabled:
            return ""
        return open_address(self.bind_address, self.listen_port, self.client_tls)

    @property
    def store_host(self) -> bytes:
        """Host field of the records that this broker seals."""
        return pack_ipv4_host(self.store_ip or self.broker_ip, self.listen_port)

    @property
    def lacks_store_ip(self) -> bool:
        """Whether records cannot name this broker yet, because `brokerIP1` is a host name or an IPv6 address,
        and `storeHostIP` is empty."""
        return not self.store_ip and not is_ipv4(self.broker_ip)

    @property
    def follower_id(self) -> int:
        """brokerId of this broker while it does not lead."""
        return route_id(self.self_id)

    @property
    def peer_tls(self) -> TlsFiles | None:
        """Files for TLS between the peers, or None if TLS is not used there."""
        return self.tls if self.tls.certificate else None

    def node_config(self) -> NodeConfig:
        """Return the settings of the replicated log. Raises ConfigError if they are invalid."""
        return NodeConfig.of(
            self.node,
            group=self.dledger_group or self.broker_name,
            self_id=self.self_id,
            peers=self.peers,
            store_dir=self.store_root,
            meta={"client_addr": self.client_addr, "store_ip": self.store_ip or self.broker_ip},
            client_appends=False,
            bind_host=self.bind_address,
        )


SETTINGS = Schema(
    BrokerConfig,
    ignored=IGNORED,
    protective=PROTECTIVE,
    foreign=rocketmq_names.BROKER | rocketmq_names.FOLKLORE,
    foreign_why=rocketmq_names.WITHOUT_COUNTERPART,
    lenient=True,
)

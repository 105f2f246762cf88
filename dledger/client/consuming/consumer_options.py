"""Settings of consumers: each limit has a name, a unit and a default. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.client.consuming.allocation import AllocateStrategy, strategy_of
from dledger.client.consuming.consume_hooks import ConsumeHook, FilterHook
from dledger.client.consuming.process_queue import FlowLimits
from dledger.client.errors import ClientError
from dledger.client.options import check_asked, check_numbers, options_of

MAX_RECONSUME_TIMES = 16
"""RocketMQ's."""
MAX_POP_BATCH = 32
"""Messages of one pop."""


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
        check_numbers(self, may_be_zero=("suspend_s",))
        check_asked(self, "suspend_s")
        options_of(FlowLimits, self.flow, "flow")
        check_numbers(self.flow)
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
        check_numbers(self, may_be_zero=("poll_s", "close_timeout_s"))
        check_asked(self, "invisible_s", "poll_s")
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
        check_numbers(self, may_be_zero=("close_timeout_s",))
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


def reconsume_limit(options: ConsumerOptions, orderly: bool) -> int | None:
    """How often a failed message is delivered, at most; None where there is no limit."""
    if options.max_reconsume_times is not None:
        return options.max_reconsume_times
    return None if orderly else MAX_RECONSUME_TIMES

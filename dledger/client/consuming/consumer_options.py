"""Settings of consumers: each limit has a name, a unit and a default. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.client.consuming.allocation import AllocateStrategy, strategy_of
from dledger.client.consuming.consume_hooks import ConsumeHook, FilterHook
from dledger.client.consuming.process_queue import FlowLimits
from dledger.client.errors import ClientError
from dledger.client.options import check_asked, check_numbers, options_of

MAX_RECONSUME_TIMES = 16
"""How often a failed message is delivered before it becomes a dead letter, by default; the same as in
RocketMQ."""
MAX_POP_BATCH = 32
"""Largest number of messages in one pop."""


@dataclass(frozen=True)
class PullOptions:
    """How messages are pulled."""

    batch_size: int = 32
    """Largest number of messages in one pull (pullBatchSize); the broker also has a limit in bytes."""
    suspend_s: float = 15.0
    """How long a broker holds a pull while there are no new messages."""
    timeout_s: float = 30.0
    """Time-out of a pull; must be longer than `suspend_s`."""
    error_pause_s: float = 1.0
    """Pause after an error that has nothing to do with a leader change."""
    flow: FlowLimits = field(default_factory=FlowLimits)
    """Limits at which pulling pauses because the application is slower."""
    filters: tuple[FilterHook, ...] = ()
    """Filters of pulled messages, called one after the other. Messages that they do not return count as
    consumed."""

    def __post_init__(self) -> None:
        check_numbers(self, may_be_zero=("suspend_s",))
        check_asked(self, "suspend_s")
        options_of(FlowLimits, self.flow, "flow")
        check_numbers(self.flow)
        if self.timeout_s <= self.suspend_s:
            raise ClientError(
                f"PullOptions: timeout_s={self.timeout_s!r} is not longer than "
                f"suspend_s={self.suspend_s!r}: a pull that the broker holds would time out and count "
                "as failed"
            )


@dataclass(frozen=True)
class PopOptions:
    """Settings of a pop consumer."""

    batch_size: int = 32
    """Largest number of messages in one pop; brokers return at most 32."""
    invisible_s: float = 60.0
    """How long a popped message is reserved for us. It comes again when it is not acknowledged by then."""
    poll_s: float = 15.0
    """How long a broker holds a pop that finds no message."""
    timeout_s: float = 15.0
    """How long, in addition to `poll_s`, the client waits for the answer to a pop. After that the pop counts
    as failed."""
    error_pause_s: float = 1.0
    """Pause before the next pop after an error, in `listen`."""
    concurrency: int = 20
    """At most this many calls of the listener run at once."""
    retry_s: tuple[float, ...] = (10.0, 30.0, *(60.0 * minutes for minutes in range(1, 11)), 1200.0, 1800.0)
    """Delays after which a message comes again when the listener failed for it: the first delay is used after
    the first failure, the second after the second failure, and so on. The last one is used for all further
    failures (popDelayLevel)."""
    hooks: tuple[ConsumeHook, ...] = ()
    """Hooks that are called before and after each call of the listener of `listen`."""
    close_timeout_s: float = 10.0
    """How long `close` waits for running listeners."""

    def __post_init__(self) -> None:
        check_numbers(self, may_be_zero=("poll_s", "close_timeout_s"))
        check_asked(self, "invisible_s", "poll_s")
        if self.batch_size > MAX_POP_BATCH:
            raise ClientError(f"PopOptions: batch_size={self.batch_size!r}: give {MAX_POP_BATCH} at most")
        if not self.retry_s or not all(again_s >= 0 for again_s in self.retry_s):
            raise ClientError(f"PopOptions: retry_s={self.retry_s!r}: give some seconds, 0 or more")


@dataclass(frozen=True)
class ConsumerOptions:
    """Settings of a push consumer."""

    concurrency: int = 20
    """At most this many calls of the listener run at once (consumeThreadMax)."""
    batch_size: int = 1
    """Largest number of messages in one call of a batch listener (consumeMessageBatchMaxSize)."""
    rebalance_s: float = 20.0
    """Interval at which the consumer checks how the queues are divided. When a broker reports that the
    members of the group changed, it checks at once."""
    rebalance_retry_s: float = 1.0
    """Pause after a failed check of how the queues are divided, before the next attempt."""
    allocate: AllocateStrategy | str = "AVG"
    """How the queues of a topic are divided among the consumers of a group. All consumers of a group need the
    same strategy: "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", a strategy with settings
    (`AllocateMessageQueueByConfig`, `AllocateMessageQueueByMachineRoom`, `AllocateMachineRoomNearby`), or
    your own function."""
    consume_timeout_s: float = 900.0
    """When a call of the listener takes longer than this, its messages are sent back to the broker so that
    the queue's offset can move on, and its result is ignored (consumeTimeout). Not used by consumers that
    work in order."""
    commit_s: float = 5.0
    """Interval at which offsets are committed to the broker (persistConsumerOffsetInterval); `close` commits,
    too."""
    local_retry_first_s: float = 1.0
    """First pause before the client itself calls the listener again with a failed message, because the broker
    does not take messages back. The pause doubles each time."""
    local_retry_longest_s: float = 60.0
    """Longest pause before the client itself calls the listener again with a failed message (see
    `local_retry_first_s`)."""
    send_back_retry_s: float = 5.0
    """Pause before the client calls the listener again with a failed message that it could not send back to
    the broker."""
    max_reconsume_times: int | None = None
    """How often a failed message is delivered before it is moved to the dead letters (`%DLQ%<group>`). None
    means 16. For a consumer that works in order None means no limit, so that a message never overtakes one
    that failed."""
    suspend_s: float = 1.0
    """For consumers that work in order: pause of a queue after one of its messages failed
    (suspendCurrentQueueTimeMillis)."""
    auto_commit: bool = True
    """Whether consumed messages are committed automatically. With False the application commits. The listener
    of a consumer that works in order returns ConsumeOrderlyStatus.COMMIT when everything so far is consumed;
    a lite pull consumer calls `commit` for what `poll` returned. At most as many messages as `pull.flow`
    allows may be uncommitted."""
    lock_renew_s: float = 20.0
    """Interval at which locks of queues that are consumed in order are renewed."""
    lock_valid_s: float = 30.0
    """How long a lock of a queue that is consumed in order is valid, counted from when it was requested
    (rebalance.lockMaxLiveTime). This is shorter than the time for which brokers keep it (60 s)."""
    close_timeout_s: float = 10.0
    """How long `close` waits for running listeners. Messages whose listener has not ended by then come
    again."""
    offsets_dir: str = ".rocketmq_offsets"
    """Directory in which a broadcasting consumer stores its offsets: `<dir>/<client
    id>/<group>/offsets.json`."""
    hooks: tuple[ConsumeHook, ...] = ()
    """Hooks around each call of the listener. They are called in this order before the call, and in the
    opposite order after it."""
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
    """How many times a failed message is delivered at most; None if there is no limit."""
    if options.max_reconsume_times is not None:
        return options.max_reconsume_times
    return None if orderly else MAX_RECONSUME_TIMES

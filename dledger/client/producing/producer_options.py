"""Settings of producers: each limit has a name, a unit and a default. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.client.compression import CompressionType, NotInstalled, zstd
from dledger.client.errors import ClientError
from dledger.client.message import MAX_MESSAGE_SIZE
from dledger.client.options import check_numbers, member_of
from dledger.client.producing.send_hooks import SendHook

MAX_HOLD_S = 30.0
"""Longest time that automatic batching may hold a message, in seconds."""


@dataclass(frozen=True)
class ProducerOptions:
    """How messages are sent."""

    retry_times: int = 2
    """How often a message is sent again after failures that have nothing to do with a leader change
    (retryTimesWhenSendFailed)."""
    timeout_s: float = 10.0
    """Longest time from the send to the acknowledgement or error, including all attempts and any failover."""
    attempt_timeout_s: float = 3.0
    """Time-out of one attempt (sendMsgTimeout). When it is over, the message is sent again under the same
    unique id."""
    resend_elsewhere: bool = False
    """Whether a message whose outcome is unknown may be sent to another broker group. That group does not
    know of the first attempt, so the message may be stored in both. With False the message waits for its own
    group."""
    suspicion_s: float = 0.5
    """Time without an answer to a message after which the NameServers are asked whether the leader has
    changed."""
    busy_pause_s: float = 0.05
    """Pause before sending again to a broker that answered SYSTEM_BUSY. It doubles with each attempt."""
    max_pending: int = 65535
    """Limit of the number of messages without an acknowledgement. At this limit `send` waits, and
    `send_nowait` raises Overflow."""
    max_message_size: int = MAX_MESSAGE_SIZE
    """Largest body in bytes, before compression."""
    compress_over: int = 4096
    """Bodies with more bytes than this are sent compressed, if that makes them smaller; 0 turns compression
    off."""
    compress_type: CompressionType = CompressionType.ZLIB
    """Compression to use. Consumers older than RocketMQ 5 read ZLIB only; ZSTD needs `dledger[zstd]`."""
    auto_batch: bool = False
    """Whether messages that are sent one by one travel as batches (autoBatch). That needs fewer requests, and
    each message waits up to `batch_hold_s`. Messages with an ordering key or a delay, and large ones, are
    sent alone."""
    batch_hold_s: float = 0.01
    """Longest time that a message waits for others (holdMs)."""
    batch_hold_bytes: int = 32 * 1024
    """Limit, in bytes, of the bodies and properties in one batch (holdSize). A message that is larger alone
    is sent at once."""
    batch_total_bytes: int = 32 * 1024 * 1024
    """Limit, in bytes, of all messages that wait in batches (totalHoldSize). Beyond it, messages are sent at
    once and alone."""
    send_latency_fault: bool = False
    """Whether messages avoid broker groups that were slow or failed (sendLatencyFaultEnable)."""
    latency_steps_s: tuple[tuple[float, float], ...] = (
        (0.05, 0.0), (0.1, 0.0), (0.55, 2.0), (1.8, 5.0), (3.0, 6.0), (5.0, 10.0), (15.0, 30.0),
    )  # fmt: skip
    """Pairs (latency, pause) in seconds. A group with at least this latency is avoided for this pause
    (latencyMax, notAvailableDuration). A failed attempt counts as a latency of 10 s."""
    default_topic_queues: int = 4
    """Number of queues of a topic that the broker creates because we send to it (defaultTopicQueueNums)."""
    listener_threads: int = 20
    """Largest number of calls of a transaction listener and of its check that run at the same time. Coroutine
    functions do not count."""
    close_timeout_s: float = 30.0
    """How long `close` waits for the acknowledgements of messages in flight. After that, messages without one
    end with an error, which says whether they are certainly not stored or their outcome is unknown."""
    hooks: tuple[SendHook, ...] = ()
    """Hooks that are called around each send: in this order before it, and in the opposite order after it."""

    def __post_init__(self) -> None:
        check_numbers(self, may_be_zero=("retry_times", "busy_pause_s", "compress_over", "close_timeout_s"))
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
                f"ProducerOptions: latency_steps_s={self.latency_steps_s!r}: give pairs (latency, "
                "pause) in seconds: latencies rise, and pauses are 0 or more"
            )
        kind = member_of(CompressionType, self.compress_type, "compress_type")
        object.__setattr__(self, "compress_type", kind)  # it may have been given by its name
        if self.compress_type is CompressionType.ZSTD:
            try:
                zstd()
            except NotInstalled as error:
                raise ClientError(f"ProducerOptions: compress_type=ZSTD: {error}") from error

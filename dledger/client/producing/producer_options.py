"""Settings of producers: each limit has a name, a unit and a default. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.client.compression import CompressionType, NotInstalled, zstd
from dledger.client.errors import ClientError
from dledger.client.message import MAX_MESSAGE_SIZE
from dledger.client.options import check_numbers, member_of
from dledger.client.producing.send_hooks import SendHook

MAX_HOLD_S = 30.0
"""Seconds that automatic batching may hold a message, at most."""


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

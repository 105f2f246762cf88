"""Limits on how many messages per second are sent or read (RatelimitPipeline). A limit is for a topic, or for
a group of producers or consumers.

If the limit is reached, a request is refused with 215 FLOW_CONTROL, and nothing is done. Java's consumers
then try again after 20 ms; after any other error they wait for 3 s. Clients that are too old to know this
code get 2 SYSTEM_BUSY instead. The limits apply to one leader. The next leader takes them from its own
settings. Retries and dead letters are not counted.
"""

from __future__ import annotations

import asyncio

from dledger.broker.config import BrokerConfig
from dledger.broker.intake.send_checks import Offered, SendCheck
from dledger.broker.ratelimit.token_bucket import Buckets, TokenBucket
from dledger.broker.topic.topic_names import DLQ_PREFIX, RETRY_PREFIX
from dledger.remoting.codes import VERSION_STRICT_JSON, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.runtime.live_settings import LiveSettings

KNOWS_FLOW_CONTROL = VERSION_STRICT_JSON
"""Number of the version V4_9_4. Clients from this version on know code 215 FLOW_CONTROL."""


class _Way:
    """The limits for one direction, sending or reading."""

    def __init__(self, word: str) -> None:
        self._word = word
        self._topics = Buckets()
        self._groups = Buckets()
        self.limited: bool = False
        """Whether any limit is set. If none is, `check` need not be called."""
        self.refused: int = 0
        """Number of requests refused since the start."""

    def set_rates(self, topics: dict[str, int], groups: dict[str, int]) -> None:
        """Set the limits. Each argument maps names to a number of messages per second."""
        self._topics.set_rates(topics)
        self._groups.set_rates(groups)
        self.limited = self._topics.used or self._groups.used

    def check(self, topic: str, group: str, version: int) -> None:
        """Raises RemotingError if the topic or the group has reached its limit. The code is 215 FLOW_CONTROL,
        or 2 SYSTEM_BUSY for a client that does not know 215."""
        now = asyncio.get_running_loop().time()
        for bucket in self._of(topic, group, now):
            if not bucket.ready(now):
                self.refused += 1
                code = (
                    ResponseCode.FLOW_CONTROL if version >= KNOWS_FLOW_CONTROL else ResponseCode.SYSTEM_BUSY
                )
                raise RemotingError(
                    code,
                    f"[FLOW]client has exhausted the {self._word} quota for the current time slot, "
                    "start flow control for a while.",
                )

    def count(self, topic: str, group: str, messages: int) -> None:
        """Count messages that were sent by or given to a client."""
        for bucket in self._of(topic, group, asyncio.get_running_loop().time()):
            bucket.take(messages)

    def _of(self, topic: str, group: str, now: float) -> list[TokenBucket]:
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return []
        both = self._topics.of(topic, now), self._groups.of(group, now)
        return [bucket for bucket in both if bucket is not None]


class _Sending(SendCheck):
    """The limits on sending, as a check of sends."""

    once = lets_retries = True

    def __init__(self, way: _Way) -> None:
        self._way = way

    @property
    def active(self) -> bool:
        """See `SendCheck`."""
        return self._way.limited

    def check(self, send: Offered) -> None:
        """Raises RemotingError with code 215 FLOW_CONTROL or 2 SYSTEM_BUSY, as `_Way.check` does."""
        self._way.check(send.topic, send.group, send.version)

    def stored(self, send: Offered, messages: int) -> None:
        """Count the messages that were stored."""
        self._way.count(send.topic, send.group, messages)


class RateLimits:
    """The limits of one broker, for sending and for reading."""

    def __init__(self, settings: LiveSettings[BrokerConfig]) -> None:
        self.sending: _Way = _Way("send")
        self.send_check: SendCheck = _Sending(self.sending)
        self.reading: _Way = _Way("pull")
        self._settings_changed(settings.now)
        settings.listen(self._settings_changed)

    def _settings_changed(self, config: BrokerConfig) -> None:
        self.sending.set_rates(config.topic_send_rates, config.group_send_rates)
        self.reading.set_rates(config.topic_pull_rates, config.group_pull_rates)

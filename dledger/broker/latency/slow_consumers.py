"""Disabling of consumer groups that read far behind the end of the log, if the settings ask for it
(BrokerController.protectBroker). The reads of such a group come from the disk and slow down all other
clients.

How far a group is behind follows from the position of the last message that it received, for each of its
queues. A group that has not pulled since the last check does no harm and is not disabled.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.config import BrokerConfig
from dledger.broker.services import LeaderService
from dledger.broker.store.message_store import MessageStore
from dledger.formats.record import PHYSICAL_OFFSET_AT
from dledger.runtime.env import Env
from dledger.runtime.files import Buffer
from dledger.runtime.live_settings import LiveSettings

LOOK_S = 180.0
"""Seconds between two checks, as in RocketMQ. Each check considers the pulls since the previous one."""
MAX_QUEUES = 20_000
"""Largest number of queues that are noted between two checks (with so many, a check takes 2 ms). Pulls from
further queues are ignored."""


class SlowConsumers(LeaderService):
    """Disables slow groups. While `on` is true, `pulled` must be called for each pull that found messages."""

    def __init__(self, env: Env, settings: LiveSettings[BrokerConfig], store: MessageStore) -> None:
        self._log = env.log.child("slow-consumers")
        self._settings = settings
        self._store = store
        self._writer: CommitLogWriter | None = None
        self._behind: dict[tuple[str, str, int], int] = {}
        """Maps (group, topic, queue id) to the number of bytes between the last message that the group
        received and the end of the log."""
        self.stopped: int = 0
        """Number of groups disabled since the start."""

    @property
    def on(self) -> bool:
        """Whether pulls must be reported by `pulled`."""
        return self._settings.now.stop_slow_consumers

    def pulled(self, group: str, topic: str, queue_id: int, last: Buffer) -> None:
        """Note that a pull was answered. `last` is the record of the last message in the answer."""
        key = (group, topic, queue_id)
        if len(self._behind) < MAX_QUEUES or key in self._behind:
            position = int.from_bytes(last[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8], "big")
            self._behind[key] = self._store.dispatcher.applied_end - position

    def begin(self, writer: CommitLogWriter) -> None:
        """Start without any noted pulls."""
        self._writer = writer
        self._behind = {}

    def end(self, reason: str) -> None:
        """Stop disabling groups. The next leader starts its own checks."""
        self._writer = None

    async def run(self) -> None:
        """Check at intervals which groups are slow, and disable them."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self.on:
                self._look()
            self._behind = {}

    def _look(self) -> None:
        most = self._settings.now.slow_consumer_bytes
        far: dict[str, tuple[int, str, int]] = {}
        for (group, topic, queue_id), behind in self._behind.items():
            if behind > most and behind > far.get(group, (0,))[0]:
                far[group] = (behind, topic, queue_id)
        for group, (behind, topic, queue_id) in far.items():
            if not self._stop(group):
                continue
            self.stopped += 1
            self._log.warning(
                "the group was disabled because it reads too far behind: enable it with updateSubGroup",
                group=group,
                topic=topic,
                queue=queue_id,
                behind_bytes=behind,
            )

    def _stop(self, group: str) -> bool:
        writer = self._writer
        if writer is None or not writer.room:
            return False  # tried again at the next check
        config = writer.group(group)
        if config is None or not config.enable:
            return False
        writer.put_group(replace(config, enable=False))
        return True

"""Locks of queues by consumers that work in order: 41 LOCK_BATCH_MQ, 42 UNLOCK_BATCH_MQ
(RebalanceLockManager, AdminBrokerProcessor).

These consumers lock their queues, and renew the locks every 20 s. The owner of each lock is in the replicated
state (`formats.state.locks`). The leader measures the time since the owner's last request in loop time, which
does not depend on the wall clock. Four rules keep a queue from having two owners:

* Each request that locks or renews appends an entry, and is answered when this entry is committed. So a
  leader that was replaced cannot confirm a lock. If the client only renews its locks, the entry names no
  queue.
* A lock expires `rebalanceLockMaxLiveTime` (60 s) after the last request of its owner, or after this leader's
  term was opened, if that is later. When a new leader lets a lock expire, the client can no longer use an
  answer of the previous leader, because clients use a lock for at most 30 s after an answer.
* An expired lock is removed, or given to another client, by an operation in the log.
* A client that locks a queue again uses a higher epoch, which is also in the replicated state. A late request
  of the same client from before has a lower epoch and is ignored. Clients of other projects have no epochs.
  If such a client has locked a queue by a request sent directly to this leader, a forwarded request does not
  unlock the queue, because a forwarded request may be very late.

As in RocketMQ, a lock stays when its owner disconnects or unregisters. Clients unlock their queues (request
42) when they end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dledger.broker.auth import actions, required
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.core import Core
from dledger.broker.requests import LeaderCall, Needs, handles
from dledger.broker.services import LeaderService
from dledger.broker.topic.deletion import Deletions
from dledger.broker.topic.topic_creation import TopicCreation
from dledger.formats.state import (
    LOCK_BATCH,
    LOCK_EPOCHS,
    LOCK_EPOCHS_OP,
    LOCKS,
    MAX_LOCK_BATCH,
    MAX_NAME,
    MAX_OFFSET,
    UNLOCK_BATCH,
    LockEpoch,
    LockKey,
    Op,
    batch_op,
    lock_epochs_op,
    lock_epochs_over_op,
)
from dledger.remoting.bodies import LockAnswer, LockRequest, MessageQueue, decode_body
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import FLAG_FORWARDED
from dledger.remoting.errors import RemotingError

MAX_LOCKS = 50_000
"""Largest number of locked queues of all groups together. A request that would add more is refused with code
2 SYSTEM_BUSY."""
MAX_LOCK_BODY = 256 * 1024
"""Limit, in bytes, of one request. It is enough for MAX_LOCK_BATCH queues with the longest names. A longer
request is refused."""
SWEEP_S = 1.0
"""Seconds between two searches for expired locks."""


class QueueLocks(LeaderService):
    """Handlers of the requests 41 LOCK_BATCH_MQ and 42 UNLOCK_BATCH_MQ. It also removes expired locks while
    this node leads."""

    def __init__(self, core: Core, creation: TopicCreation, deletions: Deletions) -> None:
        self._settings = core.settings
        self._creation = creation
        self._store = core.store
        self._gate = core.gate
        self._committed = core.committed
        self._log = core.env.log.child("locks")
        self._writer: CommitLogWriter | None = None
        self._heard: dict[LockKey, float] = {}
        """Maps each lock to the loop time, in seconds, of its owner's last request. The lock with the oldest
        request comes first."""
        self._direct: dict[LockKey, float] = {}
        """Maps each lock that its owner requested from this leader directly, not through another broker, to
        the loop time of the owner's last direct request."""
        deletions.listeners.append(self._forget)
        self.expired: int = 0
        """Number of expired locks that were removed since the start. Locks that were given to another client
        do not count."""

    @property
    def count(self) -> int:
        """Number of locked queues. It is 0 unless this node leads."""
        return len(self._heard)

    @handles(
        RequestCode.LOCK_BATCH_MQ,
        needs=Needs.LEADER,
        max_body=MAX_LOCK_BODY,
        may=required.Rule(special=required.of_locks),
        does=actions.LOCKED,
    )
    def lock(self, call: LeaderCall[None]) -> None:
        """Lock queues, or renew locks. The answer lists those of the requested queues that the client has
        locked now.

        Every broker of the group has the same locks, so the field `onlyThisBroker` changes nothing.
        """
        asked, queues = _decode(call)
        group, client, writer = asked.consumerGroup, asked.clientId, call.writer
        if self._creation.group_for_consumer(writer, self._store.state, group) is None:
            remark = f"subscription group [{group}] does not exist"
            raise RemotingError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        writer.check_versions(LOCK_BATCH)
        if not writer.room:
            raise writer.refused
        rows = writer.pending[LOCKS].rows
        now = asyncio.get_running_loop().time()
        live_s = self._settings.now.lock_live_s
        known = writer.pending[LOCK_EPOCHS].rows
        own: dict[LockKey, MessageQueue] = {}
        new: list[tuple[str, int]] = []
        more = 0
        for queue, epoch in queues.items():
            key = (group, queue.topic, queue.queueId)
            row = rows.get(key)
            if row is not None and row.client != client and now - self._heard.get(key, now) < live_s:
                continue
            if row is not None and row.client == client and _is_late(known.get(key), epoch):
                continue
            if row is None or row.client != client:
                if not _exists(writer, queue):
                    continue  # left out; an error would refuse all queues
                new.append((queue.topic, queue.queueId))
                self._direct.pop(key, None)
                more += row is None
            own[key] = queue
        if len(self._heard) + more > MAX_LOCKS:
            remark = f"the limit of {MAX_LOCKS} locked queues is reached"
            raise RemotingError(ResponseCode.SYSTEM_BUSY, remark)
        body = LockAnswer(list(own.values())).encode()
        if not own:
            call.respond(body=body)
            return
        began = {key: queues[queue] for key, queue in own.items()}
        index = writer.add_together(
            (), [batch_op(LOCK_BATCH, group, client, new), *self._epoch_ops(writer, group, began)]
        )
        for key in own:
            self._heard.pop(key, None)
            self._heard[key] = now
            if not call.request.flag & FLAG_FORWARDED:
                self._direct[key] = now
        self._committed.add(index, call.connection, call.request, lambda: call.respond(body=body))

    @handles(
        RequestCode.UNLOCK_BATCH_MQ,
        needs=Needs.LEADER,
        max_body=MAX_LOCK_BODY,
        may=required.Rule(special=required.of_locks),
        does=actions.LOCKED,
    )
    def unlock(self, call: LeaderCall[None]) -> None:
        """Unlock queues. Queues of other clients stay locked. A queue stays locked, too, if the client has
        locked it again with a higher epoch since it sent this request. If there are no epochs and another
        broker forwarded the request, a queue stays locked if the client locked it by a direct request to this
        leader within the last `rebalanceLockMaxLiveTime`."""
        asked, queues = _decode(call)
        group, client, writer = asked.consumerGroup, asked.clientId, call.writer
        rows, known = writer.pending[LOCKS].rows, writer.pending[LOCK_EPOCHS].rows
        since = asyncio.get_running_loop().time() - self._settings.now.lock_live_s
        forwarded = bool(call.request.flag & FLAG_FORWARDED)
        own: list[LockKey] = []
        for queue, epoch in queues.items():
            key = (group, queue.topic, queue.queueId)
            if key not in rows or rows[key].client != client or _is_late(known.get(key), epoch):
                continue
            tells = epoch is not None and key in known
            if not forwarded or tells or self._direct.get(key, since) <= since:
                own.append(key)
        if not own:
            self._gate.confirm(call.connection, call.request, call.respond)
            return
        if not writer.room:
            raise writer.refused
        index = self._take(writer, group, client, own)
        self._committed.add(index, call.connection, call.request, call.respond)

    def begin(self, writer: CommitLogWriter) -> None:
        """Load the locks. This leader does not know when their owners last sent requests to the previous
        leader. So each lock gets its full time again."""
        self._writer = writer
        self._heard = dict.fromkeys(writer.pending[LOCKS].rows, asyncio.get_running_loop().time())
        self._direct = {}

    async def run(self) -> None:
        """See `LeaderService`."""
        pause_s = SWEEP_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = 0.0 if self._expire() else SWEEP_S

    def end(self, reason: str) -> None:
        """See `LeaderService`."""
        self._writer = None
        self._heard = {}
        self._direct = {}

    def _forget(self, writer: CommitLogWriter, kind: str, name: str) -> None:
        """Forget the locks of a topic or a group that is about to be deleted."""
        for key in writer.pending.keys_of(LOCKS, kind, name):
            self._drop(key)

    def _expire(self) -> bool:
        """Remove expired locks of one owner, at most MAX_LOCK_BATCH. Returns whether there may be more."""
        writer = self._writer
        if writer is None or not self._heard or not writer.room or not writer.may_write(UNLOCK_BATCH):
            return False
        rows = writer.pending[LOCKS].rows
        before = asyncio.get_running_loop().time() - self._settings.now.lock_live_s
        over: list[LockKey] = []
        for key, heard in self._heard.items():
            other = bool(over) and (key[0], rows[key].client) != (over[0][0], rows[over[0]].client)
            if heard > before or other or len(over) >= MAX_LOCK_BATCH:
                break
            over.append(key)
        if not over:
            return False
        group, client = over[0][0], rows[over[0]].client
        self._log.info("queue locks expired", group=group, client=client, queues=len(over))
        self.expired += len(over)
        self._take(writer, group, client, over)
        return True

    def _drop(self, key: LockKey) -> None:
        self._heard.pop(key, None)
        self._direct.pop(key, None)

    def _take(self, writer: CommitLogWriter, group: str, client: str, keys: list[LockKey]) -> int:
        for key in keys:
            self._drop(key)
        ops = [batch_op(UNLOCK_BATCH, group, client, [key[1:] for key in keys])]
        known = writer.pending[LOCK_EPOCHS].rows
        over = [key[1:] for key in keys if key in known]
        if over:
            ops.append(lock_epochs_over_op(group, over))
        return writer.add_together((), ops)

    def _epoch_ops(
        self, writer: CommitLogWriter, group: str, began: Mapping[LockKey, int | None]
    ) -> list[Op]:
        """Return operations that store the epochs of locked queues. If the client gives no epoch for a queue,
        the stored epoch is removed."""
        if not writer.may_write(LOCK_EPOCHS_OP):
            return []
        known = writer.pending[LOCK_EPOCHS].rows
        put = [
            (*key[1:], epoch)
            for key, epoch in began.items()
            if epoch is not None and (key not in known or known[key].epoch != epoch)
        ]
        over = [key[1:] for key, epoch in began.items() if epoch is None and key in known]
        if put:
            writer.note_version(LOCK_EPOCHS_OP)
        return [
            *([lock_epochs_op(group, put)] if put else ()),
            *([lock_epochs_over_op(group, over)] if over else ()),
        ]


def _is_late(known: LockEpoch | None, epoch: int | None) -> bool:
    """Return whether a request is late: its client has locked the queue again since with a higher epoch."""
    return known is not None and epoch is not None and epoch < known.epoch


def _decode(call: LeaderCall[None]) -> tuple[LockRequest, dict[MessageQueue, int | None]]:
    """Decode a request. Returns it with a map from each queue to its epoch, or to None if the request has no
    epochs. Raises RemotingError 29 INVALID_PARAMETER if the request is invalid."""
    asked = decode_body(call.request.body, LockRequest, "lock request")
    epochs = asked.epochs
    remark = ""
    if epochs is not None and len(epochs) != len(asked.mqSet):
        remark = f"{len(epochs)} epochs for {len(asked.mqSet)} queues: give one for each"
    elif epochs is not None and not all(0 <= epoch <= MAX_OFFSET for epoch in epochs):
        remark = f"an epoch is a number from 0 to {MAX_OFFSET}"
    if remark:
        raise RemotingError(ResponseCode.INVALID_PARAMETER, remark)
    queues: dict[MessageQueue, int | None] = dict.fromkeys(asked.mqSet)
    queues.update(zip(asked.mqSet, epochs or (), strict=epochs is not None))
    if not asked.consumerGroup or len(asked.consumerGroup) > MAX_NAME:
        remark = "consumerGroup is missing, or too long"
    elif not 0 < len(asked.clientId) <= MAX_NAME:
        remark = f"clientId must have 1 to {MAX_NAME} characters"
    elif len(queues) > MAX_LOCK_BATCH:
        remark = f"the request has {len(queues)} queues; the limit is {MAX_LOCK_BATCH}"
    if remark:
        raise RemotingError(ResponseCode.INVALID_PARAMETER, remark)
    return asked, queues


def _exists(writer: CommitLogWriter, queue: MessageQueue) -> bool:
    config = writer.topic(queue.topic)
    return config is not None and 0 <= queue.queueId < max(config.read_queues, config.write_queues)

"""Queue locks: 41 LOCK_BATCH_MQ, 42 UNLOCK_BATCH_MQ (RebalanceLockManager, AdminBrokerProcessor).

Consumers that work in order lock their queues, and renew the locks every 20 s. The owner of a lock is in the
log (`formats.state.locks`). The time since the owner's last request is measured here, in loop time, which
does not depend on the wall clock. Four rules keep a queue from having two owners:

* An answer waits until an entry of its own is committed, so a deposed leader answers no request. The entry of
  a client that only renews its locks names no queue.
* A leader counts `rebalanceLockMaxLiveTime` (60 s) from the last request of the owner, or from the opening of
  its term if that is later. By then all answers of its predecessor have expired, because clients use a lock
  for at most 30 s after an answer.
* An expired lock is removed, or given to another client, by an operation in the log.
* A client that locks a queue again uses a higher epoch, which is in the log as well. A late request from
  before has a lower epoch and is ignored. Clients of other projects have no epochs. If such a client has
  locked a queue at this leader directly, only a direct request unlocks it, because a request that another
  broker forwards may be very late.

As in RocketMQ a lock survives the connection and the unregistration of its owner: clients unlock (42) when
they end.
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
"""Locked queues of all groups; a request that would add more is refused (2)."""
MAX_LOCK_BODY = 256 * 1024
"""Bytes of one request, enough for MAX_LOCK_BATCH queues with the longest names; a longer one is refused."""
SWEEP_S = 1.0
"""Seconds between two searches for expired locks."""


class QueueLocks(LeaderService):
    """Handlers of 41 and 42, and the expiry of locks while this node leads."""

    def __init__(self, core: Core, creation: TopicCreation, deletions: Deletions) -> None:
        self._settings = core.settings
        self._creation = creation
        self._store = core.store
        self._gate = core.gate
        self._committed = core.committed
        self._log = core.env.log.child("locks")
        self._writer: CommitLogWriter | None = None
        self._heard: dict[LockKey, float] = {}
        """Loop time (s) of the last request of each lock's owner; the oldest is the first."""
        self._direct: dict[LockKey, float] = {}
        """Locks that the owner requested from this leader directly, and the loop time of its last request."""
        deletions.listeners.append(self._forget)
        self.expired: int = 0
        """Expired locks that were removed since start, without those that went to another client."""

    @property
    def count(self) -> int:
        """How many queues are locked, while this node leads."""
        return len(self._heard)

    @handles(
        RequestCode.LOCK_BATCH_MQ,
        needs=Needs.LEADER,
        max_body=MAX_LOCK_BODY,
        may=required.Rule(special=required.of_locks),
        does=actions.LOCKED,
    )
    def lock(self, call: LeaderCall[None]) -> None:
        """Lock queues, or renew locks. The answer lists the queues that the client has locked now.

        Every broker of the group has the same locks, so `onlyThisBroker` changes nothing.
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
                    continue  # not locked; an error would take the other queues with it
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
        """Unlock queues. Queues of other clients stay locked, and so do queues that the client has locked
        again since, by their epochs. If there are no epochs and another broker forwards the request, queues
        that the client locked here directly within the life of a lock stay locked, too."""
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
        """Load the locks. The time of their owners' last requests to the previous leader is unknown, so each
        lock gets its full time again."""
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
        """A topic or a group is about to be deleted: forget its locks."""
        for key in writer.pending.keys_of(LOCKS, kind, name):
            self._drop(key)

    def _expire(self) -> bool:
        """Remove expired locks of one owner, at most one batch. Returns whether there may be more."""
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
        """Operations that store the epochs of locked queues. If the client gives no epoch, the stored one is
        removed."""
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
    """Whether a request is from an earlier time at which its client had the queue."""
    return known is not None and epoch is not None and epoch < known.epoch


def _decode(call: LeaderCall[None]) -> tuple[LockRequest, dict[MessageQueue, int | None]]:
    """A request and its queues without duplicates, with their epochs if it has them. RemotingError 29 if the
    request is invalid."""
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

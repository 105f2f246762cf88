"""Deletion of topics and groups by the leader: how the state and the memory forget them, and how consumers
are informed.

The operation removes everything from the replicated state (`formats.state.deletions`). The leader also has
data about topics and groups in memory. The listeners defined here forget that data in the same turn of the
loop, before the operation is appended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from dledger.broker.clients.client_table import Clients
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.store.message_store import MessageStore
from dledger.broker.topic.topic_names import DLQ_PREFIX, RETRY_PREFIX
from dledger.formats.pop_handles import retry_topic_v1, retry_topic_v2
from dledger.formats.state import (
    DELETIONS,
    RESETS,
    TOPIC_DELETE,
    OffsetReset,
    Op,
    group_deletion,
)
from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import RemotingError

MAX_DELETED = 50_000
"""Largest number of deleted topics whose names are remembered. A name is remembered until the log holds
nothing of the old topic. Beyond the limit, a deletion is refused with 2 SYSTEM_BUSY."""
TOGETHER = 50
"""Largest number of topics that one batch of the log deletes, and of groups whose offset resets one batch
holds."""
MAX_SENT_ON = 5_000
"""Limit of pending offset resets, up to which a deletion adds more. The deletion of a topic adds a reset for
each group that subscribes to the topic. If the topic is created again, the reset sends the consumers of the
group to its beginning. The number is half of the limit of all resets (`pending_offsets.MAX_RESETS`)."""

Forget = Callable[[CommitLogWriter, str, str], None]
"""Function that is called with the writer, "topic" or "group", and a name that is about to be deleted.
`writer.pending` then still has the rows of that name."""


class Deletions:
    """Deletes topics and groups. Every deletion is an entry of the log; later requests see it at once, before
    it is applied."""

    def __init__(self, store: MessageStore, clients: Clients) -> None:
        self._store = store
        self._clients = clients
        self.listeners: list[Forget] = []

    def delete_topic(self, writer: CommitLogWriter, topic: str) -> int | None:
        """Delete a topic, and the retry topics of the groups that pop it. Returns the index of the last
        entry, or None if there is no such topic. Raises RemotingError with code 2 SYSTEM_BUSY or 14
        SERVICE_NOT_AVAILABLE if it cannot be deleted now; the topic then still exists.

        Connected consumers still have offsets of the deleted topic. If the topic is created again, they are
        sent to its beginning, and offsets that they report before that are ignored.
        """
        names = [
            name
            for group in self._store.state.groups_of(topic)
            for name in (retry_topic_v1(topic, group), retry_topic_v2(topic, group))
        ]
        config = writer.topic(topic)
        known = [name for name in names if writer.topic(name) is not None]
        index = None
        for start in range(0, len(known), TOGETHER):
            index = self._delete(writer, known[start : start + TOGETHER])
        if config is None:
            return index
        rows = tuple((queue, 0) for queue in range(max(config.read_queues, 1)))
        groups = (name for name, group in self._clients.consumers.items() if topic in group.subscriptions)
        room = min(MAX_SENT_ON - writer.pending.at_most(RESETS), TOGETHER)
        sent_on = [OffsetReset(group, topic, rows).op() for group in islice(groups, max(room, 0))]
        return self._delete(writer, [topic], sent_on)

    def delete_group(self, writer: CommitLogWriter, group: str, *, keep_offsets: bool) -> int | None:
        """Delete a group with its offsets, its retry topics and its dead letters. With `keep_offsets`, delete
        only its configuration, as in RocketMQ. Returns the index of the last entry, or None if nothing of the
        group exists. Raises RemotingError with code 2 SYSTEM_BUSY or 14 SERVICE_NOT_AVAILABLE if it cannot be
        deleted now; the group then still exists."""
        if keep_offsets:
            if writer.group(group) is None:
                return None
            self._check(writer, 0)
            if not writer.room:
                raise writer.refused
            return writer.delete((), group_deletion(group, keep_offsets=True))
        topics = [prefix + group for prefix in (RETRY_PREFIX, DLQ_PREFIX)]
        known = [name for name in topics if writer.topic(name) is not None]
        if writer.group(group) is None and group not in self._store.state.offsets and not known:
            return None
        popped = self._pop_retries(writer, group)
        self._check(writer, len(popped) + len(known))
        if not writer.room:
            raise writer.refused
        for start in range(0, len(popped), TOGETHER):
            self._delete(writer, popped[start : start + TOGETHER])
        for name in known:
            self._tell(writer, "topic", name)
        self._tell(writer, "group", group)
        return writer.delete(known, group_deletion(group))

    def _pop_retries(self, writer: CommitLogWriter, group: str) -> list[str]:
        """Return the retry topics of messages that the group popped. A topic that may also belong to
        another group is left out, because older names do not show clearly where the group ends and the
        topic begins."""
        names = [
            name
            for topic in self._store.state.topics_of(group)
            for name in (retry_topic_v2(topic, group), retry_topic_v1(topic, group))
        ]
        return [name for name in names if writer.topic(name) and not _others(writer, name, group)]

    def _check(self, writer: CommitLogWriter, more: int) -> None:
        writer.check_versions(TOPIC_DELETE)
        if writer.pending.at_most(DELETIONS) + more > MAX_DELETED:
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY,
                f"{MAX_DELETED} deleted topics still have messages in the log, and that is the limit: "
                "wait until retention has removed these messages",
            )

    def _delete(self, writer: CommitLogWriter, names: Sequence[str], after: Sequence[Op] = ()) -> int:
        self._check(writer, len(names))
        if not writer.room:
            raise writer.refused
        for name in names:
            self._tell(writer, "topic", name)
        return writer.delete(names, after=after)

    def _tell(self, writer: CommitLogWriter, kind: str, name: str) -> None:
        for forget in self.listeners:
            forget(writer, kind, name)


def _others(writer: CommitLogWriter, name: str, group: str) -> bool:
    """Whether the name of a retry topic fits another group as well. It may name the retry topic of that group
    itself, or of that group and a topic that it may pop."""
    text = name.removeprefix(RETRY_PREFIX)
    if writer.group(text) is not None:
        return True
    ends = [at for at, letter in enumerate(text) if letter == "_" and text[:at] != group]
    return any(
        writer.group(text[:at]) is not None and writer.topic(text[at + 1 :]) is not None for at in ends
    )

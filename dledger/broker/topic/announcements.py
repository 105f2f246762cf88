"""Delays the acknowledgements of the first messages of a topic that was created by a send, until the
NameServers know the topic.

Otherwise a consumer that starts right after the first acknowledgement would find no route.
`Registrar.announce` limits the wait, so a NameServer that does not answer delays these acknowledgements by no
more than `ANSWER_LIMIT_S`. Until the topic is announced, sends to it do not take the fast path
(`CommitLogWriter.unannounced`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dledger.broker.commit_log import CommitLogWriter, TopicSlot
from dledger.broker.pending_responses import PendingResponses
from dledger.broker.registration.registrar import Registrar
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection

Answer = Callable[[], None]


class TopicAnnouncements:
    """Announces each new topic once, and keeps the answers that wait for the announcement."""

    def __init__(self, registrar: Registrar, applied: PendingResponses) -> None:
        self._registrar = registrar
        self._applied = applied
        self._waiting: dict[TopicSlot, list[Answer]] = {}
        """Answers that wait, by topic. The number of requests that connections may have in flight limits
        them."""

    def add(
        self,
        writer: CommitLogWriter,
        slot: TopicSlot,
        index: int,
        connection: Connection,
        request: Request,
        answer: Answer,
    ) -> None:
        """Call `answer` when entry `index` is applied and the NameServers know the topic of `slot`."""
        self._applied.add(index, connection, request, partial(self._announce, writer, slot, answer))

    def _announce(self, writer: CommitLogWriter, slot: TopicSlot, answer: Answer) -> None:
        if slot in self._waiting:
            self._waiting[slot].append(answer)
        elif writer.unannounced.get(slot.config.name) is slot:
            self._waiting[slot] = [answer]
            self._registrar.announce(partial(self._announced, writer, slot))
        else:
            answer()  # the topic was announced or deleted since the message was stored

    def _announced(self, writer: CommitLogWriter, slot: TopicSlot) -> None:
        writer.announced(slot)
        for answer in self._waiting.pop(slot):
            answer()

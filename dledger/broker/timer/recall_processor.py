"""Recall of timer messages: 370 RECALL_MESSAGE (RecallMessageProcessor).

The recall of a message is another record in the queue of waiting messages, with the same due time. As soon as
the leader claims that time for delivery, it refuses further recalls. So the leader knows all recalls of the
messages that it delivers. As in RocketMQ, the answer does not say whether there was such a message.

| answer | when                                                                                |
|--------|-------------------------------------------------------------------------------------|
| 0      | the recall is durable on a majority: if the message waits, it is never delivered    |
| 1      | the outcome is unknown                                                              |
| 2      | too much is pending in the log: the recall was not executed                         |
| 14     | this node does not lead, or a member runs a version without timers                  |
| 16     | `recallMessageEnable` is off                                                        |
| 17     | the topic does not exist                                                            |
| 604    | the handle is missing, or names another topic or broker, or its due time has passed |
"""

from __future__ import annotations

from dledger.broker.auth import required
from dledger.broker.auth.plain_acl import PUB
from dledger.broker.commit_log import Outgoing
from dledger.broker.config import MAX_TIMER_DELAY_S, MAX_TIMER_PRECISION_MS
from dledger.broker.core import Core
from dledger.broker.requests import LeaderCall, Needs, handles
from dledger.broker.timer.timer_claims import TimerClaims
from dledger.formats.properties import (
    BORN_TIMESTAMP,
    MAX_PROPERTIES_SIZE,
    PGROUP,
    REAL_TOPIC,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    UNIQ_KEY,
    encode_properties,
)
from dledger.formats.state import TIMER
from dledger.formats.timers import TIMER_TOPIC, RecallHandle
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import RecallMessageHeader

RECALL_TAG = "_RECALL_TAG_"


class RecallProcessor:
    """Handler of request 370 RECALL_MESSAGE."""

    def __init__(self, core: Core, timers: TimerClaims) -> None:
        self._settings = core.settings
        self._timers = timers
        self._committed = core.committed

    @handles(
        RequestCode.RECALL_MESSAGE,
        RecallMessageHeader,
        needs=Needs.LEADER,
        may=required.Rule(topic="topic", perm=PUB),
    )
    def recall(self, call: LeaderCall[RecallMessageHeader]) -> None:
        """Recall a waiting message, so that it is never delivered."""
        header, writer, settings = call.header, call.writer, self._settings.now
        if not settings.recall_enable:
            raise RemotingError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        if writer.topic(header.topic) is None:
            raise RemotingError(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist"
            )
        try:
            handle = RecallHandle.decode(header.recallHandle)
        except ValueError as error:
            raise _illegal(str(error)) from error
        if handle.topic != header.topic:
            raise _illegal("recall failed, topic not match")
        if handle.broker_name != settings.broker_name:
            raise _illegal("recall failed, broker service not available")
        now_ms = writer.clock_ms()
        # A little more than any message may wait, whatever the settings were when it was sent. Its due time
        # was rounded up, by the clock of another leader.
        latest = now_ms + MAX_TIMER_DELAY_S * 1000 + MAX_TIMER_PRECISION_MS + 60_000
        if not now_ms < handle.due <= latest or not self._timers.may_recall(handle.due):
            raise _illegal("recall failed, timestamp invalid")
        if not writer.room:
            raise writer.refused
        writer.check_versions(TIMER)
        index = writer.add_together([self._note(call, handle)], [])
        ext = {"msgId": handle.message_id, "MSG_REGION": settings.region_id}
        self._committed.add(index, call.connection, call.request, lambda: call.respond(ext=ext))

    def _note(self, call: LeaderCall[RecallMessageHeader], handle: RecallHandle) -> Outgoing:
        properties = {
            TAGS: RECALL_TAG,
            TIMER_DEL_UNIQKEY: handle.message_id,
            UNIQ_KEY: handle.message_id,
            TIMER_OUT_MS: str(handle.due),
            REAL_TOPIC: handle.topic,
            BORN_TIMESTAMP: str(call.writer.clock_ms()),
            PGROUP: call.header.producerGroup or "",
        }
        try:
            text = encode_properties(properties).encode()
        except ValueError as error:
            raise _illegal(f"recall handle is invalid: {error}") from error
        if len(text) > MAX_PROPERTIES_SIZE:
            raise _illegal("recall handle is invalid: it is too long")
        slot = call.writer.slot(TIMER_TOPIC)
        assert slot is not None  # every broker has it
        born_ms = call.writer.clock_ms()
        return Outgoing(slot, 0, 0, 0, born_ms, call.connection.peer_host, 0, b"0", text)


def _illegal(why: str) -> RemotingError:
    return RemotingError(ResponseCode.ILLEGAL_OPERATION, why)

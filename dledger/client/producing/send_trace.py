"""Message trace of a producer: a hook that records each send."""

from __future__ import annotations

from dledger.client.core import ClientCore
from dledger.client.message import SendStatus, comes_later
from dledger.client.namespaces import without_namespace
from dledger.client.producing.send_hooks import SendContext, SendHook
from dledger.client.trace import TraceDispatcher
from dledger.client.trace_records import DELAY_MSG, NORMAL_MSG, Pub


class TraceSendHook(SendHook):
    """Records each send (SendMessageTraceHookImpl). A batch is recorded as one send, as RocketMQ does it."""

    def __init__(self, core: ClientCore, dispatcher: TraceDispatcher) -> None:
        self._core = core
        self._dispatcher = dispatcher

    def before(self, context: SendContext) -> None:
        """See `SendHook`."""
        context.state["trace_ms"] = self._core.env.wall.now_ms()

    def after(self, context: SendContext) -> None:
        """See `SendHook`. A message without an acknowledgement has no message id either."""
        result = context.result
        if result is None or not context.trace_on:
            return
        message, namespace = context.messages[0], self._core.options.namespace
        began_ms = context.state["trace_ms"]
        self._dispatcher.append(
            Pub(
                time_ms=began_ms,
                region_id=context.region_id,
                group=without_namespace(context.producer_group, namespace),
                topic=without_namespace(message.topic, namespace),
                message_id=result.message_id,
                tags=message.tags or "",
                keys=message.keys or "",
                store_host=context.broker_address,
                body_length=sum(len(one.body) for one in context.messages),
                cost_ms=max(0, self._core.env.wall.now_ms() - began_ms),
                message_type=DELAY_MSG if comes_later(message) else NORMAL_MSG,
                offset_message_id=result.offset_message_id.rpartition(",")[2],
                success=result.status is SendStatus.OK,
            )
        )

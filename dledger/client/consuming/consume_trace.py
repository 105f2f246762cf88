"""Message trace of a consumer: a hook that records each call of the listener."""

from __future__ import annotations

from collections.abc import Sequence

from dledger.client.callback_failures import Failures
from dledger.client.consuming.consume_hooks import (
    ConsumeContext,
    ConsumeHook,
    ConsumeHooks,
    ConsumeReturnType,
)
from dledger.client.core import ClientCore
from dledger.client.message import ReceivedMessage
from dledger.client.namespaces import without_namespace
from dledger.client.trace import TraceDispatcher, Tracing
from dledger.client.trace_records import SubAfter, SubBefore
from dledger.formats.properties import KEYS, MSG_REGION, TRACE_ON

DEFAULT_REGION = "DefaultRegion"
_CODES = tuple(ConsumeReturnType)


class TraceConsumeHook(ConsumeHook):
    """Records each call of a listener (ConsumeMessageTraceHookImpl)."""

    def __init__(self, core: ClientCore, dispatcher: TraceDispatcher) -> None:
        self._core = core
        self._dispatcher = dispatcher

    def before(self, context: ConsumeContext) -> None:
        """See `ConsumeHook`."""
        wanted = [one for one in context.messages if one.properties.get(TRACE_ON) != "false"]
        request_id = f"{self._core.env.random.getrandbits(128):032X}"
        context.state["trace"] = request_id, wanted
        namespace = self._core.options.namespace
        for message in wanted:
            self._dispatcher.append(
                SubBefore(
                    time_ms=context.began_ms,
                    region_id=message.properties.get(MSG_REGION, DEFAULT_REGION),
                    group=without_namespace(context.consumer_group, namespace),
                    topic=message.topic,
                    request_id=request_id,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    keys=message.properties.get(KEYS, ""),
                )
            )

    def after(self, context: ConsumeContext) -> None:
        """See `ConsumeHook`."""
        request_id: str
        wanted: list[ReceivedMessage]
        request_id, wanted = context.state["trace"]
        now_ms = self._core.env.wall.now_ms()
        cost_ms = max(0, now_ms - context.began_ms) // max(1, len(context.messages))
        code = _CODES.index(context.return_type or ConsumeReturnType.FAILED)
        group = without_namespace(context.consumer_group, self._core.options.namespace)
        for message in wanted:
            self._dispatcher.append(
                SubAfter(
                    time_ms=now_ms,
                    group=group,
                    topic=message.topic,
                    request_id=request_id,
                    message_id=message.message_id,
                    cost_ms=cost_ms,
                    success=context.success,
                    keys=message.properties.get(KEYS, ""),
                    code=code,
                )
            )


def traced_hooks(
    core: ClientCore, group: str, hooks: Sequence[ConsumeHook], timeout_s: float, tracing: Tracing | None
) -> ConsumeHooks | None:
    """The hooks of a consumer, together with the hook for message trace if `tracing` is given; None if there
    are no hooks. A call of the listener that is longer than `timeout_s` counts as TIME_OUT."""
    if tracing is not None:
        hooks = (*hooks, TraceConsumeHook(core, tracing.dispatcher))
    if not hooks:
        return None
    return ConsumeHooks(group, hooks, Failures(core.log), core.env.wall.now_ms, timeout_s)

"""Functions of the application that are called around each send (SendMessageHook).

A hook runs on the client's event loop, so it must be short. What a hook raises is logged, and the message is
sent all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dledger.client.callback_failures import Failures
from dledger.client.errors import ClientError
from dledger.client.message import Message, SendResult
from dledger.client.producing.pending_sends import OnSent


@dataclass(slots=True)
class SendContext:
    """One send: what `SendHook` is called with, before and after."""

    producer_group: str
    messages: list[Message]
    """One message, or those of a batch. `before` may change them or put others in their places."""
    result: SendResult | None = None
    """After: the acknowledgement; None after an error, and of a oneway message."""
    error: ClientError | None = None
    """After: why there is no acknowledgement."""
    broker_address: str = ""
    """After: the leader of the group that the message went to, as far as is known."""
    region_id: str = ""
    """After: the broker's `regionId`, where message trace is on."""
    trace_on: bool = False
    """After: whether the broker wants traces, where message trace is on."""
    state: dict[str, Any] = field(default_factory=dict)
    """For the hooks: what `before` notes for `after`."""


class SendHook:
    """Called around each send of a producer; override what is needed."""

    def before(self, context: SendContext) -> None:
        """The message is about to be sent, or to be held for a batch."""

    def after(self, context: SendContext) -> None:
        """It has its acknowledgement or its error."""


class SendHooks:
    """The hooks of one producer."""

    def __init__(self, group: str, hooks: Sequence[SendHook], failures: Failures) -> None:
        self.group = group
        self.complete: Callable[[SendContext], None] | None = None
        """Fills in what is known after a send."""
        self._hooks = tuple(hooks)
        self._failures = failures

    def before(self, messages: Sequence[Message]) -> SendContext:
        """Begin a send."""
        context = SendContext(self.group, list(messages))
        for hook in self._hooks:
            try:
                hook.before(context)
            except Exception as error:
                self._failures.log_raised("send hook failed", error)
        return context

    def after(self, context: SendContext, result: SendResult | ClientError | None) -> None:
        """It has ended."""
        if isinstance(result, ClientError):
            context.error = result
        else:
            context.result = result
        if self.complete is not None:
            self.complete(context)
        for hook in reversed(self._hooks):
            try:
                hook.after(context)
            except Exception as error:
                self._failures.log_raised("send hook failed", error)

    def around(self, context: SendContext, on_done: OnSent) -> OnSent:
        """`on_done`, with the hooks called before it."""

        def done(result: SendResult | ClientError) -> None:
            self.after(context, result)
            on_done(result)

        return done

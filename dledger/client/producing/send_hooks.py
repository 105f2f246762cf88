"""Functions of the application that are called around each send (SendMessageHook).

A hook runs on the client's event loop, so it must be short. An exception of a hook is logged, and the message
is sent anyway.
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
    """One send; the argument of `SendHook.before` and `SendHook.after`."""

    producer_group: str
    messages: list[Message]
    """One message, or those of a batch. `before` may change or replace them."""
    result: SendResult | None = None
    """Set when `after` is called: the acknowledgement; None after an error, and for a oneway message."""
    error: ClientError | None = None
    """Set when `after` is called: the error because of which there is no acknowledgement; None if there is
    one."""
    broker_address: str = ""
    """Set when `after` is called: the leader of the group that the message went to, as far as it is known."""
    region_id: str = ""
    """Set when `after` is called: the broker's `regionId`, if message trace is on."""
    trace_on: bool = False
    """Set when `after` is called: whether the broker wants traces, if message trace is on."""
    state: dict[str, Any] = field(default_factory=dict)
    """A dict that is free for the hooks: `before` may store in it what `after` needs."""


class SendHook:
    """Base class of hooks that are called before and after each send of a producer. Override the methods that
    you need."""

    def before(self, context: SendContext) -> None:
        """Called when the message is about to be sent, or to be added to a batch."""

    def after(self, context: SendContext) -> None:
        """Called when the acknowledgement or the error of the message is known."""


class SendHooks:
    """The hooks of one producer."""

    def __init__(self, group: str, hooks: Sequence[SendHook], failures: Failures) -> None:
        self.group = group
        self.complete: Callable[[SendContext], None] | None = None
        """A function that adds to the context what is known only after a send."""
        self._hooks = tuple(hooks)
        self._failures = failures

    def before(self, messages: Sequence[Message]) -> SendContext:
        """Call the hooks before a send."""
        context = SendContext(self.group, list(messages))
        for hook in self._hooks:
            try:
                hook.before(context)
            except Exception as error:
                self._failures.log_raised("send hook failed", error)
        return context

    def after(self, context: SendContext, result: SendResult | ClientError | None) -> None:
        """Call the hooks after a send, in the opposite order."""
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
        """Wrap `on_done`, so that the hooks are called before it."""

        def done(result: SendResult | ClientError) -> None:
            self.after(context, result)
            on_done(result)

        return done

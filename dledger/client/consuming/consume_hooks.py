"""Functions of the application that are called around each call of a listener (ConsumeMessageHook), and
filters of pulled messages (FilterMessageHook).

A consume hook runs where the listener runs, directly before and after it. A filter runs on the client's event
loop, so it must be short. An exception of a hook is logged, and the message is consumed anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dledger.client.callback_failures import Failures
from dledger.client.message import ReceivedMessage


class ConsumeReturnType(Enum):
    """How a call of a listener ended (ConsumeReturnType)."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"
    EXCEPTION = "EXCEPTION"
    RETURNNULL = "RETURNNULL"
    FAILED = "FAILED"


@dataclass(slots=True)
class ConsumeContext:
    """One call of a listener; the argument of `ConsumeHook.before` and `ConsumeHook.after`."""

    consumer_group: str
    messages: Sequence[ReceivedMessage]
    began_ms: int
    """Begin of the call by the wall clock, in ms since the epoch."""
    return_type: ConsumeReturnType | None = None
    """Set when `after` is called: how the call ended."""
    status: object = None
    """Set when `after` is called: the value that the listener returned."""
    error: BaseException | None = None
    """Set when `after` is called: the exception that the listener raised."""
    state: dict[str, Any] = field(default_factory=dict)
    """A dict that is free for the hooks: `before` may store in it what `after` needs."""

    @property
    def success(self) -> bool:
        """Whether the messages are consumed. This is known only when `after` is called."""
        return self.return_type is ConsumeReturnType.SUCCESS


class ConsumeHook:
    """Base class of hooks that are called before and after each call of a listener. Override the methods that
    you need."""

    def before(self, context: ConsumeContext) -> None:
        """Called when the listener is about to be called. If the listener is a plain function, the hook runs
        in the same thread."""

    def after(self, context: ConsumeContext) -> None:
        """Called when the listener has ended."""


FilterHook = Callable[[Sequence[ReceivedMessage]], Sequence[ReceivedMessage]]
"""A function that is called with pulled messages and returns those that the listener is to get. The other
messages count as consumed."""


class ConsumeHooks:
    """The hooks of one consumer. Called from any thread."""

    def __init__(
        self,
        group: str,
        hooks: Sequence[ConsumeHook],
        failures: Failures,
        now_ms: Callable[[], int],
        timeout_s: float,
    ) -> None:
        """A call that takes `timeout_s` or longer counts as TIME_OUT, however it ends."""
        self._group = group
        self._now_ms = now_ms
        self._timeout_ms = timeout_s * 1000
        self._hooks = tuple(hooks)
        self._failures = failures

    def before(self, messages: Sequence[ReceivedMessage]) -> ConsumeContext:
        """Call the hooks before a call of the listener."""
        context = ConsumeContext(self._group, messages, self._now_ms())
        for hook in self._hooks:
            try:
                hook.before(context)
            except Exception as error:
                self._failures.log_raised("consume hook failed", error)
        return context

    def after(
        self,
        context: ConsumeContext,
        return_type: ConsumeReturnType,
        status: object,
        error: BaseException | None,
    ) -> None:
        """Call the hooks after a call of the listener, in the opposite order."""
        if self._now_ms() - context.began_ms >= self._timeout_ms:
            return_type = ConsumeReturnType.TIME_OUT
        context.return_type, context.status, context.error = return_type, status, error
        for hook in reversed(self._hooks):
            try:
                hook.after(context)
            except Exception as failure:
                self._failures.log_raised("consume hook failed", failure)


def filtered(
    hooks: Sequence[FilterHook], messages: list[ReceivedMessage], failures: Failures
) -> list[ReceivedMessage]:
    """The messages of one queue that all filters return, in their order. A filter that raises removes
    none."""
    left = messages
    for hook in hooks:
        try:
            kept = {message.queue_offset for message in hook(tuple(left))}
        except Exception as error:
            failures.log_raised("filter hook failed", error)
            continue
        left = [message for message in left if message.queue_offset in kept]
    return left

"""The requests that pages send to a cluster. Pages that are open at the same time share the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

FRESH_S = 4.0
"""How long an answer is used again, in seconds."""
MAX_ANSWERS = 512
"""Largest number of answers that are kept; the oldest is dropped for a new one."""
MAX_ASKED = 16
"""Largest number of requests that one page has under way."""
Question = tuple[Any, str, tuple[Any, ...]]
"""Whom a question is put to, its name, and its words."""


class _Abandoned(Exception):
    """Raised at those who wait for an answer if the one who asked was cancelled."""


class Facts:
    """Answers of one cluster, each used again for a short time."""

    def __init__(self) -> None:
        self._answers: dict[Question, tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, ask: Callable[..., Awaitable[T]], *words: Any, fresh_s: float = FRESH_S) -> T:
        """Return `ask(*words)`, or what it returned less than `fresh_s` seconds ago. If somebody asks the
        same at this moment, that answer is awaited. Raises what it raises; a failure is not used again."""
        key = getattr(ask, "__self__", None), getattr(ask, "__qualname__", ""), words
        loop = asyncio.get_running_loop()
        while (known := self._answers.get(key)) is not None:
            since, answer = known
            if answer.done() and loop.time() - since >= fresh_s:
                break
            try:
                found: T = await asyncio.shield(answer)
            except _Abandoned:
                continue  # who asked has left: ask anew
            return found
        return await self._ask(key, ask, words)

    async def _ask(self, key: Question, ask: Callable[..., Awaitable[T]], words: tuple[Any, ...]) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._answers.pop(key, None)
        self._answers[key] = loop.time(), answer
        while len(self._answers) > MAX_ANSWERS:
            self._answers.pop(next(iter(self._answers)))
        try:
            found = await ask(*words)
        except BaseException as error:
            if self._answers.get(key, (0.0, None))[1] is answer:
                del self._answers[key]
            answer.set_exception(_Abandoned() if isinstance(error, asyncio.CancelledError) else error)
            answer.exception()  # nobody else may wait for it
            raise
        if self._answers.get(key, (0.0, None))[1] is answer:
            self._answers[key] = loop.time(), answer  # its age counts from the answer on
        answer.set_result(found)
        return found


async def gather_bounded(calls: Sequence[Callable[[], Awaitable[T]]], at_once: int = MAX_ASKED) -> list[T]:
    """Await all calls, at most `at_once` at the same time. Returns the results in order. After an
    error the others are cancelled, and it is raised."""
    slots = asyncio.Semaphore(at_once)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with slots:
            return await call()

    try:
        async with asyncio.TaskGroup() as tasks:
            started = [tasks.create_task(one(call), name="page") for call in calls]
    except BaseExceptionGroup as errors:
        # Not `except*`: what is raised from there comes in a group again (always, before Python 3.11.4).
        raise errors.exceptions[0] from errors
    return [task.result() for task in started]

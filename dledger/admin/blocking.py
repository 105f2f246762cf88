"""The methods of the asynchronous client for programs without an event loop; each waits for the result.

Each blocking method is made from an asynchronous one, and has its name, arguments and types.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

Wait = Callable[[Callable[[], Awaitable[Any]]], Any]
"""A function that runs an awaitable on the client's loop, and waits for its result."""


class Blocking(Generic[A, P, T]):
    """A blocking method. It runs the asynchronous method of the same name and waits for its result."""

    def __init__(self, method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, face: Face[A], owner: type[Face[A]]) -> Callable[P, T]:
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            found: T = face.wait(lambda: self._method(face.area(), *args, **kwargs))
            return found

        call.__doc__ = self._method.__doc__
        return call


class Face(Generic[A]):
    """Base of the blocking groups of methods, such as `BlockingTopics`. `area` returns the asynchronous
    object (such as `Topics`) of the client that is open now."""

    def __init__(self, wait: Wait, area: Callable[[], A]) -> None:
        self.wait = wait
        self.area = area

"""Errors of requests, on both sides of a connection."""

from __future__ import annotations


class RemotingError(Exception):
    """A failed request. `code` is the response code, or None if no answer came.

    If a handler of a server raises it, it becomes the answer. In a client it stands for an answer of the peer
    that reports an error. Its subclasses say why there is no answer.
    """

    def __init__(self, code: int | None, remark: str) -> None:
        super().__init__(remark if code is None else f"code {code}: {remark}")
        self.code = code
        self.remark = remark


class BadHeader(RemotingError):
    """A header field is missing or has the wrong type. `field` names it if it is known."""

    def __init__(self, remark: str, field: str | None = None, code: int = 1) -> None:
        super().__init__(code, remark)
        self.field = field


class BadBody(RemotingError):
    """A body does not fit its request code."""

    def __init__(self, remark: str, code: int = 1) -> None:
        super().__init__(code, remark)


class ConnectFailed(RemotingError):
    """There is no connection, so the request certainly was not sent. `refused`: no process listens at the
    address."""

    def __init__(self, remark: str, refused: bool = False) -> None:
        super().__init__(None, remark)
        self.refused = refused


class WrongTls(ConnectFailed):
    """One side uses TLS and the other does not. The request certainly was not executed, and repeating it will
    not help."""


class ConnectionLost(RemotingError):
    """The connection was lost with the request in flight: whether it was executed is not known."""

    def __init__(self, remark: str) -> None:
        super().__init__(None, remark)


class RequestTimeout(RemotingError):
    """No answer came in time: whether the request was executed is not known."""

    def __init__(self, remark: str) -> None:
        super().__init__(None, remark)


class TooLarge(RemotingError):
    """A frame is larger than the limit; it was not sent."""

    def __init__(self, remark: str) -> None:
        super().__init__(None, remark)


class Overloaded(RemotingError):
    """A limit of this client is reached (requests in flight, bytes waiting): the request was not sent."""

    def __init__(self, remark: str) -> None:
        super().__init__(None, remark)


class FrameError(Exception):
    """The bytes are not a frame, so the connection cannot be used any longer. `cause` is a short constant for
    counters and logs; the text has the details.
    """

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause

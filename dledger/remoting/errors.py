"""What a request can fail with, on both sides of a connection."""

from __future__ import annotations


class RemotingError(Exception):
    """A failed request. `code` is the response code that says so, None when no answer came.

    Raised by a server's handler it becomes the answer; given to a client it is what the peer answered, or
    (subclasses) why there is no answer.
    """

    def __init__(self, code: int | None, remark: str) -> None:
        super().__init__(remark if code is None else f"code {code}: {remark}")
        self.code = code
        self.remark = remark


class BadHeader(RemotingError):
    """A header field is missing or is not of its type. `field` names it where that is known."""

    def __init__(self, remark: str, field: str | None = None, code: int = 1) -> None:
        super().__init__(code, remark)
        self.field = field


class BadBody(RemotingError):
    """A body is not what its request code says."""

    def __init__(self, remark: str, code: int = 1) -> None:
        super().__init__(code, remark)


class ConnectFailed(RemotingError):
    """No connection: the request certainly was not sent. `refused`: the peer answered that nobody listens."""

    def __init__(self, remark: str, refused: bool = False) -> None:
        super().__init__(None, remark)
        self.refused = refused


class WrongTls(ConnectFailed):
    """One side speaks TLS and the other does not: the request certainly was not executed, and no repetition
    will help."""


class ConnectionLost(RemotingError):
    """The connection went down with the request in flight: whether it was executed is not known."""

    def __init__(self, remark: str) -> None:
        super().__init__(None, remark)


class RequestTimeout(RemotingError):
    """No answer in time: whether the request was executed is not known."""

    def __init__(self, remark: str) -> None:
        super().__init__(None, remark)


class TooLarge(RemotingError):
    """A frame above the limit: it was not sent."""

    def __init__(self, remark: str) -> None:
        super().__init__(None, remark)


class Overloaded(RemotingError):
    """A limit of this client is reached (requests in flight, bytes waiting): the request was not sent."""

    def __init__(self, remark: str) -> None:
        super().__init__(None, remark)


class FrameError(Exception):
    """Bytes that are no frame: there is no way to go on with the connection.

    `cause` is a short constant for counters and logs, the text has the details.
    """

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause

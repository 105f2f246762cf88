"""What can go wrong, sorted by what the application can do about it. Every text says what to do."""

from __future__ import annotations

from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Response


class ClientError(Exception):
    """Any failure of this client. `code` is the broker's response code where it answered one."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


class ClientClosed(ClientError):
    """The producer or consumer is not started or already closed."""


class InvalidMessage(ClientError, ValueError):
    """The message was refused before it was sent: empty, too large, a bad topic name or property."""


class NoNameServer(ClientError):
    """None of the NameServers answered."""


class TopicNotFound(ClientError):
    """No broker serves the topic, and it cannot be created automatically."""


class NoBroker(ClientError):
    """A broker group is known, but no leader of it could be reached in time. Certainly not stored."""


class SendFailed(ClientError):
    """The broker refused the message. It is certainly not stored; sending it unchanged will not help."""


class OutcomeUnknown(ClientError):
    """No acknowledgement in time, but the message may be stored, or what was asked for may be done.

    The client repeats a send with the same id, and that is stored once; a new send() of your own has a new id
    and is stored again.
    """


class NoReply(ClientError):
    """A request message was stored, but no reply to it came in time."""


class Overflow(ClientError):
    """Too many messages wait for their acknowledgement. Wait for some, then send again."""


class LibraryMissing(ClientError):
    """A message is whole, and reading it needs a package that is not installed here."""


class BrokerRefused(ClientError):
    """A broker answered a request other than a send with an error. What was asked for is not done."""


def outcome_unknown(answer: Response) -> bool:
    """Whether a broker says that it does not know what became of the request (safety.md S24)."""
    return answer.code == ResponseCode.SYSTEM_ERROR and "outcome unknown" in (answer.remark or "")


def ended_by(error: BaseException) -> ClientError:
    """The error that tells why a consumer ended."""
    code = error.code if isinstance(error, ClientError) else None
    return ClientError(f"the consumer has ended because of {type(error).__name__}: {error}", code)


def refused_text(code: int, remark: str | None) -> str:
    """What a response code means and what to do about it, with the broker's own remark."""
    try:
        name = ResponseCode(code).name
    except ValueError:
        name = "unknown code"
    advice = _ADVICE.get(code, "see the remark")
    return f"the broker answered {code} {name}: {remark or 'no remark'} ({advice})"


_ADVICE: dict[int, str] = {
    ResponseCode.SYSTEM_ERROR: "look into the broker's log",
    ResponseCode.SYSTEM_BUSY: "the broker is overloaded: send slower",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "the broker is too old or too new for this request",
    ResponseCode.MESSAGE_ILLEGAL: "make the message smaller or correct its properties",
    ResponseCode.SERVICE_NOT_AVAILABLE: "not the leader, or its disk is full: look at the broker's /health",
    ResponseCode.NO_PERMISSION: "this is not permitted: check the topic's perm, and the account",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic first: create_topic(topic, queues)",
    ResponseCode.INVALID_PARAMETER: "check the topic's name and number of queues",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "correct the subscription expression",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the consumer group or allow automatic creation",
}

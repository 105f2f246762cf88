"""The exceptions of the client, sorted by what the application can do about them. Every text says what to
do."""

from __future__ import annotations

from dledger.remoting.codes import STORED_NUMBERS, ResponseCode
from dledger.remoting.commands import Response


class ClientError(Exception):
    """Any failure of this client. `code` is the response code of the broker, or None if no broker
    answered."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


class ClientClosed(ClientError):
    """The producer or consumer is not started or already closed."""


class InvalidMessage(ClientError, ValueError):
    """The message was refused before it was sent, because it is empty or too large, or because its topic name
    or a property is bad."""


class NoNameServer(ClientError):
    """None of the NameServers answered."""


class TopicNotFound(ClientError):
    """No broker serves the topic, and it cannot be created automatically."""


class NoBroker(ClientError):
    """A broker group is known, but its leader could not be reached in time. The message is certainly not
    stored."""


class SendFailed(ClientError):
    """The broker refused the message. It is certainly not stored; sending it unchanged will not help."""


class AlreadyStored(ClientError):
    """Some messages of a batch with idempotency keys are stored already, and the broker has not stored the
    others. Only batches of Spark's sink have such keys.

    `stored`: the numbers of the stored messages in the batch, from 0.
    """

    def __init__(self, text: str, stored: frozenset[int]) -> None:
        super().__init__(text, ResponseCode.ALREADY_STORED)
        self.stored = stored


class OutcomeUnknown(ClientError):
    """No acknowledgement came in time, so the message may or may not be stored (or the request carried out).

    The client itself repeats a send with the same id, and such a message is stored once. A new send() by the
    application has a new id, and is stored again.
    """


class NoReply(ClientError):
    """A request message was stored, but no reply to it came in time."""


class Overflow(ClientError):
    """Too many messages wait for their acknowledgement. Wait for some of them, then send again."""


class LibraryMissing(ClientError):
    """A message is intact, but reading it needs a package that is not installed."""


class BrokerRefused(ClientError):
    """A broker refused a request other than a send. It has not done what the request asked for."""


def refused_send(answer: Response) -> ClientError:
    """Return the error for a send that a broker has refused for good."""
    text = refused_text(answer.code, answer.remark)
    numbers = (answer.ext.get(STORED_NUMBERS) or "").split(",")
    if answer.code == ResponseCode.ALREADY_STORED and all(number.isdecimal() for number in numbers):
        return AlreadyStored(text, frozenset(map(int, numbers)))
    return SendFailed(text, answer.code)


def is_not_permitted(error: Exception) -> bool:
    """Whether a broker has refused a request because the account may not make it."""
    return isinstance(error, BrokerRefused) and error.code == ResponseCode.NO_PERMISSION


def outcome_unknown(answer: Response) -> bool:
    """Whether the broker itself reports that the outcome of the request is unknown (safety.md S24)."""
    return answer.code == ResponseCode.SYSTEM_ERROR and "outcome unknown" in (answer.remark or "")


def ended_by(error: BaseException) -> ClientError:
    """Make an error that says why a consumer ended."""
    code = error.code if isinstance(error, ClientError) else None
    return ClientError(f"the consumer has ended because of {type(error).__name__}: {error}", code)


def refused_text(code: int, remark: str | None) -> str:
    """Explain a response code and what to do about it, with the broker's own remark."""
    try:
        name = ResponseCode(code).name
    except ValueError:
        name = "unknown code"
    advice = _ADVICE.get(code, "see the text of the broker")
    return f"the broker answered {code} {name}: {remark or 'no remark'} ({advice})"


_ADVICE: dict[int, str] = {
    ResponseCode.ALREADY_STORED: "send the messages again that are not stored",
    ResponseCode.SYSTEM_ERROR: "look into the log of the broker",
    ResponseCode.SYSTEM_BUSY: "the broker is overloaded: try again later, or send more slowly",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "the broker is too old or too new for this request",
    ResponseCode.MESSAGE_ILLEGAL: "make the message smaller or correct its properties",
    ResponseCode.SERVICE_NOT_AVAILABLE: "not the leader, or its disk is full: look at the broker's /health",
    ResponseCode.NO_PERMISSION: "this is not permitted: check the permission of the topic (perm), "
    "and the account",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic first: create_topic(topic, queues)",
    ResponseCode.INVALID_PARAMETER: "check the topic's name and number of queues",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "correct the subscription expression",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the consumer group or allow automatic creation",
}

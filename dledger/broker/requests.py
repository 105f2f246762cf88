"""Declarations of requests: for each code the method that answers it, what it needs, and its read point.

    @handles(
        RequestCode.GET_MAX_OFFSET,
        QueueHeader,
        needs=Needs.LEADER,
        reads="applied index",
        may=required.ACCOUNT,
        does=actions.OFFSET,
    )
    def max_offset(self, call: LeaderCall[QueueHeader]) -> None:
        ...

A processor is an object with such methods. Two tables are made from the declarations: the handlers of the
server, with exactly one method for each code, and docs/reference/request-codes.md (safety.md S25)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec

from dledger.broker.auth.actions import Does
from dledger.broker.auth.required import Rule
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.leader_gate import LeaderGate
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request, decode_fields
from dledger.remoting.limits import MAX_BODY
from dledger.remoting.server import Connection, Handler
from dledger.runtime.files import Buffer

P = TypeVar("P")
H = TypeVar("H", bound=msgspec.Struct | None)
_DECLARED = "_handled_requests"


class Needs(Enum):
    """Which brokers answer a request."""

    LEADER = "leader"
    """Only the leader answers. Requests wait while a term opens. Other brokers answer 14
    SERVICE_NOT_AVAILABLE with the leader's address (S24), unless they forward the request."""
    ANY = "any"
    """Every broker of the group answers, from what it knows itself."""


class Call(msgspec.Struct, Generic[H], eq=False, gc=False):
    """One request with its decoded header."""

    connection: Connection
    request: Request
    header: H

    def respond(
        self,
        code: int = ResponseCode.SUCCESS,
        *,
        ext: Mapping[str, str] | None = None,
        body: bytes | list[Buffer] = b"",
        remark: str | None = None,
    ) -> None:
        """Answer the request. May be called only once."""
        self.connection.respond(self.request, code, ext=ext, body=body, remark=remark)


class LeaderCall(Call[H], eq=False, gc=False):
    """One request that is handled while this node serves. `writer`: the log writer of the current leadership,
    valid in this turn of the loop."""

    writer: CommitLogWriter


@dataclass(frozen=True)
class Declaration:
    """The declaration of a request code. `reads`: the read point of the answer (safety.md S25), empty if the
    request reads nothing."""

    code: RequestCode
    header: type[msgspec.Struct] | None
    needs: Needs
    reads: str
    may: Rule
    does: Does | None = None
    max_body: int = MAX_BODY
    """Limit, in bytes, of the body of this request. A request with a longer body is refused before it is
    parsed."""
    at_follower: str = ""
    """Name of a method that is called first if this broker does not lead. The method returns True if it
    answers the request."""


@overload
def handles(
    code: RequestCode,
    header: type[H],
    *,
    needs: Literal[Needs.LEADER],
    reads: str = "",
    may: Rule,
    does: Does | None = None,
    max_body: int = MAX_BODY,
    at_follower: str = "",
) -> Callable[[Callable[[P, LeaderCall[H]], None]], Callable[[P, LeaderCall[H]], None]]: ...
@overload
def handles(
    code: RequestCode,
    header: type[H],
    *,
    needs: Literal[Needs.ANY],
    reads: str = "",
    may: Rule,
    does: Does | None = None,
    max_body: int = MAX_BODY,
) -> Callable[[Callable[[P, Call[H]], None]], Callable[[P, Call[H]], None]]: ...
@overload
def handles(
    code: RequestCode,
    header: None = None,
    *,
    needs: Literal[Needs.LEADER],
    reads: str = "",
    may: Rule,
    does: Does | None = None,
    max_body: int = MAX_BODY,
) -> Callable[[Callable[[P, LeaderCall[None]], None]], Callable[[P, LeaderCall[None]], None]]: ...
@overload
def handles(
    code: RequestCode,
    header: None = None,
    *,
    needs: Literal[Needs.ANY],
    reads: str = "",
    may: Rule,
    does: Does | None = None,
    max_body: int = MAX_BODY,
) -> Callable[[Callable[[P, Call[None]], None]], Callable[[P, Call[None]], None]]: ...
def handles(
    code: RequestCode,
    header: Any = None,
    *,
    needs: Needs,
    reads: str = "",
    may: Rule,
    does: Does | None = None,
    max_body: int = MAX_BODY,
    at_follower: str = "",
) -> Any:
    """Declare that a method answers a request code.

    * `header`: struct of the header fields; None if there are none.
    * `may`: the permission that the sender needs (ACL 1.0, `dledger.broker.auth.required`).
    * `does`: the actions of the request on resources (ACL 2.0, `dledger.broker.auth.actions`). It is required
      if `may` names no resource.
    * `max_body`: limit, in bytes, of the body. It is chosen so that the event loop is not blocked for 10 ms.
    * `at_follower`: name of a method that is called first if this broker does not lead. The method returns
      whether it answers.
    """

    if does is None and not may.names_something:
        raise ValueError(
            f"{code!r} may be sent by any account: declare with `does` what it does to which resource"
        )

    def declare(method: Any) -> Any:
        known = getattr(method, _DECLARED, ())
        setattr(
            method,
            _DECLARED,
            (*known, Declaration(code, header, needs, reads, may, does, max_body, at_follower)),
        )
        return method

    return declare


Processor = object
"""An object that answers requests, with methods declared by `handles`."""


def declarations(kinds: Iterable[type[Any]]) -> dict[Declaration, tuple[type[Any], str]]:
    """Return all declarations of these processor classes in order of codes, each with class and method.
    Raises ValueError if two methods answer the same code."""
    found: dict[int, tuple[Declaration, type[Any], str]] = {}
    for kind in kinds:
        for name in sorted(dir(kind)):
            for declared in getattr(getattr(kind, name), _DECLARED, ()):
                if declared.code in found:
                    _, other, method = found[declared.code]
                    here = f"{kind.__name__}.{name}"
                    raise ValueError(f"{declared.code!r}: {here} and {other.__name__}.{method} answer it")
                found[declared.code] = declared, kind, name
    return {declared: (kind, name) for _, (declared, kind, name) in sorted(found.items())}


def handler_table(processors: Iterable[Processor], gate: LeaderGate) -> dict[int, Handler]:
    """Return the handler of each request code, for the server."""
    by_kind = {type(processor): processor for processor in processors}
    table: dict[int, Handler] = {}
    for declared, (kind, name) in declarations(by_kind).items():
        method = getattr(by_kind[kind], name)
        if declared.needs is Needs.LEADER:
            follower = getattr(by_kind[kind], declared.at_follower) if declared.at_follower else None
            table[declared.code] = _leader_only(declared, method, gate, follower)
        else:
            table[declared.code] = _anywhere(declared, method)
    return table


def body_limits(processors: Iterable[Processor]) -> dict[int, int]:
    """Return the largest size of the body, in bytes, for each request code, for the server."""
    return {one.code: one.max_body for one in declarations(type(processor) for processor in processors)}


def document(kinds: Iterable[type[Any]]) -> list[str]:
    """Return the lines of the table of request codes, in Markdown."""
    lines = ["| code | request | answered by | read point |", "|---|---|---|---|"]
    for declared in declarations(kinds):
        who = "the leader" if declared.needs is Needs.LEADER else "any broker"
        lines.append(
            f"| {int(declared.code)} | {declared.code.name} | {who} | {declared.reads or 'a write'} |"
        )
    return lines


def _leader_only(
    declared: Declaration,
    method: Callable[[LeaderCall[Any]], None],
    gate: LeaderGate,
    follower: Callable[[Call[Any]], bool] | None,
) -> Handler:
    header, code = declared.header, int(declared.code)

    def handler(connection: Connection, request: Request) -> None:
        writer = gate.writer
        if writer is None:
            if (
                follower is None
                or header is None
                or not follower(Call(connection, request, request.header(header)))
            ):
                gate.wait_or_refuse(connection, request)
            return
        fields = None if header is None else decode_fields(request.ext_fields, header, code)
        method(LeaderCall(connection, request, fields, writer))

    return handler


def _anywhere(declared: Declaration, method: Callable[[Call[Any]], None]) -> Handler:
    header = declared.header

    def handler(connection: Connection, request: Request) -> None:
        method(Call(connection, request, None if header is None else request.header(header)))

    return handler

"""Runs a command for people: reads the common options, connects, reports errors, and asks for
confirmation."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

import click

from dledger.admin import AsyncAdminClient, Refused
from dledger.client import ClientError, ClientOptions, NoBroker, NoNameServer, TopicNotFound
from dledger.commands import exit_codes
from dledger.commands.admin.showing import Table, show
from dledger.local.default_group import local_namesrv, no_address
from dledger.remoting.codes import ResponseCode
from dledger.runtime.environment_variables import namesrv_addr


@dataclass
class Told:
    """The options that all commands have: which cluster is meant, and how the result is printed."""

    namesrv: str | None
    as_json: bool
    yes: bool = False
    dry_run: bool = False

    def show(self, data: object, *parts: Table | str) -> None:
        """Print a result: as JSON if `as_json` is set, otherwise as tables and texts for people."""
        show(self.as_json, data, parts)

    def warn(self, warnings: list[str], text: str) -> None:
        """Print a warning on standard error and add it to `warnings`, unless the text is empty or
        `warnings` already has it."""
        if text and text not in warnings:
            warnings.append(text)
            click.echo(text, err=True)

    def agreed(self, question: str) -> None:
        """Ask the question, and abort the command unless the user says yes. With --yes nothing is asked."""
        if self.yes:
            return
        if not sys.stdin.isatty():
            raise click.ClickException(f"{question} There is no terminal to ask at: give --yes")
        click.confirm(question, abort=True, err=True)


class NotDone(ClientError):
    """Raised when a part of the command failed; the text says which. `--json` also prints `data`."""

    def __init__(self, text: str, *, data: Mapping[str, object] = MappingProxyType({})) -> None:
        super().__init__(text)
        self.data = data


class Ended(Exception):
    """Raised when a signal ended the command in an orderly way; the command has already reported it."""

    def __init__(self, code: int) -> None:
        super().__init__(f"ended with {code}")
        self.code = code


Action = Callable[..., Awaitable[None]]


def run(action: Action, values: dict[str, Any]) -> None:
    """Run the action of a command: `async def action(admin, told, **values)`."""
    told = Told(
        values.pop("namesrv"),
        values.pop("as_json"),
        values.pop("yes", False),
        values.pop("dry_run", False),
    )
    _run(told, lambda admin: action(admin, told, **values))


def is_down(error: ClientError) -> bool:
    """Whether no server answers, or no broker leads."""
    return isinstance(error, NoNameServer | NoBroker) or error.code == ResponseCode.SERVICE_NOT_AVAILABLE


def _run(told: Told, do: Callable[[AsyncAdminClient], Awaitable[None]]) -> None:
    if not (told.namesrv or namesrv_addr()):
        raise click.UsageError(no_address("-n"))

    async def run() -> None:
        options = ClientOptions(namesrv_timeout_s=3.0, request_timeout_s=5.0)
        async with AsyncAdminClient(told.namesrv, options) as admin:
            try:
                await do(admin)
            except TopicNotFound as error:
                raise TopicNotFound(await _hint(admin, error), error.code) from error

    try:
        asyncio.run(run())
    except ClientError as error:
        text = f"{error.remark} ({error.what}, {error.address})" if isinstance(error, Refused) else str(error)
        print(
            f"dledger {click.get_current_context().command_path.partition(' ')[2]}: {text}", file=sys.stderr
        )
        if is_down(error) and told.namesrv is not None and told.namesrv == local_namesrv():
            print(
                "`dledger status` shows what is down; `dledger restart` or `dledger up` starts it",
                file=sys.stderr,
            )
        if told.as_json:
            more = error.data if isinstance(error, NotDone) else {}
            print(json.dumps({"error": text, "code": error.code, **more}))
        sys.exit(exit_codes.FAILED)
    except Ended as ended:
        sys.exit(ended.code)
    except KeyboardInterrupt:
        sys.exit(exit_codes.INTERRUPTED)


async def _hint(admin: AsyncAdminClient, error: TopicNotFound) -> str:
    """Return an error text that suggests a topic with a similar name; if there is none, the text suggests
    the command that creates the topic."""
    wanted = str(error).split("'")[1] if "'" in str(error) else ""
    if not wanted:
        return str(error)
    near = did_you_mean(wanted, await admin.topics.names())
    return f"there is no topic {wanted!r}{near or f': create it with dledger topic create {wanted}'}"


def did_you_mean(wanted: str, names: Sequence[str]) -> str:
    """Return a hint that is appended to an error text and suggests a similar name; empty if no name is
    similar."""
    near = get_close_matches(wanted, [name for name in names if name != wanted], 1)
    return f"; did you mean {near[0]!r}?" if near else ""

"""`dledger mqadmin NAME ...`: reads the command line and runs one command.

Exit code 1 is wrong options, as of Apache's mqadmin, and also what failed, at one broker of several too:
there Apache's prints the exception and ends with 0. What failed is on standard error.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from dledger.admin import AsyncAdminClient
from dledger.client import ClientError, ClientOptions
from dledger.commands.exit_codes import DONE, FAILED, INTERRUPTED, MQADMIN
from dledger.commands.mqadmin.call import Call, Command, error_text
from dledger.commands.mqadmin.options import HELP, JSON, NAMESRV, Given, WrongOptions, help_text, parse
from dledger.commands.mqadmin.output import Output
from dledger.commands.mqadmin.table import SECTIONS, find, meant
from dledger.runtime.environment_variables import NAMESRV_ADDR

NO_NAMESRV = "127.0.0.1:9876"
"""What a client is made with that asks no NameServer."""


def main(argv: Sequence[str]) -> int:
    """Run it; the exit code."""
    words = list(argv)
    if not words or words[0] in ("-h", "--help") or words == ["help"]:
        print(_all_commands())
        return DONE
    asked_for_help = words[0] == "help"
    name = words[1] if asked_for_help else words[0]
    command = find(name)
    if command is None:
        near = meant(name)
        hint = f" Did you mean {near}?" if near else " See `dledger mqadmin`."
        print(f"The sub command {name} not exist.{hint}", file=sys.stderr)
        return FAILED
    if asked_for_help:
        print(help_text(command.name, command.options))
        return DONE
    try:
        given = parse(command.options, words[1:])
        if HELP.key in given:
            print(help_text(command.name, command.options))
            return DONE
        return asyncio.run(_run(command, given))
    except WrongOptions as error:
        print(f"{error}\n{help_text(command.name, command.options)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


async def _run(command: Command, given: Given) -> int:
    out = Output(JSON.key in given)
    namesrv = given.maybe(NAMESRV.key) or ""
    # Who asks nobody, or only the broker of -b, needs no NameServer: the client never asks it.
    alone = command.offline or (command.direct and "b" in given)
    unused = alone and not namesrv and not os.environ.get(NAMESRV_ADDR)
    places = namesrv or (NO_NAMESRV if unused else None)
    try:
        options = ClientOptions(namesrv_timeout_s=3.0, request_timeout_s=5.0)
        async with AsyncAdminClient(places, options) as admin:
            call = Call(admin, given, out, namesrv, options)
            await command.run(call)
    except ClientError as error:
        out.fail(f"mqadmin {command.name} command failed: {error_text(error)}")
        return FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads any more
        return FAILED
    finally:
        out.end_round()
    return FAILED if call.failed else DONE


def _all_commands() -> str:
    lines = ["usage: dledger mqadmin COMMAND [-n <namesrv>] [--json] ...", "", "RocketMQ's commands:"]
    for section, commands in SECTIONS.items():
        lines += ["", f"{section}:", *(f"   {command.name:<35} {command.text}" for command in commands)]
    lines += ["", "See 'dledger mqadmin help <command>' for more information on a specific command."]
    lines += ["", "Exit codes:", *(f"  {number:<4} {meaning}" for number, meaning in MQADMIN.rows())]
    return "\n".join(lines)

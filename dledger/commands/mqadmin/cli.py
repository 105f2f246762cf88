"""Runs one of RocketMQ's commands: makes its client and its output, and reports failures."""

from __future__ import annotations

import asyncio
import os
import sys

from dledger.admin import AsyncAdminClient
from dledger.client import ClientError, ClientOptions
from dledger.commands.declared.mqadmin.options import Command
from dledger.commands.exit_codes import DONE, FAILED
from dledger.commands.mqadmin.call import Call, error_text
from dledger.commands.mqadmin.options import JSON, NAMESRV, Given
from dledger.commands.mqadmin.output import Output
from dledger.runtime.environment_variables import NAMESRV_ADDR

NO_NAMESRV = "127.0.0.1:9876"
"""NameServer address for the client of a command that sends no request to a NameServer."""


def run(command: Command, given: Given) -> int:
    """Run a command; returns the exit code. Raises WrongOptions if the options do not fit the command."""
    return asyncio.run(_run(command, given))


async def _run(command: Command, given: Given) -> int:
    out = Output(JSON.key in given)
    namesrv = given.maybe(NAMESRV.key) or ""
    # A command that sends no request, or only asks the broker of -b, never asks a NameServer.
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of the pipe has gone
        return FAILED
    finally:
        out.end_round()
    return FAILED if call.failed else DONE

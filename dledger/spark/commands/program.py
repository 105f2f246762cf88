"""The program around each command of `dledger spark`: the event loop, the output, the exit code."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

from dledger.audit.arguments import process_code
from dledger.audit.crash import COULD_NOT_RUN
from dledger.audit.report_files import Reportable, write_report
from dledger.runtime.env import production_env
from dledger.runtime.options import Options
from dledger.spark.commands import COMMANDS
from dledger.spark.commands.command import CannotRun, Command, Context, Outcome
from dledger.spark.jobs.errors import JobError
from dledger.spark.progress import Progress

PROGRAM = "dledger spark"


def run(arguments: Options, commands: Sequence[Command] = COMMANDS) -> int:
    """Run the command that the options name, print its outcome and return the exit code of the process."""
    command = next(one for one in commands if one.name == arguments.command)
    env = production_env("spark")
    context = Context(env, Progress(sys.stderr if sys.stderr.isatty() else None))
    try:
        outcome = asyncio.run(_run(command, context, arguments))
        if arguments.json:
            print(json.dumps(outcome.as_json()), flush=True)
        else:
            print("\n".join(outcome.lines()), flush=True)
        if command.reports:
            asyncio.run(_write_reports(context, arguments, outcome))
    except (CannotRun, JobError) as error:
        return _could_not_run(command, arguments, str(error))
    except KeyboardInterrupt:
        return _could_not_run(command, arguments, "interrupted before it was finished")
    except OSError as error:
        print(f"{PROGRAM} {command.name}: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    finally:
        env.workers.close()
    return process_code(outcome.exit_code, arguments.fail_on) if command.judges else outcome.exit_code


def _could_not_run(command: Command, arguments: Options, why: str) -> int:
    if arguments.json:
        print(json.dumps({"verdict": "failed", "exit_code": COULD_NOT_RUN, "error": why}))
    print(f"{PROGRAM} {command.name}: {why}", file=sys.stderr)
    return COULD_NOT_RUN


async def _run(command: Command, context: Context, arguments: Options) -> Outcome:
    return await command.run(context, arguments)


async def _write_reports(context: Context, arguments: Options, outcome: Outcome) -> None:
    if not isinstance(outcome, Reportable):
        raise TypeError(f"{type(outcome).__name__} cannot be written as a report")
    for path in arguments.report:
        await write_report(context.env, path, outcome)

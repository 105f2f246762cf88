"""The outer shell of `dledger spark`: arguments, the event loop, what is printed, the exit code."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

from dledger.audit.arguments import add_fail_on, add_json, add_report, process_code
from dledger.audit.crash import COULD_NOT_RUN
from dledger.audit.parser import Parser
from dledger.audit.report_files import Reportable, write_report
from dledger.runtime.env import production_env
from dledger.spark.commands.command import CannotRun, Command, Context, Outcome
from dledger.spark.jobs.errors import JobError
from dledger.spark.progress import Progress

PROGRAM = "dledger spark"


def parser(commands: Sequence[Command]) -> argparse.ArgumentParser:
    """Arguments of all commands."""
    top = Parser(prog=PROGRAM, description="Jobs over logs on Spark.")
    chosen = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for command in commands:
        one = chosen.add_parser(
            command.name,
            help=command.summary,
            description=command.description or command.summary,
            epilog=command.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_json(one)
        if command.reports:
            add_report(one)
        if command.judges:
            add_fail_on(one)
        command.add_arguments(one)
        one.set_defaults(chosen=command)
    return top


def run(commands: Sequence[Command], argv: Sequence[str] | None = None) -> int:
    """One command from its arguments to what is printed; the exit code of the process."""
    try:
        arguments = parser(commands).parse_args(argv)
    except SystemExit as wrong:
        return COULD_NOT_RUN if wrong.code else 0
    command: Command = arguments.chosen
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
        return _could_not_run(command, arguments, "interrupted, it is not finished")
    except OSError as error:
        print(f"{PROGRAM} {command.name}: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    finally:
        env.workers.close()
    return process_code(outcome.exit_code, arguments.fail_on) if command.judges else outcome.exit_code


def _could_not_run(command: Command, arguments: argparse.Namespace, why: str) -> int:
    if arguments.json:
        print(json.dumps({"verdict": "failed", "exit_code": COULD_NOT_RUN, "error": why}))
    print(f"{PROGRAM} {command.name}: {why}", file=sys.stderr)
    return COULD_NOT_RUN


async def _run(command: Command, context: Context, arguments: argparse.Namespace) -> Outcome:
    return await command.run(context, arguments)


async def _write_reports(context: Context, arguments: argparse.Namespace, outcome: Outcome) -> None:
    if not isinstance(outcome, Reportable):
        raise TypeError(f"{type(outcome).__name__} cannot be written as a report")
    for path in arguments.report:
        await write_report(context.env, path, outcome)

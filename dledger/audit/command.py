"""`dledger audit`: arguments, what is printed, the exit code."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from dledger.audit.arguments import (
    KeepError,
    add_audit_arguments,
    add_fail_on,
    add_json,
    add_report,
    keep_of,
    process_code,
)
from dledger.audit.crash import COULD_NOT_RUN
from dledger.audit.local import audit_stores
from dledger.audit.parser import Parser
from dledger.audit.report import Report, failed
from dledger.audit.report_files import write_report
from dledger.runtime import Env, Lane
from dledger.runtime.env import production_env
from dledger.runtime.processes import ProcessWorkers, cores
from dledger.runtime.remote_files import absolute

EPILOG = """exit codes: 0 clean (information only), 1 warnings, 2 errors, 3 critical, 4 could not run.
STORE is the storePathRootDir of a node; a running node may be audited."""


def parser() -> argparse.ArgumentParser:
    """Arguments of both commands."""
    formatter = argparse.RawDescriptionHelpFormatter
    top = Parser(prog="dledger audit", description="Check log stores on this machine.")
    commands = top.add_subparsers(dest="command", required=True, parser_class=Parser)
    for name, text, count in (
        ("verify", "check one store: structure, CRCs, chain, index files, ConsumeQueues", 1),
        ("compare", "check the stores of a group and compare them by content", "+"),
    ):
        command = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=EPILOG,
            formatter_class=formatter,
        )
        command.add_argument(
            "stores", metavar="STORE", nargs=count, type=absolute, help="storePathRootDir of a node"
        )
        add_json(command)
        add_report(command)
        add_fail_on(command)
        add_audit_arguments(command)
        command.add_argument(
            "--jobs",
            type=_positive,
            default=cores(),
            metavar="N",
            help="processes that scan segments, some 150 MB each (default: one per core, %(default)s)",
        )
    return top


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: at least 1")
    return value


async def main(env: Env, arguments: argparse.Namespace, processes: ProcessWorkers | None = None) -> Report:
    """Run the audit; progress on standard error when that is a terminal."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\rscanned {done} of {total} segments", end="\n" if done == total else "", file=sys.stderr)

    try:
        keep = await env.workers.run(Lane.DISK, keep_of, arguments, env.files, env.wall.now_ms())
    except KeepError as error:
        return failed(str(error), "CANNOT_RUN")
    report = await audit_stores(
        env,
        arguments.stores,
        keep=keep,
        progress=progress,
        lag_warning=arguments.lag_warning,
        same_time=arguments.same_time,
        processes=processes,
    )
    return report.timed(loop.time() - began)


def run(argv: list[str] | None = None) -> int:
    """The whole command; the exit code of the process."""
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as wrong:
        return COULD_NOT_RUN if wrong.code else 0
    if arguments.command == "compare" and len(arguments.stores) < 2:
        print("dledger audit compare: at least two stores are needed", file=sys.stderr)
        return COULD_NOT_RUN
    env = production_env("audit")
    processes = ProcessWorkers(arguments.jobs) if arguments.jobs > 1 else None
    try:
        report = asyncio.run(main(env, arguments, processes))
        if arguments.json:
            print(json.dumps(report.as_json()), flush=True)
        else:
            print("\n".join(report.lines()), flush=True)
        asyncio.run(_write_files(env, arguments, report))
    except OSError as error:
        print(f"dledger audit: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    except KeyboardInterrupt:
        print("dledger audit: interrupted, nothing was found out", file=sys.stderr)
        return COULD_NOT_RUN
    finally:
        if processes is not None:
            processes.close()
        env.workers.close()
    return process_code(report.exit_code, arguments.fail_on)


async def _write_files(env: Env, arguments: argparse.Namespace, report: Report) -> None:
    for path in arguments.report:
        await write_report(env, path, report)

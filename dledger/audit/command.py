"""Runs `dledger audit`: the audit, its output, the exit code.

Its options are declared in `dledger.commands.declared.checks`.
"""

from __future__ import annotations

import asyncio
import json
import sys

from dledger.audit.arguments import KeepError, keep_of, process_code
from dledger.audit.crash import COULD_NOT_RUN
from dledger.audit.local import audit_stores
from dledger.audit.report import Report, failed
from dledger.audit.report_files import write_report
from dledger.runtime import Env, Lane
from dledger.runtime.env import production_env
from dledger.runtime.options import Options
from dledger.runtime.processes import ProcessWorkers, cores


async def main(env: Env, arguments: Options, processes: ProcessWorkers | None = None) -> Report:
    """Run the audit. Show progress on standard error if that is a terminal."""
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
        [arguments.stores] if arguments.command == "verify" else arguments.stores,
        keep=keep,
        progress=progress,
        lag_warning=arguments.lag_warning,
        same_time=arguments.same_time,
        processes=processes,
    )
    return report.timed(loop.time() - began)


def run(arguments: Options) -> int:
    """Run `dledger audit verify` or `compare`, and return the exit code of the process."""
    env = production_env("audit")
    jobs = arguments.jobs or cores()
    processes = ProcessWorkers(jobs) if jobs > 1 else None
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
        print("dledger audit: interrupted before there was a result", file=sys.stderr)
        return COULD_NOT_RUN
    finally:
        if processes is not None:
            processes.close()
        env.workers.close()
    return process_code(report.exit_code, arguments.fail_on)


async def _write_files(env: Env, arguments: Options, report: Report) -> None:
    for path in arguments.report:
        await write_report(env, path, report)

"""Does the work of `dledger import`, `dledger export` and `dledger mirror`. Progress goes to standard
error.

The options of these commands are declared in `dledger.commands.declared.moving`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dledger.admin import AsyncAdminClient
from dledger.audit.findings import Severity
from dledger.client import AsyncProducer, ClientError
from dledger.commands.exit_codes import FAILED
from dledger.commands.moving.apache_views import ApacheSizes, read_sizes
from dledger.commands.moving.exporting import ExportRequest, export_store
from dledger.commands.moving.importing import Request, import_stores
from dledger.commands.moving.mirror import Mirror, Mirrored, all_topics
from dledger.commands.moving.mirror_check import Checked, check
from dledger.commands.moving.mirrored_groups import MirroredGroups
from dledger.commands.moving.progress import Progress
from dledger.commands.moving.source_log import SourceUnusable
from dledger.commands.moving.staging import MovingFailed, Target
from dledger.files.offline import InstallUnfinished, StoreUnreadable
from dledger.runtime import Env
from dledger.runtime.env import production_env
from dledger.runtime.options import Options, WrongUsage
from dledger.runtime.signals import INTERRUPTED, TERMINATED, on_interruption, on_termination

if TYPE_CHECKING:
    from dledger.audit.report import Report

EXIT_FINDINGS = 3
TOLD_EVERY_S = 60.0
"""Shortest time, in seconds, after which the same problem is reported again."""
MAX_TOLD = 1000
"""Largest number of reported problems that are remembered, so that none is repeated too soon. When it is
reached, all of them are forgotten."""


def import_command(args: Options) -> int:
    """Run `dledger import`; returns the exit code of the process."""
    try:
        targets = _targets(args.stores)
        request = Request(
            args.source,
            targets,
            args.group,
            args.segment_size,
            tuple(args.commitlog),
            tuple(args.replica),
            frozenset(args.leave),
            args.unclean,
            args.checkpoint,
        )
        if args.segment_size % 4096 or args.segment_size < 8192:
            raise ValueError(
                f"--segment-size {args.segment_size}: give a multiple of 4096 that is at least 8192"
            )
    except ValueError as error:
        raise WrongUsage(str(error)) from error
    env = production_env()
    progress = Progress("dledger import", quiet=args.quiet)
    return _run(
        env,
        args,
        "import",
        lambda: asdict(import_stores(env.files, env.ids, request, progress)),
        [target.root for target in targets],
    )


def export_command(args: Options) -> int:
    """Run `dledger export`; returns the exit code of the process."""
    try:
        targets = _targets(args.targets)
        sizes = read_sizes(args.broker_conf) if args.broker_conf else ApacheSizes()
    except (ValueError, OSError, MovingFailed) as error:
        raise WrongUsage(str(error)) from error
    env = production_env()
    request = ExportRequest(args.store, targets, frozenset(args.leave), args.checkpoint, sizes)
    progress = Progress("dledger export", quiet=args.quiet)
    return _run(
        env,
        args,
        "export",
        lambda: asdict(export_store(env.files, request, progress)),
        [target.root for target in targets],
    )


def mirror_command(args: Options) -> int:
    """Run `dledger mirror`; returns the exit code of the process."""
    try:
        if args.check:
            return _tell_check(args, asyncio.run(_check(args)))
        done = asyncio.run(_mirror(args))
    except (MovingFailed, ClientError) as error:
        if args.json:
            print(json.dumps({"done": False, "error": str(error)}))
        print(f"dledger mirror: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:  # before it had begun
        return INTERRUPTED
    if args.json:
        print(json.dumps({"done": True} | asdict(done)))
    else:
        print(f"{done.copied} messages of {len(done.topics)} topics are copied, {done.behind} are left")
        for group, times in done.offsets.items():
            print(
                f"offsets of {group} were set {times} times; {done.left[group]} messages are left "
                "in the old cluster"
            )
        for what, count in done.waiting.items():
            print(f"still in the old cluster: {count} {what}")
    return done.ended_by


async def _check(args: Options) -> Checked:
    async with AsyncAdminClient(args.old) as old, AsyncAdminClient(args.new) as new:
        return await check(old, new, args.topic or await all_topics(old), args.group, args.look_back)


def _tell_check(args: Options, found: Checked) -> int:
    if args.json:
        print(json.dumps({"moved": found.moved} | asdict(found)))
    else:
        print("\n".join(found.lines()))
    return 0 if found.moved else FAILED


async def _mirror(args: Options) -> Mirrored:
    async with (
        AsyncAdminClient(args.old) as old,
        AsyncAdminClient(args.new) as new,
        AsyncProducer("dledger-mirror", args.new) as producer,
    ):
        tell = _told_once_in_a_while()
        mirror = Mirror(old, new, producer, tell, args.look_back)
        groups = MirroredGroups(mirror.clusters, args.group, tell)
        topics = args.topic or await all_topics(old)
        await mirror.prepare(topics)
        await mirror.prepare_groups(args.group)
        done = Mirrored(topics)
        ended = asyncio.Event()

        def end(code: int) -> None:
            done.ended_by = code
            ended.set()

        try:
            with on_termination(lambda: end(TERMINATED)), on_interruption(lambda: end(INTERRUPTED)):
                async with asyncio.TaskGroup() as tasks:
                    task = tasks.create_task(mirror.run(once=args.once), name="mirror")
                    told = tasks.create_task(ended.wait(), name="end of the mirror")
                    while not task.done():
                        await asyncio.wait(
                            [task, told], timeout=args.every, return_when=asyncio.FIRST_COMPLETED
                        )
                        if ended.is_set():
                            task.cancel()  # the next run finds what was sent
                            await asyncio.wait([task])
                        try:
                            await _report(mirror, groups, done)
                        except ClientError as error:  # the next report may get through, the copies go on
                            if task.done():
                                raise
                            tell(f"offsets: {error}")
                    told.cancel()
        except ExceptionGroup as several:
            first: Exception = several
            while isinstance(first, ExceptionGroup):
                first = first.exceptions[0]
            raise first from several
        return done


async def _report(mirror: Mirror, groups: MirroredGroups, done: Mirrored) -> None:
    if not mirror.ended:
        await mirror.prepare_groups(list(groups.moved))
    await groups.move(mirror.queues)
    await mirror.close_topics()
    moved = groups.moved
    done.offsets = {group: one.moves for group, one in moved.items()}
    done.left = {group: one.left for group, one in moved.items()}
    done.held = {group: len(one.held) for group, one in moved.items() if one.held}
    done.set_back = {group: len(one.set_back) for group, one in moved.items() if one.set_back}
    done.copied = sum(queue.copied for queue in mirror.queues)
    done.behind = sum(queue.behind for queue in mirror.queues)
    done.lost = sum(queue.lost for queue in mirror.queues)
    done.skipped = sum(queue.skipped for queue in mirror.queues)
    said = f"{done.copied} copied, {done.behind} behind"
    if done.lost:
        said += f", {done.lost} were deleted before they were copied"
    if done.skipped:
        said += f", {done.skipped} had come from the new cluster"
    done.waiting = await groups.waiting()
    lines = [said, *(f"{group}: {one}" for group, one in moved.items())]
    if done.waiting:
        still = ", ".join(f"{count} {what}" for what, count in done.waiting.items())
        lines.append(f"{still} wait in the old cluster")
    print(f"dledger mirror: {'; '.join(lines)}", file=sys.stderr)


def _told_once_in_a_while() -> Callable[[str], None]:
    said: dict[str, float] = {}

    def tell(text: str) -> None:
        now = time.monotonic()
        if now - said.get(text, -TOLD_EVERY_S) >= TOLD_EVERY_S:
            if len(said) >= MAX_TOLD:
                said.clear()
            said[text] = now
            print(f"dledger mirror: {text}", file=sys.stderr)

    return tell


def _targets(words: Sequence[str]) -> tuple[Target, ...]:
    targets: list[Target] = []
    for number, word in enumerate(words):
        node, separator, root = word.partition("=")
        if not separator or "/" in node:
            node, root = f"n{number}", word
        if not node or not root or node in {target.node for target in targets}:
            raise ValueError(f"{word}: expected a distinct id and a directory, such as n0=/data/n0")
        targets.append(Target(node, root.rstrip("/") or "/"))
    if len({target.root for target in targets}) < len(targets):
        raise ValueError("a directory is given twice")
    return tuple(targets)


def _run(env: Env, args: Options, name: str, work: Any, roots: list[str]) -> int:
    try:
        result: dict[str, Any] = work()
        report = None if args.no_audit else _audit(env, roots)
    except (MovingFailed, SourceUnusable, StoreUnreadable, InstallUnfinished, OSError) as error:
        if args.json:
            print(json.dumps({"done": False, "error": str(error)}))
        print(f"dledger {name}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(f"dledger {name}: interrupted; run the same command again to continue", file=sys.stderr)
        return FAILED
    finally:
        env.workers.close()
    return _tell(args, name, result, report)


def _audit(env: Env, roots: list[str]) -> Report:
    from dledger.audit.local import audit_stores  # needs the extra of brokers

    return asyncio.run(audit_stores(env, roots))


def _tell(args: Options, name: str, result: dict[str, Any], report: Report | None) -> int:
    if report is not None:
        result["audit"] = {
            "entries": report.entries,
            "findings": [one.as_json() for one in report.ordered() if one.severity > Severity.INFO],
            "verdict": report.as_json()["verdict"],
        }
    bad = report is not None and report.exit_code > 0
    if args.json:
        print(json.dumps({"done": True} | result))
    else:
        for key, value in result.items():
            if value not in ([], {}, False, -1) and key != "audit":
                shown = ", ".join(map(str, value)) if isinstance(value, list) else value
                print(f"{key.replace('_', ' ')}: {shown}")
        if report is not None:
            print(
                f"audit: {result['audit']['verdict']}, {report.entries} entries of {len(report.replicas)} "
                "stores"
            )
            for line in report.ordered():
                if line.severity > Severity.INFO:
                    print(f"  {line.code} {line.replica} {line.detail}")
    return EXIT_FINDINGS if bad else 0

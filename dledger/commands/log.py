"""Does the work of the commands of the replicated log, for a running group, a stand-alone node, or a store
directory.

Their options are declared in `dledger.commands.declared.log`, and their exit codes in `exit_codes`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from dledger.audit.store_directory import StoreError
from dledger.commands import backup, recover
from dledger.commands import member as member_commands
from dledger.commands.access import open_client, serve
from dledger.commands.delete import NAME as DELETE
from dledger.commands.delete import delete_before
from dledger.commands.dump import dump, find_logs
from dledger.commands.terminal import plain
from dledger.config import parse_peers
from dledger.files.offline import groups_below
from dledger.peers.log_client import RequestFailed
from dledger.runtime import Env
from dledger.runtime.env import production_env
from dledger.runtime.options import Options
from dledger.runtime.settings import ConfigError


async def _append(env: Env, args: Options) -> int:
    body = sys.stdin.buffer.read() if args.body == "-" else os.fsencode(args.body)
    async with open_client(env, args) as client:
        index = await client.append(body)
    print(json.dumps({"index": index}) if args.json else f"committed at index {index}")
    return 0


async def _get(env: Env, args: Options) -> int:
    peers = parse_peers(args.peers)
    if args.node is not None and args.node not in peers:
        raise ConfigError(f"--node {args.node} is not one of --peers")
    async with open_client(env, args) as client:
        entry = await client.get(args.index, None if args.node is None else peers[args.node])
    if args.json:
        fields = asdict(entry) | {"body": entry.body.hex()}
        print(json.dumps(fields))
    else:
        sys.stdout.buffer.write(entry.body + b"\n")
    return 0


async def _status(env: Env, args: Options) -> int:
    peers = parse_peers(args.peers)
    rows: list[dict[str, Any]] = []
    async with open_client(env, args) as client:
        for node in sorted(peers):
            try:
                rows.append(await client.metadata(peers[node]) | {"address": peers[node]})
            except (OSError, TimeoutError) as error:
                rows.append({"id": node, "address": peers[node], "error": _no_answer(error)})
    if args.json:
        print(json.dumps({"nodes": rows}))
    else:
        print(f"{'node':<6}{'address':<24}{'role':<11}{'term':>6}{'end':>12}{'durable':>12}{'committed':>12}")
        for row in rows:
            if "error" in row:
                print(f"{row['id']:<6}{row['address']:<24}{row['error']}")
            else:
                print(
                    f"{row['id']:<6}{row['address']:<24}{row['role']:<11}{row['term']:>6}"
                    f"{row['end_index']:>12}{row['durable_index']:>12}{row['committed_index']:>12}"
                )
        for row in rows:
            for text in (
                *row.get("reasons", ()),
                *row.get("warnings", ()),
                *row.get("statements", ()),
            ):
                print(f"{row['id']}: {text}")
    apart = _clusters(rows)
    if apart:
        print(f"status: these nodes are not one group: {apart}", file=sys.stderr)
    silent = [row for row in rows if "error" in row]
    if len(silent) == len(rows):
        return 4
    if apart or not any(row.get("role") == "LEADER" for row in rows):
        return 2
    return 1 if silent or any(row.get("reasons") for row in rows) else 0


def _no_answer(error: OSError | TimeoutError) -> str:
    """Return in words why a node does not answer; the system's error text would not help in a table of
    roles."""
    if isinstance(error, TimeoutError):
        return "did not answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "does not answer (the port is closed)"
    return f"does not answer ({_reason(error)})"


def _reason(error: OSError) -> str:
    text = error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno) if error.errno and "call failed" in text.lower() else text


def _clusters(rows: list[dict[str, Any]]) -> str:
    """Return the members of each cluster, if the members do not all belong to the same cluster. A new node
    belongs to none yet."""
    nodes: dict[str, list[str]] = {}
    for row in rows:
        if row.get("cluster"):
            nodes.setdefault(row["cluster"], []).append(row["id"])
    if len(nodes) < 2:
        return ""
    return ", ".join(f"{' '.join(ids)} of cluster {cluster}" for cluster, ids in nodes.items())


def _dump(env: Env, args: Options) -> int:
    try:
        logs = find_logs(env.files, args.store)
    except StoreError as error:
        print(error, file=sys.stderr)
        return 1
    if not logs:
        below = groups_below(env.files, args.store)
        print(f"{args.store}: there is no dledger-<id> directory in it{below}", file=sys.stderr)
        return 1
    status = 0
    for directory, data in logs:
        if not args.json:
            print(
                f"{directory}\n{'index':>10}{'term':>7}{'pos':>14}{'size':>9}"
                "  kind          topic  queue/offset"
            )
        for count, line in enumerate(dump(env.files, data, args.start)):
            if args.count and count >= args.count:
                break
            if args.json:
                print(json.dumps({"node": directory} | asdict(line)))
            else:
                numbers = f"{line.index:>10}{line.term:>7}{line.pos:>14}{line.size:>9}"
                shown = f"{numbers}  {line.kind:<13} {line.topic} {line.queue}  {line.problem}"
                print(plain(shown).rstrip())  # a damaged record may hold anything
            status = 1 if line.problem else status
    return status


def run(args: Options) -> int:
    """Run the command that the options name; returns the exit code of the process."""
    env = production_env()
    if args.command == "dump":
        return _dump(env, args)
    if args.command == "serve":
        return serve(env, args, time.localtime().tm_gmtoff)
    command = {
        "append": _append,
        "get": _get,
        "status": _status,
        "recover": recover.command,
        "backup": backup.command,
        DELETE: delete_before,
    }.get(args.command, member_commands.run)
    try:
        return asyncio.run(command(env, args))
    except (RequestFailed, OSError, TimeoutError) as error:
        print(f"{args.command}: {error or 'no answer in time'}", file=sys.stderr)
        return 1
    except ConfigError as error:
        print(f"{args.command}: {error}", file=sys.stderr)
        return 2

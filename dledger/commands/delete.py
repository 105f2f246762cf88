"""`dledger delete-before`: deletes old messages on request, as retention does by itself."""

from __future__ import annotations

import json
from typing import Any

from dledger.commands.access import open_client
from dledger.config import parse_peers
from dledger.runtime import Env
from dledger.runtime.options import Options
from dledger.runtime.settings import ConfigError

NAME = "delete-before"


async def delete_before(env: Env, args: Options) -> int:
    """Send the request, and print the answer of each node. Returns 1 if a node did not answer. Raises
    ConfigError if an option is wrong."""
    peers = parse_peers(args.peers)
    if args.node is not None and args.node not in peers:
        raise ConfigError(f"--node {args.node} is not one of --peers")
    rows: list[dict[str, Any]] = []
    async with open_client(env, args) as client:
        for node in sorted(peers) if args.node is None else [args.node]:
            try:
                first = await client.delete_before(peers[node], args.index)
                rows.append({"id": node, "first_index": first})
            except (OSError, TimeoutError) as error:
                rows.append({"id": node, "error": str(error) or "no answer in time"})
    if args.json:
        print(json.dumps({"nodes": rows}))
    else:
        for row in rows:
            text = row.get("error") or (
                f"begins at index {row['first_index']}; the removal of older segments was requested"
            )
            print(f"{row['id']}: {text}")
    return 0 if all("error" not in row for row in rows) else 1

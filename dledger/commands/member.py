"""Commands for the members and the leader of a group: `member list|add|remove|promote`, `transfer`,
`prefer`."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

from dledger.commands.access import open_client
from dledger.messages import health_text
from dledger.peers.log_client import DLedgerClient
from dledger.runtime import Env
from dledger.runtime.options import Options

POLL_S = 0.1


async def run(env: Env, args: Options) -> int:
    """Run one of these commands. Returns 0 if it is done. Returns 1 if it was refused, got no answer
    (RequestFailed), or another node leads."""
    async with open_client(env, args) as client:
        action = args.action if args.command == "member" else args.command
        done: int = await _ACTIONS[action](client, args)
        return done


async def _list(client: DLedgerClient, args: Options) -> int:
    state = await client.members()
    if args.json:
        print(json.dumps(state))
        return 0
    print(f"{'node':<6}{'address':<24}{'role':<10}{'state':<20}{'durable':>12}{'lag':>10}")
    for row in state["members"]:
        what = "leader" if row["leader"] else "connected" if row["connected"] else "not connected"
        if row["health"]:
            what = health_text(row["health"]).lower()
        role = row["role"] + ("*" if row["stays"] else "")
        print(
            f"{row['id']:<6}{row['address']:<24}{role:<10}{what:<20}{row['durable_index']:>12}"
            f"{row['lag_entries']:>10}"
        )
    preferred = ", ".join(state["preferred"]) or "nobody"
    print(f"configuration {state['config_index']}{' (not committed)' if state['pending'] else ''}; ", end="")
    print(f"preferred: {preferred}")
    return 0


async def _add(client: DLedgerClient, args: Options) -> int:
    index = await client.add_member(args.node, args.address, stays=args.learner)
    if args.wait and not args.learner and not await _promoted(client, args.node, args.wait):
        _say(args, f"{args.node} is a learner and has not caught up within {args.wait} s", index, done=False)
        return 1
    _say(args, f"{args.node} is a {'voter' if args.wait and not args.learner else 'learner'}", index)
    return 0


async def _promoted(client: DLedgerClient, node: str, wait_s: float) -> bool:
    try:
        async with asyncio.timeout(wait_s):
            for _ in itertools.count():
                rows = (await client.members())["members"]
                if any(row["id"] == node and row["role"] == "voter" for row in rows):
                    return True
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        pass
    return False


async def _remove(client: DLedgerClient, args: Options) -> int:
    _say(args, f"{args.node} was removed", await client.remove_member(args.node, force=args.force))
    return 0


async def _promote(client: DLedgerClient, args: Options) -> int:
    _say(args, f"{args.node} is a voter", await client.promote_member(args.node))
    return 0


async def _transfer(client: DLedgerClient, args: Options) -> int:
    leader = await client.transfer(args.node)
    missed = args.node not in (None, leader)
    text = f"{leader} leads, not {args.node}" if missed else f"{leader} leads"
    print(json.dumps({"leader": leader}) if args.json else text)
    return 1 if missed else 0


async def _prefer(client: DLedgerClient, args: Options) -> int:
    nodes = None if args.reset else args.nodes
    said = "the setting of each node" if nodes is None else ", ".join(nodes) or "nobody"
    _say(args, f"preferred: {said}", await client.prefer(nodes))
    return 0


def _say(args: Options, text: str, index: int, *, done: bool = True) -> None:
    print(json.dumps({"index": index, "done": done}) if args.json else f"{text} (entry {index})")


_ACTIONS: dict[str, Callable[[DLedgerClient, Options], Any]] = {
    "list": _list,
    "add": _add,
    "remove": _remove,
    "promote": _promote,
    "transfer": _transfer,
    "prefer": _prefer,
}

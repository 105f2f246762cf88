"""Where a client is suggested to pull next (`suggestWhichBrokerId`), by the connection it speaks over.

A broker that answered a pull in place of a lost leader (`stranded_pulls`) suggests itself for a while: what
the client's route says may be a dead address."""

from __future__ import annotations

import asyncio

from dledger.remoting.server import Connection

SUGGEST_S = 35.0
"""How long a client is suggested to ask here: it looks for routes every 30 s."""
SUGGESTED = "suggestWhichBrokerId"
"""Header field of an answer to a pull."""
_HERE = "pulls here"
"""Attribute of a connection: until which loop time, and the id of this broker in a client's route."""


def suggest_here(connection: Connection, broker_id: int) -> None:
    """The client at the other end is to ask this broker, whatever its route says, until it has a new one."""
    connection.attributes[_HERE] = asyncio.get_running_loop().time() + SUGGEST_S, broker_id


def suggested_here(connection: Connection) -> int:
    """The id that it is to ask; 0, the leader's, for most clients."""
    known = connection.attributes.get(_HERE) if connection.attributes else None
    if not isinstance(known, tuple):
        return 0
    until, broker_id = known
    if asyncio.get_running_loop().time() < until:
        return int(broker_id)
    del connection.attributes[_HERE]
    return 0


def pull_fields(suggested: int, next_offset: int, low: int, high: int) -> dict[str, str]:
    """Header of an answer to a pull (PullMessageResponseHeader): which broker to ask next, and for which
    offset; of the queue's first message, and of the next one that comes."""
    return {
        SUGGESTED: str(suggested),
        "nextBeginOffset": str(next_offset),
        "minOffset": str(low),
        "maxOffset": str(high),
    }

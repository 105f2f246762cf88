"""Where a client is suggested to pull next (`suggestWhichBrokerId`), by the connection it speaks over.

A broker that answered a pull in place of a lost leader (`stranded_pulls`) suggests itself for a while,
because the client's route may contain a dead address."""

from __future__ import annotations

import asyncio

from dledger.remoting.server import Connection

SUGGEST_S = 35.0
"""Seconds for which a client is suggested to ask this broker: clients look for routes every 30 s."""
SUGGESTED = "suggestWhichBrokerId"
"""Header field in the answer to a pull."""
_HERE = "pulls here"
"""Attribute of a connection: the loop time at which the suggestion ends, and the id of this broker in the
client's route."""


def suggest_here(connection: Connection, broker_id: int) -> None:
    """Suggest this broker to the client at the other end, whatever its route says, until it has a new
    route."""
    connection.attributes[_HERE] = asyncio.get_running_loop().time() + SUGGEST_S, broker_id


def suggested_here(connection: Connection) -> int:
    """The id of the broker that the client should ask; for most clients 0, the leader's."""
    known = connection.attributes.get(_HERE) if connection.attributes else None
    if not isinstance(known, tuple):
        return 0
    until, broker_id = known
    if asyncio.get_running_loop().time() < until:
        return int(broker_id)
    del connection.attributes[_HERE]
    return 0


def pull_fields(suggested: int, next_offset: int, low: int, high: int) -> dict[str, str]:
    """Header of the answer to a pull (PullMessageResponseHeader). `suggested`: id of the broker to ask next;
    `next_offset`: the offset to ask for; `low`, `high`: offsets of the queue's first message, and of the next
    one to come."""
    return {
        SUGGESTED: str(suggested),
        "nextBeginOffset": str(next_offset),
        "minOffset": str(low),
        "maxOffset": str(high),
    }

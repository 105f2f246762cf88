"""Suggestions (`suggestWhichBrokerId`) of the broker from which a client should pull next. They are kept by
connection.

A broker that has answered a pull in place of a lost leader (`stranded_pulls`) suggests itself to that client
for a while, because the client's route may contain the address of the lost leader.
"""

from __future__ import annotations

import asyncio

from dledger.remoting.server import Connection

SUGGEST_S = 35.0
"""Seconds for which this broker is suggested to a client. The time is longer than 30 s, the interval in which
clients fetch routes."""
SUGGESTED = "suggestWhichBrokerId"
"""Header field in the answer to a pull. It contains the id of the suggested broker."""
_HERE = "pulls here"
"""Name of a connection attribute. Its value is a pair: the loop time at which the suggestion ends, and the id
of this broker in the client's route."""


def suggest_here(connection: Connection, broker_id: int) -> None:
    """Suggest this broker to the client of a connection for `SUGGEST_S`. After this time the client has
    fetched a new route."""
    connection.attributes[_HERE] = asyncio.get_running_loop().time() + SUGGEST_S, broker_id


def suggested_here(connection: Connection) -> int:
    """Return the id of the broker from which the client should pull. For most clients it is 0, the id of the
    leader."""
    known = connection.attributes.get(_HERE) if connection.attributes else None
    if not isinstance(known, tuple):
        return 0
    until, broker_id = known
    if asyncio.get_running_loop().time() < until:
        return int(broker_id)
    del connection.attributes[_HERE]
    return 0


def pull_fields(suggested: int, next_offset: int, low: int, high: int) -> dict[str, str]:
    """Return the header fields of the answer to a pull (PullMessageResponseHeader). `suggested` is the id of
    the broker to pull from next, and `next_offset` the offset of the next pull. `low` is the offset of the
    queue's first message, and `high` the offset that the next message of the queue will get."""
    return {
        SUGGESTED: str(suggested),
        "nextBeginOffset": str(next_offset),
        "minOffset": str(low),
        "maxOffset": str(high),
    }

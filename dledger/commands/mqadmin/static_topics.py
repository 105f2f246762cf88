"""The commands about static topics: topics whose queues Apache's brokers map to queues of several brokers."""

from __future__ import annotations

from dledger.client import ClientError
from dledger.commands.mqadmin.call import Call

_STATIC = (
    "brokers of ours have no static topics, so this command does nothing. The queues of a topic stay "
    "with their broker group, whichever member leads it"
)


async def not_here(call: Call) -> None:
    raise ClientError(_STATIC)

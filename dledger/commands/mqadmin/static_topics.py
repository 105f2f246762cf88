"""Static topics, whose queues Apache's brokers map to queues of several brokers."""

from __future__ import annotations

from dledger.client import ClientError
from dledger.commands.mqadmin.call import Call

_STATIC = (
    "static topics are maps of queues on brokers, changed in several steps: this command does none of it."
    " A topic's queues stay with their broker group here, whoever leads it"
)


async def not_here(call: Call) -> None:
    raise ClientError(_STATIC)

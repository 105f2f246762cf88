"""Sends requests that only Apache's servers carry out."""

from __future__ import annotations

from dledger.commands.mqadmin.call import Call
from dledger.remoting.codes import RequestCode
from dledger.remoting.frames import Fields


async def send(
    call: Call, address: str, code: RequestCode, header: Fields = None, body: bytes = b""
) -> dict[str, str]:
    """Send one request that only Apache's servers carry out; returns the fields of the answer."""
    return (await call.admin.brokers.other(address, code, header, body)).ext


async def addresses(call: Call, slaves: bool) -> list[str]:
    """Return the broker that -b names; without -b, the masters of the cluster that -c names, or with
    `slaves` all of its brokers."""
    return await (call.brokers() if slaves else call.masters())

"""Sends requests that only Apache's servers answer."""

from __future__ import annotations

from dledger.commands.mqadmin.call import Call
from dledger.remoting.codes import RequestCode
from dledger.remoting.frames import Fields


async def send(
    call: Call, address: str, code: RequestCode, header: Fields = None, body: bytes = b""
) -> dict[str, str]:
    """Send one request that only Apache's servers answer; returns the fields of the answer."""
    return (await call.admin.brokers.other(address, code, header, body)).ext


async def addresses(call: Call, slaves: bool) -> list[str]:
    """The brokers that -b or -c names; with `slaves` also those that do not lead."""
    return await (call.brokers() if slaves else call.masters())

"""Requests that show and change the settings of a running server: 26 GET_BROKER_CONFIG and 25
UPDATE_BROKER_CONFIG for a broker, 319 GET_NAMESRV_CONFIG and 318 UPDATE_NAMESRV_CONFIG for a NameServer.

The body is a text of properties in UTF-8 (AdminBrokerProcessor, DefaultRequestProcessor). A change is applied
as a whole or not at all. A change with an unknown or wrong property, or with one that needs a restart, is
refused with code 1 and advice. A property that no request may change is refused with code 16, as in
`configBlackList`. RocketMQ ignores unknown properties, and accepts properties that take effect only after a
restart; this server refuses both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.errors import RemotingError
from dledger.remoting.server import Connection
from dledger.runtime.live_settings import LiveSettings
from dledger.runtime.log import Log
from dledger.runtime.properties_file import parse_properties
from dledger.runtime.settings import ConfigError, Property

MAX_BODY = 8 * 1024
"""Limit, in bytes, of the body of a change; a larger one is refused. All settings with their values take a
third of this."""
MAX_WAITING = 16
"""Largest number of changes that wait for the disk; one more is refused (SYSTEM_BUSY)."""
BLACK_LIST = frozenset(
    {"configBlackList", "brokerConfigPath", "configStorePath", "kvConfigPath", "rocketmqHome"}
)
"""Properties that RocketMQ's servers let no request change: paths, and the property that lists them."""


class SettingsRequests:
    """The handlers of these requests. While `run` is not running, requests to `update` are not answered."""

    def __init__(self, settings: LiveSettings[Any], log: Log) -> None:
        self._settings = settings
        self._log = log
        self._waiting: deque[tuple[Connection, Request, list[Property]]] = deque()
        self._wake = asyncio.Event()

    def show(
        self,
        connection: Connection,
        request: Request,
        ext: dict[str, str] | None = None,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Answer with the effective properties; secrets are hidden. `more` has further properties, which
        tools expect and which cannot be set."""
        properties = {**more, **self._settings.schema.format(self._settings.now)}
        text = "".join(f"{key}={value}\n" for key, value in sorted(properties.items()))
        connection.respond(request, ResponseCode.SUCCESS, ext=ext or {}, body=text.encode())

    def update(self, connection: Connection, request: Request) -> None:
        """Change properties. The request is answered when the change has taken effect and is in the
        configuration file."""
        if len(request.body) > MAX_BODY:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR,
                f"the properties have {len(request.body)} bytes; the limit is {MAX_BODY}",
            )
        try:
            properties = parse_properties(request.body.decode(), "the request")
        except UnicodeDecodeError as error:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, "the properties are not UTF-8") from error
        except ConfigError as error:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        for item in properties:
            if item.key in BLACK_LIST:
                raise RemotingError(
                    ResponseCode.NO_PERMISSION, f"Can not update config in black list: {item.key}"
                )
        if len(self._waiting) >= MAX_WAITING:
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY,
                f"{MAX_WAITING} changes of settings are already waiting: try again later",
            )
        self._waiting.append((connection, request, properties))
        self._wake.set()

    async def run(self) -> None:
        """Make the changes one after the other, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._change(*self._waiting.popleft())

    async def _change(self, connection: Connection, request: Request, properties: list[Property]) -> None:
        try:
            changes = await self._settings.update(properties)
        except ConfigError as error:
            self._log.warning("settings not changed", peer=connection.peer, reason=error)
            connection.respond(request, ResponseCode.SYSTEM_ERROR, remark=str(error))
            return
        for key, value in changes.items():
            self._log.info("setting changed", key=key, value=value, peer=connection.peer)
        connection.respond(request, ResponseCode.SUCCESS)

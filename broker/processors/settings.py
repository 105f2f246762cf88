"""Settings of this broker: 25 changes those that may change while it runs, 26 shows all.

Settings are those of one node, as RocketMQ's: any node answers, and a change reaches no other.
"""

from __future__ import annotations

from dledger.broker.config import BrokerConfig
from dledger.remoting.codes import VERSION, RequestCode
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection, Handler
from dledger.remoting.settings_requests import SettingsRequests
from dledger.runtime.live_settings import LiveSettings
from dledger.runtime.log import Log


class SettingsProcessor:
    """Handlers of the two codes. `run` must be running."""

    def __init__(self, settings: LiveSettings[BrokerConfig], log: Log) -> None:
        self._requests = SettingsRequests(settings, log)
        self.run = self._requests.run

    def handlers(self) -> dict[int, Handler]:
        """Code -> handler."""
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self._requests.update,
            RequestCode.GET_BROKER_CONFIG: self.show,
        }

    def show(self, connection: Connection, request: Request) -> None:
        """26: the effective properties, as a .properties text."""
        self._requests.show(connection, request, {"version": str(VERSION)})

"""Requests by which operators read and change one broker: 25 UPDATE_BROKER_CONFIG, 26 GET_BROKER_CONFIG, 28
GET_BROKER_RUNTIME_INFO (AdminBrokerProcessor), and 28011 SHOW_NODE, which RocketMQ does not have.

Settings belong to one node, as in RocketMQ. So any node answers, and a change affects only the node that
answers.
"""

from __future__ import annotations

import msgspec

from dledger.broker.auth import actions, required
from dledger.broker.core import Core, Figures, HealthReport, Members
from dledger.broker.requests import Call, Needs, handles
from dledger.broker.stats.runtime_info import bytes_text
from dledger.remoting.bodies import KvTable
from dledger.remoting.codes import VERSION, RequestCode
from dledger.remoting.settings_requests import SettingsRequests
from dledger.runtime.files import DiskUsage
from dledger.runtime.workers import Lane

OWN = (
    "the answering broker's own knowledge at that moment; `commitLogMaxOffset` is the end of its log,"
    " committed or not"
)
KNOWN = "the answering node's own knowledge at that moment"


class AdminProcessor:
    """Handlers of the requests that read and change one broker."""

    def __init__(
        self,
        core: Core,
        settings_requests: SettingsRequests,
        figures: Figures,
        health: HealthReport,
        members: Members,
    ) -> None:
        self._requests = settings_requests
        self._figures = figures
        self._health = health
        self._members = members
        self._env = core.env
        self._node = core.node
        self._settings = core.settings
        self._reader = core.reader
        self._background = core.background

    @handles(RequestCode.UPDATE_BROKER_CONFIG, needs=Needs.ANY, may=required.ADMIN, does=actions.CHANGED)
    def change_settings(self, call: Call[None]) -> None:
        """Change properties that may change while the broker runs. The request is answered when the new
        values are in the broker's configuration file."""
        self._requests.update(call.connection, call.request)

    @handles(
        RequestCode.GET_BROKER_CONFIG, needs=Needs.ANY, reads=OWN, may=required.ACCOUNT, does=actions.SHOWN
    )
    def show_settings(self, call: Call[None]) -> None:
        """Show the properties in effect, as the text of a .properties file. The text includes some properties
        of RocketMQ that have no effect in this broker, because `mqadmin exportConfigs` needs them."""
        leads = self._node.serving
        more = {
            "brokerId": str(0 if leads else self._settings.now.follower_id),
            "brokerRole": "SYNC_MASTER" if leads else "SLAVE",
            "filterServerNums": "0",
            "idempotencyKeys": "true",  # clients ask for it: older brokers look up batches as a whole
            "useTLS": "false",
        }
        self._requests.show(call.connection, call.request, {"version": str(VERSION)}, more)

    @handles(
        RequestCode.GET_BROKER_RUNTIME_INFO,
        needs=Needs.ANY,
        reads=OWN,
        may=required.ACCOUNT,
        does=actions.SHOWN,
    )
    def runtime(self, call: Call[None]) -> None:
        """Show the figures of the running broker, for dashboards."""

        async def answer() -> None:
            oldest = await self._reader.oldest_time()
            disk = await self._env.workers.run(Lane.DISK, self._disk)
            # The ratio is -1 if the system does not report the usage.
            ratio, total, free = (disk.used_ratio, disk.total, disk.free) if disk else (-1.0, 0, 0)
            read = {
                "commitLogDirCapacity": f"Total : {bytes_text(total)}, Free : {bytes_text(free)}.",
                "earliestMessageTimeStamp": str(oldest),
                "commitLogDiskRatio": f"{ratio:.4f}",
                "consumeQueueDiskRatio": f"{ratio:.4f}",
            }
            call.respond(body=KvTable(self._figures() | read).encode())

        self._background.start(call.connection, call.request, answer())

    @handles(RequestCode.SHOW_NODE, needs=Needs.ANY, reads=KNOWN, may=required.ACCOUNT, does=actions.SHOWN)
    def node(self, call: Call[None]) -> None:
        """Show the health of this node, the addresses of all brokers of its group, and the last changes of
        its role, for consoles."""
        body = self._health() | {"members": self._members(), "role_changes": self._node.role_changes()}
        call.respond(body=msgspec.json.encode(body))

    def _disk(self) -> DiskUsage | None:
        """Return the usage of the disk that holds the store, or None if the system does not report it. Runs
        in a worker."""
        try:
            return self._env.files.usage(self._settings.now.store_root)
        except OSError:
            return None

"""Notification of consumers that still wait at the previous leader. They are told the new leader by request
40 NOTIFY_CONSUMER_IDS_CHANGED with the field `leaderAddr`.

If the process of a leader hangs or is stopped by a signal, its connections stay open, and its machine
acknowledges what is sent to it. A pull that waits at this leader would wait for its own time-out of 30 s.
Clients of this project send a heartbeat to every broker as soon as they know of another leader. So a client
that has sent the new leader none within `WAIT_S` does not know it yet, and is notified over the connection of
its last heartbeat. Clients of other projects are not notified. They would only ask for the members of their
groups, and would not look for a leader.
"""

from __future__ import annotations

import asyncio

from dledger.broker.clients.client_table import ConsumerGroup, Member
from dledger.broker.clients.notices import SLICE
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.core import Core
from dledger.broker.leader_gate import LEADER_ADDR
from dledger.broker.services import LeaderService
from dledger.remoting.codes import LanguageCode, RequestCode

WAIT_S = 1.0
"""Seconds from the beginning of a leadership until clients are notified. Most clients find the new leader by
themselves within tens of milliseconds."""
PACE_S = 0.01
"""Seconds between two groups of `SLICE` notices. The pause spreads the load, because each notified client
asks for the members of its consumer groups."""


class TakeoverNotices(LeaderService):
    """Notifies consumers that still wait at the previous leader. It does so once whenever this broker becomes
    leader."""

    def __init__(self, core: Core) -> None:
        self._clients = core.clients
        self._settings = core.settings
        self._log = core.env.log.child("takeover")
        self._began = 0.0

    def begin(self, writer: CommitLogWriter) -> None:
        """Note the time. A client that sends a heartbeat after it knows the new leader."""
        self._began = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Notify those clients that have sent no heartbeat since this broker became leader."""
        await asyncio.sleep(WAIT_S)
        waiting = self._not_heard()
        if waiting:
            self._log.info("consumers notified of the new leader", clients=len(waiting))
        notice = {LEADER_ADDR: self._settings.now.client_addr}
        for number, (group, member) in enumerate(waiting, 1):
            member.connection.send_oneway(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.name, **notice}
            )
            if number % SLICE == 0:
                await asyncio.sleep(PACE_S)

    def _not_heard(self) -> list[tuple[ConsumerGroup, Member]]:
        """Return the consumers of this project that have sent no heartbeat since this broker became leader. A
        connection with several consumers appears only once."""
        found: dict[int, tuple[ConsumerGroup, Member]] = {}
        for group in self._clients.consumers.values():
            for member in group.members.values():
                if member.last_seen < self._began and member.language == LanguageCode.PYTHON.name:
                    found[member.connection.serial] = group, member
        return list(found.values())

"""Requests of RocketMQ's tools about the replicated log: 907 GET_BROKER_HA_STATUS, 1007
GET_BROKER_EPOCH_CACHE, 329 DELETE_EXPIRED_COMMITLOG, 306 CLEAN_EXPIRED_CONSUMEQUEUE, 316 CLEAN_UNUSED_TOPIC
(AdminBrokerProcessor).

The tools send these requests to a master and its slaves. In this project these are the leader and its
followers. Any broker answers, for itself.
"""

from __future__ import annotations

from dledger.broker.auth import actions, required
from dledger.broker.core import Core, Members
from dledger.broker.requests import Call, Needs, handles
from dledger.host import LogReader
from dledger.remoting.codes import RequestCode
from dledger.remoting.fastjson import dumps

OWN = "the answering broker's own log, committed or not"
MAX_EPOCHS = 200
"""Largest number of terms in one answer. The newest ones are listed. The number is limited because each term
needs a read of the index file."""


class ReplicationProcessor:
    """Handlers of the requests that show the log, and of those that delete old parts of it."""

    def __init__(self, core: Core, members: Members) -> None:
        self._node = core.node
        self._settings = core.settings
        self._members = members
        self._gate = core.gate
        self._background = core.background
        self._log = core.env.log.child("admin")

    @handles(
        RequestCode.GET_BROKER_HA_STATUS, needs=Needs.ANY, reads=OWN, may=required.ACCOUNT, does=actions.SHOWN
    )
    def ha_status(self, call: Call[None]) -> None:
        """Show the replication status (HARuntimeInfo). A leader reports how much of the log each other member
        has; a follower reports its own position."""
        self._background.start(call.connection, call.request, self._ha_status(call))

    async def _ha_status(self, call: Call[None]) -> None:
        log, status = self._node.log, self._node.status()
        end = log.end_pos
        shown: dict[str, object] = {
            "master": self._node.serving,
            "masterCommitLogMaxOffset": end if self._node.serving else 0,
            "inSyncSlaveNums": 0,
            "haConnectionInfo": [],
            "haClientRuntimeInfo": {
                "masterAddr": self._gate.leader_address or "",
                "transferredByteInSecond": 0,
                "maxOffset": end,
                "lastReadTimestamp": 0,
                "lastWriteTimestamp": 0,
                "masterFlushOffset": 0,
                "activated": not self._node.serving and self._gate.leader_address is not None,
            },
        }
        peers = status.get("peers")
        if self._node.serving and isinstance(peers, dict):
            known = self._members()
            rows = []
            for name, peer in sorted(peers.items()):
                durable = peer.get("durable_index")
                durable = durable if isinstance(durable, int) else -1
                acknowledged = await _end_of(log, durable)
                rows.append(
                    {
                        "addr": known.get(name) or str(peer.get("address", name)),
                        "slaveAckOffset": acknowledged,
                        "diff": max(end - acknowledged, 0),
                        "inSync": bool(peer.get("connected")) and durable >= self._node.commit_index,
                        "transferredByteInSecond": 0,
                        "transferFromWhere": acknowledged,
                    }
                )
            shown["haConnectionInfo"] = rows
            shown["inSyncSlaveNums"] = sum(bool(row["inSync"]) for row in rows)
        call.respond(body=dumps(shown))

    @handles(
        RequestCode.GET_BROKER_EPOCH_CACHE,
        needs=Needs.ANY,
        reads=OWN,
        may=required.ACCOUNT,
        does=actions.SHOWN,
    )
    def epochs(self, call: Call[None]) -> None:
        """List where each term begins in the log (EpochEntryCache)."""
        self._background.start(call.connection, call.request, self._epochs(call))

    async def _epochs(self, call: Call[None]) -> None:
        log, config = self._node.log, self._settings.now
        starts: list[tuple[int, int]] = []
        index, end = log.last_index, log.end_pos
        while index >= log.first_index and len(starts) < MAX_EPOCHS:
            term = log.term_of(index)
            if term is None:
                break
            first = _first_of_term(log, term, index)
            starts.append((term, (await log.find(first))[0]))
            index = first - 1
        rows = []
        for term, start in starts:  # the newest first
            rows.append({"epoch": term, "startOffset": start, "endOffset": end})
            end = start
        call.respond(
            body=dumps(
                {
                    "brokerName": config.broker_name,
                    "clusterName": config.cluster_name,
                    "brokerId": 0 if self._node.serving else config.follower_id,
                    "maxOffset": log.end_pos,
                    "epochList": rows[::-1],
                }
            )
        )

    @handles(
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        needs=Needs.ANY,
        reads=OWN,
        may=required.ADMIN,
        does=actions.CHANGED,
    )
    def delete_expired(self, call: Call[None]) -> None:
        """Start retention now, whatever hour it is (`deleteWhen`). Answered at once. Segments younger than
        `fileReservedTime` stay."""
        self._log.info("the search for expired segments has started", by=call.connection.peer)
        self._node.delete_expired()
        call.respond()

    @handles(
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        needs=Needs.ANY,
        reads="nothing",
        may=required.ADMIN,
        does=actions.CHANGED,
    )
    @handles(
        RequestCode.CLEAN_UNUSED_TOPIC,
        needs=Needs.ANY,
        reads="nothing",
        may=required.ADMIN,
        does=actions.CHANGED,
    )
    def clean(self, call: Call[None]) -> None:
        """Do nothing: files of ConsumeQueues are deleted together with the part of the log that they point
        at, and with their topic."""
        call.respond(
            remark="files of ConsumeQueues are removed automatically, when their messages "
            "expire or their topic is deleted"
        )


def _first_of_term(log: LogReader, term: int, index: int) -> int:
    """Return the index of the first entry of this term that the log still holds. `index` is the index of any
    entry of the term."""
    low, high = log.first_index, index
    while low < high:
        middle = (low + high) // 2
        found = log.term_of(middle)
        if found is not None and found >= term:
            high = middle
        else:
            low = middle + 1
    return high


async def _end_of(log: LogReader, index: int) -> int:
    """Return the log offset just behind an entry, or the beginning of the log if the log no longer holds the
    entry."""
    try:
        pos, size = await log.find(index)
    except KeyError:
        return log.begin_pos
    return pos + size

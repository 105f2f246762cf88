"""Requests of RocketMQ's tools and slaves about tables of the replicated state and of clients: 45
GET_ALL_DELAY_OFFSET, 308 QUERY_CORRECTION_OFFSET, 328 GET_ALL_PRODUCER_INFO, 402
GET_ALL_MESSAGE_REQUEST_MODE."""

from __future__ import annotations

import asyncio

from dledger.broker.auth import actions, required
from dledger.broker.auth.policies import Action
from dledger.broker.core import Core
from dledger.broker.registration.registrar import Registrar
from dledger.broker.requests import Call, LeaderCall, Needs, handles
from dledger.formats.state import DELAYS, REQUEST_MODES
from dledger.remoting.codes import LanguageCode, RequestCode
from dledger.remoting.fastjson import dumps
from dledger.remoting.operator_headers import CorrectionOffsetHeader
from dledger.runtime.cooperative import Pace

APPLIED_HERE = "applied index of the node that answers (any)"
APPLIED = "applied index of the leader"
SLICE = 1000
"""Number of rows that are processed before the event loop turns to other work, about 1 ms."""
MAX_PRODUCERS = 20_000
"""Largest number of producers in one answer; further ones are left out."""
MAX_FILTERED = 1000
"""Largest number of groups that one request can exclude from the result; further names are ignored."""
JAVA_MAX_LONG = (1 << 63) - 1


class TablesProcessor:
    """Handlers of the requests that show tables."""

    def __init__(self, core: Core, registrar: Registrar) -> None:
        self._store = core.store
        self._clients = core.clients
        self._registrar = registrar
        self._background = core.background
        self._env = core.env

    @handles(
        RequestCode.GET_ALL_DELAY_OFFSET,
        needs=Needs.ANY,
        reads=APPLIED_HERE,
        may=required.ACCOUNT,
        does=actions.SHOWN,
    )
    def delay_offsets(self, call: Call[None]) -> None:
        """Show, for each delay level, up to which offset it has been delivered
        (DelayOffsetSerializeWrapper)."""
        rows = sorted(self._store.state[DELAYS].rows.items())
        table = {str(level): row.next for level, row in rows}
        call.respond(body=dumps({"dataVersion": self._registrar.data_version(), "offsetTable": table}))

    @handles(
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        needs=Needs.ANY,
        reads=APPLIED_HERE,
        may=required.ACCOUNT,
        does=actions.LISTED,
    )
    def request_modes(self, call: Call[None]) -> None:
        """Show, for each topic and group, how the consumers ask for messages (by pull or by pop)."""

        async def answer() -> None:
            table: dict[str, dict[str, object]] = {}
            pace = Pace(SLICE)
            for row in list(self._store.state[REQUEST_MODES].rows.values()):
                table.setdefault(row.topic, {})[row.group] = {
                    "consumerGroup": row.group,
                    "mode": row.mode,
                    "popShareQueueNum": row.share,
                    "topic": row.topic,
                }
                await pace.step()
            call.respond(body=dumps({"messageRequestModeMap": table}))

        self._background.start(call.connection, call.request, answer())

    @handles(
        RequestCode.GET_ALL_PRODUCER_INFO,
        needs=Needs.LEADER,
        reads="the leader's own connections",
        may=required.ACCOUNT,
        does=actions.SHOWN,
    )
    def producers(self, call: LeaderCall[None]) -> None:
        """List the connected producers by group (ProducerTableInfo)."""

        async def answer() -> None:
            table: dict[str, list[object]] = {}
            pace, count = Pace(SLICE), 0
            now_s, now_ms = asyncio.get_running_loop().time(), self._env.wall.now_ms()
            for name, members in list(self._clients.producers.items()):
                for member in list(members.values()):
                    await pace.step()
                    count += 1
                    if count > MAX_PRODUCERS:
                        break
                    languages = LanguageCode.__members__
                    table.setdefault(name, []).append(
                        {
                            "clientId": member.client_id,
                            "remoteIP": member.connection.peer,
                            "language": member.language if member.language in languages else "OTHER",
                            "version": member.version,
                            "lastUpdateTimestamp": now_ms - int((now_s - member.last_seen) * 1000),
                        }
                    )
            remark = f"the first {MAX_PRODUCERS} of {count}" if count > MAX_PRODUCERS else None
            call.respond(body=dumps({"data": table}), remark=remark)

        self._background.start(call.connection, call.request, answer())

    @handles(
        RequestCode.QUERY_CORRECTION_OFFSET,
        CorrectionOffsetHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.ACCOUNT,
        does=actions.Does(Action.GET, topics=("topic",), groups=("compareGroup",)),
    )
    def correction(self, call: LeaderCall[CorrectionOffsetHeader]) -> None:
        """Return, for each queue of a topic, the lowest offset of any consumer group, except the groups that
        the request excludes. If the group `compareGroup` is behind that lowest offset in a queue, the value
        for the queue is Long.MAX_VALUE. (RocketMQ also deletes the offsets of the excluded groups; this
        broker does not.)"""
        header = call.header
        left_out = dict.fromkeys((header.filterGroups or "").split(",")[:MAX_FILTERED])

        async def answer() -> None:
            state, queues = self._store.state, self._store.queues.by_raw_topic.get(header.topic.encode(), {})
            lowest: dict[int, int] = {}
            pace = Pace(SLICE)
            for group in state.groups_of(header.topic):
                offsets = {} if group in left_out else state.offsets.get(group, {})
                for number, queue in list(queues.items()):
                    await pace.step()
                    offset = offsets.get((header.topic, number))
                    if offset is not None and offset >= queue.bounds.min:
                        lowest[number] = min(lowest.get(number, offset), offset)
            compared = state.offsets.get(header.compareGroup, {})
            for number in lowest:
                offset = compared.get((header.topic, number))
                if offset is not None and lowest[number] > offset:
                    lowest[number] = JAVA_MAX_LONG
            call.respond(body=dumps({"correctionOffsets": {str(one): at for one, at in lowest.items()}}))

        self._background.start(call.connection, call.request, answer())

"""A client that reads the replicated log itself, over the DLedger client protocol.

Brokers refuse appends over this protocol: only messages are written to their log. But every node answers
reads: which index is certainly committed (a read point), and which entry is at an index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from dledger.chaos.scenarios.broker_clients import Program
from dledger.chaos.scenarios.broker_history import BrokerHistory
from dledger.chaos.scenarios.client_stage import ClientStage
from dledger.chaos.scenarios.clients import COMMITTED
from dledger.chaos.scenarios.history import ABSENT, ACKNOWLEDGED, UNKNOWN, Call
from dledger.messages import Code
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.env import Env

EVERY_S = 0.02
"""Pause between two reads, in seconds."""
ANSWER_S = 2.0
"""Time limit of a read, in seconds."""
NEAR = 8
"""Half of the reads ask for one of the entries around the last read point: up to NEAR before it, or after it.
"""


class LogStage(ClientStage, Protocol):
    """The run of a client that reads the log: a trial."""

    @property
    def peers(self) -> Mapping[str, str]:
        """Maps the members to the addresses of their logs."""


class LogReader(Program):
    """Asks the leader and all other nodes for read points and entries, one after another."""

    def __init__(self, stage: LogStage, number: int, history: BrokerHistory, topics: list[str]) -> None:
        super().__init__(stage, number, history, topics)
        self._log_stage = stage
        self._known = -1
        """The highest read point so far."""

    async def main(self, env: Env) -> None:
        self.lives += 1
        async with DLedgerClient(env, self._log_stage.peers, ANSWER_S) as client:
            while True:
                address = env.random.choice([None, *self._log_stage.peers.values()])
                if self._known < 0 or env.random.randrange(3) == 0:
                    await self._read_point(client, address)
                else:
                    await self._get(client, address, self._pick(env))
                await asyncio.sleep(EVERY_S)

    def _pick(self, env: Env) -> int:
        if env.random.randrange(2):
            return max(0, self._known + env.random.randint(-NEAR, NEAR))
        return env.random.randint(0, self._known)

    async def _read_point(self, client: DLedgerClient, address: str | None) -> None:
        call = self._history.log.begin(Call(self.name, "read", self.now()))
        try:
            call.index = await client.read_index(address)
            call.outcome = ACKNOWLEDGED
            self._known = max(self._known, call.index)
        except (RequestFailed, OSError) as error:  # also if the time is over
            call.outcome, call.text = UNKNOWN, str(error)
        call.end = self.now()

    async def _get(self, client: DLedgerClient, address: str | None, index: int) -> None:
        call = self._history.log.begin(Call(self.name, "get", self.now(), index=index))
        try:
            entry = await client.get(index, address)
            call.index, call.value, call.outcome = entry.index, entry.body, ACKNOWLEDGED
        except RequestFailed as error:
            call.outcome, call.text = outcome_of(index, error), str(error)
        except OSError as error:
            call.outcome, call.text = UNKNOWN, str(error)
        call.end = self.now()


def outcome_of(index: int, error: RequestFailed) -> str:
    """The outcome of a get that returned no entry: ABSENT if the answer says that none was committed at this
    index. If the log of the node begins after it, the answer says nothing."""
    found = COMMITTED.fullmatch(str(error)) if error.code is Code.UNEXPECTED_ARGUMENT else None
    return ABSENT if found is not None and index > int(found[2]) else UNKNOWN

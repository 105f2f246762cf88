"""Runs the elector of a node: sets its timer, and performs its effects in order. While a `SaveHardState` is
being written to the disk, all later effects and all later messages from peers wait (architecture rule 3).
"""

from __future__ import annotations

import asyncio
from math import inf

from msgspec.structs import replace

from dledger.config import NodeConfig
from dledger.context.node_events import NodeEvents
from dledger.election import effects as election
from dledger.election.elector import ElectionSettings, Elector
from dledger.errors import EXIT_STORE, NodeFailed
from dledger.flight.cores import CoreLog
from dledger.flight.recorder import FlightRecorder
from dledger.formats.store_files import HardState
from dledger.host import Role
from dledger.log.hard_state import HardStateFile
from dledger.messages import Heartbeat, HeartbeatResponse, Message
from dledger.peers.held import HeldMessages
from dledger.peers.peers import Peers
from dledger.runtime import Env, Lane

SLOW_SAVE_S = 0.05
"""Limit in seconds. If saving term and vote takes longer, it is logged, because an election has to wait for
two such saves."""


class Elections:
    """The elections of one node. The effects that the elector returns for an event must be passed to
    `perform`."""

    def __init__(
        self,
        env: Env,
        config: NodeConfig,
        log: CoreLog,
        peers: Peers,
        held: HeldMessages,
        events: NodeEvents,
        recorder: FlightRecorder,
    ) -> None:
        self._env = env
        self._say = env.log.child(f"node.{config.self_id}")
        settings = ElectionSettings(
            config.heartbeat_interval_s,
            config.election_timeout_min_s,
            config.election_timeout_max_s,
            config.vote_retry_min_s,
            config.lease_s,
        )
        # An elector of an empty learner, so that it can be used at any time; `Elector.open` follows.
        self.elector: Elector = recorder.make_elector(settings, config.self_id, log)
        self._peers = peers
        self._held = held
        self._events = events
        self._loop: asyncio.AbstractEventLoop
        self._hard_state: HardStateFile
        self._leaderless_since = inf
        """Loop time at which this node lost the last known leader; infinite while it knows one."""
        self._led: int | None = None
        """The term in which this node leads; None while it does not lead."""
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def open(self, hard_state: HardStateFile) -> None:
        """Set the file in which term and vote are saved."""
        self._loop = asyncio.get_running_loop()
        self._hard_state = hard_state

    def start(self, now: float) -> None:
        """Allow this node to stand for election from now on."""
        self._leaderless_since = now
        self.schedule()

    def close(self) -> None:
        """Stop the timer, because the node ends."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    @property
    def leaderless_s(self) -> float:
        """Seconds for which this node has known no leader; 0.0 while it knows one."""
        return 0.0 if self._leaderless_since == inf else self._loop.time() - self._leaderless_since

    def step_down(self, why: str) -> None:
        """Step down without a successor. `why` is the reason for the log."""
        self.perform(self.elector.step_down(self._loop.time(), why))
        self.schedule()

    # The timer

    def schedule(self) -> None:
        """Set the timer to the elector's deadline, which may have changed."""
        if self._closed:
            return
        when = self.elector.deadline
        if self._timer is not None:
            if self._timer_at <= when:
                return  # the timer fires early, and is then set again
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._tick)
        self._timer_at = when  # not `when()` of the handle: uvloop's has none if it is due at once

    def _tick(self) -> None:
        self._timer = None
        if self._held.holding:
            return  # the end of the hold schedules it again
        try:
            self.perform(self.elector.tick(self._loop.time()))
            self._events.stepped()
        except Exception as error:
            self._events.fail(error)
            return
        self.schedule()

    # Effects

    def perform(self, effects: list[election.Effect]) -> None:
        """Perform effects of the elector, in order."""
        for place, effect in enumerate(effects):
            if isinstance(effect, election.SaveHardState):
                self._save(effect.state, effects[place + 1 :])
                return
            if isinstance(effect, election.Send):
                self._peers.send(effect.peer, self._with_clock(effect.message))
            elif isinstance(effect, election.RoleChanged):
                self._role_changed(effect)
            else:
                self._events.round_confirmed(effect.round)

    def _with_clock(self, message: Message) -> Message:
        """Add this node's wall clock to heartbeats and their answers; the election itself reads no clock."""
        if not isinstance(message, (Heartbeat, HeartbeatResponse)):
            return message
        return replace(message, clock_ms=max(self._env.wall.now_ms(), 0))

    def _role_changed(self, change: election.RoleChanged) -> None:
        if change.role is Role.LEADER:
            self._led = change.term
        elif self._led is not None:
            self._say.info("stepped down", term=self._led, because=self.elector.stepped_down)
            self._led = None
        self._say.info("role", role=change.role.value, term=change.term, leader=change.leader_id)
        now = self._loop.time()
        self._leaderless_since = min(self._leaderless_since, now) if change.leader_id is None else inf
        self._events.role_changed(change)

    def _save(self, state: HardState, then: list[election.Effect]) -> None:
        release = self._held.hold()
        began = self._loop.time()
        saving = self._env.workers.run(Lane.FLUSH, self._hard_state.save, state)

        def saved(future: asyncio.Future[None]) -> None:
            error = None if future.cancelled() else future.exception()
            if future.cancelled():
                return
            if error is not None:
                text = f"cannot save term and vote: {error}"
                self._events.fail(NodeFailed(text, EXIT_STORE, poisons=True))
                return
            try:
                took = self._loop.time() - began
                if took > SLOW_SAVE_S:
                    self._say.info("slow save of term and vote", term=state.term, ms=round(took * 1e3))
                self.elector.saved(took)
                self.perform(then)
                release()
                self.schedule()
            except Exception as failure:
                self._events.fail(failure)

        saving.add_done_callback(saved)

"""Decides whether this node is fit to lead (feature R11). Reasons against it are corrupt entries, a full
disk, a disk that does not answer or is slow, and a clock that is ahead.

A node is *sick* if one of these applies. A sick node, or one that may not know the members (S19), votes, but
does not stand for election. A sick leader hands over to a voter that is healthy and up to date, if there is
one. It does not try again at once, so that leadership does not move back and forth. If the hand-over fails
and the leader can acknowledge nothing, it steps down. That is so if its disk has stalled, or if an
uncommitted entry is corrupt here and cannot be repaired, so that later entries cannot be sent. If all disks
are full, one node must lead all the same, so that stored messages can be read. So a node that has seen no
leader for long stands for election even if its disk is full or slow, or its clock is ahead.

A leader whose clock is ahead gives messages times in the future, and store time never goes back (S15). So a
node is sick if its clock is more than `max_clock_skew_ms` ahead of those of most members. A clock that leaps
is noticed here before the log follows it (`dledger.log.store_clock`). A clock that is behind does no harm.

A disk is slow if it has been far behind the commit index for long, because the disks of the other nodes are
faster and commit without it. If all disks are equally slow, they fall behind in turn, and none of them for
long.

All states end without an operator's command: when entries are repaired, when the disk has room again, when
the disk answers. Only load can show that a slow disk is fast again, so the node counts as slow for a while
longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from dledger.context.node_context import NodeContext
from dledger.host import Role
from dledger.messages import Health, health_text
from dledger.node.clocks import PeerClocks
from dledger.node.device_watch import WatchedWorkers
from dledger.node.leadership import Leadership
from dledger.node.metrics import NodeMetrics
from dledger.node.trust import Trust

HYSTERESIS = 0.02
"""A disk that was full counts as full until its use has fallen this far (a ratio) below the limit."""
SLOW_LAG = 0.5
SLOW_WRITTEN = 4
"""A factor that decides whether a leader's disk is slow. Two conditions must hold:

* For longer than `disk_stall_s` the disk has been behind the commit index by more than SLOW_LAG of what may
  be pending (32 MiB, or 100,000 entries).
* In that time the leader wrote more than SLOW_WRITTEN times what may be pending (256 MiB).

Equally slow disks fall as far behind each other in turn, but catch up before they have written 2.2 times as
much. A disk that was half as fast as the others did not catch up before 18 times (measured, simulated)."""
SLOW_REST_S = 300.0
"""Time, in seconds, for which a slow disk must keep up before it counts as fast again. Leadership does not
return sooner."""
CORE_WAIT_FELT = 1 / 8
"""If waits for a core exceed this share of the shortest election time-out, a node extends its own
time-outs."""
CORE_WAITS_BORNE = 3
"""The time-outs are extended by this many times the node's longest recent wait for a core: one wait for the
leader, one for the node itself, and one in reserve."""
MAX_PATIENCE = 4
"""Limit of the extension, as a multiple of the longest election time-out. A node that needs more could not
serve anyway."""
BACK_OFF_S = 5.0
"""Time, in seconds, to wait after a hand-over that did not work before the next one is tried."""
_BEARABLE = Health.DISK_FULL | Health.SLOW | Health.CLOCK
"""States with which a node leads if no other node can."""


class HealthWatch:
    """Watches the health of one node; `run` does so until cancelled."""

    def __init__(
        self,
        context: NodeContext,
        leadership: Leadership,
        trust: Trust,
        workers: WatchedWorkers,
        metrics: NodeMetrics,
    ) -> None:
        self.flags: Health = Health.GOOD
        self._leaving = False
        self.used_ratio: float = 0.0
        self._say = context.env.log.child(f"health.{context.config.self_id}")
        self._env = context.env
        self._config = context.config
        self.full_ratio: float = context.config.disk_full_ratio
        """Share of the file system in use from which on appends are refused. It may change while the node
        runs."""
        self._log = context.log
        self._members = context.members
        self._elector = context.elector
        self._elections = context.elections
        self._replicator = context.replicator
        self._leadership = leadership
        self._trust = trust
        self._workers = workers
        self._metrics = metrics
        self.patience_s: float = 0.0
        """Time, in seconds, that this node adds to the election time-outs because it lacks cores."""
        self._above_limit = False
        self._faulty_since = 0.0
        self._leaderless_since = 0.0
        self._kept_up_at = (0.0, 0)
        self._slow_until = 0.0
        self._due = -1
        self._retry_at = 0.0
        self._measured_at = -1e9
        self.clocks: PeerClocks = PeerClocks()
        self.clock_off_ms: int = 0
        """Time, in ms, by which this machine's clock is ahead of those of its peers; below 0 if it is behind
        (`PeerClocks`)."""
        self._clock_undecided_ms = 0
        self._store_time_is_ahead = False

    @property
    def interval_s(self) -> float:
        """Interval, in seconds, at which everything is checked."""
        return min(self._config.disk_stall_s / 4, 0.5)

    async def run(self) -> None:
        """Check everything at intervals, until cancelled."""
        loop = asyncio.get_running_loop()
        measuring: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as group:
            while True:
                now = loop.time()
                due = now - self._measured_at >= self._config.disk_check_s
                if due and (measuring is None or measuring.done()):  # a hung disk must not stop the watch
                    measuring = group.create_task(self._measure(), name=f"{self._config.self_id}-measure")
                self.look()
                self._replicator.resume_paused()
                await self._relieve()
                await asyncio.sleep(self.interval_s)

    def leave(self) -> None:
        """Prepare for the end of this node. From now on it does not stand for election, and leaders do not
        hand over to it."""
        self._leaving = True
        self.look()

    async def _measure(self) -> None:
        try:
            usage = await self._log.measure()
        except OSError as error:
            self._say.warning("cannot measure the disk usage", error=error)
            return
        finally:
            self._measured_at = asyncio.get_running_loop().time()
        self.used_ratio = usage.used_ratio
        limit = self.full_ratio - (HYSTERESIS if self._above_limit else 0.0)
        self._above_limit = usage.used_ratio >= limit
        self.look()

    def look(self) -> None:
        """Decide again for what this node is fit."""
        now = asyncio.get_running_loop().time()
        log, elector = self._log, self._elector
        log.look_at_clock()
        self._compare_clocks()
        flags = Health.GOOD
        if log.faulty or self._members.doubtful(log.last_index):
            flags |= Health.FAULTY
        if self._above_limit or (log.short_of_space and log.pool.ready == 0):
            flags |= Health.DISK_FULL
        if self._workers.waiting_s(now) > self._config.disk_stall_s:
            flags |= Health.STALLED
        if self._is_slow(now):
            flags |= Health.SLOW
        if 0 < self._config.max_clock_skew_ms < self.clock_off_ms:
            flags |= Health.CLOCK
        if self._leaving:
            flags |= Health.LEAVING
        if flags & Health.FAULTY and not self.flags & Health.FAULTY:
            self._faulty_since = now
        if flags != self.flags:
            self._say.warning("health", now=health_text(flags), before=health_text(self.flags))
        self.flags = flags
        if elector.role is Role.LEADER or elector.leader_id is not None:
            self._leaderless_since = now
        patient = now - self._leaderless_since > 2 * self._config.election_timeout_max_s
        fit = (not flags or (patient and not flags & ~_BEARABLE)) and not self._trust.stands_back(now)
        self._be_patient()
        elector.feels(int(flags), may_stand=fit, patience_s=self.patience_s)
        self._leadership.disk_full(self._above_limit)

    def _be_patient(self) -> None:
        """Extend the time-outs while this event loop waits for cores. In that time heartbeats and answers are
        late although all nodes are there."""
        wait_s = self._metrics.core_wait_s
        limit_s = self._config.election_timeout_min_s * CORE_WAIT_FELT
        if self.patience_s and wait_s < limit_s / 4:
            self._say.info("elections use the configured time-outs again")
            self.patience_s = 0.0
        elif self.patience_s or wait_s > limit_s:
            patience_s = min(CORE_WAITS_BORNE * wait_s, MAX_PATIENCE * self._config.election_timeout_max_s)
            if not self.patience_s:
                self._say.warning(
                    "this machine has too little CPU time: election time-outs are longer",
                    by_ms=round(patience_s * 1000),
                )
            self.patience_s = patience_s

    def _is_slow(self, now: float) -> bool:
        """Whether this disk was found slow and has not yet kept up for long enough."""
        pos = self._log.durable_pos
        if self._elector.role is Role.LEADER and self._leadership.disk_lag > SLOW_LAG:
            since, from_pos = self._kept_up_at
            written = pos - from_pos > SLOW_WRITTEN * self._config.pending_bytes
            if written and now - since > self._config.disk_stall_s:
                self._slow_until = now + SLOW_REST_S
        else:
            self._kept_up_at = (now, pos)
            if now < self._slow_until and self._log.durable_mark < self._due:
                self._slow_until = now + SLOW_REST_S  # it lacks entries that were committed at the last check
        follower = self._replicator.follower
        self._due = -1 if follower is None else follower.leader_commit
        return now < self._slow_until

    async def _relieve(self) -> None:
        """Hand over from a sick leader to a healthy voter."""
        now = asyncio.get_running_loop().time()
        rot_only = self.flags == Health.FAULTY and now - self._faulty_since < self._config.repair_limit_s
        # An elected node whose vote is still being saved has no leadership to give up yet.
        if self._leadership.term is None or not self.flags or rot_only or now < self._retry_at:
            return
        if self._leaving:
            return  # leadership is being handed over already
        target = self._healthy_voter()
        moved = False
        if target is not None:
            self._say.warning(
                "this leader is not healthy: transferring leadership",
                health=health_text(self.flags),
                to=target,
            )
            moved = await self._leadership.transfer(target, self._config.disk_stall_s)
        stuck = self._stuck()
        if not moved and stuck and self._leadership.term is not None:
            self._say.error("this leader cannot acknowledge anything: stepping down", because=stuck)
            self._elections.step_down(f"it cannot acknowledge anything: {stuck}")
        elif not moved and target is not None:
            self._retry_at = asyncio.get_running_loop().time() + BACK_OFF_S

    def _stuck(self) -> str:
        """Return why this node, as the leader, can acknowledge nothing; empty if it can."""
        if self.flags & Health.STALLED:
            return "the disk does not answer"
        rotten = self._last_rotten()
        if rotten > self._replicator.commit_index:
            return f"entry {rotten} is corrupt, not committed, and no peer could repair it"
        return ""

    def _last_rotten(self) -> int:
        """Return the index of the last corrupt entry; -1 if there is none."""
        return max((last for _, last in self._log.faulty), default=-1)

    def _healthy_voter(self) -> str | None:
        """Return the most advanced voter that reported good health within the last election time-out.

        The voter must hold all committed entries. It must also hold the entries that are corrupt here,
        because this leader can send it nothing that comes after them."""
        leader = self._replicator.leader
        elector = self._elector
        if leader is None:
            return None
        needed = max(self._replicator.commit_index, self._last_rotten())
        now = asyncio.get_running_loop().time()
        fit = [
            (leader.watermark(peer), peer)
            for peer in elector.voters
            if elector.health_of(peer) == Health.GOOD
            and elector.awake(peer, now)
            and peer in leader.progress
            and leader.watermark(peer) >= needed
        ]
        return max(fit)[1] if fit else None

    def _compare_clocks(self) -> None:
        before, was_ahead = self.clock_off_ms, self._store_time_is_ahead
        times, others = self._times(), self._others()
        self.clock_off_ms = off_ms = self.clocks.off_ms(*times, others)
        self._clock_undecided_ms = self.clocks.undecided_ms(*times, others)
        if off_ms and not before:
            self._say.warning("the clock of this machine differs from those of its peers", ahead_ms=off_ms)
        limit_ms, ahead_ms = self._config.max_clock_skew_ms, self.store_time_ahead_ms
        self._store_time_is_ahead = 0 < limit_ms < ahead_ms
        if self._store_time_is_ahead and not was_ahead:
            self._say.warning(
                "store times of messages lie in the future: they are ahead of the clock", by_ms=ahead_ms
            )

    def _times(self) -> tuple[int, float]:
        return self._env.wall.now_ms(), asyncio.get_running_loop().time() * 1000

    def _others(self) -> list[str]:
        own = self._config.self_id
        return [member for member in self._members.current.members if member != own]

    def cautious_now_ms(self) -> int:
        """Return the time that decides the ages of segments. It is this clock's time; if most members say
        that this clock is ahead, it is their earlier time."""
        wall_ms, monotonic_ms = self._times()
        return wall_ms - max(self.clocks.off_ms(wall_ms, monotonic_ms, self._others()), 0)

    @property
    def store_time_ahead_ms(self) -> int:
        """Return by how many ms the store time of the newest record is ahead of the clock; 0 if it is not
        ahead. If this node's clock differs from those of most members, theirs is used."""
        return max(self._log.newest_ms - self._env.wall.now_ms() + self.clock_off_ms, 0)

    def reasons(self) -> Iterator[str]:
        """Yield texts that say what is wrong with this node, for /health."""
        if self._log.faulty:
            ranges = ", ".join(f"{first}..{last}" for first, last in self._log.faulty)
            yield f"entries {ranges[:200]} are corrupt and wait for repair from a peer"
        if self.flags & Health.DISK_FULL:
            why = "is full" if self._above_limit else "has no room for another segment"
            yield f"the disk {why} ({self.used_ratio:.0%} used): appends are refused"
        if self.flags & Health.STALLED:
            yield f"the disk has not answered for more than {self._config.disk_stall_s} s"
        ahead_ms = self._log.clock.ahead_ms
        if ahead_ms:
            yield (
                f"the clock of this machine jumped {ahead_ms / 1000:.0f} s ahead: messages do not get "
                "the new time until it has stayed like this for a minute"
            )
        if self.flags & Health.SLOW:
            yield "the disk of this node is slower than those of the other members"
        if self.flags & Health.CLOCK:
            yield (
                f"the clock of this machine is {self.clock_off_ms / 1000:.0f} s ahead of those of "
                f"most members (maxClockSkewMs is {self._config.max_clock_skew_ms}): this node leads "
                "only while no other member can. Correct the clock (docs/howto/clocks.md)"
            )

    def warnings(self) -> Iterator[str]:
        """Yield texts about problems that are not this node's fault, for /health."""
        off_ms = 0 if self.flags & Health.CLOCK else self.clock_off_ms
        if off_ms:
            where = "ahead of" if off_ms > 0 else "behind"
            yield f"the clock of this machine is {abs(off_ms) / 1000:.0f} s {where} those of its peers"
        undecided_ms = self._clock_undecided_ms
        if undecided_ms:
            where = "ahead of" if undecided_ms > 0 else "behind"
            yield (
                f"the clock of this machine is {abs(undecided_ms) / 1000:.0f} s {where} that of "
                "another member, and too few clocks of the group are known to decide which is right: "
                "compare them with a time server"
            )
        if self._store_time_is_ahead:
            yield (
                f"the store time of the newest message is {self.store_time_ahead_ms / 1000:.0f} s "
                "ahead of the clock, and following messages get the same time until then: the clock "
                "of a leader was ahead. Searches by time give wrong results (docs/howto/clocks.md)"
            )

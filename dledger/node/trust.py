"""Whether a node's store can be trusted, so that the node votes, stands for election and counts (safety.md
S3, S9, S18, S20).

A store that lost entries, or may have lost some, is trusted again when a leader has refilled it. After a loss
of power under ASYNC_FLUSH, a verdict of `powerloss` can make it trusted, too. While a snapshot replaces the
log, the store is not trusted.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.context.node_context import NodeContext
from dledger.election.identity import Hello
from dledger.members.effects import MemberEffects
from dledger.node.clocks import META_KEY as CLOCK_KEY
from dledger.node.powerloss import KEPT_KEY, META_KEY, Verdict, encode_end, judge
from dledger.peers.doubles import META_KEY as PROCESS_KEY

INSTALLING = "a snapshot is being installed"
REMOVED = "this node was removed from the group: stop it, or add it again"
TOO_MANY_LOST_POWER = (
    "voters lost power under ASYNC_FLUSH, and those that kept everything are not a majority: "
    "acknowledged entries may be lost, and the longest log wins"
)


class Trust:
    """Decides whether the store of one node is trusted."""

    def __init__(
        self, context: NodeContext, membership: MemberEffects, on_trusted: Callable[[], None]
    ) -> None:
        """`on_trusted` is called when the store is trusted, because there may be a marker to remove from the
        disk."""
        config = context.config
        self.reasons: list[str] = []
        """Why this node does not vote, or does not belong to the group, for /health."""
        self.statements: list[str] = []
        """Facts that an operator must know although their cause is over."""
        self._say = context.env.log.child(f"node.{config.self_id}")
        self._env = context.env
        self._config = config
        self._log = context.log
        self._members = context.members
        self._peers = context.peers
        self._elector = context.elector
        self._replicator = context.replicator
        self._membership = membership
        self._on_trusted = on_trusted
        self._unlisted = ""
        """The last log text about nodes in dLegerPeers that are not members."""
        self._process = f"{self._env.pid}-{self._env.wall.now_ms()}"
        self._lost_power = self._voted = self._installing = False
        self._undecided = 0.0
        self._yield_until = 0.0

    def open(self, trusted: bool, reason: str, lost_power: bool) -> None:
        """Take over the result of opening the store. `reason` says why the store is not trusted. `lost_power`
        says whether the reason is a loss of power under ASYNC_FLUSH."""
        if not trusted:
            self.reasons.append(f"{reason}: it does not vote until a leader has refilled it")
        self._lost_power = lost_power
        self._replicator.trust(trusted)

    def hello(self) -> Hello:
        """Return the hello to send now, with the identity of this node and the state of its store."""
        config, identity = self._config, self._members.identity
        return Hello(
            config.group,
            config.self_id,
            identity.incarnation,
            identity.cluster,
            config.protocol_min,
            config.protocol_max,
            config.segment_size,
            config.sync_flush,
            identity.members,
            self._meta(),
            config.lease_promise_ms,
            self._membership.config_index(),
            self._members.current.digest(),
            config.state_version,
        )

    def _meta(self) -> dict[str, str]:
        meta = dict(self._config.meta)
        meta[CLOCK_KEY] = str(self._env.wall.now_ms())
        meta[PROCESS_KEY] = self._process
        if self._lost_power or self._elector.may_vote:
            key = META_KEY if self._lost_power else KEPT_KEY
            meta[key] = encode_end(self._log.last_term, self._log.last_index)
        return meta

    def members_changed(self) -> None:
        """Note that the configuration changed, or that more of it is known to be committed."""
        removed = self._members.removed(self._replicator.commit_index)
        if removed != (REMOVED in self.reasons):
            self.reasons = [reason for reason in self.reasons if reason != REMOVED] + [REMOVED] * removed
            if removed:
                self._say.warning(REMOVED)
        unlisted, self._unlisted = self._unlisted, self.unlisted()
        if self._unlisted not in ("", unlisted):
            self._say.warning(self._unlisted)

    @property
    def removed(self) -> bool:
        """Whether the group is known to have removed this node."""
        return REMOVED in self.reasons

    def unlisted(self) -> str:
        """Return a text about nodes of dLegerPeers that are not members of this node's group; empty if all
        are members."""
        members, config = self._members.current.members, self._config
        if not self._members.identity.cluster or config.self_id not in members:
            return ""
        strange = {node: address for node, address in sorted(config.peers.items()) if node not in members}
        if not strange:
            return ""
        commands = ", ".join(f"`dledger member add {node} {address}`" for node, address in strange.items())
        return (
            f"dLegerPeers names {', '.join(strange)}, but the group's members are "
            f"{', '.join(sorted(members))}: add it ({commands}), or remove it from dLegerPeers"
        )

    # Refilled

    def check_refilled(self) -> None:
        """Trust the store if it now holds everything that the leader had committed. To be called when more
        entries are committed, durable or repaired."""
        follower = self._replicator.follower
        if self._elector.may_vote or follower is None or follower.leader_commit < 0:
            return
        # A commit index counts only if the leader committed in its own term. And only entries that agree with
        # this leader are a refill, not those that the store still had.
        mark = follower.leader_commit
        agreed = min(follower.matched, self._log.durable_index)
        if agreed >= mark and self._log.term_of(mark) == follower.term:
            self._say.info("the store is refilled: this node votes again", index=self._log.durable_index)
            self._give()

    def _give(self) -> None:
        self._elector.trust(True)
        self._replicator.trust(True)
        self._lost_power = False
        self.reasons = [reason for reason in self.reasons if reason == REMOVED]
        self._on_trusted()

    def install_begins(self) -> None:
        """Note that a snapshot is about to replace the log. The node does not vote until this is done
        (S20)."""
        self._installing = True
        self._voted = self._elector.may_vote
        self._elector.trust(False)
        self.reasons.append(INSTALLING)

    def installed(self) -> None:
        """Note that the snapshot has replaced the log. The node votes again if it voted before."""
        self._installing = False
        self.reasons = [reason for reason in self.reasons if reason != INSTALLING]
        if self._voted:  # entries of the old log are in the snapshot, or will never be committed
            self._give()

    # After a loss of power

    def stands_back(self, now: float) -> bool:
        """Whether, after a loss of power under ASYNC_FLUSH (S9), this node must let other nodes stand for
        election."""
        if self._lost_power:
            verdict = self._judge()
            # While it installs, a crash would take what it said with the log.
            if verdict is Verdict.WAIT or self._elector.leader_id is not None or self._installing:
                self._undecided = now
            elif now - self._undecided >= 2 * self._config.election_timeout_max_s:
                self._say.error(TOO_MANY_LOST_POWER, then=verdict.value, end=self._log.last_index)
                self.statements.append(TOO_MANY_LOST_POWER)
                self._give()
                if verdict is Verdict.VOTE:
                    self._yield_until = now + 10 * self._config.election_timeout_max_s
        if self._elector.leader_id is not None:
            self._yield_until = 0.0
        return now < self._yield_until

    def _judge(self) -> Verdict:
        if self._members.doubtful(self._log.last_index):
            return Verdict.WAIT
        voters = self._membership.voters
        hellos = {
            node: hello
            for node, hello in self._peers.hellos.items()
            if node not in voters or self._membership.counts(hello)
        }
        own = (self._log.last_term, self._log.last_index)
        return judge(self.hello(), own, voters, hellos)

"""One run with whole brokers, clients and a NameServer. At the end the judges check what the brokers made of
the log and what the clients observed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import chain

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.machine import Trace
from dledger.chaos.machine.settings import MS
from dledger.chaos.scenarios.brief_topics import BriefTopics
from dledger.chaos.scenarios.broker_clients import (
    FIRST_TOPIC,
    ORDERLY_GROUP,
    PULL_GROUP,
    PUSH_GROUP,
    Consumer,
    Operator,
    OrderlyWorker,
    Planned,
    Producer,
    Program,
    PullReader,
    PushWorker,
)
from dledger.chaos.scenarios.broker_faults import BrokerInjector
from dledger.chaos.scenarios.broker_history import BrokerHistory, Turn
from dledger.chaos.scenarios.broker_judge import (
    BrokerVerdict,
    judge_completeness,
    judge_delays,
    judge_offsets,
    judge_receipts,
    judge_sends,
    judge_stood,
    judge_times,
    judge_topics,
    judge_turns,
    name_of,
)
from dledger.chaos.scenarios.broker_replay import HALF, SCHEDULE, TIMERS, UNREAD, BrokerReplay, Stored
from dledger.chaos.scenarios.broker_stage import (
    BRIEF_CLIENT,
    OPERATOR,
    ORDERED,
    ORDERLY,
    POP,
    PRODUCERS,
    PULL,
    PUSH,
    UNAWARE,
    BrokerStage,
)
from dledger.chaos.scenarios.deletion_history import generations, is_brief, judge_deletions
from dledger.chaos.scenarios.disks import find_file
from dledger.chaos.scenarios.history import ACKNOWLEDGED
from dledger.chaos.scenarios.oracle import Delays, Offsets, Queue, Timers, Topics, Transactions
from dledger.chaos.scenarios.ordered_history import ORDERED_GROUP
from dledger.chaos.scenarios.ordered_judge import OrderedJudge
from dledger.chaos.scenarios.ordered_worker import OrderedWorker
from dledger.chaos.scenarios.plan import Plan
from dledger.chaos.scenarios.pop_judge import PopJudge, copies_of, judge_popped
from dledger.chaos.scenarios.pop_worker import PopWorker
from dledger.chaos.scenarios.reset_judge import ResetJudge, judge_followed
from dledger.chaos.scenarios.runner import CLIENTS_LIMIT_S, PROGRESS_LIMIT_S, Run
from dledger.chaos.scenarios.timer_history import TIMERS_LIMIT_S
from dledger.chaos.scenarios.timer_judge import judge_timers, waiting
from dledger.chaos.scenarios.transaction_history import TRANSACTIONS_LIMIT_S
from dledger.chaos.scenarios.transaction_judge import TransactionJudge
from dledger.chaos.scenarios.unaware_reader import UNAWARE_GROUP, UnawareReader
from dledger.chaos.scenarios.user_history import judge_users
from dledger.formats.consume_queue import UNIT_SIZE, UNITS_PER_FILE
from dledger.formats.entry import EntryHeader
from dledger.formats.index_file import UNIT, KeyUnit, key_hash, unit_offset
from dledger.formats.store_files import segment_name
from dledger.remoting.commands import FLAG_FORWARDED

ROUTES_LIMIT_S = 35.0
"""Longest time until the NameServer knows the leader and the other brokers, in seconds.

Brokers register every 30 s. If the NameServer loses power, it loses all routes, and an idle broker does not
notice that before it registers again.
"""
DELAYS_LIMIT_S = 30.0
"""Longest time until delayed messages are delivered, in seconds after the last message was acknowledged. It
is twice the longest delay that producers use (because a clock may have been ahead), plus some time."""
WRONG_MS, BELIEVED_AFTER_S = 1_000, 65.0
"""Clocks that are wrong by more than WRONG_MS are set right at the end of a run. When a clock leaps ahead,
brokers do not trust it during the first minute. So the run then waits BELIEVED_AFTER_S longer."""
CATCH_UP_LIMIT_S = 45.0
"""Longest time until every group has received everything, in seconds of virtual time. The time begins when
all faults have ended and the last message was acknowledged. A pull on a dead connection is cancelled only
after 30 s."""
KNOWN_LIMIT_S = 35.0
"""Longest time until consumers know the new queues of a topic, in seconds. They ask for routes every 30 s."""
PROMPT_S = 1.0
"""Longest time from the last acknowledgement until all groups have received the messages, in seconds, without
faults."""
PROMPT_AFTER_A_MEMBER_S = 4.0
"""Longest time as for PROMPT_S, if a member of a group was just killed. The other members are notified by a
request 40 NOTIFY_CONSUMER_IDS_CHANGED and take over its queues."""
TOLD_LIMIT_S = 50.0
"""Longest time, in seconds, until all pulls of the *unaware reader* wait at running brokers, and all brokers
know them. The unaware reader is a consumer that does not notice lost connections.

A lost pull is cancelled after 30 s, and heartbeats are sent every 10 s.
"""
ANSWERED_S = 0.5
"""Longest time from the election of a new leader until pulls that waited at the former leader are answered,
in seconds. The new leader answers them at once; another broker answers after 0.3 s."""
STALE_S = 1.0
"""How long a leader that was cut off may answer from an old state, in seconds (docs/explanation/guarantees.md
says 0.8 s)."""
GROUPS = (PULL_GROUP, PUSH_GROUP)
STANDSTILL = ("stop", "stall", "slow", "namesrv-stop")
"""Kinds of faults after which a deposed leader may still answer once before its timers run."""


class BrokerRun(Run):
    """One run with whole brokers: it plays a plan and checks the run (see the module)."""

    stage: BrokerStage
    injector: BrokerInjector

    def __init__(self, plan: Plan, trace: Trace | None = None) -> None:
        super().__init__(plan, trace)
        self.broker_history: BrokerHistory = BrokerHistory()
        self._broker_verdict = BrokerVerdict()
        self._programs: list[Program] = []
        self._waits_for = (-1, -1, -1)
        self._lagging = ""
        """A message that a group had not received at the last check, described as text."""

    def make_stage(self) -> BrokerStage:
        return BrokerStage(self.plan, self._trace)

    def make_injector(self) -> BrokerInjector:
        return BrokerInjector(self.stage)

    # Clients

    def begin_clients(self) -> None:
        stage, history = self.stage, self.broker_history
        topics = [FIRST_TOPIC]
        own = [
            [one for one in self.plan.operations if one.client == number] for number in range(stage.clients)
        ]
        self._programs = [
            *(Producer(stage, number, history, topics, own[number]) for number in PRODUCERS),
            Operator(stage, OPERATOR, history, topics, own[OPERATOR]),
            PullReader(stage, PULL, history, topics),
            *(PushWorker(stage, number, history, topics) for number in PUSH),
            *(
                OrderlyWorker(stage, number, history, topics)
                for number in (ORDERLY if stage.profile.orderly else ())
            ),
            *(PopWorker(stage, number, history, topics) for number in POP),
            *(
                OrderedWorker(stage, number, history, topics)
                for number in (ORDERED if stage.profile.orderly else ())
            ),
            *(BriefTopics(stage, BRIEF_CLIENT, history, topics) for _ in range(stage.profile.deletes)),
            *(UnawareReader(stage, UNAWARE, history, topics) for _ in range(stage.profile.unaware)),
        ]
        for program in self._programs:
            stage.programs[program.name] = program.main
            stage.start_client(program.name)

    def end_clients(self) -> None:
        """Wait until every program with a plan has done its operations."""
        planned = [program for program in self._programs if isinstance(program, Planned)]
        self.within(CLIENTS_LIMIT_S, "the clients end", lambda: all(program.done for program in planned))

    def change_leaders(self) -> None:
        """Does nothing: the leader changed often enough before, and consumers have a time limit for the rest
        of the run."""

    def await_progress(self) -> None:
        """Wait until the routes are right, each topic has taken one more message, everything that waits was
        delivered, and all consumers have caught up."""
        world = self.stage.world
        # Without this a producer that begins may not find its topics, because it asks for routes first.
        self.within(ROUTES_LIMIT_S, "the NameServer knows all brokers", self.stage.routes_are_right)
        self.stage.cluster.count("the NameServer knows the leader and the others")
        last = next(program for program in self._programs if isinstance(program, Producer))
        world.spawn(last.name, last.send_last)
        self.within(PROGRESS_LIMIT_S, "each topic takes a message", lambda: last.last_sent)
        self.within(DELAYS_LIMIT_S, "what was delayed comes", self._all_came)
        limit_s = TIMERS_LIMIT_S + (BELIEVED_AFTER_S if self._set_clocks() else 0.0)
        self.within(limit_s, "what waits for a time of its own comes", self._timers_came)
        self.within(TRANSACTIONS_LIMIT_S, "each transaction ends", self._all_ended)
        self._handed_all(CATCH_UP_LIMIT_S, "all consumers catch up")
        self.within(KNOWN_LIMIT_S, "consumers know all queues", self._queues_are_known)
        self.within(KNOWN_LIMIT_S, "who pops asks the leader", self._pops_are_direct)
        self._promptly(last, PROMPT_S)
        worker = next(self._workers())
        world.kill(worker)
        self._promptly(last, PROMPT_AFTER_A_MEMBER_S)
        for program in self._programs:
            if isinstance(program, UnawareReader):
                self._pulls_are_answered(program)

    def _pulls_are_answered(self, reader: UnawareReader) -> None:
        """Kill the leader. Check that the pulls that wait at it are answered over other connections before
        they time out."""
        self.within(TOLD_LIMIT_S, "all brokers know of the pulls of an unaware consumer", reader.is_known)
        lost = self.lose_leader()
        self.within(ANSWERED_S, "pulls of the lost leader are answered", lambda: not reader.stands_still())
        self.stage.cluster.count("pulls of a lost leader are answered by its successor")
        self.stage.start(lost)

    def _queues_are_known(self) -> bool:
        leader = self.stage.leader()
        broker = None if leader is None else self.stage.broker(leader)
        if broker is None:
            return False
        topics = broker.store.state.topics
        known = [
            (topics.get(topic), data)
            for program in self._programs
            if isinstance(program, Consumer) and self.stage.world.nodes[program.name].process is not None
            for topic, route in program.routes.items()
            for data in route.queueDatas
        ]
        return all(config is None or config.read_queues == data.readQueueNums for config, data in known)

    def _pops_are_direct(self) -> bool:
        """Whether all pops wait at the leader and come directly from their clients.

        If a pop was forwarded by another broker, its client asks again when it learns of a new leader.
        Messages that were given to the first pop would then be delivered only after their invisible time.
        """
        leader = self.stage.leader()
        broker = None if leader is None else self.stage.broker(leader)
        held = [] if broker is None else list(broker.features.pop.pops.held)
        return bool(held) and not any(pop.request.flag & FLAG_FORWARDED for pop in held)

    def _promptly(self, producer: Producer, limit_s: float) -> None:
        """Send messages, and check that every group receives them within `limit_s`. So nothing may depend on
        a time-out."""
        world, machine = self.stage.world, self.stage.world.nodes[producer.name]
        self.stage.measured = True
        self.within(PROGRESS_LIMIT_S, "a producer ends", lambda: machine.process is None)
        already = producer.sent_again
        world.spawn(producer.name, producer.send_again)
        self.within(PROGRESS_LIMIT_S, "a message goes to each topic", lambda: producer.sent_again > already)
        self._handed_all(limit_s, f"consumers are handed it within {limit_s} s")
        self.stage.cluster.count("consumers are handed at once what is sent")

    def _handed_all(self, limit_s: float, what: str) -> None:
        try:
            self.within(limit_s, what, self._caught_up)
        except InvariantViolated as error:
            raise InvariantViolated(f"{self._lagging}: {error}") from error

    def _workers(self) -> Iterator[str]:
        """The running client machines of `PushWorker`s, whose consumers share queues."""
        for program in self._programs:
            if isinstance(program, PushWorker) and self.stage.world.nodes[program.name].process is not None:
                yield program.name

    def _all_came(self) -> bool:
        """Whether all delayed messages were delivered."""
        ledger = self.stage.ledger
        following = ledger.table(Delays).rows
        waiting = [queue for queue in ledger.ends if queue[0] == SCHEDULE]
        return all(following.get(queue[1] + 1, 0) == ledger.ends[queue] for queue in waiting)

    def _set_clocks(self) -> bool:
        """Set all clocks right, because messages that wait depend on them. Returns whether this made a clock
        leap ahead."""
        world, leapt = self.stage.world, False
        for name in self.stage.names:
            skew_ms = world.nodes[name].clock.wall_skew_ms
            leapt |= skew_ms < -WRONG_MS
            if abs(skew_ms) > WRONG_MS:
                world.clock_jump(name, -skew_ms)
        return leapt

    def _timers_came(self) -> bool:
        """Whether all timer messages were delivered."""
        ledger = self.stage.ledger
        return not waiting(ledger.messages.get((TIMERS, 0), ()), ledger.table(Timers).rows)

    def _all_ended(self) -> bool:
        """Whether all transactions have ended."""
        return not self.stage.ledger.table(Transactions).rows

    def _caught_up(self) -> bool:
        """Whether every group has received everything. Returns False without a check if nothing changed since
        the last call."""
        history = self.broker_history
        handed = len(history.receipts) + len(history.pops.handed) + len(history.ordered.handed)
        now = (handed, self.stage.ledger.index, self.stage.begun)
        if now == self._waits_for:
            return False
        self._waits_for = now
        try:
            self._judge_completeness()
        except InvariantViolated as error:
            self._lagging = str(error)
            return False
        return True

    def _judge_completeness(self) -> None:
        stage = self.stage
        # Orderly consumers have long calls and wait for locks. So they catch up, but not at once.
        in_order = stage.profile.orderly and not stage.measured
        groups = (*GROUPS, ORDERLY_GROUP, ORDERED_GROUP) if in_order else GROUPS
        if stage.profile.unaware and not stage.measured:
            groups = (*groups, UNAWARE_GROUP)  # later this consumer may have to wait for its time-out
        messages = _lasting(stage.ledger.messages)
        judge_completeness(self.broker_history.reached, groups, messages, stage.begun)
        begun = stage.begun
        gone = {queue: sum(one.position < begun for one in stored) for queue, stored in messages.items()}
        judge_followed(self.broker_history.resets, gone)
        judge_popped(self.broker_history.pops.values, messages, stage.begun, UNREAD)

    # Checkpoints and the end

    def check_all(self) -> None:
        super().check_all()
        for name in self.stage.names:
            self._check_queues(name)
            self._check_index(name)

    def _check_queues(self, name: str) -> None:
        """Check that the ConsumeQueues of a broker, in memory and in files, match the log."""
        stage = self.stage
        broker, probe = stage.broker(name), stage.machines[name].probe
        if broker is None or probe is None or not probe.opened or probe.node.snapshots.receiver.replacing:
            return
        disk = stage.world.nodes[name].disk
        root = f"{stage.broker_root}/consumequeue"
        for topic in sorted(disk.directory(root).names):
            # A deleted topic has no files, except for the moment until they are removed.
            known = topic in broker.store.state.queues or topic in broker.store.leaving
            if is_brief(topic) and not known:
                raise InvariantViolated(f"{name}: {root}/{topic} is of a topic that was deleted")
        for queue in broker.store.queues.all():
            key = (queue.topic, queue.queue_id)
            bounds = queue.bounds
            stored = self._stored(key, bounds.first_position)
            if not 0 <= bounds.min <= bounds.next <= len(stored):
                raise InvariantViolated(f"{name}: {key} has {bounds}, the log has {len(stored)} messages")
            # Units may be missing only for messages before the beginning of the log.
            if bounds.min and stored[bounds.min - 1].position >= stage.begun:
                raise InvariantViolated(f"{name}: {key} begins at {bounds.min}, but the log holds more")
            path = f"{stage.broker_root}/consumequeue/{queue.topic}/{queue.queue_id}/{segment_name(0)}"
            content = find_file(disk, path)
            for offset in range(bounds.min, min(bounds.next, UNITS_PER_FILE)):
                stage.cluster.count("ConsumeQueue unit equals the log")
                wanted = stored[offset].unit
                if offset >= queue.tail_start:
                    at = (offset - queue.tail_start) * UNIT_SIZE
                    if bytes(queue.tail[at : at + UNIT_SIZE]) != wanted:
                        raise InvariantViolated(f"{name}: unit {offset} of {key} in memory is not the log's")
                if offset < queue.flushed and content[offset * UNIT_SIZE :][:UNIT_SIZE] != wanted:
                    raise InvariantViolated(f"{name}: unit {offset} of {key} on disk is not the log's")

    def _stored(self, queue: Queue, first_position: int) -> list[Stored]:
        """The messages of a queue in the log. If several topics had this name, only the messages of the topic
        whose first message is at `first_position`."""
        known = generations(self.stage.ledger, queue)
        of_its = (stored for stored in known if stored and stored[0].position == first_position)
        return next(of_its, []) if is_brief(queue[0]) else known[-1]

    def _check_index(self, name: str) -> None:
        """Check the IndexFiles of a broker. They must find each message before the position up to which the
        broker has indexed the log, and no other message."""
        stage = self.stage
        broker, probe = stage.broker(name), stage.machines[name].probe
        if broker is None or probe is None or not probe.opened or broker.index.indexed < 0:
            return
        disk = stage.world.nodes[name].disk
        found: dict[int, list[int]] = {}
        for file in broker.index.files:
            content = find_file(disk, file.path)
            for number in range(1, file.header.count):
                unit = KeyUnit._make(UNIT.unpack_from(content, unit_offset(file.slots, number)))
                found.setdefault(unit.position, []).append(unit.key_hash)
        begun = max(stage.begun, probe.node.log.begin_pos)
        ledger = stage.ledger
        every = (queue for queue in dict.fromkeys((*ledger.messages, *ledger.deleted)))
        for topic, messages in ((key[0], chain(*generations(ledger, key))) for key in every):
            for message in messages:
                hashes = found.pop(message.position, [])
                if not begun <= message.position < broker.index.indexed:
                    continue
                if message.recalls:
                    continue  # it has the unique key of the message that it recalls, and no key of its own
                stage.cluster.count("a message is found by its key")
                # A message is found by its key and by its unique key, once each.
                if len(hashes) != 2 or key_hash(topic, name_of(message.value)) not in hashes:
                    raise InvariantViolated(
                        f"{name}: {name_of(message.value)} at {message.position} is indexed as {hashes}"
                    )
        # The units that are left point at no message.
        if found:
            raise InvariantViolated(f"{name}: the index has units of no message: {found}")

    def judge_history(self, log: Iterable[tuple[EntryHeader, bytes]]) -> None:
        stage, history, verdict = self.stage, self.broker_history, self._broker_verdict
        replay = BrokerReplay()
        right = not any(fault.kind == "clock-jump" for fault in self.plan.faults)
        pops = PopJudge(stage.begun, clocks_are_right=right)
        ordered = OrderedJudge(stage.begun, clocks_are_right=right)
        resets = ResetJudge()
        transactions = TransactionJudge()
        for header, record in log:
            replay.apply(header, record)
            resets.apply(header, record)
            pops.apply(header, record)
            ordered.apply(header, record)
            transactions.apply(header, record)
        again, _ = judge_deletions(history.deletions, replay)
        stage.cluster.count("a topic that is made again has nothing of the one before", again)
        judge_users(history.users, replay)
        again = history.users.deleted_with_policies
        stage.cluster.count("a user that is made again has no policy of the one before", again)
        messages = _lasting(replay.messages)
        judge_sends(history.sends, messages, verdict, stage.begun)
        judge_times(messages)
        following = replay.table(Delays).rows
        judge_delays(messages, following, stage.begun, verdict, clocks_are_right=right)
        came, recalled = judge_timers(messages, history.timers)
        judge_receipts(history.receipts, messages, (PULL_GROUP, UNAWARE_GROUP), verdict)
        judge_stood(history.stood)
        judge_turns(history.turns, verdict)
        self._judge_completeness()
        judge_offsets(
            history.commits, history.positions, replay.table(Offsets).rows, self._stale_ns(), verdict
        )
        pops.judge(history.pops, copies_of(messages, (HALF,)))
        transactions.judge(history.transactions, history.sends, stage.begun)
        verdict.popped, verdict.revived = len(history.pops.handed), pops.revived
        judge_topics(history.changes, replay.table(Topics).rows, verdict)
        stage.cluster.count("a reset is done as it was told, and followed", resets.judge(history.resets))
        stage.cluster.count("a consumer heard of a reset", resets.heard)
        stage.cluster.count("a batch is whole or not there", verdict.batches)
        stage.cluster.count("what a consumer was handed is in the log", verdict.received)
        stage.cluster.count("a queue that is consumed in order has one owner", verdict.turns)
        stage.cluster.count("an acknowledged consumer offset stays", verdict.committed)
        stage.cluster.count("an acknowledged topic stays", verdict.topic_changes)
        stage.cluster.count("a delayed message comes once, and not early", verdict.delivered)
        stage.cluster.count("a timer message comes once, and not early", came)
        stage.cluster.count("a timer message that was recalled never comes", recalled)
        timers = messages.get((TIMERS, 0), ())
        if any(message.rolled for message in timers):
            stage.marks.reach("a timer message was put into the log again")
        if len(replay.table(Timers).rows) > 1:
            stage.marks.reach("timers of two clocks")
        stage.cluster.count("a transaction ends once, as its producer means it", transactions.ended)
        if transactions.committed_when_asked:
            stage.marks.reach("a half message was committed when its producer was asked")
        if transactions.given_up:
            stage.marks.reach("a half message was given up")
        stage.cluster.count("a popped message is acknowledged, or comes again", pops.acknowledged)
        acknowledged = ordered.judge(history.ordered)
        stage.cluster.count("a queue that is popped in order has one consumer at a time", acknowledged)
        if ordered.frees:
            stage.marks.reach("a reset freed a queue that was popped in order")
        if ordered.over_terms:
            stage.marks.reach("a queue was popped in order again after its leader had changed")
        if ordered.partly:
            stage.marks.reach("a batch that was popped in order was acknowledged in part, and came again")
        self._reach_marks()

    def _stale_ns(self) -> int:
        stops = [fault.lasting_ms for fault in self.plan.faults if fault.kind in STANDSTILL]
        return round(STALE_S * 1000 + max(stops, default=0)) * MS

    def _reach_marks(self) -> None:
        history, verdict, marks = self.broker_history, self._broker_verdict, self.stage.marks
        if verdict.recovered:
            marks.reach("a send of unknown outcome is stored")
        if verdict.unknown > verdict.recovered:
            marks.reach("a send of unknown outcome is nowhere")
        if verdict.resent:
            marks.reach("a message is stored as it was sent again")
        if verdict.repeated:
            marks.reach("a group was handed a message again")
        if any(0 <= turn.term < turn.last_term for turn in history.turns):
            marks.reach("the leader changed in the middle of an orderly call")
        turns: dict[object, Turn] = {}
        for turn in history.turns:
            last = turns.get(turn.queue, turn)
            if last.term < turn.term and (last.consumer, last.life) != (turn.consumer, turn.life):
                marks.reach("a queue went to another consumer after its leader had changed")
            turns[turn.queue] = turn
        terms: dict[object, int] = {}
        for receipt in history.receipts:
            before = terms.setdefault((receipt.consumer, receipt.life, receipt.queue), receipt.term)
            if before != receipt.term:
                marks.reach("a consumer went on with a new leader")
                break
        for commit in history.commits:
            if commit.outcome == ACKNOWLEDGED:
                before = terms.setdefault((commit.group, commit.queue), commit.term)
                if before != commit.term:
                    marks.reach("a consumer offset moved on with a new leader")
                    break

    def sum_up_history(self) -> None:
        history = self.broker_history
        self.outcome.history = asdict(self._broker_verdict) | {"operations": history.operations}
        for send in history.sends:
            if send.end >= 0 and send.outcome == ACKNOWLEDGED:
                self.took((send.end - send.begin) / MS)


def _lasting(messages: Mapping[Queue, list[Stored]]) -> dict[Queue, list[Stored]]:
    """The messages of topics that this run never deletes."""
    return {queue: stored for queue, stored in messages.items() if not is_brief(queue[0])}

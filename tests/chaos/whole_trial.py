"""A sound trial in miniature: a log with something for every checker, and what clients observed of it.

Tests change one thing in it, and then see which checker notices (`test_trial_checkers.py`). The log has names
for its entries, so that a test can change, remove, repeat or insert one. Removing an entry does not move the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from dledger.chaos.pressure import LOAD_TOPIC
from dledger.chaos.scenarios.broker_clients import ORDERLY_GROUP, PULL_GROUP, PUSH_GROUP
from dledger.chaos.scenarios.broker_history import (
    BrokerHistory,
    Commit,
    Position,
    QueueEnd,
    Receipt,
    Send,
    TopicChange,
    Turn,
)
from dledger.chaos.scenarios.broker_replay import DISCARD, HALF, SCHEDULE, TIMERS, UNREAD
from dledger.chaos.scenarios.deletion_history import BRIEF, BriefSend, Life
from dledger.chaos.scenarios.history import ACKNOWLEDGED, REFUSED, UNKNOWN, Call
from dledger.chaos.scenarios.ordered_history import ACK, ORDERED_GROUP, Ordered, Settled
from dledger.chaos.scenarios.pop_history import POP_GROUP, RETRY, Ack, Handed
from dledger.chaos.scenarios.reset_judge import Reset
from dledger.chaos.scenarios.timer_history import Recall
from dledger.chaos.scenarios.transaction_history import CHECK_MAX, End, Fate
from dledger.chaos.scenarios.user_history import KnownUser
from dledger.chaos.trials.evidence import Evidence
from dledger.chaos.trials.injected import Flight, Injected, Served
from dledger.chaos.trials.other_clients import TOPIC as OTHER_TOPIC
from dledger.chaos.trials.other_clients import JavaClient
from dledger.formats.entry import HEADER_SIZE, EntryHeader, Kind
from dledger.formats.message_ids import encode_message_id, pack_ipv4_host
from dledger.formats.properties import encode_properties
from dledger.formats.record import TRANSACTION_COMMIT, encode_record, system_record
from dledger.formats.state import pack_op

MS, SECOND = 1_000_000, 1_000_000_000
GRID = 1_000
"""Distance between the positions of two entries. Every entry is smaller."""
TOPIC, LATER = "auto", "later"
"""The topic of plain messages, and the topic that gets messages which waited."""
BRIEF_TOPIC = f"{BRIEF}1-0"
START_MS = 1_000_000
"""Store time of the first message."""


@dataclass
class Entry:
    """One entry of the log: a message, or an operation (`op`). `at` is its place on the grid of positions."""

    at: float
    op: dict[str, Any] | None = None
    topic: str = TOPIC
    queue: int = 0
    value: bytes = b""
    store_ms: int = START_MS
    properties: dict[str, str] = field(default_factory=dict)
    reconsumed: int = 0
    sys_flag: int = 0
    prepared: int = 0
    remaining: int = 0
    """How many entries of the same batch follow."""
    offset: int | None = None
    """Queue offset; None for the next one of the queue."""
    opens: bool = False
    """Whether the entry opens a term."""

    @property
    def position(self) -> int:
        """Position of the record in the log."""
        return round(self.at * GRID) + HEADER_SIZE


class Log:
    """The entries of a log, by name."""

    def __init__(self) -> None:
        self.named: dict[str, Entry] = {}
        self._now_ms = START_MS

    def __getitem__(self, name: str) -> Entry:
        return self.named[name]

    def pass_ms(self, ms: int) -> None:
        """Let time pass until the next entry."""
        self._now_ms += ms

    def message(self, name: str, topic: str = TOPIC, queue: int = 0, /, **more: Any) -> Entry:
        """Append a message. Its body begins with its name, unless `value` is given."""
        self._now_ms += 10
        more = {"value": f"{name}|".encode(), "store_ms": self._now_ms} | more
        return self._append(name, Entry(len(self.named), topic=topic, queue=queue, **more))

    def operation(self, name: str, remaining: int = 0, /, **op: Any) -> Entry:
        """Append an operation."""
        return self._append(name, Entry(len(self.named), op, remaining=remaining))

    def opening(self, name: str) -> Entry:
        """Append the entry that opens the term."""
        return self._append(name, Entry(len(self.named), opens=True))

    def _append(self, name: str, entry: Entry) -> Entry:
        assert name not in self.named, name
        self.named[name] = entry
        return entry

    def remove(self, *names: str) -> None:
        """Remove entries."""
        for name in names:
            del self.named[name]

    def repeat(self, name: str, behind: str = "", **changed: Any) -> None:
        """Insert a copy of an entry, with other values, behind another entry or at the end."""
        items, last = list(self.named.items()), behind or list(self.named)[-1]
        place = 1 + list(self.named).index(last)
        changed = {"store_ms": max(entry.store_ms for _, entry in items[:place])} | changed
        copy = replace(self.named[name], at=self.named[last].at + 0.5, **changed)
        if copy.op is not None:
            copy.op = dict(copy.op)
        self.named = dict([*items[:place], (f"{name} again", copy), *items[place:]])

    def move(self, name: str, behind: str) -> None:
        """Move an entry behind another one."""
        self.repeat(name, behind)
        self.remove(name)

    def entries(self) -> Iterator[tuple[EntryHeader, bytes]]:
        """Yield every entry as a store has it: its header and its record."""
        ends: dict[tuple[str, int], int] = {}
        for index, entry in enumerate(self.named.values()):
            if entry.opens:
                kind, record = Kind.TERM_OPENING, system_record(b"", entry.position, entry.store_ms)
            elif entry.op is not None:
                kind, record = Kind.SYSTEM, system_record(pack_op(entry.op), entry.position, entry.store_ms)
                name = entry.op.get("name")
                if entry.op["op"] == "topic_delete":
                    ends = {queue: end for queue, end in ends.items() if queue[0] != name}
            else:
                queue = entry.topic, entry.queue
                offset = ends.get(queue, 0) if entry.offset is None else entry.offset
                ends[queue] = offset + 1
                kind, record = Kind.MESSAGE, _record(entry, offset)
            size = HEADER_SIZE + len(record)
            assert size <= GRID // 2
            yield EntryHeader(
                magic=1, size=size, index=index, term=1, pos=entry.position - HEADER_SIZE,
                channel=kind << 24 | entry.remaining, chain_crc=0, body_crc=0, body_size=len(record),
            ), record  # fmt: skip


def _record(entry: Entry, offset: int) -> bytes:
    return encode_record(
        topic=entry.topic, body=entry.value, properties=encode_properties(entry.properties),
        queue_id=entry.queue, queue_offset=offset, physical_offset=entry.position, sys_flag=entry.sys_flag,
        store_timestamp=entry.store_ms, reconsume_times=entry.reconsumed,
        prepared_transaction_offset=entry.prepared,
    )  # fmt: skip


def sound_log() -> Log:
    """A log that keeps every rule. Each part has what one kind of client leaves."""
    log = Log()
    log.opening("opening")
    for number in range(3):
        log.message(f"m{number}")
    log.message("b0", remaining=1)
    log.message("b1")
    log.operation("offsets", op="offsets", group=PULL_GROUP, offsets=[[TOPIC, 0, 3]])
    log.operation("made", op="topic", name="made0", read=2, write=2)
    _reset(log)
    _waiting(log)
    _transactions(log)
    _popped(log)
    _popped_in_order(log)
    _brief(log)
    log.message("j0", OTHER_TOPIC)
    for number in range(2):
        log.message(f"load{number}", LOAD_TOPIC, properties={"UNIQ_KEY": f"K{number}"})
    return log


def _reset(log: Log) -> None:
    log.operation("before reset", op="offsets", group=PUSH_GROUP, offsets=[[TOPIC, 0, 3]])
    log.operation("reset", 1, op="reset", group=PUSH_GROUP, offsets=[[TOPIC, 0, 0]])
    log.operation("unheard", op="offset_reset", group=PUSH_GROUP, topic=TOPIC, queues={0: 0})
    log.operation("heard", op="reset_heard", group=PUSH_GROUP, topic=TOPIC, queue=0, offset=0)
    log.operation("after reset", op="offsets", group=PUSH_GROUP, offsets=[[TOPIC, 0, 2]])


def _waiting(log: Log) -> None:
    """Delayed messages and timer messages, one of which is recalled."""
    for name in ("d0", "d1"):
        log.message(name, SCHEDULE)
    t0_ms = log["d1"].store_ms + 1_055
    due = {"t0": t0_ms, "t1": t0_ms + 1}
    for name in due:
        times = {"TIMER_OUT_MS": str(due[name]), "UNIQ_KEY": name}
        log.message(name, TIMERS, properties=times)
    recall = {"TIMER_OUT_MS": str(due["t1"]), "TIMER_DEL_UNIQKEY": "t1", "UNIQ_KEY": "r1"}
    log.message("recall", TIMERS, value=b"t1|", properties=recall)
    log.pass_ms(1_000)
    for name in ("d0", "d1"):
        log.message(f"{name} came", LATER, value=log[name].value, properties={"REAL_TOPIC": LATER})
    log.operation("delay", op="delay", level=1, next=2)
    log.message("t0 came", LATER, value=b"t0|", properties=log["t0"].properties)
    log.operation("timer", op="timer", begin=0, time=due["t1"] + 1, next=3)


def _transactions(log: Log) -> None:
    """A transaction that is committed, one that is rolled back, and one that is given up."""
    for number, name in enumerate(("h0", "h1", "h2")):
        log.message(name, HALF)
        log.operation(f"open {name}", op="transaction", half=number, at=number, checks=0)
    log.message(
        "h0 came", LATER, value=b"h0|", sys_flag=TRANSACTION_COMMIT, prepared=log["h0"].position, remaining=1
    )
    log.operation("end h0", op="transaction_end", half=0)
    log.operation("end h1", op="transaction_end", half=1)
    for check in range(1, CHECK_MAX + 1):
        log.message(f"h2 for check {check}", HALF, value=b"h2|", prepared=log["h2"].position)
        log.operation(f"check {check}", op="transaction", half=2, at=2 + check, checks=check)
    log.message("h2 given up", DISCARD, value=b"h2|", prepared=log["h2"].position, remaining=1)
    log.operation("end h2", op="transaction_end", half=2)


def _popped(log: Log) -> None:
    """Two messages are popped: one is acknowledged, the other comes again."""
    pop = {"group": POP_GROUP, "topic": TOPIC, "queue": 0, "start": 0, "time": START_MS}
    log.operation("pop", op="pop", offsets=[0, 1], **pop)
    log.operation("pop acked", op="pop_done", offsets=[0], **pop)
    log.message("m1 revived", f"{RETRY}{POP_GROUP}", value=b"m1|", reconsumed=1, remaining=1,
                properties={"1ST_POP_TIME": "1"})  # fmt: skip
    log.operation("pop revived", op="pop_done", offsets=[1], **pop)
    again = pop | {"topic": f"{RETRY}{POP_GROUP}", "time": START_MS + 5_000}
    log.operation("pop 2", op="pop", offsets=[0], **again)
    log.operation("pop 2 acked", op="pop_done", offsets=[0], **again)


def _popped_in_order(log: Log) -> None:
    """Two messages are popped. The first is acknowledged, and the second comes again before the third."""
    place = {"group": ORDERED_GROUP, "topic": TOPIC, "queue": 0}
    pop = place | {"op": "pop_order", "attempt": "", "invisible": 1_500}
    log.operation("order", time=1_000, offsets=[0, 1], counts=[0, 0], **pop)
    log.operation("order acked", time=1_000, offsets=[0, 1], counts=[0, 0], acked=[0], **pop)
    log.operation("order at 1", op="offsets", group=ORDERED_GROUP, offsets=[[TOPIC, 0, 1]])
    log.operation("order 2", time=2_600, offsets=[1], counts=[1], **pop)
    log.operation("order at 2", op="offsets", group=ORDERED_GROUP, offsets=[[TOPIC, 0, 2]])
    log.operation("order 2 over", op="pop_order_end", **place)
    log.operation("order 3", time=2_700, offsets=[2], counts=[0], **pop)
    log.operation("order at 3", op="offsets", group=ORDERED_GROUP, offsets=[[TOPIC, 0, 3]])
    log.operation("order 3 over", op="pop_order_end", **place)


def _brief(log: Log) -> None:
    """A topic that is deleted and made again, and a user with a policy."""
    log.message("x0", BRIEF_TOPIC)
    log.operation("deleted", op="topic_delete", name=BRIEF_TOPIC, at=log["x0"].position)
    log.message("x1", BRIEF_TOPIC)
    log.operation("user", op="user", name="user1", password="p2")
    log.operation("policy", op="acl", user="user1", policy="CUSTOM", resource="Topic:auto")


def evidence(change: Callable[[Log], object] = lambda log: None) -> Evidence:
    """What the sound trial leaves. `change` may change its log before the judges read it."""
    sound, log = sound_log(), sound_log()
    change(log)
    history = BrokerHistory()
    found = Evidence(
        history,
        clients=(
            "producers",
            "operator",
            "pull",
            "push",
            "pop",
            "orderly",
            "pop-orderly",
            "topics",
            "users",
            "log",
            "java",
        ),
        planned=("kill",),
        injected=[Injected("kill", "leader", ("n0",), 1.0, 2.0)],
        flights=[Flight("n0", 10, (), ()), Flight("n1", 9, (), ())],
        replicas=(0, ""),
        load=(2, 0),
        served=[Served("n0", 1, 0)],
    )
    for header, record in log.entries():
        if header.index == 1:
            history.log.calls.append(Call("log-0", "get", 1, record, index=1, end=2, outcome=ACKNOWLEDGED))
            found.entries[1] = record
        found.apply(header, record)
    _sent(history, sound)
    _decided(history)
    _read(found)
    _popped_by(history)
    history.changes = [TopicChange("made0", 2, 1, 2, ACKNOWLEDGED)]
    history.deletions.lives = [
        Life(BRIEF_TOPIC, 0, [BriefSend(b"x0|", ACKNOWLEDGED, 0, 0, once=True)], deleted=True),
        Life(BRIEF_TOPIC, 1, [BriefSend(b"x1|", ACKNOWLEDGED, 0, 0, once=True)]),
    ]
    history.users.users["user1"] = KnownUser("p2", {"Topic:auto"})
    return found


def _sent(history: BrokerHistory, log: Log) -> None:
    """The sends of the producers, one every 10 ms, and their answers."""
    places = {"m0": (TOPIC, 0), "m1": (TOPIC, 1), "m2": (TOPIC, 2)}
    places |= {"d0": (SCHEDULE, 0), "d1": (SCHEDULE, 1), "t0": (TIMERS, 0), "t1": (TIMERS, 1)}
    places |= {"h0": (HALF, 0), "h1": (HALF, 1), "h2": (HALF, 2)}
    sends = [answered(log, topic, [name], offset) for name, (topic, offset) in places.items()]
    sends.insert(3, answered(log, TOPIC, ["b0", "b1"], 3))
    for value, outcome in ((b"refused|", REFUSED), (b"unknown|", UNKNOWN)):
        sends.append(Send("p", TOPIC, [value], 0, outcome=outcome))
    by_java = answered(log, OTHER_TOPIC, ["j0"], 0)
    by_java.client = "java-0"
    sends.append(by_java)
    for number, send in enumerate(sends):
        send.begin, send.end, send.begun = number * 10 * MS, number * 10 * MS + 5 * MS, 0
    history.sends = sends


def answered(log: Log, topic: str, names: list[str], offset: int) -> Send:
    """A send that was acknowledged: of one message, or of a batch."""
    values = [f"{name}|".encode() for name in names]
    send = Send("p", topic, values, 0, batch=len(names) > 1, outcome=ACKNOWLEDGED, queue=0, offset=offset)
    host = pack_ipv4_host("127.0.0.1", 1)
    send.ids = tuple(encode_message_id(host, log[name].position) for name in names if name in log.named)
    return send


def _decided(history: BrokerHistory) -> None:
    transactions, timers = history.transactions, history.timers
    transactions.fates = {b"h0|": Fate.COMMIT, b"h1|": Fate.ROLL_BACK, b"h2|": Fate.NEVER}
    transactions.ends = [
        End(b"h0|", 0, commit=True, outcome=ACKNOWLEDGED),
        End(b"h1|", 1, commit=False, outcome=ACKNOWLEDGED),
    ]
    timers.wanted_ms = dict.fromkeys((b"t0|", b"t1|"), START_MS)
    timers.recalls = [Recall(b"t1|", ACKNOWLEDGED)]
    history.resets = [Reset(PUSH_GROUP, TOPIC, 1, end=2, outcome=ACKNOWLEDGED, told={0: 0})]


def _read(found: Evidence) -> None:
    """Every group receives every message, as the log has it."""
    history = found.history
    for queue, stored in found.replay.messages.items():
        if queue[0] in UNREAD or queue[0] == LOAD_TOPIC or queue[0].startswith((RETRY, BRIEF)):
            continue
        for offset, message in enumerate(stored):
            receipt = Receipt(
                PULL_GROUP,
                "c",
                1,
                queue,
                offset,
                message.value,
                message.position,
                message.store_ms,
                at=SECOND,
            )
            history.received(receipt)
            history.pops.values[message.value] = None
        for group in (PUSH_GROUP, ORDERLY_GROUP, ORDERED_GROUP):
            history.reached.setdefault(group, {})[queue] = len(stored)
    place = OTHER_TOPIC, 0
    for shared in found.replay.messages.get(place, ()):
        told = (shared.value, shared.position, shared.store_ms)
        history.received(Receipt(JavaClient.group, "java-0", 1, place, 0, *told, at=SECOND))
    history.reached.setdefault(JavaClient.group, {})[place] = 1
    history.commits = [Commit(PULL_GROUP, (TOPIC, 0), 3, 10 * SECOND, 11 * SECOND, ACKNOWLEDGED)]
    history.positions = [Position(PULL_GROUP, (TOPIC, 0), 3, 12 * SECOND, 13 * SECOND)]
    history.ends = [QueueEnd("c", (TOPIC, 0), 5, 2 * SECOND, 3 * SECOND)]
    history.turns = [
        Turn(ORDERLY_GROUP, "a", 1, (TOPIC, 0), 0, 10, 1, end=20),
        Turn(ORDERLY_GROUP, "b", 1, (TOPIC, 0), 1, 30, 1, end=40),
    ]


def _popped_by(history: BrokerHistory) -> None:
    pops, ordered = history.pops, history.ordered
    for value, times, at_s in ((b"m0|", 0, 1), (b"m1|", 0, 1), (b"m1|", 1, 6)):
        pops.handed.append(Handed(value, times, (at_s * SECOND, at_s * SECOND + MS), (1, 1)))
    pops.acks = [
        Ack(pops.handed[0], 1 * SECOND + 2 * MS, ACKNOWLEDGED),
        Ack(pops.handed[2], 6 * SECOND + 2 * MS, ACKNOWLEDGED),
    ]
    batches = ((1_000, 0, 0, 1_000), (1_000, 1, 0, 1_000), (2_600, 1, 1, 2_600), (2_700, 2, 0, 2_700))
    for time_ms, offset, times, at_ms in batches:
        between = (at_ms * MS, (at_ms + 1) * MS)
        place, value = ((TOPIC, 0), time_ms), f"m{offset}|".encode()
        ordered.handed.append(Ordered(place, offset, value, times, between, (1, 1)))
    for message in (ordered.handed[place] for place in (0, 2, 3)):
        end = message.between[1] + MS
        ordered.settled.append(Settled(message, ACK, message.between[1], end, ACKNOWLEDGED))


def taken(found: Evidence, values: Iterable[bytes]) -> None:
    """Remove the receipts of these messages."""
    gone = dict.fromkeys(values)
    found.history.receipts = [one for one in found.history.receipts if one.value not in gone]

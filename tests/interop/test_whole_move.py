"""A whole cluster of Apache RocketMQ 5.3.3 moves here and back, as the pages on moving say: 20,000 messages
in five topics, with delays, timers, retries, dead letters and transactions that are under way meanwhile.

Each test prints a table of figures (`-s`): what was sent, lost, repeated, and what came of the rest.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from dledger.client import ReceivedMessage, TransactionProducer
from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port, wait_for
from tests.interop.apache import BROKER_NAME, ApacheGroup
from tests.interop.conftest import rocketmq_libraries
from tests.interop.moved_traffic import (
    DEAD,
    GROUPS,
    LIMIT_S,
    RETRIED,
    TOPICS,
    TRANSACTION_GROUP,
    Consumed,
    LiveProducer,
    Place,
    Sent,
    Table,
    consuming,
    create_topics,
    decide,
    identity,
    judge_messages,
    names_of,
    offsets_of,
    read_all,
    send_halves,
    send_history,
    send_waiting,
    wait_for_names,
)
from tests.interop.test_moving_over import dledger

pytestmark = pytest.mark.interop

VERSION = 533
MESSAGES = 20_000
SEGMENT_SIZE = 16 << 20
ASKED_SOON = {"transactionTimeOut": 10000, "transactionCheckInterval": 5000, "transactionCheckMax": 1000}
"""A time-out below 6 s is too short for Apache's brokers: they note every 3 s which transactions have ended,
and ask for those again that ended since."""
MAX_LINES = 1000
"""That are read of a mirror, which says one a second, for one that is waited for."""


@contextmanager
def apache(directory: Path, *, in_dledger_mode: bool = False) -> Iterator[ApacheGroup]:
    """Its processes run."""
    group = ApacheGroup(
        directory,
        rocketmq_libraries(VERSION),
        find_base_port(start=24000),
        SEGMENT_SIZE,
        dledger=in_dledger_mode,
        broker=ASKED_SOON,
    )
    try:
        yield group
    finally:
        group.stop()


@contextmanager
def ours(directory: Path, namesrv: str = "") -> Iterator[LocalCluster]:
    """A group of ours, not started; behind NameServers of others, where some are given."""
    settings = {name: str(value) for name, value in ASKED_SOON.items()}
    spec = ClusterSpec(
        base_port=find_base_port(start=23000),
        group=BROKER_NAME,
        segment_size=SEGMENT_SIZE,
        broker=settings,
        namesrv=namesrv,
    )
    cluster = LocalCluster.create(directory, spec)
    try:
        yield cluster
    finally:
        cluster.stop()


def fail_some(namesrv: str, group: str, topic: str, how_many: int, tries: int | None) -> set[str]:
    """Consume a topic whole as a group whose listener fails of the first so many messages, once each."""
    chosen: set[str] = set()

    def fails(message: ReceivedMessage) -> bool:
        name = identity(message)
        if len(chosen) < how_many:
            chosen.add(name)
        return name in chosen

    end = len(read_all(namesrv, [topic]))
    with consuming(namesrv, group, topic, fails=fails, tries=tries) as consumed:
        wait_for(
            lambda: len(consumed.names() | consumed.failed) >= end and len(consumed.failed) == how_many,
            LIMIT_S,
            lambda: f"{len(consumed.names())} of {end} consumed, {len(consumed.failed)} failed",
        )
    return chosen


def consume_half(namesrv: str) -> set[str]:
    """Billing has consumed some thousand messages of two topics."""
    with consuming(namesrv, "billing", "orders", "payments") as consumed:
        wait_for(lambda: len(consumed.names()) >= MESSAGES // 10, LIMIT_S, lambda: f"{len(consumed.names())}")
    return consumed.names()


def dead_letters(namesrv: str, group: str, wanted: int) -> dict[Place, bytes]:
    found: dict[Place, bytes] = {}

    def there() -> bool:
        nonlocal found
        found = bodies(read_all(namesrv, [f"%DLQ%{group}"]))
        return len(found) >= wanted

    wait_for(there, LIMIT_S, lambda: f"{len(found)} of {wanted} dead letters")
    return found


def bodies(messages: dict[Place, ReceivedMessage]) -> dict[Place, bytes]:
    return {place: message.body for place, message in messages.items()}


def test_by_import_and_back_by_export(tmp_path: Path) -> None:
    sent, table = Sent(), Table(f"by import from Apache RocketMQ 5.3.3, and back: {MESSAGES} messages")
    with ExitStack() as stack:
        old = stack.enter_context(apache(tmp_path / "old"))
        old.start()
        create_topics(old.namesrv_addr)
        send_history(old.namesrv_addr, MESSAGES, sent)
        had = consume_half(old.namesrv_addr)
        dead = fail_some(old.namesrv_addr, "refunds", "returns", DEAD, tries=0)
        letters = dead_letters(old.namesrv_addr, "refunds", DEAD)
        send_waiting(old.namesrv_addr, sent, "old", [2, 4] * 5 + [5] * 10, range(10, 90, 4))
        send_halves(old.namesrv_addr, sent, "old")
        retried = fail_some(old.namesrv_addr, "shipping", "shipments", RETRIED, tries=None)
        before, stood = bodies(read_all(old.namesrv_addr)), offsets_of(old.namesrv_addr)
        old.stop_brokers()  # the NameServer runs: the new brokers register there under the old name
        new = stack.enter_context(ours(tmp_path / "ours", old.namesrv_addr))
        roots = [new.store(node) for node in new.spec.node_ids]
        done = dledger(
            *("import", old.store(old.led), *roots, "--group", BROKER_NAME, "--segment-size", SEGMENT_SIZE)
        )
        assert done["audit"]["findings"] == []
        underway = f"{done['timers']} timers", f"{done['transactions']} open transactions"
        table.row("import", f"{done['messages']} messages", *underway)
        new.start()
        judge_places(table, before, bodies(read_all(new.namesrv_addr)))
        judge_offsets(table, stood, offsets_of(new.namesrv_addr))
        assert dead_letters(new.namesrv_addr, "refunds", DEAD) == letters
        table.row("dead letters", f"{len(dead)} before", f"{len(letters)} at their places")
        with (
            TransactionProducer(TRANSACTION_GROUP, new.namesrv_addr, check=decide) as producer,
            consuming(new.namesrv_addr, "shipping", "shipments") as shipping,
            consuming(new.namesrv_addr, "billing", "orders", "payments") as billing,
        ):
            producer.queues("payments")
            found = wait_for_names(new.namesrv_addr, sent.wanted)
            judge_messages(table, sent, found)
            judge_retries(table, "shipping", shipping, retried)
            judge_group(table, "billing", billing, had, found, ["orders", "payments"])
        send_waiting(new.namesrv_addr, sent, "ours", [4] * 5, [])
        retried = fail_some(new.namesrv_addr, "clearing", "returns", RETRIED, tries=None)
        after, stood = bodies(read_all(new.namesrv_addr)), offsets_of(new.namesrv_addr)
        leader = new.wait_leader()
        new.wait_caught_up()
    with apache(tmp_path / "back", in_dledger_mode=True) as back:
        dledger("export", new.store(leader), *back.stores, "--broker-conf", tmp_path / "back" / "n0.conf")
        back.start()
        judge_places(table, after, bodies(read_all(back.namesrv_addr)))
        judge_offsets(table, stood, offsets_of(back.namesrv_addr))
        assert dead_letters(back.namesrv_addr, "refunds", DEAD) == letters
        send_waiting(back.namesrv_addr, sent, "back", [2] * 5, [10] * 5)
        with consuming(back.namesrv_addr, "clearing", "returns") as clearing:
            judge_messages(table, sent, wait_for_names(back.namesrv_addr, sent.wanted))
            judge_retries(table, "clearing", clearing, retried)
    table.show()


def judge_places(table: Table, before: dict[Place, bytes], after: dict[Place, bytes]) -> None:
    """Every message is at its queue offset."""
    moved = [place for place, body in before.items() if after.get(place) != body]
    table.row("queue offsets", f"{len(before)} compared", f"{len(moved)} differ")
    assert not moved, moved[:10]


def judge_offsets(
    table: Table,
    before: dict[tuple[str, str, int], int | None],
    after: dict[tuple[str, str, int], int | None],
) -> None:
    differ = {key: (at, after.get(key)) for key, at in before.items() if at != after.get(key)}
    table.row(
        "consumer offsets",
        f"{sum(at is not None for at in before.values())} compared",
        f"{len(differ)} differ",
    )
    assert not differ


def judge_retries(table: Table, group: str, consumed: Consumed, retried: set[str]) -> None:
    """What had failed before the move comes to its group, as a repetition, and once."""
    wait_for(
        lambda: retried <= consumed.names(),
        LIMIT_S,
        lambda: f"{sorted(retried - consumed.names())} of {group}",
    )
    twice = {name for name in retried if consumed.got[name] > 1}
    counted = {name for name in retried if consumed.tries[name] > 0}
    table.row(
        f"retries of {group}",
        f"{len(retried)} failed",
        f"{len(counted)} came as retries",
        f"{len(twice)} twice",
    )
    assert not twice
    assert counted == retried


def judge_group(
    table: Table,
    group: str,
    consumed: Consumed,
    had: set[str],
    found: dict[Place, ReceivedMessage],
    topics: list[str],
) -> None:
    """A group that moved gets all that it had not consumed, and nothing again that it had said it had."""
    wanted = {identity(message) for place, message in found.items() if place.topic in topics}
    wait_for(
        lambda: wanted <= consumed.names() | had,
        LIMIT_S,
        lambda: f"{group}: {len(wanted - consumed.names() - had)} are missing",
    )
    again = consumed.names() & had
    twice = {name for name, times in consumed.got.items() if times > 1}
    table.row(
        f"group {group}",
        f"{len(wanted)} to consume",
        "0 lost",
        f"{len(again)} again",
        f"{len(twice)} twice there",
    )
    assert not twice
    assert not again


def mirror_command(old: str, new: str, *more: str) -> list[str]:
    groups = [word for group in GROUPS for word in ("--group", group)]
    topics = [word for topic in TOPICS for word in ("--topic", topic)]
    return [sys.executable, "-m", "dledger", "mirror", old, new, *topics, *groups, *more]


@contextmanager
def mirroring(old: str, new: str) -> Iterator[Callable[[Callable[[str], bool]], str]]:
    """A mirror that runs; gives a function that reads its lines until one is as wanted."""
    process = subprocess.Popen(
        mirror_command(old, new, "--every", "1"), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None

    def said(wanted: Callable[[str], bool]) -> str:
        assert process.stderr is not None
        for line in islice(process.stderr, MAX_LINES):
            if wanted(line):
                return line
        raise AssertionError(f"the mirror ended: {process.poll()}")

    try:
        yield said
    finally:
        process.terminate()
        process.stderr.read()
        process.wait()
        process.stderr.close()


def behind(line: str) -> int:
    told = re.search(r"copied, (\d+) behind", line)
    return int(told[1]) if told else MESSAGES


def check_command(old: str, new: str) -> dict[str, Any]:
    done = subprocess.run(
        mirror_command(old, new, "--check", "--json"),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if found["moved"] else 1)
    return found


class Failing:
    """Has a listener fail once of each of the next messages, when somebody asks for that."""

    def __init__(self) -> None:
        self.wanted = 0
        self.chosen: set[str] = set()

    def __call__(self, message: ReceivedMessage) -> bool:
        name = identity(message)
        if len(self.chosen) >= self.wanted or name in self.chosen:
            return False
        self.chosen.add(name)
        return True


class Application:
    """Two groups that consume while everything moves, in one cluster at a time."""

    def __init__(self) -> None:
        self.topics = {"billing": ("orders", "payments"), "shipping": ("shipments", "events")}
        self._failing = Failing()
        self._running: dict[str, Consumed] = {}
        self._had: dict[str, Counter[str]] = {group: Counter() for group in self.topics}

    def start(self, namesrv: str) -> None:
        for group, topics in self.topics.items():
            fails = self._failing if group == "shipping" else never
            self._running[group] = Consumed(namesrv, group, *topics, fails=fails)

    def stop(self) -> None:
        while self._running:
            group, consumed = self._running.popitem()
            consumed.close()
            self._had[group].update(consumed.got)

    def fail(self, count: int) -> set[str]:
        """Wait until the listener of shipping has failed of so many messages; which they are."""
        before, failing = set(self._failing.chosen), self._failing
        failing.wanted = len(before) + count
        wait_for(lambda: len(failing.chosen) == failing.wanted, LIMIT_S, lambda: "nothing comes to shipping")
        return failing.chosen - before

    def _counts(self, group: str) -> Counter[str]:
        running = self._running.get(group)
        return self._had[group] + (running.counts() if running else Counter[str]())

    def has(self, group: str) -> set[str]:
        """What the group has consumed."""
        return set(self._counts(group))

    def again(self, group: str) -> set[str]:
        """What it has consumed more than once."""
        return {name for name, times in self._counts(group).items() if times > 1}


def never(message: ReceivedMessage) -> bool:
    return False


def test_by_mirror_and_back_by_mirror(tmp_path: Path) -> None:
    sent, table = (
        Sent(),
        Table(f"by mirror from Apache RocketMQ 5.3.3, and back: {MESSAGES} messages, and live ones"),
    )
    applications, producers = Application(), list[LiveProducer]()
    with apache(tmp_path / "old") as old, ours(tmp_path / "ours") as new:
        old.start()
        new.start()
        create_topics(old.namesrv_addr)
        send_history(old.namesrv_addr, MESSAGES, sent)
        fail_some(old.namesrv_addr, "refunds", "returns", DEAD, tries=0)
        letters = sorted(dead_letters(old.namesrv_addr, "refunds", DEAD).values())
        applications.start(old.namesrv_addr)
        producers.append(LiveProducer(old.namesrv_addr, "live-old", sent))
        try:
            for way, here, there in (
                ("there", old.namesrv_addr, new.namesrv_addr),
                ("back", new.namesrv_addr, old.namesrv_addr),
            ):
                table.row(f"-- {way}")
                send_waiting(here, sent, way, [2, 4] * 5, range(5, 45, 4))
                send_halves(here, sent, way)
                move_live(table, sent, applications, producers, way, here, there)
                assert sorted(dead_letters(there, "refunds", DEAD).values()) == letters
                table.row("dead letters", f"{DEAD} before", f"{len(letters)} there")
        finally:
            for producer in producers:
                producer.stop()
            applications.stop()
    table.show()


def move_live(
    table: Table,
    sent: Sent,
    applications: Application,
    producers: list[LiveProducer],
    way: str,
    here: str,
    there: str,
) -> None:
    """The steps of the page, while a producer sends and groups consume."""
    with (
        TransactionProducer(TRANSACTION_GROUP, here, check=decide) as payer,
        mirroring(here, there) as said,
    ):
        payer.queues("payments")
        said(lambda line: behind(line) < 100)
        retried = applications.fail(RETRIED)  # whose retries are left behind, as the group moves
        applications.stop()
        for _ in range(3):  # a report sets the offsets of the groups
            said(lambda line: behind(line) < 100)
        applications.start(there)
        before = producers[-1]
        before.stop()
        producers.append(LiveProducer(there, f"live-{way}", sent))
        wait_for(lambda: producers[-1].count > 300, LIMIT_S, lambda: f"{producers[-1].count} sent")
        wanted = sent.wanted
        found = wait_for_names(there, wanted)
        wait_for(
            lambda: check_command(here, there)["moved"], LIMIT_S, lambda: str(check_command(here, there))
        )
        table.row("live messages", f"{before.count} sent here", f"{producers[-1].count} sent there so far")
    judge_messages(table, sent, found, wanted)
    for group, topics in applications.topics.items():
        judge_live_group(table, group, applications, found, topics)
    table.row(
        "retries of shipping", f"{len(retried)} failed", f"{len(retried & applications.has('shipping'))} came"
    )
    assert retried <= applications.has("shipping")


def judge_live_group(
    table: Table,
    group: str,
    applications: Application,
    found: dict[Place, ReceivedMessage],
    topics: tuple[str, ...],
) -> None:
    """A group gets everything, in one of the two clusters, and once."""
    wanted = {identity(message) for place, message in found.items() if place.topic in topics}
    wait_for(
        lambda: wanted <= applications.has(group),
        LIMIT_S,
        lambda: f"{group} lost {len(wanted - applications.has(group))}",
    )
    again = applications.again(group) - sent_twice(found)
    table.row(f"group {group}", f"{len(wanted)} to consume", "0 lost", f"{len(again)} again")
    assert not again, sorted(again)[:20]


def sent_twice(found: dict[Place, ReceivedMessage]) -> set[str]:
    return {name for name, times in names_of(found.values()).items() if times > 1}

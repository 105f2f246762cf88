"""`dledger mirror` between two groups of one broker each: no group loses a message, nothing is undone."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import pytest

from dledger.admin import AsyncAdminClient
from dledger.client import (
    ConsumerOptions,
    ConsumeStatus,
    LocalTransactionState,
    Message,
    PopConsumer,
    PopOptions,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
)
from dledger.client.errors import BrokerRefused, ClientError
from dledger.commands.moving.mirror import Mirror
from dledger.commands.moving.mirrored_queues import QueueCopy
from dledger.formats.pop_handles import retry_topic_v1
from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port, wait_for
from dledger.remoting.bodies import MessageQueue, SubscriptionGroupConfig
from dledger.remoting.registration import TopicConfig

LIMIT_S = 60.0
MAX_LINES = 200
"""That are read for one that is waited for: a mirror here says one every 0.2 s."""
T = TypeVar("T")


class Pair(NamedTuple):
    """The two clusters' NameServers."""

    old: str
    new: str


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both have a broker of the same name, as RocketMQ's have by default. Failed messages come again soon."""
    settings = {"messageDelayLevel": "1s 1s 2s 2s " + " ".join(["2h"] * 14)}
    clusters = [
        LocalCluster.create(
            tmp_path_factory.mktemp(name),
            ClusterSpec(base_port=find_base_port(start=start), nodes=1, broker=settings),
        )
        for name, start in (("old", 22_000), ("new", 24_000))
    ]
    try:
        for cluster in clusters:
            cluster.start()
        yield Pair(*(cluster.namesrv_addr for cluster in clusters))
    finally:
        for cluster in clusters:
            cluster.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W", "_", request.node.name)[:100]


def create(namesrv: str, topic: str, queues: int = 1) -> None:
    with Producer("maker", namesrv) as producer:
        producer.create_topic(topic, queues)


def send(namesrv: str, topic: str, *bodies: bytes) -> None:
    with Producer("sender", namesrv) as producer:
        for body in bodies:
            producer.send(Message(topic, body))


def read(namesrv: str, topic: str, group: str = "reader", *, begin: bool = True) -> list[bytes]:
    """Messages of a topic with one queue up to its end: from its beginning, or from the group's offset on."""
    with PullConsumer(group, namesrv) as consumer:
        (queue,) = consumer.queues(topic)
        consumer.assign([queue])
        if begin:
            consumer.seek_to_begin(queue)
        end, found = consumer.highest(queue), list[bytes]()

        def whole() -> bool:
            found.extend(message.body for message in consumer.poll(0.2))
            return consumer.position(queue) >= end

        wait_for(whole, LIMIT_S, lambda: f"{found}")
        return found


def consume(namesrv: str, topic: str, group: str, offset: int) -> None:
    with PullConsumer(group, namesrv) as consumer:
        (queue,) = consumer.queues(topic)
        consumer.assign([queue])
        consumer.seek(queue, offset)
        consumer.commit()


def admin(namesrv: str, work: Callable[[AsyncAdminClient, str], Awaitable[T]]) -> T:
    """Ask the one broker of a cluster."""

    async def main() -> T:
        async with AsyncAdminClient(namesrv) as client:
            (address,) = (await client.brokers.masters()).values()
            return await work(client, address)

    return asyncio.run(main())


def offset_of(namesrv: str, topic: str, group: str) -> int | None:
    async def work(client: AsyncAdminClient, address: str) -> int | None:
        return await client.offsets.committed(address, group, MessageQueue(topic, "", 0))

    return admin(namesrv, work)


def command(pair: Pair, *options: str) -> list[str]:
    return [sys.executable, "-m", "dledger", "mirror", pair.old, pair.new, *options]


def mirrored(pair: Pair, *options: str) -> subprocess.CompletedProcess[str]:
    wanted = command(pair, "--once", "--json", *options)
    return subprocess.run(wanted, capture_output=True, text=True, timeout=120, check=False)


def mirror(pair: Pair, topic: str, *groups: str) -> tuple[dict[str, Any], str]:
    """Its result, and what it said meanwhile."""
    options = [
        "--topic",
        topic,
        "--once",
        "--json",
        *(word for group in groups for word in ("--group", group)),
    ]
    done = subprocess.run(command(pair, *options), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result, done.stderr


@contextmanager
def mirroring(pair: Pair, *options: str) -> Iterator[Callable[[str], re.Match[str]]]:
    """A mirror that runs; gives a function that reads what it says until something is there."""
    process = subprocess.Popen(
        command(pair, "--every", "0.2", *options),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None

    def said(pattern: str) -> re.Match[str]:
        assert process.stderr is not None
        lines = []
        for line in islice(process.stderr, MAX_LINES):
            lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"not said among {len(lines)} lines: {lines[-20:]}")

    try:
        yield said
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()


def test_a_producer_that_moves_before_a_group_loses_nothing_for_it(pair: Pair, topic: str) -> None:
    create(pair.old, topic)
    send(pair.old, topic, b"a", b"b")
    consume(pair.old, topic, "early", 2)
    mirror(pair, topic, "early", "late")
    new = [b"1", b"2", b"3", b"4", b"5"]
    send(pair.new, topic, *new)
    send(pair.old, topic, b"c")
    for group in ("early", "late"):
        consume(pair.old, topic, group, 3)
    done, said = mirror(pair, topic, "early", "late")
    assert read(pair.new, topic) == [b"a", b"b", *new, b"c"]
    for group in ("early", "late"):
        assert read(pair.new, topic, group, begin=False) == [*new, b"c"], (
            "the copy comes again, nothing is lost"
        )
        assert f"group {group} stays at 2" in said
    assert "Move all groups before the first producer" in said
    assert done["held"] == {"early": 1, "late": 1}


def test_a_group_goes_on_at_the_first_copy_that_it_has_not_consumed(pair: Pair, topic: str) -> None:
    create(pair.old, topic)
    send(pair.old, topic, b"a", b"b", b"c", b"d")
    consume(pair.old, topic, "mover", 1)
    done, said = mirror(pair, topic, "mover")
    assert (done["offsets"], done["left"], done["held"]) == ({"mover": 1}, {"mover": 3}, {})
    assert "; mover: 3 left in the old cluster" in said
    consume(pair.old, topic, "mover", 3)
    done, _ = mirror(pair, topic, "mover")
    assert (done["copied"], done["offsets"], done["left"]) == (0, {"mover": 1}, {"mover": 1})
    assert read(pair.new, topic, "mover", begin=False) == [b"d"]
    done, _ = mirror(pair, topic, "mover")
    assert done["offsets"] == {"mover": 0}


def test_a_reset_in_the_new_cluster_stays(pair: Pair, topic: str) -> None:
    """Also for a mirror that is started after it, and while the group goes on in the old cluster."""
    create(pair.old, topic)
    send(pair.old, topic, b"a", b"b", b"c", b"d")
    consume(pair.old, topic, "reset", 3)
    with mirroring(pair, "--topic", topic, "--group", "reset") as said:
        wait_for(lambda: offset_of(pair.new, topic, "reset") == 3, LIMIT_S, lambda: "not moved")
        admin(pair.new, lambda client, address: client.offsets.reset(address, "reset", topic, 0))
        said(r"group reset .*(was moved back|was reset)")
        consume(pair.old, topic, "reset", 4)
        for _ in range(3):
            said("4 copied")
        assert offset_of(pair.new, topic, "reset") == 0
    done, _ = mirror(pair, topic, "reset")
    assert done["offsets"] == {"reset": 0}
    assert offset_of(pair.new, topic, "reset") == 0
    assert read(pair.new, topic, "reset", begin=False) == [b"a", b"b", b"c", b"d"]


def test_a_mirror_back_copies_no_copies(pair: Pair, topic: str) -> None:
    create(pair.old, topic)
    send(pair.old, topic, b"a", b"b", b"c")
    mirror(pair, topic)
    send(pair.new, topic, b"d", b"e")
    back = Pair(pair.new, pair.old)
    done, said = mirror(back, topic)
    assert (done["copied"], done["skipped"]) == (2, 3)
    assert "3 had come from the new cluster" in said
    assert read(pair.old, topic) == [b"a", b"b", b"c", b"d", b"e"]
    done, _ = mirror(back, topic)
    assert done["copied"] == 0
    done, _ = mirror(pair, topic)
    assert (done["copied"], done["skipped"]) == (0, 2)
    assert read(pair.new, topic) == [b"a", b"b", b"c", b"d", b"e"]


def test_mirrors_in_both_directions_come_to_rest(pair: Pair, topic: str) -> None:
    create(pair.old, topic)
    create(pair.new, topic)
    with (
        mirroring(pair, "--topic", topic) as there,
        mirroring(Pair(pair.new, pair.old), "--topic", topic) as back,
    ):
        send(pair.old, topic, b"a")
        send(pair.new, topic, b"b")
        there(r"1 copied, 0 behind, 1 had come")
        back(r"1 copied, 0 behind, 1 had come")
        for _ in range(5):
            assert there(r"(\d+) copied")[1] == "1"
            assert back(r"(\d+) copied")[1] == "1"
    assert sorted(read(pair.old, topic)) == sorted(read(pair.new, topic)) == [b"a", b"b"]


def test_a_group_gets_no_offset_where_it_never_consumed(pair: Pair, topic: str) -> None:
    other = f"{topic}_2"
    for name in (topic, other):
        create(pair.old, name)
        send(pair.old, name, b"a", b"b")
    consume(pair.old, topic, "half", 1)
    done = mirrored(pair, "--topic", topic, "--topic", other, "--group", "half")
    assert json.loads(done.stdout)["left"] == {"half": 1}
    assert offset_of(pair.new, topic, "half") == 1
    assert offset_of(pair.new, other, "half") is None


def test_settings_of_topics_and_groups_come_along(pair: Pair, topic: str) -> None:
    create(pair.old, topic, 3)
    send(pair.old, topic, b"a", b"b")
    wanted = TopicConfig(topic, 3, 3, 4, order=True, attributes={"+message.type": "NORMAL"})
    group = SubscriptionGroupConfig(
        "settings", consumeEnable=False, consumeBroadcastEnable=False, retryQueueNums=2, retryMaxTimes=0
    )

    async def make(client: AsyncAdminClient, address: str) -> None:
        await client.topics.put(address, wanted)
        await client.groups.put(address, group)

    admin(pair.old, make)
    done, _ = mirror(pair, topic, "settings")
    assert done["copied"] == 2

    async def look(client: AsyncAdminClient, address: str) -> list[Any]:
        return [await client.topics.config(address, topic), await client.groups.config(address, "settings")]

    assert admin(pair.new, look) == admin(pair.old, look)
    admin(pair.new, lambda client, address: client.groups.put(address, SubscriptionGroupConfig("settings")))
    _, said = mirror(pair, topic, "settings")
    assert "group settings: consumeEnable is True in the new cluster, False in the old one" in said


def test_the_end_says_what_still_waits_in_the_old_cluster(pair: Pair, topic: str) -> None:
    create(pair.old, topic)
    with Producer("sender", pair.old) as producer:
        producer.send(Message(topic, b"later", delay_level=18))
    done, _ = mirror(pair, topic, "waiter")
    assert done["waiting"]["delayed messages"] == 1


def test_a_queue_with_many_messages_of_others_is_looked_at_further_back(pair: Pair, topic: str) -> None:
    create(pair.old, topic)
    send(pair.old, topic, b"a")
    mirror(pair, topic)
    with Producer("sender", pair.new) as producer:
        (queue,) = producer.queues(topic)
        producer.send_batch([Message(topic, b"%d" % number) for number in range(50)], queue)
    options = ["--topic", topic, "--once", "--look-back", "32"]
    refused = subprocess.run(
        command(pair, *options), capture_output=True, text=True, timeout=120, check=False
    )
    assert refused.returncode == 1
    assert "--look-back" in refused.stderr
    assert mirror(pair, topic)[0]["copied"] == 0


def fail_once(namesrv: str, topic: str, group: str, messages: int, tries: int | None = None) -> None:
    """Consume a topic whole as a push consumer that fails of every message."""
    seen: set[bytes] = set()

    def listener(message: ReceivedMessage) -> ConsumeStatus:
        seen.add(message.body)
        return ConsumeStatus.RECONSUME_LATER

    options = ConsumerOptions(max_reconsume_times=tries, commit_s=0.2)
    with PushConsumer(group, namesrv, listener, topic=topic, from_where="FIRST", options=options):
        wait_for(lambda: len(seen) == messages, LIMIT_S, lambda: f"{seen}")
        wait_for(lambda: offset_of(namesrv, topic, group) == messages, LIMIT_S, lambda: "not committed")


def ends(namesrv: str, topic: str) -> int:
    async def work(client: AsyncAdminClient, address: str) -> int:
        return await client.offsets.highest(address, MessageQueue(topic, "", 0))

    try:
        return admin(namesrv, work)
    except BrokerRefused:
        return 0  # no such topic yet


def test_retries_of_a_group_that_moved_come_in_the_new_cluster(pair: Pair, topic: str) -> None:
    """Those that were waiting for their delay when the mirror ended as well; counted as retries, and once."""
    group = "failing"
    retries = f"%RETRY%{group}"
    create(pair.old, topic)
    send(pair.old, topic, b"a", b"b")
    fail_once(pair.old, topic, group, 2)
    done, _ = mirror(pair, topic, group)
    waiting = done["waiting"].get("delayed messages", 0)
    assert waiting + ends(pair.old, retries) >= 2, "they wait, or have come by now"
    wait_for(lambda: ends(pair.old, retries) == 2, LIMIT_S, lambda: "the retries did not come")
    mirror(pair, topic, group)
    got: list[tuple[bytes, int]] = []

    def again(message: ReceivedMessage) -> ConsumeStatus:
        got.append((message.body, message.reconsume_times))
        return ConsumeStatus.RECONSUME_LATER if message.reconsume_times == 1 else ConsumeStatus.SUCCESS

    with PushConsumer(group, pair.new, again, topic=topic):
        wanted = [(b"a", 1), (b"a", 2), (b"b", 1), (b"b", 2)]
        wait_for(lambda: sorted(got) == wanted, LIMIT_S, lambda: f"{got}")
    done, _ = mirror(pair, topic, group)
    assert done["copied"] == 0, "what was given back again is no copy"
    back, _ = mirror(Pair(pair.new, pair.old), topic, group)
    assert (back["copied"], back["skipped"]) == (2, 4), "the second retries, and neither copies nor firsts"


def test_retries_of_what_a_group_pops_come_in_the_new_cluster(pair: Pair, topic: str) -> None:
    group = "popping"
    create(pair.old, topic)
    send(pair.old, topic, b"a", b"b")
    with PopConsumer(group, pair.old, topic=topic, options=PopOptions(invisible_s=1.0)) as consumer:
        popped: set[bytes] = set()
        wait_for(
            lambda: popped.update(one.body for one in consumer.pop()) or len(popped) == 2,
            LIMIT_S,
            lambda: f"{popped}",
        )
    retries = retry_topic_v1(topic, group)
    wait_for(lambda: ends(pair.old, retries) == 2, LIMIT_S, lambda: "nothing came back")
    mirror(pair, topic, group)
    done, _ = mirror(pair, topic, group)
    assert done["copied"] == 0
    got: dict[bytes, int] = {}
    with PopConsumer(group, pair.new, topic=topic) as consumer:

        def all_came() -> bool:
            for message in consumer.pop():
                got[message.body] = max(message.reconsume_times, got.get(message.body, 0))
                consumer.ack(message)
            return got == {b"a": 1, b"b": 1}

        wait_for(all_came, LIMIT_S, lambda: f"{got}")


def test_dead_letters_of_a_group_come_along(pair: Pair, topic: str) -> None:
    group = "mortal"
    create(pair.old, topic)
    send(pair.old, topic, b"a")
    fail_once(pair.old, topic, group, 1, tries=0)
    wait_for(lambda: ends(pair.old, f"%DLQ%{group}") == 1, LIMIT_S, lambda: "no dead letter")
    for _ in range(2):
        mirror(pair, topic, group)
        assert read(pair.new, f"%DLQ%{group}") == [b"a"]


def test_a_group_moves_back_to_where_it_is(pair: Pair, topic: str) -> None:
    """What it has consumed as copies does not come to it again, and nothing else is left out."""
    group = "returner"
    create(pair.old, topic)
    send(pair.old, topic, *(b"%d" % number for number in range(6)))
    consume(pair.old, topic, group, 2)
    mirror(pair, topic, group)
    send(pair.new, topic, b"n0", b"n1")
    back = Pair(pair.new, pair.old)
    for consumed, rest in ((4, [b"4", b"5", b"n0", b"n1"]), (7, [b"n1"])):
        consume(pair.new, topic, group, consumed)
        done, said = mirror(back, topic, group)
        assert (done["held"], done["offsets"]) == ({}, {group: 1}), said
        assert read(pair.old, topic, group, begin=False) == rest


def test_a_check_says_what_is_left_and_changes_nothing(pair: Pair, topic: str) -> None:
    create(pair.old, topic)
    send(pair.old, topic, b"a", b"b", b"c")
    consume(pair.old, topic, "checked", 1)
    options = ("--topic", topic, "--group", "checked")

    def checked() -> tuple[int, dict[str, Any]]:
        wanted = command(pair, *options, "--check", "--json")
        done = subprocess.run(wanted, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, json.loads(done.stdout)

    code, found = checked()
    assert (code, found["moved"], found["behind"]) == (1, False, {topic: 3})
    assert found["groups"] == {"checked": {"left": 2, "old_consumers": 0, "new_consumers": 0}}
    assert ends(pair.new, topic) == 0
    mirror(pair, topic, "checked")
    code, found = checked()
    assert (found["behind"], found["groups"]["checked"]["left"]) == ({}, 2)
    with PushConsumer("checked", pair.old, lambda message: None, topic=topic):
        wait_for(
            lambda: checked()[1]["groups"]["checked"]["old_consumers"] == 1, LIMIT_S, lambda: "no consumer"
        )
        assert checked()[0] == 1
    with Producer("sender", pair.old) as producer:
        sent = producer.send(Message(topic, b"later", delay=timedelta(hours=1)))
        code, found = checked()
        assert producer.recall(topic, str(sent.recall_handle))
    assert (code, found["waiting"]["timer messages"]) == (1, 1)


def test_a_check_counts_open_transactions_and_not_those_that_ended(pair: Pair, topic: str) -> None:
    create(pair.old, topic)

    def halves() -> int:
        wanted = command(pair, "--topic", topic, "--check", "--json")
        done = subprocess.run(wanted, capture_output=True, text=True, timeout=120, check=False)
        return json.loads(done.stdout)["waiting"].get("half messages", 0)

    with TransactionProducer("payer", pair.old, check=lambda _: LocalTransactionState.UNKNOWN) as producer:
        with producer.transaction(Message(topic, b"ended")):
            pass
        transaction = producer.transaction(Message(topic, b"open")).begin()
        assert halves() == 1
        transaction.commit()
        wait_for(lambda: halves() == 0, LIMIT_S, lambda: "still open")


def test_a_check_of_a_mirror_back_counts_no_copies(pair: Pair, topic: str) -> None:
    create(pair.old, topic)
    send(pair.old, topic, b"a", b"b")
    mirror(pair, topic)
    back = Pair(pair.new, pair.old)
    for sent in (0, 1):
        send(pair.new, topic, *[b"new"] * sent)
        wanted = command(back, "--topic", topic, "--check", "--json")
        done = subprocess.run(wanted, capture_output=True, text=True, timeout=120, check=False)
        assert json.loads(done.stdout)["behind"] == ({topic: sent} if sent else {})


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_mirror_in_order(pair: Pair, topic: str, number: int, code: int) -> None:
    """It sets the offsets of groups once more, and says what it has done and what still waits."""
    create(pair.old, topic)
    send(pair.old, topic, b"a", b"b")
    process = subprocess.Popen(
        command(pair, "--topic", topic, "--group", "ended", "--every", "600", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: ends(pair.new, topic) == 2, LIMIT_S, lambda: "not copied")
        consume(pair.old, topic, "ended", 1)
        process.send_signal(number)
        output, said = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code, said
    assert json.loads(output)["copied"] == 2
    assert offset_of(pair.new, topic, "ended") == 1


def test_after_an_error_no_queue_of_a_topic_counts_as_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader of one of its brokers is changing: the topic is looked at again at the next report."""
    nobody: Any = None
    one = Mirror(nobody, nobody, nobody, print)
    queues = [MessageQueue("%RETRY%group", broker, 0) for broker in ("a", "b")]
    failing = ["b"]

    async def resume(copy: QueueCopy, look_back: int) -> int:
        if copy.source.brokerName in failing:
            raise ClientError("no leader")
        return 0

    monkeypatch.setattr(one.clusters, "resume", resume)
    with pytest.raises(ClientError):
        asyncio.run(one._pair(queues, queues))
    assert one.queues == []
    failing.clear()
    asyncio.run(one._pair(queues, queues))
    assert [copy.source for copy in one.queues] == queues

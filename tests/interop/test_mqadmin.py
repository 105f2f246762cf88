"""Apache RocketMQ's own mqadmin, 4.9 and 5, on a real three-node group with a Java consumer.

Commands of a test run side by side: most of the time a JVM starts.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from dledger import ClientOptions, Message, Producer, PushConsumer, ReceivedMessage
from dledger.broker.offset.offset_processor import MEMBERS_KNOWN_S
from dledger.local.cluster import LocalCluster, wait_for
from tests.interop.apache import LOGBACK, java_command
from tests.interop.conftest import Driver, java_client, rocketmq_libraries

pytestmark = pytest.mark.interop

VERSIONS = (4, 5)
READY_S = 60
SENT = 40
RESET_HEARD_S = 60
"""A Java consumer waits 10 s before it goes back, and divides the queues anew then (every 20 s)."""
TOGETHER = 4
"""JVMs at once."""


@dataclass
class Stage:
    """A topic with messages, and a Java consumer that is online."""

    group: LocalCluster
    topic: str
    consumer_group: str
    producer: Driver
    consumer: Driver

    @property
    def leader(self) -> str:
        """Address of the leader."""
        return self.group.addr(wait_for(self.group.leader, READY_S, lambda: "no leader"))


@pytest.fixture(params=VERSIONS, ids=lambda major: f"java{major}")
def major(request: pytest.FixtureRequest) -> int:
    """Major version of mqadmin and its client."""
    return int(request.param)


@pytest.fixture
def stage(
    major: int, group: LocalCluster, drive: Callable[..., Driver], topics: Callable[[str], str]
) -> Stage:
    topic = topics(f"Admin{major}")
    kind = java_client(major, 1000)
    consumer = drive(kind, "consume", group.namesrv_addr, topic, f"CG_admin{major}")
    producer = drive(kind, "produce", group.namesrv_addr, topic, f"PG_admin{major}")
    consumer.wait(lambda events: len(received(events)) >= SENT, READY_S)
    return Stage(group, topic, f"CG_admin{major}", producer, consumer)


def received(events: list[dict[str, Any]]) -> list[int]:
    return [item["seq"] for item in events if item["event"] == "received"]


def mqadmin(major: int, group: LocalCluster, arguments: str) -> subprocess.Popen[str]:
    """Started; it prints and ends."""
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    command = java_command(rocketmq_libraries(major), main, *arguments.split(), "-n", group.namesrv_addr)
    conf = group.directory / "mqadmin" / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "logback_tools.xml").write_text(LOGBACK)  # 4.9 does not start without
    environment = {**os.environ, "ROCKETMQ_HOME": str(conf.parent)}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=group.directory,  # consumerStatus writes there
    )


def printed(major: int, group: LocalCluster, *commands: str) -> list[str]:
    """What each prints."""
    outputs: list[str] = []
    for start in range(0, len(commands), TOGETHER):
        running = [mqadmin(major, group, command) for command in commands[start : start + TOGETHER]]
        outputs += [process.communicate(timeout=60)[0] for process in running]
    for command, output in zip(commands, outputs, strict=True):
        print(f"--- mqadmin {major}: {command}\n{output}")
    return outputs


def check(major: int, group: LocalCluster, wanted: Mapping[str, str]) -> None:
    """Each command prints what matches its expression."""
    for (command, expression), output in zip(wanted.items(), printed(major, group, *wanted), strict=True):
        assert re.search(expression, output), f"{command}: {expression!r} is not in: {output}"


def test_what_it_shows(major: int, stage: Stage) -> None:
    topic, name = stage.topic, stage.consumer_group
    check(
        major,
        stage.group,
        {
            "topicList": topic,
            f"topicRoute -t {topic}": re.escape(stage.leader),
            f"brokerStatus -b {stage.leader}": r"putTps +: [1-9]\S* [1-9]",
            "clusterList": rf"{re.escape(stage.leader)} .*V5_3_3",
            "clusterList -m": r"broker-\S+ +0 +0 +[1-9]",
            "consumerProgress": rf"{name} .*PUSH +CLUSTERING",
            f"consumerProgress -g {name}": rf"{topic} +\S+ +0 +[1-9]\d* +\d+ ",
            f"topicStatus -t {topic}": r"broker\S* +0 +0 +[1-9]\d* +20",
            f"statsAll -t {topic}": rf"{topic} +{name} +\d+ +[1-9]\S* +[1-9]\S* +[1-9]\d* +[1-9]",
            f"consumerConnection -g {name}": r"(?s)JAVA.*ConsumeType: CONSUME_PASSIVELY",
            f"producerConnection -g PG_admin{major} -t {topic}": "JAVA",
            f"brokerConsumeStats -b {stage.leader}": rf"{topic} +{name} ",
            f"consumerStatus -g {name}": "Rebalance OK",
            "getConsumerConfig -g " + name: "groupName",
        },
    )


def test_it_finds_messages(major: int, group: LocalCluster, topics: Callable[[str], str]) -> None:
    """By key, by unique key, and the units of a ConsumeQueue."""
    topic = topics(f"JavaQueries{major}")
    leader = wait_for(group.leader, READY_S, lambda: "no leader")
    with Producer("PG_queries", group.namesrv_addr) as producer:
        sent = [producer.send(Message(topic, b"%d" % number, keys=f"k{number} all")) for number in range(6)]
    wanted = {
        f"queryMsgByKey -t {topic} -k k3": [sent[3].message_id],
        f"queryMsgByKey -t {topic} -k all": [one.message_id for one in sent],
        f"queryMsgByUniqueKey -t {topic} -i {sent[4].message_id}": [sent[4].message_id, "k4 all"],
        f"queryCq -t {topic} -q {sent[5].queue.queue_id} -i {sent[5].queue_offset} -c 1 "
        f"-b {group.addr(leader)}": [f"max: {sent[5].queue_offset + 1}", "physicOffset"],
    }
    running = {arguments: mqadmin(major, group, arguments) for arguments in wanted}
    for arguments, process in running.items():
        printed, _ = process.communicate(timeout=60)
        missing = [text for text in wanted[arguments] if text not in printed]
        assert not missing, f"{arguments}: {missing} not in {printed}"


def test_it_resets_one_queue(major: int, stage: Stage) -> None:
    """Reset a group whose consumer is online (`resetOffsetByQueueId`: a commit, 15, and a reset, 222)."""
    if major == 4:
        pytest.skip("mqadmin 4.9 resets whole topics")
    topic, name = stage.topic, stage.consumer_group
    stage.producer.close()
    sent = {item["seq"]: item["queue"] for item in stage.producer.named("acked")}
    stage.consumer.wait(lambda events: sent.keys() <= set(received(events)), READY_S)
    command = f"resetOffsetByTime -g {name} -t {topic} -s 0 -b {stage.leader} -q 0 -o 1"
    wait_for(
        lambda: "taken over too recently" not in printed(major, stage.group, command)[0],
        2 * MEMBERS_KNOWN_S,
        lambda: "no commit sets a group back",
    )

    def again(events: list[dict[str, Any]]) -> bool:
        seen = received(events)
        twice = {seq for seq in sent if seen.count(seq) >= 2}
        return len(twice) >= sum(queue == 0 for queue in sent.values()) - 1

    stage.consumer.wait(again, RESET_HEARD_S)


def test_it_resets_offsets(major: int, stage: Stage, drive: Callable[..., Driver]) -> None:
    """Reset a group whose consumer is online: everything comes again, and no message that the consumer
    still has undoes the reset. Reset a group whose consumers are gone: the next consumer begins at the new
    offset."""
    topic, name = stage.topic, stage.consumer_group
    stage.producer.close()
    sent = {item["seq"] for item in stage.producer.named("acked")}
    stage.consumer.wait(lambda events: sent <= set(received(events)), READY_S)
    command = f"resetOffsetByTime -g {name} -t {topic} -s 0"
    check(major, stage.group, {command: r"(?s)#offset.* 0\s"})

    def again(events: list[dict[str, Any]]) -> bool:
        seen = received(events)
        return all(seen.count(seq) >= 2 for seq in sent)

    stage.consumer.wait(again, RESET_HEARD_S)
    stage.consumer.close()
    check(major, stage.group, {command: r"(?s)#offset.* 0\s"})
    later = drive(java_client(major, 1000), "consume", stage.group.namesrv_addr, topic, name)
    later.wait(lambda events: sent <= set(received(events)), READY_S)
    later.close()
    check(
        major,
        stage.group,
        {
            f"cloneGroupOffset -s {name} -d CG_clone{major} -t {topic}": "clone group offset success",
        },
    )
    check(major, stage.group, {f"consumerProgress -g CG_clone{major}": rf"{topic} +\S+ +0 +[1-9]\d* +[1-9]"})


def test_our_consumer_answers_it(major: int, group: LocalCluster, topics: Callable[[str], str]) -> None:
    """Its state, its threads, its listener called with one message, and a reset."""
    topic = topics(f"Ours{major}")
    name, seen = f"CG_ours{major}", queue.SimpleQueue[bytes]()
    with Producer("PG_ours", group.namesrv_addr) as producer:
        sent = [producer.send(Message(topic, b"%d" % number)) for number in range(SENT)]
    bodies = sorted(b"%d" % number for number in range(SENT))

    def listener(message: ReceivedMessage) -> None:
        seen.put(message.body)

    client = ClientOptions(client_ip="127.0.0.1", instance_name=f"ours{major}")
    who = f"{client.client_ip}@{client.instance_name}"
    with PushConsumer(name, group.namesrv_addr, listener, topic=topic, from_where="FIRST", client=client):
        assert sorted(seen.get(timeout=READY_S) for _ in range(SENT)) == bodies
        which = f" -t {topic}" if major == 5 else ""
        rates = rf"RT&TPS.*{topic} +[\d.]+ +[\d.]*[1-9]"
        check(
            major,
            group,
            {
                f"consumerConnection -g {name}": re.escape(who) + ".*PYTHON",
                f"consumerStatus -g {name}": f"(?s){re.escape(who)}.*Rebalance OK",
                f"consumerStatus -g {name} -i {who} -s": rf"(?s)PASSIVELY.*commitOffset=\d.*{rates}.*thread",
                f"queryMsgById -i {sent[7].offset_message_id} -g {name} -d {who}{which}": "=CR_SUCCESS",
            },
        )
        assert seen.get(timeout=READY_S) == b"7"
        check(major, group, {f"resetOffsetByTime -g {name} -t {topic} -s 0": r"(?s)#offset.* 0\s"})
        assert sorted(seen.get(timeout=READY_S) for _ in range(SENT)) == bodies
    check(major, group, {f"consumerProgress -g {name}": r"(?m)Diff Total: 0"})


def test_it_deletes_for_good_and_to_all_brokers(
    major: int, group: LocalCluster, topics: Callable[[str], str]
) -> None:
    """A topic and a group are gone everywhere, and a topic of that name begins at 0. A command that goes to
    all brokers of the cluster works at once, also where a follower is asked."""
    topic, name = f"Gone{major}", f"CG_gone{major}"
    leader = wait_for(group.leader, READY_S, lambda: "no leader")
    (follower, *_) = (node for node in group.spec.node_ids if node != leader)
    check(
        major,
        group,
        {
            f"updateTopic -c DefaultCluster -t {topic} -r 1 -w 1": f"{group.addr(leader)} success",
            f"updateSubGroup -c DefaultCluster -g {name}": "success",
            f"updateTopic -b {group.addr(follower)} -t {topic}F": "success",
        },
    )
    for turn in range(2):
        with Producer("PG_gone", group.namesrv_addr) as producer:
            producer.create_topic(topic, 1)
            assert [producer.send(Message(topic, b"%d" % turn)).queue_offset for _ in range(3)] == [0, 1, 2]
        check(
            major,
            group,
            {f"printMsg -t {topic}": rf"(?s)BODY: {turn}(?!.*BODY: {turn - 1})"},
        )
        check(
            major,
            group,
            {
                f"deleteTopic -c DefaultCluster -t {topic}": rf"\[{topic}\] from cluster .*success",
                f"deleteSubGroup -c DefaultCluster -g {name}": "success",
            },
        )
    (listed,) = printed(major, group, "topicList")
    assert topic not in listed.split() and f"%RETRY%{name}" not in listed.split()


def test_it_administers_a_group(major: int, stage: Stage) -> None:
    """What asks a master for its slaves, cleans, exports, and the rest of what works on a Raft group."""
    leader = stage.leader
    stage.group.create_topic(f"Rt{major}")
    later = {
        "haStatus -c DefaultCluster": r"(?s)#InSyncSlaveNum\s+2.*OK.*OK",
        "getBrokerEpoch -c DefaultCluster": r"epoch=\d+, startOffset=0",
        f"producer -b {leader}": "language=JAVA",
        f"getColdDataFlowCtrInfo -b {leader}": "does not slow down groups",
        f"createUser -b {leader} -u someone -p something": "create user to .* success",
        f"getControllerMetaData -a {stage.group.namesrv_addr}": "among themselves, by Raft",
    }
    check(
        major,
        stage.group,
        {
            f"getBrokerConfig -b {leader}": r"brokerRole\s+=\s+SYNC_MASTER",
            "cleanExpiredCQ -c DefaultCluster": "success",
            "cleanUnusedTopic -c DefaultCluster": "success",
            "deleteExpiredCommitLog -c DefaultCluster": "success",
            "exportConfigs -c DefaultCluster -f .": "success",
            "exportMetrics -c DefaultCluster -f .": "success",
            "exportMetadata -c DefaultCluster -f .": "success",
            f"checkMsgSendRT -t Rt{major} -a 2 -s 64": "true",
            f"allocateMQ -t {stage.topic} -i a,b": '"a":',
            "topicClusterList -t " + stage.topic: "DefaultCluster",
            **(later if major == 5 else {}),
        },
    )

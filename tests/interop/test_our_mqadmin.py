"""`dledger mqadmin` and `dledger admin` beside Apache's mqadmin, and on Apache's own brokers."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from dledger import ClientError, ClientOptions, Message, Producer, PushConsumer, ReceivedMessage
from dledger.commands.app import main
from dledger.local.cluster import LocalCluster, find_base_port, wait_for
from tests.interop.apache import BROKER_NAME, START_LIMIT_S, ApacheGroup
from tests.interop.conftest import rocketmq_libraries
from tests.interop.test_mqadmin import printed

pytestmark = pytest.mark.interop

LIMIT_S = 60
NOT_COMPARED = re.compile(r" *\d+\.\d+(E-?\d+)?\b|(?<=\s)\d+ms")
"""Rates and spans, which move between two looks."""


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def ours(namesrv: str, *words: str) -> Done:
    """Run `dledger WORDS` in this process: a hundred of them would take a minute to start."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([*words, "-n", namesrv])
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def lines_of(text: str) -> list[str]:
    """Without order, which is chance in Apache's; without rates and blank lines."""
    return sorted(NOT_COMPARED.sub("N", line).rstrip() for line in text.splitlines() if line.strip())


def test_it_prints_what_apaches_prints(group: LocalCluster, topics: Callable[[str], str]) -> None:
    """Each line of RocketMQ 5's: heads, columns, widths and values."""
    topic, name, seen = topics("OursBeside"), "CG_beside", list[bytes]()
    namesrv = group.namesrv_addr
    leader = group.addr(wait_for(group.leader, LIMIT_S, lambda: "no leader"))

    def listener(message: ReceivedMessage) -> None:
        seen.append(message.body)

    client = ClientOptions(client_ip="127.0.0.1", instance_name="beside")
    with Producer("PG_beside", namesrv, client=client) as producer:
        sent = [producer.send(Message(topic, b"%d" % number, keys=f"k{number}")) for number in range(4)]
        with PushConsumer(name, namesrv, listener, topic=topic, from_where="FIRST", client=client):
            wait_for(lambda: len(seen) == 4 or None, LIMIT_S, lambda: f"{seen}")
            done = partial(ours, namesrv, "mqadmin", "consumerProgress", "-g", name, "--json")
            wait_for(
                lambda: json.loads(done().stdout).get("Consume Diff Total") == 0 or None,
                LIMIT_S,
                lambda: "behind",
            )
            commands = [
                "topicList",
                f"topicRoute -t {topic} -l",
                f"topicStatus -t {topic}",
                "clusterList",
                f"consumerProgress -g {name}",
                f"consumerConnection -g {name}",
                f"producerConnection -g PG_beside -t {topic}",
                f"brokerConsumeStats -b {leader}",
                f"statsAll -t {topic}",
                f"queryCq -t {topic} -q {sent[0].queue.queue_id} -i 0",
                f"haStatus -b {leader}",
                f"printMsg -t {topic}",
            ]
            for command, wanted in zip(commands, printed(5, group, *commands), strict=True):
                found = ours(namesrv, "mqadmin", *command.split())
                assert found.returncode == 0, found
                theirs = [line for line in lines_of(wanted) if "|-" not in line]
                mine = lines_of(found.stdout)
                if command.startswith("printMsg"):  # properties stand in the order of a hash table
                    theirs, mine = ([line.split("propert")[0] for line in one] for one in (theirs, mine))
                if command.startswith("haStatus"):  # the log grows between two looks
                    theirs, mine = ([re.sub(r"\s*\d+", " N", line) for line in one] for one in (theirs, mine))
                if command == "topicList":  # Apache's tool makes a topic
                    theirs = [line for line in theirs if "TOOLS_CONSUMER" not in line]
                    mine = [line for line in mine if "TOOLS_CONSUMER" not in line]
                assert mine == theirs, command


@pytest.fixture(scope="module", params=[5, 4], ids=["rocketmq5", "rocketmq4"])
def apache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheGroup]:
    directory = tmp_path_factory.mktemp("apache") / "group"
    group = ApacheGroup(directory, rocketmq_libraries(request.param), find_base_port(start=25500))
    try:
        group.start()
        yield group
    finally:
        group.kill()


def created(namesrv: str, topic: str) -> bool | None:
    done = ours(namesrv, "admin", "topic", "create", topic, "--queues", "4")
    return True if done.returncode == 0 or "already" in done.stderr else None


def sent_to(producer: Producer, topic: str, number: int) -> str | None:
    """Its id; Apache's slaves hear of topics every ten seconds, and its masters move in between."""
    try:
        return producer.send(Message(topic, b"body %d" % number, keys=f"k{number}")).message_id
    except ClientError:
        return None


def test_it_drives_apaches_brokers(apache: ApacheGroup, tmp_path: Path) -> None:
    namesrv, topic = apache.namesrv_addr, "Driven"
    wait_for(partial(created, namesrv, topic), START_LIMIT_S, lambda: "no topic could be created")
    with Producer("PG_driven", namesrv) as producer:
        for number in range(3):
            wait_for(
                partial(sent_to, producer, topic, number), START_LIMIT_S, lambda: "no message was stored"
            )

    def all_tell() -> bool:
        """In its first second a broker of 4.9.5 has no figures: it answers with an exception."""
        return ours(namesrv, "mqadmin", "clusterList").returncode == 0

    wait_for(all_tell, START_LIMIT_S, "clusterList fails")
    for words, wanted in {
        "topicList": topic,
        f"topicStatus -t {topic}": rf"{BROKER_NAME} +3 +0 ",
        "clusterList": rf"RaftCluster +{BROKER_NAME} +0 +",
        "brokerStatus -c RaftCluster": "putTps",
        "getBrokerConfig -c RaftCluster": "brokerName +=  " + BROKER_NAME,
        "updateSubGroup -c RaftCluster -g CG_driven": "success",
        "getConsumerConfig -g CG_driven": "retryMaxTimes +=  16",
        f"queryMsgByKey -t {topic} -k k1": r"[0-9A-F]{32} +\d",
        f"printMsg -t {topic}": "BODY: body 2",
        f"updateTopicPerm -c RaftCluster -t {topic} -p 6": "update topic perm",
        "updateKvConfig -s ours -k a -v b": "success",
        f"wipeWritePerm -b {BROKER_NAME}": "OK, [1-9]",
        f"addWritePerm -b {BROKER_NAME}": "OK, [1-9]",
        f"exportMetadata -c RaftCluster -f {tmp_path}": "success",
        f"exportMetrics -c RaftCluster -f {tmp_path}": "success",
        f"consumeMessage -t {topic} -c 3": "Consume ok",
    }.items():
        found = ours(namesrv, "mqadmin", *words.split())
        assert found.returncode == 0 and re.search(wanted, found.stdout), (words, found)
    for words, wanted in {
        "topic list": topic,
        f"topic show {topic}": BROKER_NAME,
        f"topic update {topic} --perm r": "perm",
        f"topic update {topic} --perm rw --queues 5": "read queues",
        "group list": "CG_driven",
        f"offset reset CG_driven {topic} --to latest --dry-run": "dry run",
        f"offset reset CG_driven {topic} --to latest --yes": "are reset",
        "offset show CG_driven": "0 messages behind",
        f"offset reset CG_driven {topic} --to earliest --yes": "are reset",
        f"message list {topic}": "body 2",
        f"message find {topic} k2": "body 2",
        "broker list": "master",
        "group delete CG_driven --yes": "deleted",
        f"topic delete {topic} --yes": "deleted",
    }.items():
        found = ours(namesrv, "admin", *words.split())
        assert found.returncode == 0 and re.search(wanted, found.stdout), (words, found)
    assert topic not in ours(namesrv, "mqadmin", "topicList").stdout.split()

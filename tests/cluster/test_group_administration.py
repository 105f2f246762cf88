"""Every command of `dledger mqadmin`, and those of `dledger admin`, on a real group with a consumer
online."""

from __future__ import annotations

import json
import re
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dledger import (
    ClientOptions,
    ConsumerOptions,
    ConsumeStatus,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from dledger.admin import AdminClient, Refused
from dledger.commands.app import main
from dledger.commands.declared.mqadmin.table import COMMANDS
from dledger.local.cluster import LocalCluster, wait_for

LIMIT_S = 30.0
CLIENT = ClientOptions(client_ip="127.0.0.1", instance_name="walker")
WHO = "127.0.0.1@walker"
ENDLESS = ("clusterRT", "startMonitoring")
Run = Callable[..., tuple[int, str, str]]


@dataclass
class Stage:
    """A topic with three messages, one in a queue, and a consumer that has them."""

    group: LocalCluster
    topic: str
    sent: list[Any]
    directory: Path

    @property
    def leader(self) -> str:
        return self.group.addr(wait_for(self.group.leader, LIMIT_S, lambda: "no leader"))


@pytest.fixture(scope="module")
def stage(group: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    group.create_topic("Walk", 2)
    group.wait_registered()  # commands for a cluster go to whom the NameServer lists
    seen: list[bytes] = []

    def listener(message: ReceivedMessage) -> None:
        seen.append(message.body)

    with Producer("PG_walk", group.namesrv_addr, client=CLIENT) as producer:
        sent = [
            producer.send(Message("Walk", b"body %d" % number, tags=f"T{number % 2}", keys=f"k{number} all"))
            for number in range(3)
        ]
        with PushConsumer(
            "CG_walk", group.namesrv_addr, listener, topic="Walk", from_where="FIRST", client=CLIENT
        ):
            wait_for(lambda: len(seen) >= 3 or None, LIMIT_S, lambda: f"{seen}")
            with AdminClient(group.namesrv_addr) as admin:

                def committed() -> bool | None:
                    return admin.offsets.stats("CG_walk", "Walk").behind == 0 or None

                wait_for(committed, LIMIT_S, lambda: "offsets are not committed")
            yield Stage(group, "Walk", sent, tmp_path_factory.mktemp("walk"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stage: Stage) -> Run:
    """Run `dledger WORDS` here: its exit code, and what it printed."""
    monkeypatch.setenv("NAMESRV_ADDR", stage.group.namesrv_addr)
    monkeypatch.chdir(stage.directory)

    def one(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return one


def walk(stage: Stage) -> dict[str, str]:
    """Command line -> what it prints (a regular expression). `!` before it: it fails, with this on stderr."""
    leader, topic, sent = stage.leader, stage.topic, stage.sent
    queue, offset = sent[0].queue.queue_id, sent[0].queue_offset
    directory = stage.directory
    (directory / "topics.json").write_text('[{"topicName":"WalkList","readQueueNums":1,"writeQueueNums":1}]')
    (directory / "groups.json").write_text('[{"groupName":"CG_walkList"}]')
    namesrv = stage.group.namesrv_addr
    with AdminClient(namesrv) as admin:
        members = admin.brokers.cluster().addresses()
    none_here = "! (?:CODE: 3|mqadmin .*: CODE: 3)"
    return {
        "updateTopic -c DefaultCluster -t WalkOwn -r 2 -w 2": f"create topic to {leader} success",
        f"updateTopic -b {leader} -t WalkOrder -o true -w 3": r"orderConf=\[broker-a:3\]",
        f"updateTopicList -b {leader} -f topics.json": "submit batch of topic config",
        "topicList": "(?m)^WalkList$",
        "topicList -c": f"DefaultCluster +{topic} +CG_walk",
        f"topicRoute -t {topic}": f'"0":"{re.escape(leader)}"',
        f"topicRoute -t {topic} -l": r"DefaultCluster +broker-a .* 2 +2 +6",
        "topicRoute -t WalkNot": "! .*CODE: 17",
        f"topicStatus -t {topic}": r"broker-a +0 +0 +\d+ +20\d\d-",
        f"topicClusterList -t {topic}": "DefaultCluster",
        f"updateTopicPerm -b {leader} -t WalkOwn -p 4": "from 6 to 4",
        "updateTopicPerm -c DefaultCluster -t WalkOwn -p 6": "from 4 to 6",
        "updateOrderConf -t WalkOrder -m get": r"orderConf=\[broker-a:3\]",
        f"allocateMQ -t {topic} -i a,b": '"a":.*"b":',
        f"statsAll -t {topic}": f"{topic} +CG_walk +0 ",
        "updateSubGroup -c DefaultCluster -g CG_walkOwn -r 3": "retryMaxTimes=3",
        f"updateSubGroupList -b {leader} -f groups.json": "submit batch of subscription group",
        f"setConsumeMode -b {leader} -t WalkOwn -g CG_walkOwn -m PULL": "set consume mode to",
        "updateSubGroup -c DefaultCluster -g CG_walkOwn -r 3 -w 2": (
            "these settings have no effect here: consumeFromMinEnable, whichBrokerWhenConsumeSlowly"
        ),
        "getConsumerConfig -g CG_walkOwn": r"retryMaxTimes +=  3",
        "consumerProgress": "CG_walk +1 +V5_3_3 +PUSH +CLUSTERING",
        "consumerProgress -g CG_walk -s true": rf"{topic} +broker-a +0 .*127\.0\.0\.1",
        "consumerStatus -g CG_walk": f"(?s){WHO}.*Rebalance OK",
        f"consumerStatus -g CG_walk -i {WHO}": f"(?s)CONSUME_PASSIVELY.*{topic}",
        "consumerConnection -g CG_walk": f"(?s){WHO} .*PYTHON.*{topic} .*ConsumeType: CONSUME_PASSIVELY",
        f"producerConnection -g PG_walk -t {topic}": f"0001  {WHO}",
        f"producer -b {leader}": r"producer group \(PG_walk\)",
        f"brokerConsumeStats -b {leader}": rf"{topic} +CG_walk +broker-a",
        "cloneGroupOffset -s CG_walkNot -d CG_walkOwn -t Walk": "! .*CODE: 206",
        "cloneGroupOffset -s CG_walk -d CG_walkOwn -t Walk": "clone group offset success",
        f"resetOffsetByTime -g CG_walkNot -t {topic} -s 0": "! .*CODE: 26",
        f"skipAccumulatedMessage -g CG_walkNot -t {topic}": "! .*CODE: 26",
        f"resetOffsetByTime -g CG_walkOwn -t {topic} -s 0": r"broker-a +0 +0",
        f"resetOffsetByTime -g CG_walkOwn -t {topic} -s now -b {leader} -q 0 -o 0": "consumer offset to 0",
        f"skipAccumulatedMessage -g CG_walkOwn -t {topic}": r"#offset",
        f"queryMsgById -t {topic} -i {sent[0].offset_message_id}": r"Keys: +\[k0 all\]",
        f"queryMsgById -t {topic} -i {sent[0].message_id} -f UTF-8": "Message Body: +body 0",
        f"queryMsgById -t {topic} -i {sent[0].message_id} -g CG_walk -d {WHO}": "consumeResult=CR_SUCCESS",
        f"queryMsgById -t {topic} -i {'0' * 32}": "! .*CODE: 22",
        f"queryMsgByKey -t {topic} -k k1": sent[1].message_id,
        f"queryMsgByUniqueKey -t {topic} -i {sent[2].message_id}": "(?s)k2 all.*trackType=CONSUMED,",
        f"queryMsgByOffset -t {topic} -b broker-a -i {queue} -o {offset}": "k0 all",
        "queryMsgTraceById -i " + sent[0].message_id: "! .*CODE: 17",
        f"printMsg -t {topic}": "(?s)BODY: body 0.*----",
        f"printMsg -t {topic} -s T1 -d false": "(?s)BODY: NOT PRINT BODY",
        f"printMsgByQueue -t {topic} -a broker-a -i {queue} -p true -d true -f true": "Tag: T0",
        f"consumeMessage -t {topic} -c 2": "Consume ok",
        f"queryCq -t {topic} -q {queue} -i 0": r"max: [1-3], min: 0",
        "sendMessage -t WalkOwn -p hello -k a -c b": "SEND_OK",
        "checkMsgSendRT -t WalkOwn -a 2": r"(?s)true.*Avg RT: \d",
        "sendMsgStatus -b broker-a -c 2": "sendStatus=SEND_OK",
        f"brokerStatus -b {leader}": r"putTps +: ",
        f"getBrokerConfig -b {leader}": r"brokerRole +=  SYNC_MASTER",
        "getBrokerConfig -c DefaultCluster": "My Master: ",
        f"updateBrokerConfig -b {leader} -k rejectTransactionMessage -v false": "broker config success",
        "updateBrokerConfig -c DefaultCluster -k rejectTransactionMessage -v false": (
            "(?s)" + ".*".join(f"success, {address}" for address in members)
        ),
        f"updateBrokerConfig -b {leader} -k noSuchSetting -v 1": "! CODE: 1 ",
        "clusterList": rf"broker-a +0 +{re.escape(leader)} +V5_3_3",
        "clusterList -m": r"broker-a +0 +0 +[1-9]",
        "haStatus -c DefaultCluster": r"(?s)#InSyncSlaveNum\s+2.*OK",
        "getBrokerEpoch -b broker-a": r"epoch=\d+, startOffset=0",
        "cleanExpiredCQ -c DefaultCluster": "success",
        "deleteExpiredCommitLog": "success",
        "cleanUnusedTopic": "success",
        "updateKvConfig -s walk -k a -v b": "success",
        "deleteKvConfig -s walk -k a": "success",
        "wipeWritePerm -b broker-a": "OK, [1-9]",
        "addWritePerm -b broker-a": "OK, [1-9]",
        "getNamesrvConfig": "listenPort",
        "updateNamesrvConfig -k orderMessageEnable -v true": "update name server config success",
        "exportMetadata -c DefaultCluster -f .": "metadata.json success",
        f"exportMetadata -b {leader} -t -f .": "topic.json success",
        "exportConfigs -c DefaultCluster -f .": "configs.json success",
        "exportMetrics -c DefaultCluster -f .": "metrics.json success",
        f"getColdDataFlowCtrInfo -b {leader}": none_here,
        f"updateColdDataFlowCtrGroupConfig -b {leader} -g G -v 1": none_here,
        f"removeColdDataFlowCtrGroupConfig -b {leader} -g G": none_here,
        f"setCommitLogReadAheadMode -b {leader} -m 1": none_here,
        f"switchTimerEngine -b {leader} -e F": none_here,
        f"exportPopRecord -b {leader}": none_here,
        f"exportPopRecord -b {leader} -d true": "dryRun=true",
        "checkRocksdbCqWriteProgress -c DefaultCluster": none_here,
        f"rocksDBConfigToJson -b {leader}": none_here,
        "exportMetadataInRocksDB -p . -t topics": "! .*does not read RocksDB",
        "updateStaticTopic -t A -qn 3 -b x": "! .*static topics",
        "remappingStaticTopic -t A -b x": "! .*static topics",
        f"addBroker -c {leader} -b f": none_here,
        f"removeBroker -c {leader} -b a:b:1": none_here,
        f"resetMasterFlushOffset -b {leader} -o 1": none_here,
        f"getControllerMetaData -a {namesrv}": none_here,
        f"getControllerConfig -a {namesrv}": none_here,
        f"updateControllerConfig -a {namesrv} -k a -v b": none_here,
        f"electMaster -a {namesrv} -b 1 -bn broker-a -c DefaultCluster": none_here,
        f"cleanBrokerMetadata -a {namesrv} -bn broker-a -c DefaultCluster": none_here,
        f"getSyncStateSet -a {namesrv} -b broker-a": none_here,
        "dumpCompactionLog -f nothing": "! .*file nothing: No such file",
        "deleteSubGroup -c DefaultCluster -g CG_walkOwn -r true": "delete subscription group",
        "deleteTopic -c DefaultCluster -t WalkOwn": "from NameServer success",
        "deleteTopic -c DefaultCluster -t WalkOrder": "from NameServer success",
        "updateOrderConf --topic WalkOrder -m get": "! .*no orderConf",
    }


ACCOUNTS = (
    "createUser", "updateUser", "deleteUser", "getUser", "listUser", "copyUser", "createAcl", "updateAcl",
    "deleteAcl", "getAcl", "listAcl", "copyAcl", "updateAclConfig", "deleteAclConfig",
    "clusterAclConfigVersion", "updateGlobalWhiteAddr", "getAclConfig",
)  # fmt: skip
"""Their brokers' side has tests of its own; here that each gets an answer."""


def test_every_command_of_mqadmin(run: Run, stage: Stage) -> None:
    lines = walk(stage)
    named = {line.split()[0] for line in lines} | {*ACCOUNTS, *ENDLESS}
    assert named == set(COMMANDS)
    for line, wanted in lines.items():
        code, out, err = run("mqadmin", *line.split())
        print(f"--- {line}\n{out}{err}")
        if wanted.startswith("! "):
            assert code == 1 and re.search(wanted[2:], err), (line, code, out, err)
        else:
            assert code == 0 and re.search(wanted, out), (line, code, out, err)


def test_commands_of_access_control_get_an_answer(run: Run, stage: Stage) -> None:
    values = {
        "u": "walker",
        "p": "secret12",
        "s": "User:walker",
        "r": "Topic:a",
        "a": "Pub",
        "d": "Allow",
        "g": "1.2.3.4",
    }
    for name in ACCOUNTS:
        words = ["-f", stage.leader, "-t", stage.leader] if name.startswith("copy") else ["-b", stage.leader]
        for option in COMMANDS[name].options:
            given = {"-" + option.short} & set(words)
            if not given and (option.required or option.one_of == "what") and "-t" not in words:
                words += [f"-{option.short}", values[option.short]]
                if option.one_of:
                    break
        code, out, err = run("mqadmin", name, *words)
        assert code == 0 or re.search(r"CODE: \d+  DESC: \S|there is no", err), (name, words, out, err)


@pytest.mark.parametrize("name", ENDLESS)
def test_commands_that_go_on_print_a_round(stage: Stage, name: str) -> None:
    words = [sys.executable, "-m", "dledger", "mqadmin", name, "--json", "-n", stage.group.namesrv_addr]
    more = ["-a", "2"] if name == "clusterRT" else []
    with subprocess.Popen([*words, *more], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], LIMIT_S)
        line = process.stdout.readline() if ready else ""
        process.terminate()
    found = json.loads(line)
    (rows,) = found.values()
    assert rows and all(isinstance(row, dict) for row in rows)


def test_json_has_the_rows_of_the_tables(run: Run, stage: Stage) -> None:
    for line, key, column in (
        ("topicStatus -t Walk", "queues", "Max Offset"),
        ("clusterList", "brokers", "Addr"),
        ("consumerProgress -g CG_walk", "queues", "Diff"),
        ("queryMsgByKey -t Walk -k all", "messages", "Message ID"),
        ("printMsg -t Walk", "found", "body"),
        ("haStatus -c DefaultCluster", "brokers", "haConnectionInfo"),
    ):
        code, out, _ = run("mqadmin", *line.split(), "--json")
        rows = [row for one in out.splitlines() for row in json.loads(one).get(key, ())]
        assert code == 0 and rows and all(column in row for row in rows), out
    code, out, err = run("mqadmin", "topicRoute", "-t", "WalkNot", "--json")
    assert code == 1 and "CODE: 17" in json.loads(out)["errors"][0] and "CODE: 17" in err


def test_commands_for_people(run: Run, stage: Stage) -> None:
    """A topic and a group from their making to their end; with JSON, and each change first tried dry."""

    def told(line: str) -> dict[str, Any]:
        code, out, err = run("admin", *line.split(), "--json")
        assert code == 0, (line, out, err)
        found: dict[str, Any] = json.loads(out)
        return found

    def names() -> list[str]:
        return [row["topic"] for row in told("topic list")["topics"]]

    assert told("topic create people --queues 2 --dry-run")["dryRun"] and "people" not in names()
    told("topic create people --queues 2")
    change = told("topic update people --queues 3 --perm rw --dry-run")["changes"]
    assert [(row["setting"], row["before"], row["after"]) for row in change] == [
        ("read queues", 2, 3),
        ("write queues", 2, 3),
    ]
    assert told("topic update people --queues 3")["changes"] == change
    assert len(told("topic show people")["queues"]) == 3
    wide = told("topic create wide --read-queues 2 --write-queues 4 --dry-run")["warnings"]
    assert wide == [
        "messages in queues 2 to 3 cannot be read, because the topic has more queues to write than to read"
    ]
    first = told("message send people hello --key k1 --tag paid --property from=test")
    assert told("message find people k1")["messages"][0]["msgId"] == first["id"]
    shown = told(f"message show people {first['id']}")
    assert shown["body"] == "hello" and shown["properties"]["from"] == "test"
    told(f"message resend people {first['id']} --yes")
    assert [one["body"] for one in told("message list people")["messages"]] == ["hello", "hello"]
    assert len(told("message list people --since -1h --limit 1")["messages"]) == 1
    told("topic create ordered --queues 2 --order")
    assert told("namesrv kv list ORDER_TOPIC_CONFIG")["values"] == {"ordered": "broker-a:2"}
    told("topic update ordered --queues 3")
    assert told("namesrv kv list ORDER_TOPIC_CONFIG")["values"] == {"ordered": "broker-a:3"}
    told("topic delete ordered --yes")
    assert told("namesrv kv list ORDER_TOPIC_CONFIG")["values"] == {}
    told("topic create kept --queues 3")
    for key in "abcdefgh":
        told(f"message send kept x --ordering-key {key}")
    fewer = told("topic update kept --queues 1")
    changed = {row["setting"]: row["after"] for row in fewer["changes"]}
    assert changed.pop("write queues") == 1 and changed.get("read queues") != 1
    assert "readQueueNums stays" in fewer["warnings"][0]
    told("group create readers")
    for dry in ("--dry-run", "--yes"):
        reset = told(f"offset reset readers people --to latest {dry}")
        assert sum(row["after"] for row in reset["queues"]) == 2
        behind = told("offset show readers")["behind"] if dry == "--yes" else 0
        assert behind == 0
    back = told("offset reset readers people --to earliest --yes")["queues"]
    assert sum(row["again"] for row in back) == 2 and told("offset show readers")["behind"] == 2
    queue = next(row for row in back if row["end"] > 0)["queue"]
    one = told(f"offset reset readers people --to offset:1 --queue {queue} --yes")["queues"]
    assert [(row["queue"], row["after"]) for row in one] == [(queue, 1)]
    assert told("offset show readers")["behind"] < 2
    told("offset clone readers others --yes")
    assert told("offset show others")["queues"] == told("offset show readers")["queues"]
    assert told("group update readers --max-retries 2")["changes"][0]["after"] == 2
    nothing = told("group update readers --no-from-min")
    assert nothing["changes"] == []
    assert nothing["warnings"] == ["these settings have no effect here: consumeFromMinEnable"]
    assert "readers" in [row["group"] for row in told("group list")["groups"]]
    assert told("group show CG_walk")["consumers"][0]["client"] == WHO
    sent = stage.sent[0].message_id
    assert told(f"message consume Walk {sent} --group CG_walk")["result"] == "CR_SUCCESS"
    assert told(f"message show Walk {sent}")["groups"][0]["state"] == "CONSUMED"
    for dry in ("--dry-run", "--yes"):
        changed = told(f"broker set rejectTransactionMessage true {dry}")["changes"]
        assert [row["before"] for row in changed] == ["false"] * 3
    assert {one["rejectTransactionMessage"] for one in told("broker config")["brokers"].values()} == {"true"}
    told("broker set rejectTransactionMessage false --yes")
    assert len(told("broker list")["brokers"]) == 3 and told("broker replication")["brokers"]
    told("namesrv kv put walk a b")
    assert told("namesrv kv list walk")["values"] == {"a": "b"}
    told("namesrv kv delete walk a --yes")
    told("namesrv stop-writes broker-a --yes")
    told("namesrv resume-writes broker-a")
    told("group delete readers --yes")
    told("topic delete people --yes")
    assert "people" not in names()


def test_dead_letters_are_given_back_to_their_group_alone(run: Run, stage: Stage) -> None:
    """Once each, with all their tries, and to nobody else who consumes the topic."""

    def redelivered(options: str) -> list[str]:
        code, out, err = run("admin", "message", "redeliver", "CG_dying", *options.split(), "--json")
        assert code == 0, err
        return [one["body"] for one in json.loads(out)["messages"]]

    where = stage.group.namesrv_addr
    stage.group.create_topic("Dying", 2)
    seen: list[tuple[str, bytes, int, str | None]] = []
    well = threading.Event()

    def listener(message: ReceivedMessage) -> ConsumeStatus:
        seen.append((message.topic, message.body, message.reconsume_times, message.properties.get("shop")))
        return ConsumeStatus.SUCCESS if well.is_set() else ConsumeStatus.RECONSUME_LATER

    others: list[bytes] = []
    never = ConsumerOptions(max_reconsume_times=0)
    with (
        PushConsumer("CG_dying", where, listener, topic="Dying", from_where="FIRST", options=never),
        PushConsumer("CG_well", where, lambda message: others.append(message.body), topic="Dying"),
        Producer("PG_dying", where) as producer,
    ):
        for body in (b"a", b"b"):
            producer.send(Message("Dying", body, tags="T", keys="k", properties={"shop": "7"}))
        wait_for(lambda: sorted(redelivered("--dry-run")) == ["a", "b"] or None, LIMIT_S, lambda: f"{seen}")
        well.set()
        assert len(redelivered("--limit 1 --yes")) == 1 and len(redelivered("--yes")) == 1
        assert redelivered("--dry-run") == [] and len(redelivered("--since -1h --dry-run")) == 2
        wait_for(lambda: len(seen) >= 4 or None, LIMIT_S, lambda: f"{seen}")
        assert sorted(seen) == [("Dying", body, 0, "7") for body in (b"a", b"a", b"b", b"b")]
        assert sorted(others) == [b"a", b"b"]
        assert sorted(redelivered("--since -1h --yes")) == ["a", "b"]
        wait_for(lambda: len(seen) >= 6 or None, LIMIT_S, lambda: f"{seen}")


def test_what_is_wrong_is_told(run: Run, stage: Stage) -> None:
    for line, text in (
        ("topic show Wlak", "did you mean 'Walk'"),
        ("group show CG_wlak", "did you mean 'CG_walk'"),
        ("topic create Walk", "already"),
        ("broker set noSuch 1", "no setting 'noSuch'"),
        ("topic list -n 127.0.0.1:1", "no NameServer answers"),
        ("topic delete Walk", "give --yes"),
        ("offset reset CG_walk Walk --to yesterday", "give earliest"),
        ("offset reset CG_walk Walk --to latest --queue 99 --yes", "Walk has no queue 99 at broker-a"),
    ):
        code, _, err = run("admin", *line.split())
        assert code == 1 and text in err, (line, err)


def test_the_library_without_a_command(stage: Stage) -> None:
    with AdminClient(stage.group.namesrv_addr) as admin:
        assert "Walk" in admin.topics.names() and admin.topics.groups("Walk") == ["CG_walk"]
        (address,) = admin.brokers.masters().values()
        assert address == stage.leader and admin.offsets.stats_at(address, "CG_walk").behind == 0
        admin.namesrv.put("library", "a", "b")
        assert admin.namesrv.get("library", "a") == "b" and admin.namesrv.get("library", "c") is None
        with pytest.raises(Refused) as refused:
            admin.topics.stats_at(address, "WalkNot")
        assert refused.value.code == 17 and refused.value.address == address


def test_an_account_signs_what_operators_ask(
    new_group: Callable[..., LocalCluster],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accounts = "accounts:\n  - {accessKey: operator, secretKey: operator-secret, admin: true}\n"
    (tmp_path / "accounts.yml").write_text(accounts)
    group = new_group(broker={"aclEnable": "true", "aclFile": str(tmp_path / "accounts.yml")})
    commands = ("admin topic create Signed", "mqadmin updateSubGroup -c DefaultCluster -g CG_signed")
    for key, code in (("", 1), ("operator", 0)):
        monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", key)
        monkeypatch.setenv("ROCKETMQ_SECRET_KEY", f"{key}-secret" if key else "")
        for words in commands:
            with pytest.raises(SystemExit) as ended:
                main([*words.split(), "-n", group.namesrv_addr])
            told = capsys.readouterr()
            assert ended.value.code == code, (words, told)
            assert code == 0 or "No accessKey is configured" in told.err


def test_a_change_of_leader_is_waited_for(run: Run, stage: Stage) -> None:
    """What goes to all masters of a cluster goes to who leads next; the NameServers still name the dead
    one."""
    for words in ("mqadmin updateTopic -c DefaultCluster -t WalkNext", "admin topic create WalkAfter"):
        killed = stage.group.kill_leader()
        code, out, err = run(*words.split())
        stage.group.restart_node(killed.node)
        assert code == 0, (words, out, err)
    listed = run("mqadmin", "topicList")[1].split()
    assert {"WalkNext", "WalkAfter"} <= {*listed}

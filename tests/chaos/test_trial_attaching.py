"""Trials at a group that others have started: what is refused, what the plan says, how its log is read, and
how the links of clients are broken. Without any broker."""

from __future__ import annotations

import asyncio
import shlex
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgpack
import pytest
from click.testing import CliRunner

from dledger.chaos.scenarios.broker_history import BrokerHistory
from dledger.chaos.scenarios.oracle import Offsets, Topics
from dledger.chaos.trials.attaching import FoundGroup, describe, plan_attachment
from dledger.chaos.trials.checkers import judge
from dledger.chaos.trials.client_proxy import ClientProxy, DivertedLoop
from dledger.chaos.trials.evidence import Evidence
from dledger.chaos.trials.executed import Runner, Template, parse_commands
from dledger.chaos.trials.live_log import LiveLog, belongs_to
from dledger.chaos.trials.network import CLIENTS
from dledger.chaos.trials.scenario import FaultSpec, Scenario, library
from dledger.commands.declared.trials import RUN
from dledger.formats.entry import HEADER_SIZE, Kind, encode_entry, unpack_header
from dledger.formats.record import encode_record, system_record
from dledger.local.cluster import ClusterError
from dledger.runtime.options import WrongUsage

LIMIT_S = 20.0
GROUP = FoundGroup("ns:9876", "broker-a", {"n0": "a:10911", "n1": "b:10911"}, {"n0": "a:1"}, "SYNC_FLUSH")
PYTHON = shlex.quote(sys.executable)


def scenario(*kinds: str, **more: object) -> Scenario:
    faults = tuple(FaultSpec(kind, "leader", (1.0, 2.0), (0.5, 1.0)) for kind in kinds)
    return Scenario("mine", "p.", "m.", faults=faults, **more)  # type: ignore[arg-type]


# What is refused


@pytest.mark.parametrize("kind", ["kill", "stop", "wipe", "partition", "disk-full", "power-loss", "bit-flip"])
def test_faults_of_processes_disks_and_networks_of_others_need_a_command(kind: str) -> None:
    with pytest.raises(WrongUsage, match=f"{kind}: the processes, .* are not touched.*--exec {kind}="):
        plan_attachment(scenario("transfer", kind), {}, {}, "")
    plan = plan_attachment(scenario("transfer", kind), {kind: Template("x {node}")}, {}, "")
    assert "x {node}, and nothing in the end" in "\n".join(describe(GROUP, plan))


def test_all_faults_that_are_refused_are_named_at_once() -> None:
    with pytest.raises(WrongUsage, match=r"kill: .*; stop: .*; kill-namesrv: "):
        plan_attachment(library()["mixed"], {"terminate": Template("x")}, {}, "")


def test_a_transfer_needs_the_log_port_or_a_command() -> None:
    with pytest.raises(WrongUsage, match="transfer: the log port of the group cannot be used: no answer"):
        plan_attachment(scenario("transfer"), {}, {}, "no answer")
    plan_attachment(scenario("transfer"), {"transfer": Template("x")}, {}, "no answer")
    plan_attachment(scenario("slow-link"), {}, {}, "no answer")


def test_clients_that_change_what_others_use_are_left_out_and_the_plan_says_so() -> None:
    plan = plan_attachment(library()["transfers"], {}, {}, "")
    assert plan.scenario.clients == ("probe", "producers", "pull", "push")
    assert plan.scenario.send == "plain"
    text = "\n".join(describe(GROUP, plan))
    for said in (
        "broker-a behind ns:9876: n0 at a:10911",
        plan.namespace,
        "left out  clients operator: ",
        "left out  replicas: ",
        "left out  timers: ",
        "transfer of leader, every 1 to 3 s",
    ):
        assert said in text
    with pytest.raises(WrongUsage, match=r"none of the clients of mine \(topics, users\) may run"):
        plan_attachment(scenario("transfer", clients=("topics", "users")), {}, {}, "")


def test_each_trial_has_a_namespace_of_its_own() -> None:
    plans = [plan_attachment(scenario("transfer"), {}, {}, "") for _ in range(2)]
    assert plans[0].namespace != plans[1].namespace


def test_only_faults_of_the_trials_own_links_need_the_proxy() -> None:
    commands = {"flaky": Template("x")}
    plan = plan_attachment(scenario("flaky", "slow-link", "transfer"), commands, {}, "")
    assert plan.link_kinds == ["slow-link"]


@pytest.mark.parametrize(
    ("given", "undo", "said"),
    [
        (["kill=x"], [], "--exec kill: the scenario mine has no such fault; it has stop"),
        (["stop=x"], ["kill=y"], "--exec-undo kill: give also --exec kill=COMMAND"),
        (["stop"], [], "--exec 'stop': give KIND=COMMAND"),
        (["stop= "], [], "give KIND=COMMAND"),
        (["burn=x"], [], "there is no fault 'burn'; give one of bit-flip"),
        (["stop=x", "stop=y"], [], "stop is given twice"),
        (["stop='x"], [], "No closing quotation"),
    ],
)
def test_commands_that_fit_nothing_are_refused(given: list[str], undo: list[str], said: str) -> None:
    with pytest.raises(WrongUsage, match=said):
        commands, ends = parse_commands("--exec", given), parse_commands("--exec-undo", undo)
        plan_attachment(scenario("stop"), commands, ends, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--namesrv", "a:1", "--dir", "x"], "--dir is for a group that the trial starts itself"),
        (["--exec", "kill=x"], "--exec: only together with --namesrv"),
        (["--yes", "--broker-name", "b"], "--broker-name, --yes: only together with --namesrv"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(words: list[str], said: str) -> None:
    done = CliRunner().invoke(RUN, ["kill-leader", *words])
    assert done.exit_code == 2 and said in done.output


# Commands of the user


def test_a_command_is_run_without_a_shell_and_only_known_names_are_replaced() -> None:
    values = {"node": "n0", "host": "10.0.0.1", "port": "1", "address": "10.0.0.1:1", "amount": "7"}
    found = Template("ssh {host} 'kill -9 $(cat ${X} {node}.pid) {other}' {address} {amount}").words(values)
    assert found == ["ssh", "10.0.0.1", "kill -9 $(cat ${X} n0.pid) {other}", "10.0.0.1:1", "7"]
    assert Template("x {node}").words({"node": "a; rm -r b"}) == ["x", "a; rm -r b"]


def test_a_command_that_fails_says_why() -> None:
    runner = Runner()
    with pytest.raises(ClusterError, match=r"exit code 3 of .*: no such node"):
        runner.run(Template(f"{PYTHON} -c 'print(\"no such node\"); raise SystemExit(3)'"), {})
    with pytest.raises(ClusterError, match="cannot run /no/such/program: No such file"):
        runner.run(Template("/no/such/program"), {})


def test_a_process_that_a_command_leaves_in_the_background_is_not_waited_for(tmp_path: Path) -> None:
    began = tmp_path / "began"
    text = f"import subprocess as s; print(s.Popen(['sleep', '600']).pid, file=open('{began}', 'w'))"
    Runner().run(Template(f"{PYTHON} -c {shlex.quote(text)}"), {})
    number = int(began.read_text())
    assert Path(f"/proc/{number}").exists()
    Runner().run(Template(f"kill -9 {number}"), {})


def test_an_interrupted_trial_kills_its_commands_and_may_still_undo(tmp_path: Path) -> None:
    runner, mark = Runner(), tmp_path / "mark"
    failed: list[str] = []

    def wait() -> None:
        try:
            runner.run(Template(f"sh -c 'touch {mark}; sleep 600'"), {})
        except ClusterError as error:
            failed.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + LIMIT_S
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    runner.interrupt()
    thread.join(LIMIT_S)
    assert not thread.is_alive() and "exit code -9" in failed[0]
    with pytest.raises(ClusterError, match="not run, because the trial was interrupted"):
        runner.run(Template("true"), {})
    runner.resume()
    runner.run(Template("true"), {})


# The log of a running group


@dataclass
class Chunk:
    position: int
    data: bytes


class WrittenLog:
    """A log that a test writes. Each answer holds `most` bytes, but at least one entry."""

    def __init__(self, most: int) -> None:
        self.data = b""
        self.starts: list[int] = []
        self.most = most
        self._store_ms = 1_000
        self._chain = 0

    def _append(self, make: Callable[[int], bytes], kind: int) -> None:
        position, index = len(self.data), len(self.starts)
        entry = encode_entry(index, 1, position, make(position + HEADER_SIZE), self._chain, kind)
        self._chain = unpack_header(entry).chain_crc
        self.starts.append(position)
        self.data += entry

    def message(self, topic: str, offset: int, *, ms: int = 1) -> None:
        self._store_ms += ms
        self._append(
            lambda at: encode_record(
                topic=topic, body=b"%s-%d|" % (topic.encode(), offset), queue_offset=offset,
                physical_offset=at, store_timestamp=self._store_ms,
            ),
            Kind.MESSAGE,
        )  # fmt: skip

    def operation(self, **op: object) -> None:
        body = msgpack.packb(op)
        self._append(lambda at: system_record(body, at, self._store_ms), Kind.SYSTEM)

    def chunk(self, first: int) -> Chunk:
        start = self.starts[first]
        end = max(start + self.most, start + unpack_header(self.data, start).size)
        return Chunk(start, self.data[start:end])


def written(most: int) -> WrittenLog:
    log = WrittenLog(most)
    log.message("orders", 7)  # before the trial
    log.operation(op="topic", name="t1%auto", read=4, write=4)
    log.message("t1%auto", 0)
    log.message("orders", 8)
    log.message("t1%auto", 1)
    log.operation(op="offsets", group="t1%readers", offsets=[["t1%auto", 0, 2]])
    log.operation(op="offsets", group="billing", offsets=[["orders", 0, 9]])
    log.operation(op="unheard-of", group="billing")
    log.message("%RETRY%t1%workers", 0)
    return log


@pytest.mark.parametrize("most", [1, 300, 1 << 20])
def test_of_a_log_the_judges_see_what_is_in_the_namespace_without_it(most: int) -> None:
    log = written(most)
    live = LiveLog(log, 1, "t1")
    for until in (3, 3, len(log.starts) - 1):
        live.read(until)
    assert not live.broken
    found = {queue: [one.value for one in stored] for queue, stored in live.replay.messages.items()}
    assert found == {
        ("auto", 0): [b"t1%auto-0|", b"t1%auto-1|"],
        ("%RETRY%workers", 0): [b"%RETRY%t1%workers-0|"],
    }
    assert live.replay.table(Offsets).rows == {"readers": {("auto", 0): 2}}
    assert list(live.replay.table(Topics).rows) == ["auto"]
    assert live.replay.index == len(log.starts) - 1


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda log: log.message("t1%auto", 3), "has offset 3 of .*, the next one is 2"),
        (lambda log: log.message("orders", 9, ms=-50), "store time goes back at entry 9"),
        (lambda log: setattr(log, "data", log.data[:-1] + b"!"), "entry 8 is damaged: body CRC differs"),
        (lambda log: log.operation(op="offsets", group="t1%readers"), "the judge cannot follow entry 9"),
    ],
)
def test_a_log_that_breaks_a_rule_is_not_read_further(
    damage: Callable[[WrittenLog], None], said: str
) -> None:
    log = written(1 << 20)
    damage(log)
    live = LiveLog(log, 1, "t1")
    live.read(len(log.starts) - 1)
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(live.broken)


def test_only_names_of_the_trial_belong_to_it() -> None:
    ours = ("t1%auto", "%RETRY%t1%workers", "%DLQ%t1%workers")
    others = (
        "auto",
        "t1",
        "t12%auto",
        "%RETRY%workers",
        "x%Cluster_REPLY_TOPIC",
        "t1%C_REPLY_TOPIC",
        "TBW102",
    )
    assert all(belongs_to(name, "t1") for name in ours)
    assert not any(belongs_to(name, "t1") for name in others)


def test_rules_that_are_left_out_are_not_judged() -> None:
    found = Evidence(BrokerHistory(), clients=("producers",))
    assert {"replicas", "processes"} <= {verdict.name for verdict in judge(found)}
    found.left_out = {"replicas": "no files", "processes": "of others"}
    assert not {"replicas", "processes"} & {verdict.name for verdict in judge(found)}


# The links of clients


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1024):
        writer.write(data)
    writer.close()


async def _asked(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    try:
        return await reader.read(1024)
    finally:
        writer.close()


async def _links() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, DivertedLoop)
    async with asyncio.timeout(LIMIT_S), await asyncio.start_server(_echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with closing(ClientProxy({"n0": f"127.0.0.1:{port}"})) as proxy:
            assert await _asked(port, b"direct") == b"direct"
            assert not proxy.relays
            loop.diversions = proxy.diversions
            assert await _asked(port, b"diverted") == b"diverted"
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"x")
            assert await reader.read(1) == b"x"
            assert await asyncio.to_thread(proxy.reset, CLIENTS, "n0") >= 1
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            writer.close()
            await asyncio.to_thread(proxy.cut, CLIENTS, "n0")
            waiting = asyncio.create_task(_asked(port, b"late"))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await asyncio.to_thread(proxy.heal)
            assert await waiting == b"late"
            server.close()


def test_only_connections_of_this_process_to_the_brokers_go_through_the_proxy() -> None:
    with asyncio.Runner(loop_factory=DivertedLoop) as runner:
        runner.run(_links())

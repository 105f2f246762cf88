"""The whole broker over the real log, in one process, with real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dledger.broker import cli as outer_shell
from dledger.broker.app import main
from dledger.broker.broker import Broker
from dledger.broker.config import NODE_DEFAULTS, PROTECTIVE, SETTINGS, BrokerConfig
from dledger.errors import NodeFailed
from dledger.formats.message_ids import pack_ipv4_host
from dledger.formats.record import decode_records
from dledger.remoting.client import Fields, RemotingClient
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.limits import ClientLimits
from dledger.runtime.env import Env, production_env
from dledger.runtime.live_settings import SettingsSource
from dledger.runtime.properties_file import parse_properties
from tests.broker.harness import pull_header, send_header
from tests.client.fake_cluster import eventually
from tests.command_line import broker as program
from tests.ports import free_ports
from tests.steady import steady

LIMIT_S = 60.0
"""For one answer, connection or hand-over: no pause of the machine uses it up."""
PATIENT = ClientLimits(connect_timeout_s=LIMIT_S)


class PatientClient(RemotingClient):
    """A client that waits for its connections and answers."""

    def __init__(self, env: Env, **options: Any) -> None:
        super().__init__(env, limits=PATIENT, **options)

    async def invoke(
        self, addr: str, code: int, header: Fields = None, body: bytes = b"", timeout_s: float = LIMIT_S
    ) -> Response:
        return await super().invoke(addr, code, header, body, timeout_s)


def configs(root: Path, nodes: int, http: bool = False) -> list[BrokerConfig]:
    ports = free_ports(3 * nodes)
    peers = {f"n{k}": f"127.0.0.1:{ports[k]}" for k in range(nodes)}
    return [
        BrokerConfig(
            store_root=str(root / f"n{k}"),
            peers=peers,
            self_id=f"n{k}",
            listen_port=ports[nodes + k],
            vip_channel=False,  # another one of these ports may be two below
            bind_address="127.0.0.1",
            node=replace(
                NODE_DEFAULTS,
                segment_size=16 * 1024 * 1024,
                pool_segments=1,
                hello_timeout_s=20.0,
                dial_timeout_s=20.0,
                disk_stall_s=600.0,
            ),
            transfer_timeout_s=LIMIT_S,
            http_port=ports[2 * nodes + k] if http else 0,
        )
        for k in range(nodes)
    ]


class Running:
    """One running broker."""

    def __init__(self, config: BrokerConfig, source: SettingsSource | None = None) -> None:
        self.config = config
        self.source = source
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()
        self.broker: Broker | None = None
        self.env = production_env("test")

    async def run(self) -> None:
        def ready(broker: Broker) -> None:
            broker.client.limits = replace(broker.client.limits, connect_timeout_s=LIMIT_S)
            self.broker = broker
            self.ready.set()

        await main(self.env, self.config, self.stop, on_ready=ready, source=self.source)
        self.env.workers.close()

    @property
    def serving(self) -> bool:
        return self.broker is not None and self.broker.gate.writer is not None


@asynccontextmanager
async def running(
    *configs: BrokerConfig, source: SettingsSource | None = None
) -> AsyncIterator[tuple[list[Running], RemotingClient]]:
    """Brokers and a client; all stopped cleanly at the end."""
    nodes = [Running(config, source) for config in configs]
    client = PatientClient(production_env("client"))
    async with asyncio.timeout(3 * LIMIT_S), asyncio.TaskGroup() as group:
        dialer = group.create_task(client.run())
        for node in nodes:
            group.create_task(node.run())
        for node in nodes:
            await node.ready.wait()
        yield nodes, client
        for node in nodes:
            node.stop.set()
        await client.close()
        dialer.cancel()


async def leader_of(nodes: list[Running]) -> Running:
    while True:
        for node in nodes:
            if node.serving:
                return node
        await asyncio.sleep(0.005)


async def steady_leader(nodes: list[Running]) -> Running:
    """The leader of a group that keeps it, whatever the machine does."""
    leader = await leader_of(nodes)
    steady(node.broker.node for node in nodes if node.broker is not None)
    return leader


async def send(client: RemotingClient, config: BrokerConfig, body: bytes) -> Response:
    return await client.invoke(config.client_addr, RequestCode.SEND_MESSAGE_V2, send_header("T", 0, ""), body)


async def bodies(client: RemotingClient, config: BrokerConfig, count: int) -> list[bytes]:
    """All messages of the queue, once there are `count`: what is acknowledged is read when it is applied."""
    while True:
        reply = await client.invoke(config.client_addr, RequestCode.PULL_MESSAGE, pull_header("T", 0, 0))
        found = [record.body for record in decode_records(reply.body)]
        if len(found) >= count:
            return found


@pytest.mark.parametrize("taken", [False, True])
def test_clients_are_served_two_ports_below_as_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, taken: bool
) -> None:
    async def test() -> None:
        [config] = configs(tmp_path, 1)
        below, _, port = free_ports(3)
        with ExitStack() as stack:
            if taken:
                stack.enter_context(socket.create_server(("127.0.0.1", below)))
            config = replace(config, listen_port=port, vip_channel=True)
            async with running(config) as (nodes, client):
                await leader_of(nodes)
                assert (await send(client, config, b"by the usual port")).code == ResponseCode.SUCCESS
                if taken:
                    return
                request = RequestCode.PULL_MESSAGE, pull_header("T", 0, 0)
                answer = await client.invoke(f"127.0.0.1:{below}", *request)
                assert answer.code == ResponseCode.SUCCESS

    asyncio.run(test())
    assert ("the VIP channel is not open" in caplog.text) == taken


def test_a_single_node_serves_and_keeps_everything_over_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        [config] = configs(tmp_path, 1, http=True)
        async with running(config) as (nodes, client):
            await leader_of(nodes)
            for number in range(20):
                assert (await send(client, config, b"%d" % number)).checked().ext["queueOffset"] == str(
                    number
                )
            assert await bodies(client, config, 20) == [b"%d" % number for number in range(20)]
            async with aiohttp.ClientSession() as session:
                base = f"http://127.0.0.1:{config.http_port}"
                async with session.get(f"{base}/health") as answer:
                    assert answer.status == 200 and (await answer.json())["role"] == "LEADER"
                async with session.get(f"{base}/metrics") as answer:
                    assert "dledger_messages_in_total 20.0" in await answer.text()
        assert (tmp_path / "n0" / "state" / "snapshot").exists()
        async with running(config) as (nodes, client):
            await leader_of(nodes)
            assert nodes[0].broker is not None and nodes[0].broker.store.snapshot_index > 20
            assert (await send(client, config, b"more")).checked().ext["queueOffset"] == "20"
            assert len(await bodies(client, config, 21)) == 21

    asyncio.run(test())


def test_three_nodes_elect_replicate_and_hand_over_at_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[bool] = []
    hand_over = Broker.hand_over

    async def noted(broker: Broker) -> bool:
        moved.append(await hand_over(broker))
        return moved[-1]

    async def test() -> None:
        async with running(*configs(tmp_path, 3)) as (nodes, client):
            leader = await steady_leader(nodes)
            followers = [node for node in nodes if node is not leader]
            for number in range(10):
                (await send(client, leader.config, b"%d" % number)).checked()
            refused = await send(client, followers[0].config, b"x")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert refused.ext["leaderAddr"] == leader.config.client_addr
            leader.stop.set()
            new = await leader_of(followers)
            await eventually(lambda: moved)
            assert moved == [True], "the leader handed over, nobody waited for a time-out"
            (await send(client, new.config, b"after")).checked()
            assert await bodies(client, new.config, 11) == [*(b"%d" % n for n in range(10)), b"after"]

    monkeypatch.setattr(Broker, "hand_over", noted)
    asyncio.run(test())


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    async def test() -> None:
        [config] = configs(tmp_path, 1)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", config.listen_port))
            taken.listen()
            with pytest.raises(OSError, match=f"127.0.0.1:{config.listen_port}"):
                await main(production_env("test"), config, asyncio.Event())

    asyncio.run(test())


def test_who_watches_a_broker_is_told_of_a_member_that_is_away(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            running(*configs(tmp_path, 3, http=True)) as (nodes, _),
            aiohttp.ClientSession() as session,
        ):

            async def asked(node: Running, path: str) -> tuple[int, str]:
                async with session.get(f"http://127.0.0.1:{node.config.http_port}/{path}") as answer:
                    return answer.status, await answer.text()

            async def until(
                node: Running, path: str, status: int, said: str | None = None, **wanted: object
            ) -> None:
                while True:
                    code, text = await asked(node, path)
                    found = json.loads(text) if wanted else {}
                    if code == status and said in (None, text) and wanted.items() <= found.items():
                        return
                    await asyncio.sleep(0.02)

            leader = await leader_of(nodes)
            end = steady(node.broker.node for node in nodes if node.broker is not None)
            one, other = (node for node in nodes if node is not leader)
            for node in nodes:
                await until(node, "health", 200, healthy=True, degraded=False, warnings=[])
                await until(node, "readyz", 200)
            one.stop.set()
            away = f"{one.config.self_id} is not reached: the group can survive one failure less"
            for node in (leader, other):
                await until(node, "health", 200, healthy=True, degraded=True, warnings=[away])
            other.stop.set()
            end()
            await until(leader, "readyz", 503, "no leader is known\n")
            assert await asked(leader, "livez") == (200, "ok\n"), "a restart would not help"
            await until(leader, "health", 503, healthy=False, degraded=False)

    asyncio.run(asyncio.wait_for(test(), 3 * LIMIT_S))


GOOD = "brokerName=b1\ndLegerPeers=n0-127.0.0.1:40911\ndLegerSelfId=n0\n"


def test_the_effective_configuration_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(GOOD + "flushDiskType=ASYNC_FLUSH\nbrokerId=0\nbrokerIP1=10.1.1.1\n")
    assert program(["-c", str(file), "-p"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in (
        "brokerName=b1",
        "flushDiskType=ASYNC_FLUSH",
        "dLegerPeers=n0-127.0.0.1:40911",
        "listenPort=10911",
    ):
        assert line in lines


def test_users_in_the_configuration_are_shown_to_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        GOOD
        + 'initAuthenticationUser={"username":"root","password":"root-secret"}\n'
        + 'innerClientAuthenticationCredentials={"accessKey":"inner","secretKey":"inner-secret"}\n'
        + "authorizationWhitelist=105, 34\n"
    )
    assert program(["-c", str(file), "-p"]) == 0
    shown = capsys.readouterr().out
    assert "initAuthenticationUser=***" in shown and "authorizationWhitelist=105,34" in shown
    assert "secret" not in shown
    file.write_text(GOOD + 'initAuthenticationUser={"username":"root","password":7-root-secret}\n')
    assert program(["-c", str(file), "-p"]) == 2
    assert "root-secret" not in capsys.readouterr().err


def test_the_command_line_wins_and_the_important_ones_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(GOOD + "listenPort=10921\nmaxTopics=7\n")
    assert program(["-c", str(file), "--listenPort", "10931", "-m", "--namesrvAddr=a:1;b:2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "listenPort=10931" in lines and "namesrvAddr=a:1;b:2" in lines and "brokerName=b1" in lines
    assert not any(line.startswith("maxTopics=") for line in lines)
    assert program(["--dLegerPeers", "n0-127.0.0.1:1", "-p"]) == 0
    assert "maxTopics=50000" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--listenPrt", "1"), "error: unknown key 'listenPrt' (did you mean 'listenPort'?)"),
        (("--useEpollNativeSelector", "1"), "error: unknown key 'useEpollNativeSelector'"),
        (("--listenPort", "0"), "error: listenPort: 0: expected 1 to 65535"),
        (("--dLegerSelfId", "n7"), "error: dLegerSelfId 'n7' is not in dLegerPeers (n0)"),
    ],
)
def test_a_wrong_override_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], complaint: str
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(GOOD)
    assert program(["-c", str(file), *arguments]) == 2
    assert capsys.readouterr().err.startswith(complaint)


@pytest.mark.parametrize("arguments", [("--listenPort",), ("here",), ("-x", "1"), ("-p", "-m")])
def test_a_wrong_command_line_says_how_it_is_used(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert program(list(arguments)) == 2
    assert "Usage: dledger broker [-c FILE] [-p | -m] [--NAME VALUE]..." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (GOOD + "listenPort=many\n", "line 4: listenPort: 'many'"),
        (GOOD + "listenPort=70000\n", "line 4: listenPort"),
        (GOOD + "flushDiskType=SOMETIMES\n", "line 4: flushDiskType"),
        (GOOD + "brokerIP1=not a host\n", "line 4: brokerIP1"),
        (GOOD + "namesrvAddr=localhost\n", "line 4: namesrvAddr"),
        (GOOD + "namesrvAddr=ns..example.com:9876\n", "line 4: namesrvAddr: 'ns..example.com' is neither"),
        (GOOD + "bindAddress=a..b\n", "line 4: bindAddress: 'a..b' is neither"),
        (GOOD + "httpAddress=.a\n", "line 4: httpAddress: '.a' is neither"),
        (GOOD + "mapedFileSizeCommitLog=8192\n", "line 4: mapedFileSizeCommitLog"),
        (GOOD + "authorizationEnabled=true\n", "line 4: authorizationEnabled needs authenticationEnabled"),
        (
            GOOD + "aclEnable=true\nauthenticationEnabled=true\n",
            "authenticationEnabled and aclEnable exclude each other",
        ),
        (
            GOOD + "authenticationWhitelist=10,x\n",
            "line 4: authenticationWhitelist: 'x' is not a request code",
        ),
        (GOOD + 'initAuthenticationUser={"username":"a"}\n', 'expected {"username":"...","password":"..."}'),
        (GOOD + "innerClientAuthenticationCredentials=x\n", 'expected {"accessKey":"...","secretKey":"..."}'),
        (GOOD + "dLegerSelfID=n1\n", "did you mean 'dLegerSelfId'"),
        (GOOD + "brokerName=b2\n", "already set"),
        (GOOD.replace("Id=n0", "Id=n7"), "line 3: dLegerSelfId"),
        ("brokerName=b1\n", "dLegerPeers is missing"),
        (GOOD + "enableDLegerCommitLog=false\n", "line 4: enableDLegerCommitLog"),
        ("dLegerPeers=n0\n", "line 1: dLegerPeers"),
        ("dLegerPeers=n0-n0..example.com:1\n", "line 1: dLegerPeers: n0: 'n0..example.com'"),
        (GOOD.replace("Name=", "Name=mine # "), "line 1: brokerName: 'mine # "),
        (GOOD + "dLegerGroup=two words\n", "line 4: dLegerGroup: 'two words': a name may not have"),
        (GOOD + "storePathRootDir=/data # large\n", "line 4: storePathRootDir: '/data # large': ' #' in"),
        (
            GOOD + "heartBeatTimeIntervalMs=100\nelectionTimeoutMinMs=150\n",
            "line 5: electionTimeoutMinMs 150: at least 2 times",
        ),
        (
            GOOD + "heartBeatTimeIntervalMs=300\nelectionTimeoutMinMs=400\n",
            "line 5: electionTimeoutMinMs 400: at least 2 times",
        ),
        (
            GOOD + "electionTimeoutMinMs=900\nelectionTimeoutMaxMs=800\n",
            "line 5: electionTimeoutMaxMs 800: not below electionTim",
        ),
        (GOOD + "maxClockSkewMs=999\n", "line 4: maxClockSkewMs 999: at least 1000, or 0 (off)"),
        (GOOD + "maxClockSkewMs=-1\n", "line 4: maxClockSkewMs: -1: expected 0 to"),
        (GOOD + "heartBeatTimeIntervalMs=1\n", "line 4: heartBeatTimeIntervalMs: 1: expected 5 to 10000"),
        (GOOD + "peerProtocolMin=4\npeerProtocolMax=2\n", "line 4: peerProtocolMin 4: from 1 to"),
        (GOOD + "mapedFileSizeCommitLog=8519681\n", "line 4: mapedFileSizeCommitLog 8519681: must be"),
        (GOOD + "tls.peer.keyPath=k\n", "line 4: tls.peer.certPath, tls.peer.keyPath"),
        (
            GOOD + "diskMaxUsedSpaceRatio=90\ndiskSpaceCleanForciblyRatio=85\n",
            "line 5: diskSpaceCleanForciblyRatio must not be below",
        ),
    ],
)
def test_a_broken_configuration_names_line_and_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, complaint: str
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(text)
    assert program(["-c", str(file)]) == 2
    assert complaint in capsys.readouterr().err


def test_unknown_properties_of_rocketmq_are_tolerated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(GOOD + "useEpollNativeSelector=true\n")
    assert program(["-c", str(file), "-p"]) == 0


@pytest.mark.parametrize(
    "line",
    ["authenticationProvider=com.example.Own", "inSyncReplicas=3", "brokerPermission=4"],
)
def test_a_start_that_would_be_less_protected_than_was_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    """It was a warning in a log."""
    file = tmp_path / "broker.conf"
    file.write_text(GOOD + line + "\n")
    for more in ((), ("-p",)):
        assert program(["-c", str(file), *more]) == 2
        assert f"line 4: {line} has no effect here: " in capsys.readouterr().err
    key, _, value = line.partition("=")
    file.write_text(GOOD)
    assert program(["-c", str(file), f"--{key}", value, "-p"]) == 2
    file.write_text(GOOD + f"{key}={PROTECTIVE[key].harmless[0]}\n")
    assert program(["-c", str(file), "-p"]) == 0


def test_what_does_not_count_is_shown_before_what_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five of these were refused as slips of the pen."""
    file = tmp_path / "broker.conf"
    names = ("brokerIP2", "haListenPort", "queryMessageThreadPoolNums", "flushConsumerOffsetHistoryInterval")
    ignored = (*names, "mappedFileSizeCommitLog", "brokerRole")
    file.write_text(GOOD + "".join(f"{name}=1\n" for name in ignored) + "noSuchSetting=1\n")
    assert program(["-c", str(file), "-p"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for number, name in enumerate(ignored, 4):
        assert f"line {number}: {name} has no effect here: " in lines[number - 4]
    assert lines[6].endswith("line 10: unknown key 'noSuchSetting' is ignored")
    assert all(line.startswith("# ") for line in lines[:7]) and lines[7] == "brokerClusterName=DefaultCluster"


@pytest.mark.parametrize(
    ("text", "minimum", "maximum"),
    [("", 0.4, 0.8), ("electionTimeoutMinMs=2000\nelectionTimeoutMaxMs=3500\n", 2.0, 3.5)],
)
def test_a_busy_machine_can_have_longer_election_time_outs(text: str, minimum: float, maximum: float) -> None:
    config, _ = SETTINGS.load(parse_properties(GOOD + text))
    node = config.node_config()
    assert (node.election_timeout_min_s, node.election_timeout_max_s) == (minimum, maximum)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of loopback")
def test_http_listens_where_the_broker_does_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    async def reached(config: BrokerConfig) -> list[str]:
        found = []
        async with running(config), aiohttp.ClientSession() as session:
            for address in ("127.0.0.1", "127.0.0.2"):
                try:
                    async with session.get(f"http://{address}:{config.http_port}/health"):
                        found.append(address)
                except aiohttp.ClientConnectionError:
                    pass
        return found

    [config] = configs(tmp_path, 1, http=True)
    there = replace(config, bind_address="127.0.0.2")
    assert asyncio.run(reached(there)) == ["127.0.0.2"]
    assert asyncio.run(reached(replace(there, http_address="127.0.0.1"))) == ["127.0.0.1"]


def test_json_of_health_is_plain(tmp_path: Path) -> None:
    async def test() -> None:
        [config] = configs(tmp_path, 1)
        async with running(config) as (nodes, _):
            node = await leader_of(nodes)

            assert node.broker is not None
            assert json.loads(json.dumps(node.broker.health.report()))["healthy"] is True

    asyncio.run(test())


@pytest.mark.usefixtures("ports_are_free")
def test_a_store_that_the_system_refuses_may_be_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """70 would tell a supervisor to leave it down for good; nothing is wrong with the store."""
    (tmp_path / "file").write_text("no directory")
    file = tmp_path / "broker.conf"
    file.write_text(f"{GOOD}storePathRootDir={tmp_path}/file/store\n")
    assert program(["-c", str(file)]) == 1
    told = capsys.readouterr().err
    assert (
        "cannot open the store" in told
        and "File exists" in told
        and "correct that and start it again" in told
    )


@pytest.mark.parametrize(
    ("host", "addr", "store_ip"),
    [
        ("localhost", "localhost", "127.0.0.1"),
        ("::1", "[::1]", "10.9.8.7"),
        ("[::1]", "[::1]", "10.9.8.7"),
        ("broker-0.svc", "broker-0.svc", "10.9.8.7"),
    ],
)
@pytest.mark.usefixtures("ports_are_free")
def test_a_host_name_is_told_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, addr: str, store_ip: str
) -> None:
    """Records have room for an IPv4 address only: that of the name, or the one of a setting."""
    seen: list[BrokerConfig] = []
    monkeypatch.setattr(outer_shell, "run", lambda env, config, source: seen.append(config) or 0)
    told = [] if host == "localhost" else ["--storeHostIP", store_ip]
    file = tmp_path / "broker.conf"
    file.write_text(f"{GOOD}brokerIP1={host}\nlogDir={tmp_path}\n")
    assert program(["-c", str(file), *told]) == 0
    assert seen[0].client_addr == f"{addr}:10911"
    assert seen[0].store_host == pack_ipv4_host(store_ip, 10911)


def test_a_name_that_nobody_knows_now_may_be_known_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"{GOOD}brokerIP1=no.such.host.invalid\nlogDir={tmp_path}\n")
    assert program(["-c", str(file)]) == 1
    assert "no.such.host.invalid cannot be resolved to an IPv4 address now" in capsys.readouterr().err


def test_one_directory_is_of_one_broker(tmp_path: Path) -> None:
    """ConsumeQueues and snapshots of three in one place belong to nobody."""

    async def test() -> None:
        first, second = configs(tmp_path, 2)
        first = replace(first, peers={"n0": first.peers["n0"]})
        second = replace(second, peers={"n1": second.peers["n1"]}, store_root=first.store_root)
        async with running(first) as (nodes, _):
            await leader_of(nodes)
            with pytest.raises(
                NodeFailed, match=r"another process uses .*/n0/lock: each broker needs"
            ) as told:
                await main(production_env("test"), second, asyncio.Event())
            assert told.value.exit_code == 1
        async with running(first) as (nodes, _):
            await leader_of(nodes)  # it was given back

    asyncio.run(test())

"""Settings that change while a broker runs (25): all or nothing, at once, kept in the file, shown by 26."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dledger.broker.config import SETTINGS, BrokerConfig
from dledger.namesrv import config as namesrv
from dledger.remoting.cli import arguments_of, configure
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import CreateTopicHeader, NoHeader
from dledger.remoting.settings_requests import MAX_BODY, MAX_WAITING
from dledger.runtime.env import production_env
from dledger.runtime.live_settings import SettingsSource
from tests.broker.harness import Reply, World, run
from tests.broker.test_admin import Servers
from tests.broker.test_app import bodies, free_ports, leader_of, running, send
from tests.client.fake_cluster import eventually
from tests.command_line import options

FILE = "# mine\nmaxMessageSize = 1000\n\n! the log\nfileReservedTime=48\n"


@asynccontextmanager
async def world_with_file(root: Path, text: str = FILE) -> AsyncIterator[tuple[World, Path]]:
    """A broker whose settings come from this file."""
    path = root / "broker.conf"
    path.write_text(text)
    world = World(str(root / "store"), source=SettingsSource(str(path), ("traceOn",)), max_message_size=1000)
    task = asyncio.ensure_future(world.features.admin.settings_requests.run())
    try:
        yield await world.open(), path
    finally:
        task.cancel()


async def update(world: World, text: str) -> Reply:
    return await world.call(RequestCode.UPDATE_BROKER_CONFIG, None, text.encode())


async def shown(world: World) -> dict[str, str]:
    text = (await world.call(RequestCode.GET_BROKER_CONFIG)).body.decode()
    return dict(line.split("=", 1) for line in text.splitlines())


def test_a_change_counts_at_once_and_stands_in_the_file(tmp_path: Path) -> None:
    async def test() -> None:
        async with world_with_file(tmp_path) as (world, path):
            path.chmod(0o600)
            assert (await world.send(body=b"x" * 200)).code == 0
            assert (await update(world, "maxMessageSize=100\nmaxHeldPulls=0\n")).code == 0
            assert (await world.send(body=b"x" * 200)).code == ResponseCode.MESSAGE_ILLEGAL
            assert (await world.send(body=b"x" * 100)).code == 0
            assert (await shown(world))["maxMessageSize"] == "100"
            kept = "# mine\nmaxMessageSize=100\n\n! the log\nfileReservedTime=48\nmaxHeldPulls=0\n"
            assert path.read_text() == kept
            assert path.stat().st_mode & 0o777 == 0o600, "it may hold a password"
            assert not path.with_name("broker.conf.tmp").exists()

    run(test)


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("maxMessageSize=9\nlistenPort=1", 1, "listenPort cannot change while this process runs"),
        ("maxMessageSize=9\nnoSuchThing=1", 1, "unknown key 'noSuchThing'"),
        ("maxMessageSize=9\nmaxTopic=1", 1, "did you mean 'maxTopics'"),
        ("maxMessageSize=9\nmaxTopics=0", 1, "the request, line 2: maxTopics: 0: expected 1 to 50000"),
        ("maxMessageSize=9\nmaxTopics=many", 1, "'many': expected a whole number"),
        ("maxMessageSize=9\nmaxMessageSize=8", 1, "is already set at the request, line 1"),
        ("maxMessageSize=9\ntraceOn=false", 1, "traceOn was set on the command line (--traceOn)"),
        ("maxMessageSize=9\nbrokerRole=SLAVE", 1, "brokerRole has no effect here: the leader is elected"),
        ("maxMessageSize=9\nconfigBlackList=", 16, "Can not update config in black list: configBlackList"),
        ("maxMessageSize=9\nbrokerConfigPath=/x", 16, "in black list: brokerConfigPath"),
        ("maxMessageSize=9\nflushDiskType=ASYNC_FLUSH", 1, "flushDiskType cannot change"),
        ("maxMessageSize=9\ndiskMaxUsedSpaceRatio=95", 1, "must not be below diskMaxUsedSpaceRatio"),
        ("maxMessageSize=9\nregionId=a\x01KEYS\x02b", 1, "a name may not have control characters"),
        ("maxMessageSize=9\nregionId=" + "r" * 128, 1, "128 characters; the limit is 127"),
        ("maxMessageSize=9\nnamesrvAddr=" + "a:1;" * 65, 1, "65 addresses; the limit is 64"),
        ("maxMessageSize=9\nword", 1, "the key 'word' has no value"),
        ("maxMessageSize=9\n" + "#" * MAX_BODY, 1, f"the limit is {MAX_BODY}"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_whole(tmp_path: Path, text: str, code: int, remark: str) -> None:
    async def test() -> None:
        async with world_with_file(tmp_path) as (world, path):
            before = await shown(world)
            reply = await update(world, text)
            assert reply.code == code and remark in (reply.remark or "")
            assert await shown(world) == before and path.read_text() == FILE

    run(test)


def test_no_path_can_be_set_from_afar() -> None:
    """RocketMQ's could be made to write files anywhere by these requests (CVE-2023-33246, CVE-2023-37582)."""
    texts = [one.setting.name for one in SETTINGS.settings if one.setting.hot and one.kind is str]
    assert texts == ["regionId"]
    assert not [one.setting.name for one in namesrv.SETTINGS.settings if one.setting.hot and one.kind is str]


def test_what_is_not_text_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with world_with_file(tmp_path) as (world, _):
            reply = await world.call(RequestCode.UPDATE_BROKER_CONFIG, None, b"maxMessageSize=\xff")
            assert (reply.code, reply.remark) == (1, "the properties are not UTF-8")

    run(test)


def test_nothing_changes_that_the_next_start_would_undo(tmp_path: Path) -> None:
    async def test() -> None:
        async with world_with_file(tmp_path) as (world, path):
            path.unlink()
            gone = await update(world, "maxMessageSize=9")
            assert gone.code == 1 and f"{path}: no such file" in (gone.remark or "")
            path.mkdir()
            unwritable = await update(world, "maxMessageSize=9")
            assert unwritable.code == 1 and f"{path}: cannot be read" in (unwritable.remark or "")
            path.rmdir()
            path.write_text(FILE)
            path.with_name("broker.conf.tmp").mkdir()
            full = await update(world, "maxMessageSize=9")
            assert full.code == 1 and f"was not changed, because {path} cannot be written" in (
                full.remark or ""
            )
            assert path.read_text() == FILE
            assert (await shown(world))["maxMessageSize"] == "1000"
        world = await World(str(tmp_path / "other")).open()
        task = asyncio.ensure_future(world.features.admin.settings_requests.run())
        fileless = await update(world, "maxMessageSize=9")
        assert fileless.code == 1 and "start it with -c FILE" in (fileless.remark or "")
        assert (await update(world, "maxMessageSize=4194304")).code == 0, "as it was"
        task.cancel()

    run(test)


def test_changes_are_made_in_the_order_in_which_they_came_and_no_more_than_some_wait(tmp_path: Path) -> None:
    async def test() -> None:
        async with world_with_file(tmp_path) as (world, path):
            asked = [
                world.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"maxTopics=%d" % (number + 1))
                for number in range(MAX_WAITING + 1)
            ]
            assert asked[-1].reply.code == ResponseCode.SYSTEM_BUSY
            for one in asked[:-1]:
                assert (await one).code == 0
            assert path.read_text() == f"{FILE}maxTopics={MAX_WAITING}\n"

    run(test)


def test_any_node_takes_a_change(tmp_path: Path) -> None:
    async def test() -> None:
        async with world_with_file(tmp_path) as (world, _):
            world.node.follow("n1")
            assert (await update(world, "maxMessageSize=9")).code == 0
            world.node.lead()
            assert (await world.send(body=b"x" * 10)).code == ResponseCode.MESSAGE_ILLEGAL

    run(test)


def test_creation_of_topics_and_groups_is_switched(tmp_path: Path) -> None:
    async def test() -> None:
        async with world_with_file(tmp_path) as (world, _):
            assert (
                await update(world, "autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false")
            ).code == 0
            assert (await world.send("New")).code == ResponseCode.TOPIC_NOT_EXIST
            assert (await world.pull("TBW102")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert (await update(world, "autoCreateTopicEnable=true\ndefaultTopicQueueNums=2")).code == 0
            reply = await world.send("New")
            assert reply.code == 0
            assert world.broker.store.state.topics["New"].write_queues == 2

    run(test)


def test_the_topic_by_whose_route_new_ones_come_appears(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "broker.conf"
        path.write_text("autoCreateTopicEnable=false\n")
        world = World(str(tmp_path), source=SettingsSource(str(path)), auto_create_topic=False)
        await world.open()
        task = asyncio.ensure_future(world.features.admin.settings_requests.run())
        table = world.features.topic.table

        def told() -> dict[str, dict[str, object]]:
            topics = json.loads(b"{%s}" % b",".join(table.entries()))
            assert len(topics) == len(table)
            return dict(topics)

        assert "TBW102" not in told()
        version = table.version
        assert (await update(world, "autoCreateTopicEnable=true")).code == 0
        assert told()["TBW102"]["writeQueueNums"] == 8 and table.version > version
        assert (await world.send("New")).code == 0
        assert (await update(world, "defaultTopicQueueNums=3")).code == 0
        assert told()["TBW102"]["writeQueueNums"] == 3
        task.cancel()

    run(test)


def test_name_servers_come_and_go(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "broker.conf"
        path.write_text("namesrvAddr=a:1;b:1\n")
        world = World(str(tmp_path), source=SettingsSource(str(path)), namesrv_addr=("a:1", "b:1"))
        servers = Servers()
        servers.down.append("b:1")
        registrar = world.features.registration.registrar
        registrar._client = servers  # type: ignore[assignment]
        await world.open()
        registering = asyncio.ensure_future(registrar.keep_informed())
        changing = asyncio.ensure_future(world.features.admin.settings_requests.run())
        await eventually(lambda: len(servers.told) == 1)
        created = world.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("T", "TBW102", 4, 4, 6)
        )  # waits until both know it, or for a second
        await eventually(lambda: len(servers.told) == 2)
        servers.told.clear()
        servers.down.clear()
        assert (await update(world, "namesrvAddr=c:1; a:1")).code == 0
        assert (await created).code == 0
        await eventually(lambda: len(servers.told) == 2 and registrar.registered.get("c:1"))
        assert sorted((addr, int(code)) for addr, code, _, _ in servers.told) == [("b:1", 104), ("c:1", 103)]
        assert registrar.registered == {"a:1": True, "c:1": True} and registrar.failures == {}
        assert path.read_text() == "namesrvAddr=c:1;a:1\n"
        assert (await update(world, "namesrvAddr=")).code == 0
        await eventually(lambda: len(servers.told) == 4)
        assert registrar.registered == {} and [code for _, code, _, _ in servers.told[2:]] == [104, 104]
        bad = await update(world, "namesrvAddr=a:1;nowhere")
        assert bad.code == 1 and "namesrvAddr: " in (bad.remark or "")
        registering.cancel()
        changing.cancel()
        await asyncio.gather(registering, changing, return_exceptions=True)
        assert (await world.call(RequestCode.GET_BROKER_CONFIG)).code == 0

    run(test)


def test_the_node_and_the_scans_are_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with world_with_file(tmp_path) as (world, _):
            text = "fileReservedTime=24\ndeleteWhen=02;14\nscrubBytesPerSecond=0\nauditBytesPerSecond=7\n"
            assert (await update(world, text)).code == 0
            tuned = world.node.tuned
            assert (tuned.retention.reserved_hours, tuned.retention.delete_hours) == (24, (2, 14))
            assert tuned.scrub_bytes_per_s == 0 and tuned.retention.clean_forcibly
            assert world.features.audit.jobs.pace._rate == 7

    run(test)


def test_what_each_message_has_follows(tmp_path: Path) -> None:
    async def test() -> None:
        async with world_with_file(tmp_path) as (world, _):
            assert (await world.send()).ext["MSG_REGION"] == "DefaultRegion"
            assert (await update(world, "regionId=north")).code == 0
            assert (await world.send()).ext["MSG_REGION"] == "north"
            [_, record] = (await world.pull()).records
            assert "MSG_REGION\x01north" in record.properties

    run(test)


def test_a_running_broker_takes_a_change_and_has_it_after_a_restart(tmp_path: Path) -> None:
    peer, port = free_ports(2)
    path = tmp_path / "broker.conf"
    link = tmp_path / "linked.conf"
    link.symlink_to(path)
    path.write_text(
        f"# a single node\ndLegerPeers=n0-127.0.0.1:{peer}\nbindAddress=127.0.0.1\n"
        f"storePathRootDir={tmp_path}/store\nmapedFileSizeCommitLog=16777216\nsegmentPoolSize=1\n"
        "heartBeatTimeIntervalMs=50\nelectionTimeoutMinMs=200\nelectionTimeoutMaxMs=300\nmaxMessageSize=1000\n"
    )

    def configured() -> tuple[BrokerConfig, SettingsSource]:
        arguments = arguments_of(options("broker", "-c", str(link), "--listenPort", str(port)))
        config, warnings, source = configure(production_env(), SETTINGS, arguments)
        assert not warnings and source == SettingsSource(str(path), ("listenPort",))
        return config, source

    async def test() -> None:
        config, source = configured()
        async with running(config, source=source) as (nodes, client):
            node = await leader_of(nodes)
            assert node.broker is not None
            elector = node.broker.node.config  # type: ignore[attr-defined]
            assert (elector.election_timeout_min_s, elector.election_timeout_max_s) == (0.2, 0.3)
            assert (await send(client, config, b"x" * 500)).code == 0
            change = RequestCode.UPDATE_BROKER_CONFIG
            (await client.invoke(config.client_addr, change, NoHeader(), b"maxMessageSize=100\n")).checked()
            assert (await send(client, config, b"x" * 500)).code == ResponseCode.MESSAGE_ILLEGAL
            retention = b"fileReservedTime=1\nscrubPauseMs=60000\n"
            (await client.invoke(config.client_addr, change, NoHeader(), retention)).checked()
            refused = await client.invoke(config.client_addr, change, NoHeader(), b"electionTimeoutMinMs=900")
            assert refused.code == 1 and "restart" in (refused.remark or "")
        assert link.is_symlink() and path.read_text().startswith("# a single node\ndLegerPeers=")
        config, source = configured()
        assert config.max_message_size == 100 and config.node.retention.reserved_hours == 1
        async with running(config, source=source) as (nodes, client):
            await leader_of(nodes)
            assert (await send(client, config, b"x" * 500)).code == ResponseCode.MESSAGE_ILLEGAL
            assert await bodies(client, config, 1) == [b"x" * 500]
            body = (await client.invoke(config.client_addr, RequestCode.GET_BROKER_CONFIG, NoHeader())).body
            assert b"\nmaxMessageSize=100\n" in body and b"\nscrubPauseMs=60000\n" in body

    asyncio.run(test())

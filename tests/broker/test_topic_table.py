"""The topic table as NameServers read it: the bytes of one encoding in one go, made of what changed only."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker.topic import topic_table as module
from dledger.broker.topic.topic_table import SLICE, TopicTable
from dledger.formats.state import TOPICS, ReplicatedState, TopicConfig, pack_op
from dledger.remoting import registration as wire
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.fastjson import dumps
from dledger.remoting.headers import RegisterBrokerHeader
from tests.broker.harness import World, run

BUILT_IN = {"TBW102": TopicConfig("TBW102", 8, 8, 7), "T0": TopicConfig("T0", 1, 1, 6)}
TEXT = st.text(st.characters(codec="utf-8"), max_size=3)
NAMES = st.sampled_from(
    ["T0", "A", "TBW102", '"\\', "ü", "\U0001f600", *(f"T{number}" for number in range(9))]
)
CONFIGS = st.builds(
    TopicConfig,
    NAMES,
    st.integers(0, 1024),
    st.integers(0, 1024),
    st.integers(0, 255),
    st.booleans(),
    st.integers(0, 2**31 - 1),
    st.dictionaries(TEXT, TEXT, max_size=2).map(lambda pairs: tuple(sorted(pairs.items()))),
)
STEPS = st.one_of(
    st.tuples(st.just("put"), CONFIGS),
    st.tuples(st.just("drop"), NAMES),
    st.tuples(st.just("install"), st.lists(CONFIGS, max_size=3)),
    st.tuples(st.just("look"), st.none()),
)


def put(state: ReplicatedState, config: TopicConfig) -> None:
    """As `ReplicatedState.apply` does it."""
    state.apply(pack_op(config.op()))


def filled(count: int) -> ReplicatedState:
    state = ReplicatedState()
    for number in range(count):
        put(state, TopicConfig(f"T{number * 7919 % count:06}", 4, 4, 6))
    return state


def as_before(topics: dict[str, TopicConfig], version: wire.DataVersion) -> bytes:
    """The body of 103, encoded in one go by the general encoder."""
    table = {
        name: {
            "topicName": name,
            "readQueueNums": config.read_queues,
            "writeQueueNums": config.write_queues,
            "perm": config.perm,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": config.flags,
            "order": config.order,
            "attributes": dict(config.attributes),
        }
        for name, config in topics.items()
    }
    return dumps(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": table},
        }
    )


def check(table: TopicTable, state: ReplicatedState, built_in: dict[str, TopicConfig]) -> None:
    version = wire.DataVersion(3, state.topics_version, 17)
    topics = {**built_in, **state.topics}
    entries = table.entries()
    assert wire.registration_body(entries, version, []) == as_before(topics, version)
    assert wire.table_body(entries, version) == dumps(
        wire.decode_topic_table(wire.table_body(entries, version))
    )
    assert table.size == len(b",".join(entries)) and len(table) == len(topics)


@given(st.lists(STEPS, max_size=25), st.booleans())
def test_whatever_changes_the_bytes_are_those_of_one_encoding(
    steps: list[tuple[str, Any]], with_built_in: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAGE", 2)
        built_in = BUILT_IN if with_built_in else {}
        state = ReplicatedState()
        table = TopicTable(lambda: state, built_in)
        for what, value in steps:
            if what == "put":
                put(state, value)
            elif what == "drop":
                state[TOPICS].discard(value)
            elif what == "install":
                before, state = state, ReplicatedState()
                state[TOPICS].version = before.topics_version
                for config in value:
                    put(state, config)
            else:
                check(table, state, built_in)
        check(table, state, built_in)


def test_a_topic_of_every_broker_comes_back_when_its_own_settings_go() -> None:
    state = filled(3)
    table = TopicTable(lambda: state, BUILT_IN)
    put(state, TopicConfig("TBW102", 2, 2, 6))
    check(table, state, BUILT_IN)
    told = table.size_told
    assert told == table.size
    state[TOPICS].discard("TBW102")
    assert table.size_told == told, "encodes nothing"
    check(table, state, BUILT_IN)


def test_a_change_costs_the_encoding_of_what_changed() -> None:
    state = filled(2000)
    table = TopicTable(lambda: state, BUILT_IN)
    check(table, state, BUILT_IN)
    for config in (
        TopicConfig("new", 4, 4, 6),
        TopicConfig("new", 8, 8, 6),
        TopicConfig("T000007", 1, 1, 6),
        TopicConfig("TBW102", 2, 2, 6),
    ):
        before = table.encoded
        put(state, config)
        check(table, state, BUILT_IN)
        assert table.encoded == before + 1


def test_many_topics_are_encoded_in_slices_and_what_changes_meanwhile_counts() -> None:
    async def test() -> None:
        state = filled(3 * SLICE)
        table = TopicTable(lambda: state, BUILT_IN)
        steps = [table.encoded]
        preparing = asyncio.create_task(table.prepare(), name="prepare")
        while not preparing.done():
            await asyncio.sleep(0)
            steps.append(table.encoded)
            if table.encoded == len(BUILT_IN) + SLICE:
                put(state, TopicConfig(next(iter(state.topics)), 9, 9, 6))
                put(state, TopicConfig("new", 4, 4, 6))
        assert max(new - old for old, new in pairwise(steps)) <= SLICE + len(BUILT_IN)
        before = table.encoded
        check(table, state, BUILT_IN)
        assert table.encoded == before

    run(test)


def test_another_snapshot_is_encoded_in_slices_too() -> None:
    async def test() -> None:
        state = filled(2 * SLICE)
        table = TopicTable(lambda: state, BUILT_IN)
        await table.prepare()
        state = filled(2 * SLICE + 5)
        await table.prepare()
        before = table.encoded
        check(table, state, BUILT_IN)
        assert table.encoded == before

    run(test)


class NameServers:
    """Stands for the client of the registrar: keeps what was sent where."""

    def __init__(self) -> None:
        self.told: list[tuple[str, RegisterBrokerHeader, bytes]] = []

    async def invoke(
        self, addr: str, code: int, header: Any, body: bytes = b"", timeout_s: float = 3.0
    ) -> Response:
        assert code == RequestCode.REGISTER_BROKER
        self.told.append((addr, header, body))
        return Response(ResponseCode.SUCCESS)

    async def heard(self, count: int) -> list[tuple[str, RegisterBrokerHeader, bytes]]:
        async with asyncio.timeout(20):
            while len(self.told) < count:  # noqa: ASYNC110 - looks at what the registrar does
                await asyncio.sleep(0.001)
        return self.told[-2:]


def test_two_name_servers_are_told_one_body_of_one_version(tmp_path: Path) -> None:
    async def test() -> None:
        world = await World(str(tmp_path), namesrv_addr=("a:1", "b:1")).open(lead=False)
        servers = NameServers()
        world.features.registration.registrar._client = servers  # type: ignore[assignment]
        task = asyncio.create_task(world.features.registration.registrar.keep_informed(), name="registrar")
        await servers.heard(2)
        world.node.lead()
        await servers.heard(4)
        before = world.features.topic.table.encoded
        await world.send("New")
        world.clock.value += 5
        told = await servers.heard(6)
        assert world.features.topic.table.encoded == before + 1
        assert [addr for addr, _, _ in told] == ["a:1", "b:1"] and told[0][2] is told[1][2]
        for _, header, body in told:
            decoded = wire.decode_registration(body, crc=header.bodyCrc32)
            assert header.bodyCrc32 == wire.body_crc(body) and header.brokerId == 0
            assert decoded.data_version.stateVersion == 1 and decoded.data_version.counter == 1
            assert "New" in decoded.topics
        world.clock.value += 5
        world.node.follow("n1")
        told = await servers.heard(8)
        assert world.features.topic.table.encoded == before + 1
        for _, header, body in told:
            version = wire.decode_registration(body, crc=header.bodyCrc32).data_version
            assert header.brokerId == world.config.follower_id
            assert (version.stateVersion, version.timestamp) == (2, world.clock.value)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(test)


def test_leadership_that_ends_while_topics_are_encoded_is_not_claimed(tmp_path: Path) -> None:
    """S23: id, term and table of a registration are those of the moment it is sent."""

    async def test() -> None:
        world = await World(str(tmp_path), namesrv_addr=("a:1",)).open()
        servers = NameServers()
        world.features.registration.registrar._client = servers  # type: ignore[assignment]
        state = filled(4 * SLICE)
        world.broker.store.state = state
        task = asyncio.create_task(world.features.registration.registrar.keep_informed(), name="registrar")
        while world.features.topic.table.encoded < 2 * SLICE:  # noqa: ASYNC110 - in the middle
            await asyncio.sleep(0)
        put(state, TopicConfig("last", 4, 4, 6))
        world.node.follow("n1")
        await servers.heard(1)
        _, header, body = servers.told[0]
        decoded = wire.decode_registration(body)
        assert header.brokerId == world.config.follower_id and decoded.data_version.stateVersion == 2
        assert "last" in decoded.topics and decoded.data_version.counter == state.topics_version
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(test)

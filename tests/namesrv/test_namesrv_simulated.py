"""The NameServer and the remoting client in simulated machines: virtual time, partitions, power cuts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from dledger.chaos.machine import Trace, World
from dledger.namesrv.config import NamesrvConfig
from dledger.namesrv.service import main
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import GetRouteHeader, KvConfigHeader, PutKvConfigHeader, RegisterBrokerHeader
from dledger.remoting.registration import DataVersion, Registration, TopicConfig, encode_registration
from dledger.runtime.env import Env

NAMESRV = "ns:9876"
CONFIG = NamesrvConfig(kv_path="/kvConfig.json")

Job = Callable[[Env, RemotingClient], Awaitable[None]]


async def with_client(env: Env, job: Job) -> None:
    client = RemotingClient(env)

    async def work() -> None:
        await job(env, client)
        await client.close()
        running.cancel()

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(client.run(), name="client")
        tasks.create_task(work(), name="job")


async def broker(env: Env, client: RemotingClient) -> None:
    """Registers every second, as brokers do every 30."""
    body = encode_registration(Registration({"T": TopicConfig("T"), "U": TopicConfig("U")}, DataVersion(1)))
    header = RegisterBrokerHeader("broker-a", "broker:10911", "c", "", 0, 3000)
    while True:
        try:
            await client.invoke(NAMESRV, RequestCode.REGISTER_BROKER, header, body, 0.5)
        except RemotingError as error:
            env.log.info("not registered", error=error.remark)
        await asyncio.sleep(1.0)


async def watch(env: Env, client: RemotingClient, seen: list[tuple[float, int | None]]) -> None:
    """Notes every change of the answer to "where is T?"."""
    while True:
        try:
            code: int | None = (
                await client.invoke(
                    NAMESRV, RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"), b"", 0.5
                )
            ).code
        except RemotingError:
            code = None
        if not seen or seen[-1][1] != code:
            seen.append((round(asyncio.get_running_loop().time(), 1), code))
        await asyncio.sleep(0.1)


def run_history(seed: int) -> tuple[list[str], list[int | None]]:
    """A broker comes, dies, comes back, is cut off without a word; then the NameServer restarts."""
    trace = Trace()
    seen: list[tuple[float, int | None]] = []
    with World(seed, trace=trace) as world:
        for name in ("ns", "broker", "client"):
            world.node(name)
        world.spawn("ns", partial(main, config=CONFIG))
        world.run_for(0.5)
        world.spawn("client", partial(with_client, job=partial(watch, seen=seen)))
        world.run_for(1.0)
        world.spawn("broker", partial(with_client, job=broker))
        world.run_for(3.0)
        world.kill("broker")  # the connection closes: gone at once
        world.run_for(1.0)
        world.restart("broker", partial(with_client, job=broker))
        world.run_for(3.0)
        world.partition("ns", "broker")  # nothing closes: gone after its time-out of 3 s and a scan
        world.run_for(12.0)
        world.heal()
        world.run_for(10.0)
        world.kill("ns")
        world.run_for(1.0)
        world.restart("ns", partial(main, config=CONFIG))
        world.run_for(5.0)
        return list(trace.lines), [code for _, code in seen]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_routes_follow_the_life_of_a_broker(seed: int) -> None:
    _, codes = run_history(seed)
    known = [code for code in codes if code is not None]
    assert [code for at, code in enumerate(known) if at == 0 or known[at - 1] != code][:6] == [
        17,
        0,
        17,
        0,
        17,
        0,
    ]
    assert codes[-1] == 0
    assert None in codes


def test_one_seed_is_one_history() -> None:
    assert run_history(7) == run_history(7)


def test_an_answered_kv_change_survives_a_power_cut() -> None:
    answers: list[object] = []

    async def put(env: Env, client: RemotingClient) -> None:
        header = PutKvConfigHeader("n", "k", "v")
        answers.append((await client.invoke(NAMESRV, RequestCode.PUT_KV_CONFIG, header)).code)

    async def get(env: Env, client: RemotingClient) -> None:
        answers.append(
            (await client.invoke(NAMESRV, RequestCode.GET_KV_CONFIG, KvConfigHeader("n", "k"))).ext
        )

    with World(5) as world:
        for name in ("ns", "client"):
            world.node(name)
        world.spawn("ns", partial(main, config=CONFIG))
        world.run_for(0.5)
        world.spawn("client", partial(with_client, job=put))
        world.run_until(lambda: answers, 5.0)
        world.power_cut("ns")
        world.run_for(0.5)
        world.restart("ns", partial(main, config=CONFIG))
        world.run_for(0.5)
        world.restart("client", partial(with_client, job=get))
        world.run_until(lambda: len(answers) == 2, 5.0)
    assert answers == [0, {"value": "v"}]

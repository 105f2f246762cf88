"""Health and metrics of a NameServer over HTTP."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp
import pytest
from namesrv_kit import nameserver, run

from dledger.namesrv.config import SETTINGS, NamesrvConfig
from dledger.remoting.codes import RequestCode
from dledger.remoting.headers import BrokerIdentityHeader
from dledger.runtime.settings import ConfigError


def test_it_says_which_broker_groups_it_knows_and_which_have_no_master(
    unused_tcp_ports: Callable[[int], list[int]],
) -> None:
    (port,) = unused_tcp_ports(1)

    async def main() -> None:
        async with nameserver(NamesrvConfig(http_port=port)) as world:
            root = f"http://127.0.0.1:{port}"
            async with aiohttp.ClientSession() as session:

                async def get(path: str) -> str:
                    async with session.get(root + path) as answer:
                        assert answer.status == 200, path
                        return await answer.text()

                assert await get("/livez") == "ok\n" == await get("/readyz")
                assert '"broker_groups": 0' in await get("/health")
                await world.register()
                health = await get("/health")
                assert '"degraded": false' in health
                assert '"broker_groups": 1, "brokers": 1, "topics": 2' in health
                text = await get("/metrics")
                for line in (
                    "dledger_namesrv_up 1.0",
                    "dledger_namesrv_broker_groups 1.0",
                    "dledger_namesrv_groups_without_master 0.0",
                    "dledger_namesrv_topics 2.0",
                ):
                    assert f"\n{line}\n" in f"\n{text}", line
                for name in ("dledger_build_info{", "process_open_fds ", "dledger_namesrv_requests_total "):
                    assert f"\n{name}" in text, name
                await world.register(broker_id=1, address="10.0.0.2:10911")
                unregister = BrokerIdentityHeader("broker-a", "10.0.0.1:10911", "c", 0)
                assert (await world.call(RequestCode.UNREGISTER_BROKER, unregister)).code == 0
                assert "broker-a has no master" in await get("/health")
                assert "dledger_namesrv_groups_without_master 1.0" in await get("/metrics")
                assert '"version": ' in await get("/version")

    run(main())


def test_it_listens_on_loopback_and_not_twice_at_one_port() -> None:
    config, _ = SETTINGS.load({"httpPort": "9877"})
    assert (config.http_address, config.http_port) == ("127.0.0.1", 9877)
    with pytest.raises(ConfigError, match="httpPort"):
        SETTINGS.load({"httpPort": "9876"})
    own = "127.0.0.1:9878"
    kv = {"kvPeers": f"{own};10.0.0.2:9878", "kvSelfAddress": own, "kvPassword": "secret"}
    with pytest.raises(ConfigError, match="httpPort"):
        SETTINGS.load({"httpPort": "9878"} | kv)

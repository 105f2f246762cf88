"""The NameServers in use now. They are those of `namesrvAddr`, the addresses that DNS returns for the names
in `namesrvAddr` (`fetchNameSrvAddrByDnsLookup`), or those that an address server returns
(`fetchNamesrvAddrByAddressServer`). If a lookup fails, the known addresses stay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dledger.broker.config import BrokerConfig
from dledger.remoting.address_server import NoAddresses, fetch_addresses, looked_up
from dledger.runtime.env import Env
from dledger.runtime.live_settings import LiveSettings


class NameServers:
    """The list of NameServers. After each change it calls the functions that were registered by `listen`."""

    def __init__(self, env: Env, settings: LiveSettings[BrokerConfig]) -> None:
        self._log = env.log.child("namesrv")
        self._settings = settings
        self._listeners: list[Callable[[], None]] = []
        self._wake = asyncio.Event()
        self._failure = ""
        self.addresses: tuple[str, ...] = settings.now.namesrv_addr
        """The known addresses. They are host names until the resolver has answered."""
        settings.listen(self._changed)

    def listen(self, listener: Callable[[], None]) -> None:
        """Register a function that is called after each change."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Look up the addresses at intervals if they come from DNS or from an address server. Runs until
        cancelled."""
        while True:
            self._wake.clear()
            config = self._settings.now
            if config.namesrv_addr and config.namesrv_by_dns:
                await self._ask(config, config.namesrv_addr)
                pause = config.namesrv_dns_interval_s
            elif config.address_server_url:
                await self._ask(config, ())
                pause = config.address_server_interval_s
            else:
                await self._wake.wait()
                continue
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _ask(self, config: BrokerConfig, names: tuple[str, ...]) -> None:
        try:
            found = await (looked_up(names) if names else fetch_addresses(config.address_server_url))
        except NoAddresses as failure:
            if str(failure) != self._failure:  # logged once
                self._failure = str(failure)
                where = ";".join(names) or config.address_server_url
                known = ";".join(self.addresses) or "none"
                self._log.warning(
                    "no NameServer addresses received: the known ones stay in use",
                    asked=where,
                    why=failure,
                    known=known,
                )
            return
        self._failure = ""
        if config is self._settings.now:
            self._take(found)

    def _changed(self, config: BrokerConfig) -> None:
        if config.namesrv_addr and not config.namesrv_by_dns:
            self._take(config.namesrv_addr)
        elif not config.namesrv_addr and not config.address_server_url:
            self._take(())
        self._wake.set()

    def _take(self, addresses: tuple[str, ...]) -> None:
        if addresses == self.addresses:
            return
        self._log.info("NameServers", now=";".join(addresses), before=";".join(self.addresses))
        self.addresses = addresses
        for listener in self._listeners:
            listener()

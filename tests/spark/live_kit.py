"""Brokers reduced to their audit: real sockets, real handlers, over stores that a test has built."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from dledger.audit.replicas import StoreSource
from dledger.broker.audit.audit_jobs import AuditJobs
from dledger.broker.audit.audit_processor import AuditProcessor
from dledger.broker.config import SETTINGS, BrokerConfig
from dledger.broker.core import Core
from dledger.broker.leader_gate import LeaderGate
from dledger.broker.requests import handler_table
from dledger.remoting.audit_headers import AuditLogHeader
from dledger.remoting.bodies import BrokerData, ClusterInfo
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.limits import ServerLimits
from dledger.remoting.server import Connection, RemotingServer
from dledger.runtime.env import Env, production_env
from dledger.runtime.live_settings import LiveSettings
from dledger.runtime.loops import LoopThread

HOST = "127.0.0.1"


class AuditBroker:
    """One node's audit requests. `asked`: how many requests of each code came."""

    def __init__(self, env: Env, store: Path, node: str, members: dict[str, str], **settings: int) -> None:
        self.node = node
        self.address = ""
        config = BrokerConfig(store_root=str(store), self_id=node, peers={node: "127.0.0.1:1"})
        self.jobs = AuditJobs(env, settings.get("bytes_per_s", 0))
        self.asked: dict[int, int] = {}
        used = SimpleNamespace(settings=LiveSettings(env, SETTINGS, config))
        processor = AuditProcessor(cast(Core, used), self.jobs, lambda: members)
        handlers = handler_table([processor], cast(LeaderGate, None))  # any node answers: no gate
        handlers[int(RequestCode.AUDIT_LOG)] = partial(_log_of, env, store)
        self.server = RemotingServer(
            env,
            handlers={code: self._counted(code, handler) for code, handler in handlers.items()},
            limits=ServerLimits(),
            name=node,
        )

    def _counted(self, code: int, handler: object) -> object:
        def count(connection: Connection, request: Request) -> None:
            self.asked[code] = self.asked.get(code, 0) + 1
            handler(connection, request)  # type: ignore[operator]

        return count

    async def start(self) -> None:
        await self.server.start(HOST, 0)
        self.address = "{}:{}".format(*self.server.addresses[0])


def _log_of(env: Env, store: Path, connection: Connection, request: Request) -> None:
    """Answer 28009 AUDIT_LOG with one entry of a store."""
    (replica,) = StoreSource(str(store), env.files).look().replicas
    entry = replica.entry(request.header(AuditLogHeader).first)
    ext = {"begin": "0", "applied": "0", "position": "0", "cluster": "", "group": "", "node": ""}
    connection.respond(request, ResponseCode.SUCCESS, ext=ext, body=entry or b"")


class LiveGroup:
    """A NameServer and its brokers, on one loop in a thread."""

    def __init__(self, stores: list[Path], group: str = "g0", **settings: int) -> None:
        self.env = production_env("test")
        self.thread = LoopThread("live group")
        self.group = group
        self.namesrv = ""
        self.members: dict[str, str] = {f"n{number}": "" for number in range(len(stores))}
        self.registered: dict[int, str] = {}
        self.others: dict[str, dict[int, str]] = {}
        """Other groups that its NameServer knows, and the addresses of their brokers."""
        self.brokers = [
            AuditBroker(self.env, store, f"n{number}", self.members, **settings)
            for number, store in enumerate(stores)
        ]
        self.thread.run(self._start())

    async def _start(self) -> None:
        handlers = {RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster}
        self._names = RemotingServer(self.env, handlers=handlers, limits=ServerLimits(), name="namesrv")
        await self._names.start(HOST, 0)
        self.namesrv = "{}:{}".format(*self._names.addresses[0])
        for number, broker in enumerate(self.brokers):
            await broker.start()
            self.thread.submit(broker.jobs.run())
            self.members[broker.node] = broker.address
            self.registered[number] = broker.address

    def _cluster(self, connection: Connection, request: Request) -> None:
        groups = {self.group: self.registered, **self.others}
        data = {name: BrokerData("c0", name, dict(addresses)) for name, addresses in groups.items()}
        body = ClusterInfo(data, {"c0": list(groups)}).encode()
        connection.respond(request, ResponseCode.SUCCESS, body=body)

    def stop(self, number: int) -> None:
        """One broker is down."""
        self.thread.run(self.brokers[number].server.close())

    def close(self) -> None:
        for server in (self._names, *(broker.server for broker in self.brokers)):
            self.thread.run(server.close())
        self.thread.close()
        self.env.workers.close()


@contextmanager
def live_group(stores: list[Path], **settings: int) -> Iterator[LiveGroup]:
    group = LiveGroup(stores, **settings)
    try:
        yield group
    finally:
        group.close()


def pause(group: LiveGroup, seconds: float) -> None:
    """Let the group's loop run."""
    group.thread.run(asyncio.sleep(seconds))

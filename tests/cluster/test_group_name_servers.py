"""Two NameServers, of which one is stopped and started again and again: new clients notice nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dledger.client import ClientError, Producer, PullConsumer
from dledger.commands.group_status import WARNINGS, look_at_namesrv
from dledger.local import wire
from dledger.local.cluster import LocalCluster, wait_for
from dledger.local.processes import ManagedProcess
from tests.ports import free_ports

ROUNDS = 20
NEW_CLIENTS = 4
"""How many clients are opened in each state of the NameServers."""


class Clients:
    """Opens clients that have never asked a NameServer, one after the other: a send or a look-up each."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self._namesrv = namesrv
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="new clients")
        self.opened = 0
        self.failed: list[str] = []

    def __enter__(self) -> Clients:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def more(self, count: int) -> None:
        """Wait until so many further ones were opened."""
        wanted = self.opened + count
        wait_for(lambda: self.opened >= wanted or None, 120, lambda: f"{self.opened} of {wanted} clients")

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with Producer("PG_new", self._namesrv) as producer:
                    producer.send(self._topic, b"x")
                with PullConsumer("CG_new", self._namesrv) as consumer:
                    assert len(consumer.queues(self._topic)) == 4
            except ClientError as error:
                self.failed.append(f"client {self.opened}: {error}")
            self.opened += 1


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, ManagedProcess]]:
    """Two NameServers by address."""
    made = {}
    for port in free_ports(2):
        config = tmp_path / f"namesrv-{port}.conf"
        config.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\nkvConfigPath={tmp_path}/{port}.json\n")
        made[f"127.0.0.1:{port}"] = ManagedProcess(
            f"namesrv-{port}",
            [sys.executable, "-m", "dledger", "namesrv", "-c", str(config)],
            pid_file=tmp_path / f"{port}.pid",
            output=tmp_path / f"{port}.out",
            cwd=tmp_path,
        )
    for server in made.values():
        server.start()
    yield made
    for server in made.values():
        server.kill()


def test_one_of_two_nameservers_is_restarted_under_new_clients(
    servers: dict[str, ManagedProcess], new_group: Callable[..., LocalCluster]
) -> None:
    namesrv = ";".join(servers)
    group = new_group(namesrv=namesrv)
    group.create_topic("orders", queues=4)
    with Clients(namesrv, "orders") as clients:
        for number in range(ROUNDS):
            address = list(servers)[number % 2]
            # The brokers are to know the other one, which lost everything in the round before.
            others = [other for other in servers if other != address]
            wait_for(
                lambda others=others: all(wire.has_route(other, "orders") for other in others) or None,
                120,
                lambda others=others: f"{others} does not know the topic",
            )
            servers[address].kill()
            clients.more(NEW_CLIENTS)
            servers[address].start()
            wait_for(lambda at=address: wire.listens(at) or None, 60, lambda at=address: f"{at} is down")
            clients.more(NEW_CLIENTS)
    assert clients.failed == []
    assert clients.opened >= 2 * ROUNDS * NEW_CLIENTS


def test_status_names_the_nameserver_that_knows_no_brokers(
    servers: dict[str, ManagedProcess], new_group: Callable[..., LocalCluster]
) -> None:
    knows, empty = servers
    new_group(namesrv=knows)
    seen = look_at_namesrv(f"{empty};{knows}", None)
    assert seen.code == WARNINGS and [group["name"] for group in seen.found["groups"]] == ["broker-a"]
    assert any(problem.startswith(f"NameServer {empty} does not list broker-a") for problem in seen.problems)

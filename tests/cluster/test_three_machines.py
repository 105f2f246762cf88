"""The three machines of docs/howto/run-in-production.md, as three addresses of one."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger import FromWhere, Message, Producer, PullConsumer

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "run-in-production.md"
WATCHER = "127.0.0.9"
"""From where health and metrics are asked for."""
LIMIT_S = 60.0


def block(beginning: str) -> str:
    """The block of the page that begins so."""
    (found,) = re.findall(rf"```\n({re.escape(beginning)}.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


def machine(number: int) -> str:
    return f"127.0.0.{number + 1}"


def files_of(number: int, directory: Path) -> tuple[Path, Path]:
    """What the page puts onto a machine: of its NameServer and its broker."""
    broker = block("brokerClusterName=")
    broker = broker.replace("brokerIP1=10.0.0.1", f"brokerIP1=10.0.0.{number}")
    broker = broker.replace("dLegerSelfId=n0", f"dLegerSelfId=n{number - 1}")
    texts = {
        "broker.conf": broker + "mapedFileSizeCommitLog=16777216\n",
        "namesrv.conf": block("listenPort=9876"),
    }
    for name, text in texts.items():
        # One machine has all addresses here, so each program must keep to its own.
        text += f"bindAddress=10.0.0.{number}\n"
        text = re.sub(r"10\.0\.0\.(\d)", lambda found: machine(int(found[1])), text)
        text = text.replace("/var/lib/", f"{directory}/lib/").replace("/var/log/", f"{directory}/log/")
        (directory / name).write_text(text)
    return directory / "namesrv.conf", directory / "broker.conf"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """The brokers by number; all NameServers run, too."""
    running: list[subprocess.Popen[bytes]] = []
    brokers: dict[int, subprocess.Popen[bytes]] = {}

    def start(name: str, path: Path) -> subprocess.Popen[bytes]:
        running.append(subprocess.Popen([sys.executable, "-m", "dledger", name, "-c", str(path)]))
        return running[-1]

    try:
        for number in (1, 2, 3):
            namesrv, broker = files_of(number, tmp_path_factory.mktemp(f"machine{number}"))
            start("namesrv", namesrv)
            brokers[number] = start("broker", broker)
        yield brokers
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(LIMIT_S)


def asked(number: int, path: str) -> tuple[int, str]:
    """What a machine's HTTP port answers somebody elsewhere; code 0 when nobody listens."""
    connection = http.client.HTTPConnection(machine(number), 10913, timeout=5, source_address=(WATCHER, 0))
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


def until(number: int, code: int, **wanted: object) -> dict[str, object]:
    """Ask for a machine's health until it is so."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        status, text = asked(number, "/health")
        health: dict[str, object] = json.loads(text) if status else {}
        if status == code and all(health.get(key) == value for key, value in wanted.items()):
            return health
        assert time.monotonic() < deadline, (number, status, text)
        time.sleep(0.05)


def test_the_example_runs_and_bears_the_loss_of_a_machine(
    machines: dict[int, subprocess.Popen[bytes]],
) -> None:
    for number in machines:
        until(number, 200, healthy=True, degraded=False)
    namesrv = ";".join(f"{machine(number)}:9876" for number in machines)
    leader = next(number for number in machines if until(number, 200)["role"] == "LEADER")
    with Producer("three", namesrv) as producer:
        producer.create_topic("orders", queues=1)
        first = producer.send(Message("orders", b"before"))
        machines[leader].kill()
        producer.send(Message("orders", b"after"))
    for number in machines:
        if number != leader:
            health = until(number, 200, healthy=True, degraded=True)
            assert health["warnings"] == [
                f"n{leader - 1} is not reached: the group can survive one failure less"
            ]
            assert health["leader_addr"] != f"{machine(leader)}:10911"
            code, metrics = asked(number, "/metrics")
            assert code == 200 and f'dledger_peer_connected{{peer="n{leader - 1}"}} 0.0' in metrics
    with PullConsumer("readers", namesrv) as consumer:
        consumer.assign([first.queue], FromWhere.FIRST)
        bodies: list[bytes] = []
        while len(bodies) < 2:
            bodies += [message.body for message in consumer.poll(1.0)]
    assert bodies == [b"before", b"after"]

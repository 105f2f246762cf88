"""The networks of trials: the proxy on loopback, and network namespaces."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from dledger.chaos.trials.namespaces import can_make_namespaces
from dledger.chaos.trials.network import CLIENTS
from dledger.chaos.trials.proxy import ProxyNetwork, address_of
from dledger.local.placement import Placement

LIMIT_S = 20.0


class Echo:
    """A server that sends back what it receives, at 127.0.0.1."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.sources: list[str] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, source = self._socket.accept()
            except OSError:
                return
            self.sources.append(source[0])
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    @staticmethod
    def _echo(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(4096):
                    connection.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self._socket.close()


class Bed:
    """A proxy before an echo server, which is the node n0. This process is n1 if `as_node` is set, else a
    client."""

    def __init__(self) -> None:
        self.echo = Echo()
        self.as_node = False
        ports = {"n0": [self.echo.port], "n1": []}
        self.proxy = ProxyNetwork(ports, lambda host: os.getpid() if self.as_node and host == "n1" else None)
        self.open: list[socket.socket] = []

    def connect(self) -> socket.socket:
        found = socket.create_connection((address_of(0), self.echo.port), timeout=LIMIT_S)
        self.open.append(found)
        return found

    def close(self) -> None:
        for one in self.open:
            one.close()
        self.proxy.close()
        self.echo.close()


@pytest.fixture
def bed() -> Iterator[Bed]:
    found = Bed()
    with closing(found):
        yield found


def receive(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (more := connection.recv(length - len(data))):
        data += more
    return data


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def silent(connection: socket.socket) -> bool:
    """Whether nothing comes within a short time."""
    connection.settimeout(0.2)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(LIMIT_S)
    return False


def asked(connection: socket.socket, data: bytes = b"hello") -> bytes:
    connection.sendall(data)
    return receive(connection, len(data))


def test_the_proxy_relays(bed: Bed) -> None:
    assert asked(bed.connect(), b"x" * 1_000_000) == b"x" * 1_000_000
    assert bed.proxy.place().host("n0") == address_of(0)


def test_a_closed_connection_is_closed_behind_the_proxy_too(bed: Bed) -> None:
    connection = bed.connect()
    asked(connection)
    connection.close()
    until(lambda: not bed.proxy.relays)


def test_the_source_of_a_connection_is_known_by_its_process(bed: Bed) -> None:
    asked(bed.connect())
    bed.as_node = True
    asked(bed.connect())
    assert [relay.source for relay in bed.proxy.relays] == [CLIENTS, "n1"]
    assert bed.echo.sources == ["127.0.0.1", address_of(1)]


def test_a_cut_holds_back_what_is_sent_until_it_is_over(bed: Bed) -> None:
    connection = bed.connect()
    asked(connection)
    bed.proxy.cut(CLIENTS, "n0")
    connection.sendall(b"late")
    assert silent(connection)
    bed.proxy.join(CLIENTS, "n0")
    assert receive(connection, 4) == b"late"


def test_a_cut_is_in_one_direction_and_between_two_hosts(bed: Bed) -> None:
    connection = bed.connect()
    asked(connection)
    bed.proxy.cut("n1", "n0")
    assert asked(connection) == b"hello"
    bed.proxy.cut("n0", CLIENTS)
    connection.sendall(b"x")
    assert silent(connection)
    bed.proxy.heal()
    assert receive(connection, 1) == b"x"


def test_a_new_connection_over_a_cut_link_is_silent_until_it_is_over(bed: Bed) -> None:
    bed.proxy.cut("n0", CLIENTS)
    connection = bed.connect()
    connection.sendall(b"hello")
    assert silent(connection)
    assert bed.echo.sources == []
    bed.proxy.heal()
    assert receive(connection, 5) == b"hello"


def test_what_is_dropped_never_arrives_and_the_connection_is_reset_in_the_end(bed: Bed) -> None:
    connection, idle = bed.connect(), bed.connect()
    asked(connection)
    asked(idle)
    bed.proxy.drop(CLIENTS, "n0")
    connection.sendall(b"lost")
    assert silent(connection)
    bed.proxy.restore(CLIENTS, "n0")
    with pytest.raises(ConnectionResetError):
        connection.recv(1)
    assert asked(idle) == b"hello"


def test_a_delay_keeps_the_order(bed: Bed) -> None:
    connection = bed.connect()
    asked(connection)
    bed.proxy.delay(CLIENTS, "n0", 100, 50)
    began = time.monotonic()
    for number in range(20):
        connection.sendall(b"%03d" % number)
    assert receive(connection, 60) == b"".join(b"%03d" % number for number in range(20))
    assert time.monotonic() - began >= 0.1
    bed.proxy.delay(CLIENTS, "n0", 0)


def test_a_rate_limits_what_passes(bed: Bed) -> None:
    connection = bed.connect()
    asked(connection)
    bed.proxy.rate(CLIENTS, "n0", 100_000)
    began = time.monotonic()
    asked(connection, b"x" * 30_000)
    assert time.monotonic() - began >= 0.25


def test_a_link_that_holds_much_back_makes_the_sender_wait(bed: Bed) -> None:
    connection = bed.connect()
    asked(connection)
    bed.proxy.cut(CLIENTS, "n0")
    connection.settimeout(0.5)
    with pytest.raises(TimeoutError):
        connection.sendall(bytes(64 << 20))
    bed.proxy.reset(CLIENTS, "n0")


def test_a_reset_ends_all_connections_of_a_host(bed: Bed) -> None:
    connections = [bed.connect() for _ in range(5)]
    for connection in connections:
        asked(connection)
    assert bed.proxy.reset("n1", "n0") == 0
    assert bed.proxy.reset(CLIENTS, "n0") == 5
    for connection in connections:
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    assert asked(bed.connect()) == b"hello"


def test_a_flaky_link_resets_connections_by_its_seed(bed: Bed) -> None:
    bed.proxy.flaky(CLIENTS, "n0", 1, 0.1, 0.0)

    def sends() -> int:
        connection = bed.connect()
        for number in range(1000):
            try:
                if not asked(connection):
                    return number
            except ConnectionError:
                return number
        return 1000

    first = [sends() for _ in range(3)]
    bed.proxy.flaky(CLIENTS, "n0", 1, 0.1, 0.0)
    assert [sends() for _ in range(3)] == first
    bed.proxy.flaky(CLIENTS, "n0", 0, 0.0, 0.0)
    assert sends() == 1000


def test_without_a_process_behind_a_connection_is_reset(bed: Bed) -> None:
    bed.echo._socket.shutdown(socket.SHUT_RDWR)
    bed.echo.close()
    with pytest.raises(ConnectionResetError):
        bed.connect().recv(1)


# Namespaces

needs_root = pytest.mark.skipif(not can_make_namespaces(), reason="network namespaces cannot be made here")


def run(program: str) -> str:
    """Run a program in a process of its own, because it changes its network. Returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SERVER = (
    "import socket; s = socket.create_server(('0.0.0.0', 7000)); print('up', flush=True)\\n"
    "while 1: s.accept()[0].sendall(b'x')"
)
PRELUDE = f"""
import socket, subprocess, sys
from dledger.chaos.trials.namespaces import NamespaceNetwork
network = NamespaceNetwork(["n0", "n1"])
place = network.place()
python = [sys.executable]
server = subprocess.Popen([*place.before["n0"], *python, "-c", "{SERVER}"], stdout=subprocess.PIPE)
server.stdout.readline()
def reached(host, source=""):
    program = "import socket; socket.create_connection(('%s', 7000), 0.5)" % host
    before = place.before[source] if source else ()
    return subprocess.run([*before, *python, "-c", program], stderr=subprocess.DEVNULL).returncode == 0
"""


@needs_root
def test_a_cut_in_namespaces_is_in_one_direction_and_between_two_hosts() -> None:
    found = run(
        PRELUDE
        + """
host = place.host("n0")
print(reached(host), reached(host, "n1"))
network.cut("n1", "n0")
print(reached(host), reached(host, "n1"))
network.join("n1", "n0")
network.cut("n0", "clients")
network.cut("n0", "clients")
print(reached(host), reached(host, "n1"), reached(place.health["n0"]))
network.heal()
print(reached(host), reached(host, "n1"))
server.kill()
network.close()
"""
    )
    assert found.splitlines() == ["True True", "True False", "False True True", "True True"]


@needs_root
def test_the_machines_own_network_is_not_touched_and_is_back_in_the_end() -> None:
    before = subprocess.run(["ip", "link"], capture_output=True, check=True).stdout
    found = run(
        PRELUDE
        + """
import os
inside = os.readlink("/proc/thread-self/ns/net")
server.kill()
network.close()
print(inside != os.readlink("/proc/thread-self/ns/net"))
"""
    )
    assert found == "True\n"
    assert subprocess.run(["ip", "link"], capture_output=True, check=True).stdout == before


def test_a_placement_has_loopback_as_its_default() -> None:
    place = Placement()
    assert place.host("n0") == "127.0.0.1"
    assert place.command("n0", ["python"], "module", ["-c", "f"]) == ["python", "-m", "module", "-c", "f"]

"""A network of network namespaces, for root: each host of a trial has a namespace of its own.

All hosts are connected to a router, which is a further namespace. A link is cut there, by a rule that
discards what comes from one address and goes to the other. The thread that makes the network enters the
namespace of the clients; threads and processes that it starts afterwards are in it, too. Nothing of the
machine's own network is touched. The namespaces have no names: they are open files of this process, and end
with the last process that uses them, also after SIGKILL.

A node has two addresses. Peers, clients and NameServers use the first one; rules are about this address only.
The trial asks for `/health` at the second one, which no rule concerns.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Sequence
from functools import cache

from dledger.chaos.trials.network import CLIENTS, hosts_of
from dledger.local.placement import NAMESRV, Placement

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
EVERYWHERE = "0.0.0.0"


class NamespaceError(OSError):
    """Raised if the system does not let this process make namespaces, or a command fails in one."""


def _unshare() -> None:
    if _libc.unshare(_CLONE_NEWNET):
        number = ctypes.get_errno()
        raise NamespaceError(number, f"no network namespace can be made: {os.strerror(number)}")


def _own_namespace() -> int:
    """The namespace of this thread, as an open file."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _new_namespace() -> int:
    """Make a namespace. Returns it as an open file."""
    found: list[int] = []
    errors: list[OSError] = []

    def make() -> None:
        try:
            _unshare()
            found.append(_own_namespace())
        except OSError as error:
            errors.append(error)

    maker = threading.Thread(target=make, name="namespace")
    maker.start()
    maker.join()
    if errors:
        raise errors[0]
    return found[0]


def _enter(namespace: int) -> None:
    """Move this thread into a namespace."""
    if _libc.setns(namespace, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise NamespaceError(number, f"a network namespace cannot be entered: {os.strerror(number)}")


def _nsenter(namespace: int) -> tuple[str, ...]:
    """The words before a command that runs it in a namespace."""
    return ("nsenter", f"--net=/proc/{os.getpid()}/fd/{namespace}", "--")


def _ip(namespace: int, *commands: str) -> None:
    """Run commands of `ip` in a namespace. Raises NamespaceError if one fails."""
    done = subprocess.run(
        [*_nsenter(namespace), "ip", "-batch", "-"],
        input="\n".join(commands) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NamespaceError(f"ip: {done.stderr.strip()} ({'; '.join(commands)})")


@cache
def can_make_namespaces() -> bool:
    """Whether this process may make namespaces, connect them and cut links in them."""
    try:
        namespace = _new_namespace()
    except OSError:
        return False
    try:
        _ip(namespace, "link add probe0 type veth peer name probe1", _rule("add", 1, 2, 100))
    except OSError:  # no `ip`, no `nsenter`, or a kernel without one of the two
        return False
    finally:
        os.close(namespace)
    return True


def _address(place: int) -> str:
    return f"10.77.{place}.2"


def _gateway(place: int) -> str:
    return f"10.77.{place}.1"


def _health_address(place: int) -> str:
    return f"10.78.{place}.2"


def _rule(action: str, source: int, target: int, priority: int) -> str:
    return f"rule {action} from {_address(source)} to {_address(target)} blackhole pref {priority}"


class NamespaceNetwork:
    """Implements `Network`. It must be made in the thread that starts all others, and closed in it."""

    kind: str = "namespaces"

    def __init__(self, nodes: Sequence[str]) -> None:
        """Make all namespaces, and enter that of the clients. Raises NamespaceError."""
        self._places = {host: place for place, host in enumerate(hosts_of(nodes), start=1)}
        self._nodes = tuple(nodes)
        self._before = _own_namespace()
        self._open = [self._before]
        self._lock = threading.Lock()
        self._cuts: dict[tuple[str, str], None] = {}
        try:
            self._router = self._namespace()
            self._namespaces = {host: self._namespace() for host in self._places}
            self._connect()
            _enter(self._namespaces[CLIENTS])
        except OSError:
            self.close()
            raise

    def _namespace(self) -> int:
        namespace = _new_namespace()
        self._open.append(namespace)
        return namespace

    def _connect(self) -> None:
        command = [*_nsenter(self._router), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NamespaceError(f"packets cannot be forwarded in a namespace: {done.stderr.strip()}")
        for host, place in self._places.items():
            path = f"/proc/{os.getpid()}/fd/{self._namespaces[host]}"
            _ip(
                self._router,
                f"link add to{place} type veth peer name host{place}",
                f"link set host{place} netns {path}",
                f"address add {_gateway(place)}/24 dev to{place}",
                f"link set to{place} up",
                f"route add {_health_address(place)}/32 via {_address(place)} dev to{place} onlink",
            )
            _ip(
                self._namespaces[host],
                "link set lo up",
                f"address add {_address(place)}/24 dev host{place}",
                f"address add {_health_address(place)}/32 dev lo",
                f"link set host{place} up",
                f"route add default via {_gateway(place)}",
            )

    @property
    def broker_settings(self) -> dict[str, str]:
        """Properties that the brokers need in this network: the trial may change the group from outside."""
        return {"peerAllowedSources": _address(self._places[CLIENTS])}

    def place(self) -> Placement:
        """Where the processes of the group run: each in its namespace."""
        processes = (NAMESRV, *self._nodes)
        return Placement(
            hosts={host: _address(self._places[host]) for host in processes},
            listen=dict.fromkeys(processes, EVERYWHERE),
            health={node: _health_address(self._places[node]) for node in self._nodes},
            before={host: _nsenter(self._namespaces[host]) for host in processes},
        )

    # Links

    def cut(self, source: str, target: str) -> None:
        """Discard everything on this link."""
        with self._lock:
            if (source, target) not in self._cuts:
                self._change("add", source, target)
                self._cuts[source, target] = None

    def join(self, source: str, target: str) -> None:
        """End a cut of this link."""
        with self._lock:
            if (source, target) in self._cuts:
                self._change("del", source, target)
                del self._cuts[source, target]

    def _change(self, action: str, source: str, target: str) -> None:
        place, to = self._places[source], self._places[target]
        _ip(self._router, _rule(action, place, to, 100 + place * len(self._places) + to))

    def heal(self) -> None:
        """End all cuts."""
        for source, target in list(self._cuts):
            self.join(source, target)

    def close(self) -> None:
        """Leave the namespaces. They end with the last process in them."""
        _enter(self._before)
        for namespace in self._open:
            os.close(namespace)
        self._open.clear()


__all__ = ["NamespaceError", "NamespaceNetwork", "can_make_namespaces"]

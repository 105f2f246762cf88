"""Raw remoting frames over a plain blocking socket, for probes, and for frames that no real client would
send.

This module deliberately does not use `dledger/remoting/`, so that it can find faults of that package.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dledger.formats.addresses import split_address

UPDATE_AND_CREATE_TOPIC = 17
GET_ROUTE = 105
GET_BROKER_CLUSTER_INFO = 106
_LENGTHS = struct.Struct(">II")
_NUMBER_KEY = re.compile(r"([{,])(-?\d+):")  # fastjson writes map keys that are numbers without quotes
MAX_ANSWER = 64 * 1024 * 1024


class NoAnswer(Exception):
    """Raised if the peer closed the connection, refused it, or did not answer in time."""


@dataclass(frozen=True)
class Answer:
    """A decoded response frame."""

    code: int
    opaque: int
    remark: str | None
    ext: dict[str, str]
    body: bytes
    raw_header: dict[str, object] = field(repr=False)


def frame(header: bytes, body: bytes = b"", serialize: int = 0) -> bytes:
    """Return a frame with any header bytes, valid or not."""
    return _LENGTHS.pack(4 + len(header) + len(body), serialize << 24 | len(header)) + header + body


def request(code: int, ext: Mapping[str, object] | None = None, body: bytes = b"", opaque: int = 1) -> bytes:
    """Return a well-formed request frame with a JSON header."""
    header: dict[str, object] = {
        "code": code,
        "language": "PYTHON",
        "version": 401,
        "opaque": opaque,
        "flag": 0,
        "extFields": dict(ext or {}),
    }
    return frame(json.dumps(header).encode(), body)


class RawConnection:
    """One TCP connection, to be used as a context manager. `timeout_s` limits every wait."""

    def __init__(self, addr: str, timeout_s: float = 5.0) -> None:
        try:
            self._socket = socket.create_connection(split_address(addr), timeout_s)
        except (OSError, ValueError) as error:
            raise NoAnswer(f"{addr}: {error}") from error

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close this side of the connection."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send all bytes. Raises NoAnswer if the peer is gone."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise NoAnswer(str(error)) from error

    def half_close(self) -> None:
        """Close the sending side of the connection: no more requests follow."""
        self._socket.shutdown(socket.SHUT_WR)

    def answer(self) -> Answer:
        """Read the next frame. Raises NoAnswer if the connection closes or the time-out is over."""
        length, marked = _LENGTHS.unpack(self._exactly(8))
        if not 4 <= length <= MAX_ANSWER:
            raise NoAnswer(f"a frame of {length} bytes")
        rest = self._exactly(length - 4)
        header_size = marked & 0xFFFFFF
        try:
            header = json.loads(rest[:header_size])
            code, opaque = header["code"], header["opaque"]
        except (ValueError, KeyError, TypeError) as error:
            raise NoAnswer("a frame without a header of the remoting protocol") from error
        return Answer(
            code=code,
            opaque=opaque,
            remark=header.get("remark"),
            ext=header.get("extFields") or {},
            body=rest[header_size:],
            raw_header=header,
        )

    def closed_by_peer(self) -> bool:
        """Return whether the peer closes the connection within the time-out instead of answering."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                data = self._socket.recv(min(size - len(parts), 1 << 20))
            except OSError as error:
                raise NoAnswer(f"after {len(parts)} of {size} bytes: {error}") from error
            if not data:
                raise NoAnswer(f"closed after {len(parts)} of {size} bytes")
            parts += data
        return bytes(parts)


def call(
    addr: str, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"", timeout_s: float = 5.0
) -> Answer:
    """Send one request over a connection of its own, and return the answer."""
    with RawConnection(addr, timeout_s) as connection:
        try:
            connection.send(request(code, ext, body))
            return connection.answer()
        except NoAnswer as error:
            raise NoAnswer(f"{addr}: {error}") from error


@dataclass(frozen=True)
class Registered:
    """A broker group as a NameServer knows it. `addresses` maps a broker id to an address; the leader has
    the id "0"."""

    cluster: str
    addresses: dict[str, str]

    @property
    def leader(self) -> str | None:
        """Address of the leader; None if no leader is registered."""
        return self.addresses.get("0")


def registered(namesrv: str, timeout_s: float = 1.0) -> dict[str, Registered]:
    """Return all broker groups that a NameServer knows, by name. Raises NoAnswer if it does not answer, or
    not as a NameServer does."""
    answer = call(namesrv, GET_BROKER_CLUSTER_INFO, timeout_s=timeout_s)
    try:
        table = json.loads(_NUMBER_KEY.sub(r'\1"\2":', answer.body.decode()))["brokerAddrTable"]
        return {
            name: Registered(str(data.get("cluster") or ""), dict(data.get("brokerAddrs") or {}))
            for name, data in sorted((table or {}).items())
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoAnswer(f"{namesrv} does not answer like a NameServer (code {answer.code})") from error


def merged(found: Iterable[dict[str, Registered]]) -> dict[str, Registered]:
    """Merge the broker groups that several NameServers know. If several NameServers know the same group,
    the first entry that has a leader is used."""
    groups: dict[str, Registered] = {}
    for known in found:
        for name, group in known.items():
            if name not in groups or (groups[name].leader is None and group.leader is not None):
                groups[name] = group
    return dict(sorted(groups.items()))


def registered_anywhere(namesrvs: Sequence[str], timeout_s: float = 1.0) -> dict[str, Registered]:
    """Return all broker groups that any of these NameServers knows. Raises NoAnswer if none answers."""
    found, silent = [], []
    for address in namesrvs:
        try:
            found.append(registered(address, timeout_s))
        except NoAnswer as error:
            silent.append(str(error))
    if not found:
        raise NoAnswer("; ".join(silent))
    return merged(found)


def master_address(namesrv: str, broker_name: str, timeout_s: float = 1.0) -> str | None:
    """Return the address that a NameServer has for broker id 0 of a group; None if it has none. Raises
    NoAnswer if the NameServer does not answer."""
    group = registered(namesrv, timeout_s).get(broker_name)
    return None if group is None else group.leader


def listens(addr: str, timeout_s: float = 1.0) -> bool:
    """Return whether a process accepts connections at this address."""
    try:
        RawConnection(addr, timeout_s).close()
    except NoAnswer:
        return False
    return True


def create_topic(addr: str, topic: str, queues: int = 4) -> Answer:
    """Create a topic with a request to the leader at `addr`, as an administrator's tool does."""
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    return call(addr, UPDATE_AND_CREATE_TOPIC, ext)


def has_route(namesrv: str, topic: str) -> bool:
    """Return whether the NameServer knows which brokers have this topic."""
    return call(namesrv, GET_ROUTE, {"topic": topic, "acceptStandardJsonOnly": "true"}).code == 0

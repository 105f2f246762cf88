"""The probe that measures failovers. It sends small messages in a closed loop over raw sockets, in a process
of its own.

    python -m dledger.chaos.failover_clock TOPIC ADDRESS ADDRESS ADDRESS

One message is in flight. If a message is refused, or not acknowledged within 5 ms, the next message goes to
the next address. A late acknowledgement still counts. After an acknowledgement the loop waits 5 ms. Commands
on standard input, one line each:

* `since T`: T is a time of the monotonic clock. Answers with one JSON line as soon as a message that was
  first sent after T is acknowledged: `sent_at`, `acked_at`, `tries` since T, `address`.
* `gap T`: the longest time without an acknowledgement between T and now, in seconds: `gap`.
* `count`: how many messages were acknowledged so far, and at how many different queue offsets. The two
  numbers are equal, unless a message is lost.

The process ends when standard input is closed.
"""

from __future__ import annotations

import itertools
import json
import os
import selectors
import socket
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field

from dledger.formats.addresses import split_address
from dledger.local import wire

TOPIC = "Probe"
"""The topic to which measurements let the probe send."""
SEND_MESSAGE_V2 = 310
DEADLINE_S = 0.005
"""How long one try waits for its acknowledgement, in seconds."""
PAUSE_S = 0.005
"""Pause after an acknowledgement, in seconds."""
REFUSED_PAUSE_S = 0.0005
"""Pause after a try that was refused at once, in seconds. The next try goes to the next address."""
MAX_OPEN = 10_000
"""Limit of the messages without an answer that are remembered. Beyond it the oldest one is forgotten."""
_LENGTH = struct.Struct(">I")


@dataclass
class _Address:
    """One broker: its connection, if it is open, and the bytes received on it."""

    text: str
    sock: socket.socket | None = None
    connected: bool = False
    received: bytearray = field(default_factory=bytearray)


class Probe:
    """Sends one message after another; notes when each was sent and which were acknowledged."""

    def __init__(self, topic: str, addresses: list[str]) -> None:
        self._topic = topic
        self._addresses = [_Address(text) for text in addresses]
        self._selector = selectors.DefaultSelector()
        self._selector.register(sys.stdin, selectors.EVENT_READ, None)
        self._commands = bytearray()
        self._place = 0
        self._number = 0
        self._open: dict[int, float] = {}
        self._outcome: bool | None = None
        self._since: float | None = None
        self._tries: deque[float] = deque(maxlen=MAX_OPEN)
        self._recent: deque[tuple[float, float, str]] = deque(maxlen=MAX_OPEN)
        self._acked = 0
        self._offsets: set[str] = set()
        self._ended = False

    def run(self) -> None:
        """Send messages until standard input is closed."""
        while not self._ended:
            acked = self._try()
            until = time.monotonic() + (PAUSE_S if acked else REFUSED_PAUSE_S)
            while not self._ended and (left := until - time.monotonic()) > 0:
                self._poll(left)

    def _try(self) -> bool:
        """Send one message to the current address. After a failure the next address becomes the current
        one."""
        self._number += 1
        number = self._number
        address = self._addresses[self._place]
        sent_at = time.monotonic()
        until = sent_at + DEADLINE_S
        self._tries.append(sent_at)
        self._outcome = None
        if self._connect(address, until) and self._send(address, number):
            self._open[number] = sent_at
            if len(self._open) > MAX_OPEN:
                del self._open[next(iter(self._open))]
            while self._outcome is None and (left := until - time.monotonic()) > 0 and not self._ended:
                self._poll(left)
            if self._outcome:
                return True
        self._place = (self._place + 1) % len(self._addresses)
        return False

    def _connect(self, address: _Address, until: float) -> bool:
        if address.sock is None:
            address.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            address.sock.setblocking(False)
            address.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            error = address.sock.connect_ex(split_address(address.text))
            if error not in (0, 115):  # EINPROGRESS
                self._drop(address)
                return False
            self._selector.register(address.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, address)
        while not address.connected and address.sock is not None and not self._ended:
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._poll(left)
        return address.connected

    def _send(self, address: _Address, number: int) -> bool:
        ext = {
            "a": "PG_probe", "b": self._topic, "c": "TBW102", "d": "1", "e": "0", "f": "0",
            "g": str(time.time_ns() // 1_000_000), "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        data = wire.request(SEND_MESSAGE_V2, ext, b"probe %d" % number, opaque=number)
        try:
            assert address.sock is not None
            return address.sock.send(data) == len(data)
        except OSError:
            self._drop(address)
            return False

    def _drop(self, address: _Address) -> None:
        if address.sock is not None:
            if address.sock in self._selector.get_map():
                self._selector.unregister(address.sock)
            address.sock.close()
        address.sock = None
        address.connected = False
        address.received.clear()

    def _poll(self, timeout_s: float) -> None:
        for key, events in self._selector.select(timeout_s):
            if key.data is None:
                self._command()
                continue
            address: _Address = key.data
            sock = address.sock
            if sock is None:
                continue
            if events & selectors.EVENT_WRITE and not address.connected:
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    self._drop(address)
                    continue
                address.connected = True
                self._selector.modify(sock, selectors.EVENT_READ, address)
            if events & selectors.EVENT_READ:
                self._receive(address, sock)

    def _receive(self, address: _Address, sock: socket.socket) -> None:
        try:
            data = sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(address)
            return
        address.received += data
        while len(address.received) >= 8:
            size = 4 + _LENGTH.unpack_from(address.received)[0]
            if len(address.received) < size:
                break
            header = json.loads(
                bytes(address.received[8 : 8 + (_LENGTH.unpack_from(address.received, 4)[0] & 0xFFFFFF)])
            )
            del address.received[:size]
            self._answered(address, header)

    def _answered(self, address: _Address, header: dict[str, object]) -> None:
        number = header["opaque"]
        if not isinstance(number, int):
            return
        sent_at = self._open.pop(number, None)
        if number == self._number:
            self._outcome = header["code"] == 0
        if header["code"] == 0 and sent_at is not None:
            ext = header.get("extFields")
            self._acked += 1
            self._offsets.add(str(ext["queueOffset"]) if isinstance(ext, dict) else "?")
            self._recent.append((sent_at, time.monotonic(), address.text))
            self._tell()

    def _tell(self) -> None:
        """Answer the command `since T`, if a message that was first sent after T is acknowledged."""
        since = self._since
        if since is None:
            return
        for sent_at, acked_at, text in self._recent:  # in the order of the acknowledgements
            if sent_at > since:
                self._since = None
                tries = sum(1 for at in self._tries if since < at <= acked_at)
                self._say({"sent_at": sent_at, "acked_at": acked_at, "tries": tries, "address": text})
                return

    def _command(self) -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:
            self._ended = True
            return
        self._commands += data
        while b"\n" in self._commands:
            line, _, rest = bytes(self._commands).partition(b"\n")
            self._commands = bytearray(rest)
            word, _, value = line.decode().partition(" ")
            if word == "since":
                self._since = float(value)
                self._tell()
            elif word == "gap":
                since = float(value)
                marks = [since, *(at for _, at, _ in self._recent if at > since), time.monotonic()]
                gaps = [after - before for before, after in itertools.pairwise(marks)]
                self._say({"gap": max(gaps)})
            elif word == "count":
                self._say({"acked": self._acked, "places": len(self._offsets)})

    def _say(self, value: dict[str, object]) -> None:
        print(json.dumps(value), flush=True)


if __name__ == "__main__":
    Probe(sys.argv[1], sys.argv[2:]).run()

"""A reader that pauses, or a disk that hangs, costs log lines and never the service."""

from __future__ import annotations

import errno
import logging
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dledger.local import wire
from dledger.local.cluster import wait_for
from dledger.runtime import log_writer
from dledger.runtime.log_files import LogFile
from dledger.runtime.log_writer import Descriptor, QueuedHandler
from tests.ports import free_ports

LIMIT_S = 60.0


class Gate:
    """A target that hangs until it is opened, or fails as long as `error` is set."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.lines: list[str] = []
        self.error: OSError | None = None

    def write(self, line: bytes) -> None:
        self.entered.set()
        assert self.open.wait(LIMIT_S)
        if self.error is not None:
            raise self.error
        self.lines.append(line.decode().rstrip("\n"))


def line(text: str) -> logging.LogRecord:
    return logging.LogRecord("x", logging.INFO, "", 0, text, None, None)


def test_lines_are_written_in_order_and_a_flush_waits_for_them() -> None:
    gate = Gate()
    gate.open.set()
    handler = QueuedHandler(gate)
    for number in range(100):
        handler.emit(line(str(number)))
    wait_for(lambda: handler.flush() or len(gate.lines) == 100 or None, LIMIT_S, "not written")
    assert gate.lines == [str(number) for number in range(100)]


@pytest.mark.parametrize("bound", ["MAX_QUEUED_LINES", "MAX_QUEUED_BYTES"])
def test_what_does_not_fit_is_dropped_and_counted_where_it_is_missing(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, bound, 10 if bound == "MAX_QUEUED_LINES" else 40)  # of 4 bytes each
    monkeypatch.setattr(log_writer, "FLUSH_LIMIT_S", 0.01)
    gate = Gate()
    handler = QueuedHandler(gate)
    handler.emit(line("000"))
    assert gate.entered.wait(LIMIT_S)  # the thread hangs with the first line
    for number in range(1, 31):
        handler.emit(line(f"{number:03}"))
    handler.flush()  # comes back although nobody reads
    gate.open.set()
    wait_for(lambda: len(gate.lines) == 12 or None, LIMIT_S, lambda: str(gate.lines))
    first, note, *rest = gate.lines
    assert first == "000" and note.startswith("log lines dropped count=20")
    assert rest == [f"{number:03}" for number in range(21, 31)]  # the last words of a program come out


def test_lines_that_fail_are_counted_and_said_once() -> None:
    gate, said = Gate(), []
    gate.open.set()
    gate.error = OSError(errno.ENOSPC, "No space left on device")
    handler = QueuedHandler(gate, said.append)
    for _ in range(3):
        handler.emit(line("lost"))
    handler.flush()
    gate.error = None
    handler.emit(line("written"))
    wait_for(lambda: len(gate.lines) == 2 or None, LIMIT_S, lambda: str(gate.lines))
    assert "count=3" in gate.lines[0] and "No space left" in gate.lines[0] and gate.lines[1] == "written"
    assert len(said) == 1 and "No space left" in said[0]


def test_a_file_is_begun_anew_when_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"from before\n")
    file = LogFile(str(path), 30, 2)
    for number in range(9):
        file.write(b"line %4d\n" % number)
    kept = [path, tmp_path / "a.log.1", tmp_path / "a.log.2"]
    assert [one.read_bytes().count(b"\n") for one in kept] == [2, 3, 3]
    assert path.read_bytes() == b"line    7\nline    8\n" and len(list(tmp_path.iterdir())) == 3


def test_a_pipe_that_does_not_block_is_waited_for() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data = b"x" * 1_000_000
    writing = threading.Thread(target=Descriptor(writer).write, args=(data,))
    writing.start()
    got = 0
    while got < len(data):
        got += len(os.read(reader, 1 << 16))
    writing.join()
    os.close(reader)
    os.close(writer)


def full_pipe() -> tuple[int, int]:
    """Both ends of a pipe that takes no further byte."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(writer, b"." * size)
        except BlockingIOError:
            continue
    os.set_blocking(writer, True)
    return reader, writer


@pytest.mark.parametrize("outputs", ["stderr", "stdout and stderr"])
def test_a_server_serves_and_stops_while_nobody_reads_its_output(outputs: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = tmp_path / "namesrv.conf"
    config.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\nkvConfigPath={tmp_path}/kv.json\n")
    reader, writer = full_pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "dledger", "namesrv", "-c", str(config)],
        stdout=writer if "stdout" in outputs else subprocess.DEVNULL,
        stderr=writer,
    )
    os.close(writer)
    try:
        address = f"127.0.0.1:{port}"
        wait_for(lambda: wire.listens(address) or None, LIMIT_S, lambda: f"ended: {process.poll()}")
        for _ in range(3):  # each is a line of its log
            assert wire.call(address, 9999, timeout_s=LIMIT_S).code == 3
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reader)


def test_a_reader_that_goes_on_gets_the_lines_of_meanwhile(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = tmp_path / "namesrv.conf"
    config.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\nkvConfigPath={tmp_path}/kv.json\n")
    reader, writer = full_pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "dledger", "namesrv", "-c", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=writer,
    )
    os.close(writer)
    try:
        wait_for(lambda: wire.listens(f"127.0.0.1:{port}") or None, LIMIT_S, "it does not listen")
        with os.fdopen(reader, "rb") as lines:
            assert any(b"boot success" in one for one in lines)
            process.terminate()
            lines.read()
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()


def test_the_reason_of_an_end_is_the_last_line(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        done = subprocess.run(
            [sys.executable, "-m", "dledger", "namesrv", f"--listenPort={port}", "--bindAddress=127.0.0.1"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr.splitlines()[-1]

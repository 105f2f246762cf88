"""Standard output of commands: one line says that it takes no more, and nothing in it steers a terminal."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from dledger.commands.app import CHECKS, COMMANDS
from dledger.commands.mqadmin.output import Output, Table
from dledger.commands.terminal import plain
from dledger.local.cluster import wait_for
from dledger.local.ports import port_taken
from tests.ports import free_ports

FULL = Path("/dev/full")
LIMIT_S = 120
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\rä"
SHOWN = "\\x1b[2J\\x1b]0;owned\\x07\\x9b31m\\x0dä"


def run(arguments: list[str], stdout: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dledger", *arguments],
        stdout=stdout,  # type: ignore[call-overload]
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        ["admin", "--help"],
        ["mqadmin"],
        ["completion", "bash"],
        ["sim", "--list"],
        ["chaos", "mutants", "--list", "--json"],
        ["bench", "--help"],
        ["verify", "/nonexistent"],
        ["audit", "--help"],
        ["dump", "--help"],
    ],
    ids=" ".join,
)
def test_output_that_cannot_be_written_ends_in_one_line(arguments: list[str]) -> None:
    with FULL.open("w") as full:
        done = run(arguments, full)
    assert (
        done.stderr.splitlines()[-1] == "dledger: standard output cannot be written: No space left on device"
    )
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    program = COMMANDS.get(arguments[0])
    assert done.returncode == (4 if program is not None and program.section == CHECKS else 2)


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", [["dledger", "namesrv"], ["dledger.namesrv"]], ids=" ".join)
def test_a_server_runs_although_its_boot_line_cannot_be_written(command: list[str]) -> None:
    (port,) = free_ports(1)
    with FULL.open("w") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", *command, f"--listenPort={port}"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    wait_for(lambda: port_taken(port) or process.poll() is not None, LIMIT_S, "it neither serves nor ends")
    assert process.poll() is None
    assert process.stderr is not None
    said = next(line for line in process.stderr if "cannot write to standard output" in line)
    assert "boot success" in said
    process.terminate()
    left = process.stderr.read()
    assert process.wait(LIMIT_S) == 0
    assert "Traceback" not in left and "Exception ignored" not in left


def test_a_reader_that_went_away_is_no_error_to_tell() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "dledger", "chaos", "mutants", "--list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert said == ""


def test_what_steers_a_terminal_is_shown_and_not_sent() -> None:
    assert plain(HOSTILE) == SHOWN
    stream = io.StringIO()
    output = Output(as_json=False, stream=stream)
    output.line(HOSTILE)
    output.value("v", HOSTILE, HOSTILE)
    output.item("i", HOSTILE, HOSTILE)
    output.row(Table.of("t", ["c"], "%s"), HOSTILE)
    assert stream.getvalue() == f"{SHOWN}\n" * 4


def test_errors_of_mqadmin_steer_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False, stream=io.StringIO()).fail(HOSTILE)
    assert capsys.readouterr().err == f"{SHOWN}\n"

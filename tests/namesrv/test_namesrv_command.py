"""`dledger namesrv` as a real process: options, errors, start and stop."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from dledger.namesrv.cli import configure
from dledger.remoting.cli import arguments_of
from dledger.runtime.env import production_env
from tests.command_line import options

ROOT = Path(__file__).resolve().parents[2]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dledger.namesrv", *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_print_shows_the_effective_properties(tmp_path: Path) -> None:
    conf = write(tmp_path / "namesrv.conf", "listenPort=12345\nserverWorkerThreads=8\n")
    process = start("-c", conf, "-p")
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    assert "listenPort=12345\n" in out
    assert f"kvConfigPath={tmp_path}/kvConfig.json\n" in out


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    conf = write(tmp_path / "namesrv.conf", "listenPort=12345\n")
    process = start("-c", conf, "-m", "--listenPort", "12346")
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    assert "listenPort=12346\n" in out and "scanNotActiveBrokerInterval" not in out


def test_a_bad_file_names_line_and_key(tmp_path: Path) -> None:
    conf = write(tmp_path / "namesrv.conf", "# x\nlistenPrt=1\n")
    process = start("-c", conf)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 2
    assert err == f"error: {conf}, line 2: unknown key 'listenPrt' (did you mean 'listenPort'?)\n"


def test_a_bad_address_to_listen_on_is_named(tmp_path: Path) -> None:
    process = start("-c", write(tmp_path / "namesrv.conf", "bindAddress=a..b\n"))
    _, err = process.communicate(timeout=100)
    assert process.returncode == 2
    assert "bindAddress: 'a..b' is neither an IP address nor a host name" in err


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    process = start("-c", str(tmp_path / "none.conf"))
    _, err = process.communicate(timeout=100)
    assert process.returncode == 2
    assert err == f"error: {tmp_path}/none.conf: no such file\n"


def test_it_boots_says_where_refuses_a_second_on_its_port_and_stops_cleanly(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    conf = write(tmp_path / "namesrv.conf", f"listenPort=0\nbindAddress=127.0.0.1\nlogDir={logs}\n")
    process = start("-c", conf)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("The Name Server boot success. address=127.0.0.1:")
    port = line.split("address=127.0.0.1:")[1].split()[0]
    second = start(
        "-c", write(tmp_path / "second.conf", f"listenPort={port}\nbindAddress=127.0.0.1\nlogDir={logs}\n")
    )
    _, err = second.communicate(timeout=100)
    assert second.returncode == 1
    assert err.startswith(f"error: cannot listen on 127.0.0.1:{port}: ")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out, err) == (0, "", "")
    assert "boot success" in (logs / "namesrv.log").read_text()


def test_options_of_rocketmq_become_properties() -> None:
    """`-n` of its mqbroker, and any property as two words or one; a value may begin with a dash."""
    words = ("-c", "x.conf", "-n", "a:1;b:2", "--timeout", "-5", "--name=v=w", "--config-like", "c")
    found = arguments_of(options("broker", *words))
    assert found.config_file == "x.conf" and not found.print_all
    assert [(one.key, one.value) for one in found.overrides] == [
        ("namesrvAddr", "a:1;b:2"),
        ("timeout", "-5"),
        ("name", "v=w"),
        ("config-like", "c"),
    ]


def test_without_a_file_the_defaults_of_rocketmq_hold() -> None:
    config, _, _ = configure(production_env(), arguments_of(options("namesrv")))
    assert config.listen_port == 9876
    assert config.kv_path is not None and config.kv_path.endswith("/namesrv/kvConfig.json")

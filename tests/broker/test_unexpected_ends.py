"""What nobody expected ends a broker with an exit code, an ERROR line, and no raw traceback."""

from __future__ import annotations

import asyncio
import errno
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.broker import cli
from dledger.broker.app import _reason
from dledger.broker.config import SETTINGS
from dledger.broker.health import Health
from dledger.errors import EXIT_BUG, EXIT_STORE, NodeFailed
from dledger.runtime.env import production_env
from dledger.runtime.files import OsFiles
from dledger.runtime.live_settings import SettingsSource


@pytest.mark.parametrize(
    ("error", "exit_code", "words"),
    [
        (ValueError("no segment holds 8 bytes at 0 any more"), EXIT_BUG, "no segment holds"),
        (KeyError("x"), EXIT_BUG, "KeyError"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/s/data/0"), EXIT_STORE, "/s/data/0"),
        (NodeFailed("a bug", EXIT_BUG), EXIT_BUG, "a bug"),
    ],
    ids=repr,
)
def test_an_unexpected_error_of_a_task_is_a_failure_with_a_code(
    error: Exception, exit_code: int, words: str
) -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("inner", [error])])
    reason = _reason(group)
    assert isinstance(reason, NodeFailed)
    assert reason.exit_code == exit_code
    assert words in reason.reason


def test_the_log_has_an_error_line_with_the_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def main(*given: Any, **more: Any) -> None:
        try:
            raise KeyError("planted")
        except KeyError as error:
            raise NodeFailed("unexpected", EXIT_BUG) from error

    monkeypatch.setattr(cli, "main", main)
    monkeypatch.setattr(logging.root, "handlers", [caplog.handler])  # not those that other tests left
    config, _ = SETTINGS.load({"dLegerPeers": "n0-127.0.0.1:40911"})
    with caplog.at_level(logging.ERROR):
        assert cli.run(production_env("test"), config, SettingsSource("", ())) == EXIT_BUG
    told = capsys.readouterr().err
    assert told == "error: unexpected\n"
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "planted" in record.getMessage()


def test_a_dangling_link_as_a_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").symlink_to(tmp_path / "unmounted")
    for path in (tmp_path / "store", tmp_path / "store" / "dledger-n0"):
        with pytest.raises(FileNotFoundError, match="which is missing"):
            OsFiles().mkdir(str(path))


def test_what_is_nearly_used_up_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def health(connections: int) -> Health:
        config = SimpleNamespace(server=SimpleNamespace(max_connections=100))
        core: Any = SimpleNamespace(settings=SimpleNamespace(now=config))
        registrar: Any = None
        return Health(core, asyncio.Event(), lambda: connections, registrar)

    monkeypatch.setattr("dledger.broker.health.open_files", lambda: (10, 1000))
    assert health(10).scarce() == []
    (warning,) = health(100).scarce()
    assert "maxConnections" in warning
    monkeypatch.setattr("dledger.broker.health.open_files", lambda: (950, 1000))
    (warning,) = health(10).scarce()
    assert "ulimit -n" in warning


@pytest.mark.parametrize(
    "arguments",
    [
        ["broker", "--dLegerPeers", "n0-127.0.0.1:40911", "-p"],
        ["namesrv", "-p"],
        ["status", "--dir", "nothing-here"],
        ["serve", "--help"],
        ["mqadmin", "updateBrokerConfig", "-b", "127.0.0.1:1", "-k", "a", "-v", "b"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_files_are_opened_with_an_encoding(arguments: list[str], tmp_path: Path) -> None:
    """Whoever has Python look for what depends on the locale can start everything."""
    words = [sys.executable, "-X", "warn_default_encoding", "-W", "error::EncodingWarning", "-m", "dledger"]
    done = subprocess.run([*words, *arguments], cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert b"EncodingWarning" not in done.stdout + done.stderr
    assert b"Traceback" not in done.stderr

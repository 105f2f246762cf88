"""Ctrl-C ends a command of ours with exit code 130, and without a traceback."""

from __future__ import annotations

from typing import Any

import click
import pytest

from dledger.commands import app


@pytest.mark.parametrize("name", [name for name, one in app.COMMANDS.items() if not one.click])
def test_programs(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "load", lambda name, program: interrupted)
    monkeypatch.setattr(app, "end_on_sigterm", lambda: None)
    _interrupted([name], capsys)


def test_click_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "load", lambda name, program: interrupted)
    for name in (name for name, one in app.COMMANDS.items() if one.click):
        _interrupted([name], capsys)


def _interrupted(arguments: list[str], capsys: pytest.CaptureFixture[Any]) -> None:
    with pytest.raises(SystemExit) as ended:
        app.main(arguments)
    assert ended.value.code == 130
    told = capsys.readouterr()
    assert "Aborted" not in told.err and "Traceback" not in told.err and not told.out

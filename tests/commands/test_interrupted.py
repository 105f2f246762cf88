"""Ctrl-C ends a command of ours with exit code 130, and without a traceback."""

from __future__ import annotations

import click
import pytest

from dledger.commands import app


@pytest.mark.parametrize("name", app.COMMANDS)
def test_ctrl_c_ends_every_command(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "load", lambda program: interrupted)
    with pytest.raises(SystemExit) as ended:
        app.main([name])
    assert ended.value.code == 130
    told = capsys.readouterr()
    assert "Aborted" not in told.err and "Traceback" not in told.err and not told.out

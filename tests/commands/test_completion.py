"""What a shell completes of `dledger`: commands, options, and RocketMQ's commands with theirs."""

from __future__ import annotations

import click
import pytest
from click.shell_completion import BashComplete

from dledger.commands.app import command, main
from dledger.commands.completion import SHELLS, VARIABLE


def completed(words: str, incomplete: str) -> set[str]:
    found = BashComplete(command, {}, "dledger", VARIABLE).get_completions(words.split(), incomplete)
    return {item.value for item in found}


@pytest.mark.parametrize(
    ("words", "incomplete", "wanted"),
    [
        ("", "mq", {"mqadmin"}),
        ("admin", "o", {"offset"}),
        ("admin topic", "sh", {"show"}),
        ("admin offset reset", "--to", {"--to"}),
        ("admin namesrv", "kv", {"kv"}),
        ("mqadmin", "topicR", {"topicRoute"}),
        ("mqadmin", "resetoff", {"resetOffsetByTime"}),
        ("mqadmin topicRoute", "-", {"-t", "--topic", "-l", "--list", "--json"}),
        ("mqadmin nothing", "--", {"--json"}),
        ("completion", "f", {"fish"}),
        ("", "prod", {"produce"}),
        ("topic", "cr", {"create"}),
        ("produce orders", "--form", {"--format"}),
        ("consume orders --format", "", {"lines", "json", "csv"}),
        ("bench", "pro", {"produce"}),
        ("bench produce", "--win", {"--window"}),
        ("bench core", "--", {"--json", "--help"}),
        ("audit verify", "--fail", {"--fail-on"}),
        ("audit verify --fail-on", "", {"warning", "error", "critical"}),
        ("spark audit --engine", "l", {"local"}),
        ("member", "pro", {"promote"}),
        ("recover", "--force", {"--force-single"}),
        ("chaos mutants", "--jud", {"--judges"}),
        ("import a b", "--uncl", {"--unclean"}),
        ("broker", "--imp", {"--important"}),
    ],
)
def test_what_may_stand_there(words: str, incomplete: str, wanted: set[str]) -> None:
    assert completed(words, incomplete) == wanted


@pytest.mark.parametrize("name", ["topic", "group"])
def test_names_are_completed_only_where_the_cluster_answers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert completed(f"admin {name} show", "") == set()
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    assert completed(f"admin {name} show", "") == set()


@pytest.mark.parametrize(
    ("words", "kind"), [("audit verify", "dir"), ("audit verify /x --report", "file"), ("produce T", "file")]
)
def test_names_of_files_are_completed_where_one_is_meant(words: str, kind: str) -> None:
    found = BashComplete(command, {}, "dledger", VARIABLE).get_completions(words.split(), "")
    assert [one.type for one in found] == [kind]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_is_told(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", shell])
    assert ended.value.code == 0 and f"{VARIABLE}={shell}_complete" in capsys.readouterr().out


def test_every_group_says_which_command_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    group: click.Group = command.get_command(click.Context(command), "admin")  # type: ignore[assignment]
    for name, inner in group.commands.items():
        assert isinstance(inner, click.Group)
        known = next(iter(inner.commands))
        with pytest.raises(SystemExit) as ended:
            main(["admin", name, f"{known}x"])
        assert ended.value.code == 2 and f"Did you mean {known!r}?" in capsys.readouterr().err

"""What holds for every command that can be typed: its exit codes, its `--help`, what its `--help` loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dledger.commands import exit_codes
from dledger.commands.declaring import Command
from tests.command_line import run
from tests.docs.generated import every_click_command
from tests.test_without_extras import packages_of_extras
from tests.uninstalled import ROOT, run_without

EVERY = {" ".join(words): command for words, command in every_click_command()}
OWN_HELP = ("mqadmin",)
"""Prints RocketMQ's list, and takes any word as the name of one of RocketMQ's commands."""


def test_there_are_as_many_commands_as_people_know() -> None:
    assert len(EVERY) > 90 and {"up", "bench produce", "spark audit", "member add"} <= set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_help_ends_with_the_exit_codes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = EVERY[name]
    assert isinstance(command, Command) and command.codes in exit_codes.TABLE
    assert run(*name.split(), "--help") == 0
    text = capsys.readouterr().out
    shown = text.rpartition("Exit codes:\n")[2].split()
    assert shown[0] == "0" and "130" in shown
    for one in command.codes.codes:
        assert str(one.number) in shown


@pytest.mark.parametrize("name", [one for one in EVERY if one not in OWN_HELP])
def test_a_wrong_option_has_the_exit_code_for_wrong_usage(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = EVERY[name]
    assert isinstance(command, Command)
    assert run(*name.split(), "--no-such-option") == command.codes.usage
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("audit verifi", 4),
        ("spark statz", 4),
        ("bench produse", 2),
        ("member ad", 2),
        ("admin topic lisst", 2),
    ],
)
def test_a_wrong_word_has_the_exit_code_of_its_neighbours(
    words: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words.split()) == code
    assert "Did you mean" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("recover --store x", "give either --force-single or --reset-term"),
        ("recover --store x --force-single --reset-term", "give either --force-single or --reset-term"),
        ("prefer n1 --reset --peers n1-127.0.0.1:1", "give either --reset or node ids, not both"),
        ("broker -p -m", "give either -p or -m, not both"),
        ("namesrv listenPort=1", "listenPort: expected --name value"),
        ("sim --trace --json", "--trace prints only event lines"),
        ("chaos mutants x.txt", "FILES need --table"),
        ("bench compare --loads nothing --systems dledger", "--loads: nothing: there are"),
        ("import old n0=a n0=b --group g", "expected a distinct id and a directory"),
        ("mirror a b --every 0", "0.0 is not in the range"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words.split()) == 2
    assert said in capsys.readouterr().err


def test_an_option_belongs_to_its_measurement_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """`bench` was one list of all options; those of other modes were ignored."""
    assert run("bench", "core", "--warmup", "3") == 2
    assert "No such option" in capsys.readouterr().err


HEAVY = {"aiohttp", "lark", "numpy", "pandas", "prometheus_client", "pyarrow", "pyspark", "rich"}
WORK = {"dledger.broker.broker", "dledger.client", "dledger.node.node", "dledger.audit.scan"}
"""Modules of ours that only work needs, and that load much."""
SHOW_ALL = """
import io, sys
from contextlib import redirect_stdout
from tests.command_line import run
from dledger.commands.app import COMMANDS
for words in sys.argv[1:]:
    before = set(sys.modules)
    with redirect_stdout(io.StringIO()):
        assert run(*words.split(), "--help") == 0, words
    print(words, *sorted(set(sys.modules) - before), sep=",")
"""


def test_help_loads_nothing_heavy() -> None:
    """The help of each command is what a person waits for, and it works without the packages of any extra."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW_ALL, *EVERY], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    loaded = {line.split(",")[0]: set(line.split(",")[1:]) for line in done.stdout.splitlines()}
    assert loaded.keys() == EVERY.keys()
    wrong = {name: sorted(modules & (HEAVY | WORK)) for name, modules in loaded.items()}
    assert not {name: modules for name, modules in wrong.items() if modules}


def test_help_and_wrong_words_need_no_extra() -> None:
    done = run_without(sorted(HEAVY), SHOW_ALL, *EVERY)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == len(EVERY), done.stderr


RUN_ALL = """
import sys
from tests.command_line import run
for words in sys.argv[1:]:
    print(words, run(*words.split()), sep="|", flush=True)
"""
NEED_NOTHING = {
    "namesrv -p": 0,
    "bench core --json": 0,
    "sim --list": 0,
    "dump /nowhere": 1,
    "status --dir /nowhere": 4,
    "topic list -n 127.0.0.1:1": 1,
    "produce T /dev/null -n 127.0.0.1:1": 1,
    "mqadmin topicList -n 127.0.0.1:1": 1,
    "import a n0=b --group g": 1,
}
NEED_SERVER = {
    "broker -p": 2,
    "verify /nowhere": 4,
    "audit compare /nowhere /nowhere2": 4,
    "bench audit --directory run/nowhere": 2,
}


def test_commands_without_their_packages_say_what_to_install() -> None:
    """Nothing but the base install: each command runs, or names the extra, and none ends with a traceback."""
    packages = packages_of_extras("server", "kv", "zstd", "admin", "arrow", "spark", "lake", "s3")
    hidden = [*sorted({*packages, "yaml"}), "py4j"]
    wanted = NEED_NOTHING | NEED_SERVER | {"spark audit /nowhere": 4}
    done = run_without(hidden, RUN_ALL, *wanted)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    ended = dict(line.rsplit("|", 1) for line in done.stdout.splitlines() if "|" in line)
    assert {words: int(code) for words, code in ended.items()} == wanted, done.stderr
    assert done.stderr.count("pip install 'dledger[server]'") == len(NEED_SERVER)
    assert "spark audit needs numpy: pip install 'dledger[spark]'" in done.stderr


def test_mutants_need_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel has no patch and no test: it said "0 of 0 mutants caught", and ended with 0."""
    from dledger.chaos.mutants import command

    monkeypatch.setattr(command, "ROOT", tmp_path)
    for words in (("chaos", "mutants"), ("chaos", "mutants", "--list"), ("chaos", "mutants", "--judges")):
        assert run(*words) == 2

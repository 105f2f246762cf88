"""The table of `dledger`: what is loaded before a sub-command is known, and that each one is there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import click
import pytest

from dledger.commands.app import COMMANDS, command, load, main
from dledger.commands.declaring import Declared
from dledger.commands.exit_codes import LOG
from dledger.commands.group_actions import DECIDED, SERVER_PACKAGES
from dledger.local.cluster import ClusterSpec, LocalCluster
from tests.uninstalled import ROOT, run_without

SERVER_EXTRA = ("aiohttp", "numpy", "prometheus_client")
RUN = "from dledger.commands.app import main; main(sys.argv[1:])"
NOT_FOR_A_LIST = {
    "asyncio",
    "aiohttp",
    "numpy",
    "msgspec",
    "msgpack",
    "pyspark",
    "argparse",
    "dledger.runtime",
}


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("statsu",)])
def test_before_the_sub_command_is_known_nothing_heavy_is_imported(words: tuple[str, ...]) -> None:
    program = (
        "import sys, atexit; atexit.register(lambda: print('loaded', *sys.modules));"
        "from dledger.commands.app import main; main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    loaded = set(done.stdout.rpartition("loaded ")[2].split())
    assert "click" in loaded and not loaded & NOT_FOR_A_LIST, done.stderr
    ours = sorted(name for name in loaded if name.startswith("dledger."))
    assert ours == [
        "dledger.commands",
        "dledger.commands.app",
        "dledger.commands.exit_codes",
        "dledger.commands.standard_output",
    ]


def test_a_group_is_looked_at_without_what_a_broker_needs() -> None:
    """`dledger status` answers at once, and without the extra."""
    program = (
        "import sys, atexit; atexit.register(lambda: print('loaded', *sys.modules));"
        "from dledger.commands.app import main; main(['status', '--dir', 'nowhere'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 4 and "no group in" in done.stderr
    assert not set(done.stdout.split()) & {"aiohttp", "numpy", "dledger.node.node", "dledger.broker"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_sub_command_is_there_and_explains_itself(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(load(COMMANDS[name]), click.Command)
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    told = capsys.readouterr().out
    assert ended.value.code == 0 and re.match(r"usage: dledger", told, re.IGNORECASE), told


def test_help_lists_every_sub_command_in_its_section() -> None:
    with click.Context(command, info_name="dledger") as context:
        text = command.get_help(context)
    at = [text.index(f"\n{section}:") for section in dict.fromkeys(one.section for one in COMMANDS.values())]
    assert at == sorted(at) and text[at[0] :].startswith("\nA group on this machine:\n  up ")
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", text, re.M)


def test_a_wrong_word_is_told_which_one_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["kil-leader"])
    assert ended.value.code == 2 and "Did you mean 'kill-leader'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("bench", "audit", "--directory", "x"), "bench audit needs numpy: pip install 'dledger[server]'"),
        (("up", "--base-port", "29900"), f"needs {', '.join(SERVER_EXTRA)}: pip install 'dledger[server]'"),
    ],
)
def test_a_missing_package_is_told_with_the_extra(words: tuple[str, ...], text: str) -> None:
    done = run_without(SERVER_EXTRA, RUN, *words)
    assert done.returncode == 2 and text in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_up_asks_for_what_the_extra_brings() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[^\w-]", text)[0].replace("-", "_") for text in extras["server"]}
    names.discard("dledger")  # the dashboard: no broker needs what it brings
    assert set(SERVER_PACKAGES.values()) == names


def test_what_the_layout_decides_is_not_for_set() -> None:
    cluster = LocalCluster(ROOT / "nowhere", ClusterSpec())
    free = {"flushDiskType", "segmentPoolSize"}
    assert set(cluster.broker_properties("n0")) - free == set(DECIDED)


def test_an_error_of_our_own_is_no_missing_extra() -> None:
    wrong = Declared("x", "dledger.commands.not_there:run", [], codes=LOG, summary="x", extra="server")
    with pytest.raises(ModuleNotFoundError):
        wrong.main([])

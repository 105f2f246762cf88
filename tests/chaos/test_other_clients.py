"""Clients of other projects in trials: how their lines are read, what they need, and how they are judged."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from dledger.chaos.scenarios.broker_history import BrokerHistory, Send
from dledger.chaos.scenarios.broker_replay import Stored
from dledger.chaos.scenarios.history import ACKNOWLEDGED, UNKNOWN
from dledger.chaos.trials import command, other_clients, other_tools, suite
from dledger.chaos.trials.checkers import Verdict, judge, stored_again
from dledger.chaos.trials.client_kinds import CLIENTS, missing_for
from dledger.chaos.trials.evidence import Evidence
from dledger.chaos.trials.other_clients import TOPIC, JavaClient, Notes, OtherStage, UnexpectedLine
from dledger.chaos.trials.other_tools import CLASSPATH, SOURCES, TOOLS, CannotStart, Tool, java_missing
from dledger.chaos.trials.scenario import library
from dledger.formats.message_ids import encode_message_id, pack_ipv4_host
from dledger.runtime.env import production_env
from dledger.runtime.options import Options, WrongUsage

BEGAN_NS = 5_000_000_000
LIMIT_S = 60.0


class Stage:
    """A trial that began BEGAN_NS after the machine's monotonic clock was 0."""

    client_names = ("java-0",)
    namesrv_addr = "127.0.0.1:9876"
    begun = 0

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def client_now(self, name: str) -> int:
        return time.monotonic_ns() - BEGAN_NS

    def client_directory(self, name: str) -> Path:
        return self.directory / name

    def leader_term(self) -> int:
        return 7


def stage(directory: Path = Path()) -> OtherStage:
    return cast(OtherStage, Stage(directory))


def notes() -> tuple[Notes, BrokerHistory]:
    history = BrokerHistory()
    return Notes(stage(), history, "java-0", "java-workers"), history


SENDING: dict[str, Any] = {
    "event": "sending", "key": "java-0-7", "at": BEGAN_NS + 10, "bodies": ["java-0-7|.", "java-0-8|\u00e9"],
}  # fmt: skip
SENT: dict[str, Any] = {
    "event": "sent", "key": "java-0-7", "at": BEGAN_NS + 30,
    "outcome": "acknowledged", "queue": 2, "offset": 41, "id": "A,B",
}  # fmt: skip
RECEIVED: dict[str, Any] = {
    "event": "received", "queue": 2, "offset": 41, "position": 4096, "stored": 1_700_000_000_000,
    "body": "java-0-7|\u00ff",
}  # fmt: skip


def near(at_ns: int, wanted_ns: int) -> bool:
    """Whether a time that was converted between two clocks, which were read one after the other, is right."""
    return 0 <= wanted_ns - at_ns < 20_000_000_000 or at_ns == wanted_ns


def test_an_acknowledged_batch_becomes_one_send_with_its_place() -> None:
    told, history = notes()
    told.read(json.dumps(SENDING))
    assert history.sends[0].end == -1
    told.read(json.dumps(SENT))
    (send,) = history.sends
    assert send.values == [b"java-0-7|.", b"java-0-8|\xe9"] and send.batch and send.topic == TOPIC
    assert (send.outcome, send.queue, send.offset, send.ids) == (ACKNOWLEDGED, 2, 41, ("A", "B"))
    assert near(send.begin, 10) and near(send.end, 30)


def test_an_exception_is_an_unknown_outcome_and_an_open_send_stays_open() -> None:
    told, history = notes()
    told.read(json.dumps(SENDING))
    told.read(json.dumps({**SENT, "outcome": "unknown", "text": "no route"}))
    told.read(json.dumps({**SENDING, "key": "java-0-9"}))
    first, second = history.sends
    assert (first.outcome, first.text, first.queue) == (UNKNOWN, "no route", -1)
    assert second.end == -1


def test_a_received_message_counts_for_its_group() -> None:
    told, history = notes()
    told.read(json.dumps(RECEIVED))
    (receipt,) = history.receipts
    assert (receipt.group, receipt.consumer, receipt.queue) == ("java-workers", "java-0", (TOPIC, 2))
    assert (receipt.value, receipt.position, receipt.term) == (b"java-0-7|\xff", 4096, 7)
    assert history.reached == {"java-workers": {(TOPIC, 2): 42}}


@pytest.mark.parametrize(
    "line",
    [
        "Picked up JAVA_TOOL_OPTIONS",
        '"ready"',
        '{"event": "sung"}',
        json.dumps({**RECEIVED, "queue": None}),
        json.dumps({key: value for key, value in RECEIVED.items() if key != "body"}),
        json.dumps({**RECEIVED, "body": "\u20ac"}),
        json.dumps(SENT),  # nothing was sent with this key
        json.dumps({**SENDING, "bodies": 3}),
    ],
)
def test_a_line_that_is_not_of_the_protocol_is_an_error_that_shows_it(line: str) -> None:
    told, _ = notes()
    with pytest.raises(UnexpectedLine) as refused:
        told.read(line)
    assert repr(line[:40])[1:20] in str(refused.value)


def test_an_outcome_that_no_such_client_can_know_is_an_error() -> None:
    told, _ = notes()
    told.read(json.dumps(SENDING))
    with pytest.raises(UnexpectedLine, match="no outcome 'refused'"):
        told.read(json.dumps({**SENT, "outcome": "refused"}))


# The process

PROGRAM = """
import json, sys
def say(**what): print(json.dumps(what), flush=True)
say(event="ready")
for line in sys.stdin:
    if line == "start\\n":
        say(event="sending", key="k", at=1, bodies=["k|"])
        say(event="sent", key="k", at=2, outcome="unknown", text=" ".join(sys.argv[1:]))
    if line == "stop\\n":
        say(event="stopped")
"""


async def until(holds: Callable[[], bool]) -> None:
    while True:
        if holds():
            return
        await asyncio.sleep(0.01)


def run(monkeypatch: pytest.MonkeyPatch, directory: Path, program: str) -> tuple[JavaClient, BrokerHistory]:
    """Run a program as the client java, from its start to its end."""
    path = directory / "program.py"
    path.write_text(program)
    tool = Tool(lambda: "", lambda home: [sys.executable, str(path)])
    monkeypatch.setattr(other_clients, "TOOLS", {"java": tool})
    history = BrokerHistory()
    client = JavaClient(stage(directory), 0, history, [])

    async def play() -> None:
        env = production_env("test")
        try:
            async with asyncio.timeout(LIMIT_S):
                running = asyncio.create_task(client.main(env), name="client")
                await until(lambda: client.ready)
                await client.begin()
                await client.stop_sending()
                await until(lambda: client.done)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        finally:
            env.workers.close()

    asyncio.run(play())
    return client, history


def test_a_process_is_told_when_to_send_and_ends_with_its_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client, history = run(monkeypatch, tmp_path, PROGRAM)
    assert not client.error
    (send,) = history.sends
    assert send.text == "127.0.0.1:9876 shared java-workers java-0"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; sys.exit('no such class')", "java-0 ended with exit code 1: no such class"),
        ("print('hello')", "java-0 wrote 'hello"),
        ("print('x' * 3_000_000)", "java-0 wrote a line that cannot be read"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\n')", "java-0 wrote a line that cannot be read"),
        ('print(\'{"event": "failed", "text": "no route"}\')', "no route"),
    ],
)
def test_a_process_that_cannot_go_on_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, said: str
) -> None:
    client, _ = run(monkeypatch, tmp_path, program)
    assert client.done and said in client.error


def test_a_program_that_is_not_there_is_an_error_of_its_client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        other_clients, "TOOLS", {"java": Tool(lambda: "", lambda home: [str(home / "nowhere")])}
    )
    client = JavaClient(stage(tmp_path), 0, BrokerHistory(), [])
    env = production_env("test")
    asyncio.run(client.main(env))
    env.workers.close()
    assert client.ready and client.done and "java-0 cannot start: " in client.error


def test_a_program_that_cannot_be_built_is_an_error_of_its_client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(home: Path) -> list[str]:
        raise CannotStart("go build failed")

    monkeypatch.setattr(other_clients, "TOOLS", {"java": Tool(lambda: "", fail)})
    client = JavaClient(stage(tmp_path), 0, BrokerHistory(), [])
    env = production_env("test")
    asyncio.run(client.main(env))
    env.workers.close()
    assert client.ready and client.error == "java-0 cannot start: go build failed"


# What is missing


def test_the_java_client_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    (tmp_path / "rocketmq-client-5.4.0.jar").touch()
    assert not java_missing({CLASSPATH: f"{tmp_path}/*"})
    assert not java_missing({CLASSPATH: f"/nowhere/*:{tmp_path}/rocketmq-client-5.4.0.jar"})
    for wrong in ("", "/nowhere/*", str(tmp_path / "other.jar")):
        assert f"give their class path in {CLASSPATH}" in java_missing({CLASSPATH: wrong})
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "needs a JDK" in java_missing({CLASSPATH: f"{tmp_path}/*"})


def test_the_go_client_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(target: Path) -> None:
        raise CannotStart("module lookup disabled by GOPROXY=off")

    missing = other_tools.go_missing.__wrapped__
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "go must be on the PATH" in missing()
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(other_tools, "_build", fail)
    assert "`go mod download`" in missing() and "GOPROXY=off" in missing()
    monkeypatch.setattr(other_tools, "_build", lambda target: None)
    assert not missing()


def test_the_programs_are_where_they_are_looked_for() -> None:
    assert (SOURCES / "OtherClient.java").is_file()
    assert {"main.go", "go.mod", "go.sum"} <= {path.name for path in (SOURCES / "go").iterdir()}
    assert set(TOOLS) == {"java", "go"} <= set(CLIENTS)


def unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = Tool(lambda: "the client java needs a JDK", lambda home: [])
    monkeypatch.setitem(cast(dict[str, Tool], TOOLS), "java", tool)
    monkeypatch.setitem(cast(dict[str, Tool], TOOLS), "go", Tool(lambda: "", lambda home: []))


def test_a_trial_whose_clients_are_not_installed_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    unavailable(monkeypatch)
    assert missing_for(["pull", "go"]) == ""
    with pytest.raises(WrongUsage, match="other-clients: the client java needs a JDK"):
        command.run(Options(scenario="other-clients", seconds=None, dir=None))


def test_a_suite_skips_what_is_not_installed_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unavailable(monkeypatch)
    args = Options(only=["other-clients"], results=None, seconds=None, full=False, json=True, seed=1)
    assert suite.run(args) == 0
    shown = capsys.readouterr()
    assert "other-clients      skipped: the client java needs a JDK" in shown.err
    found = json.loads(shown.out)
    assert found == {"trials": [], "skipped": {"other-clients": "the client java needs a JDK"}}


def test_only_scenarios_that_say_so_need_other_clients() -> None:
    assert [name for name, one in library().items() if {"java", "go"} & set(one.clients)] == ["other-clients"]


# How they are judged


def evidence(client: str, *, checked: tuple[str, ...] = ()) -> Evidence:
    """A message that is stored twice, and received."""
    history = BrokerHistory()
    ident = encode_message_id(pack_ipv4_host("127.0.0.1", 1), 1000)
    send = Send(
        client, TOPIC, [b"k|"], 1, end=2, outcome=ACKNOWLEDGED, queue=0, offset=1, ids=(ident,), begun=0
    )
    history.sends.append(send)
    found = Evidence(history, clients=(client.rpartition("-")[0],), checked_topics=checked)
    found.replay.messages[TOPIC, 0] = [
        Stored(b"k|", number, 1000 * number, 100, 0, 1_000_000 + number, False) for number in range(2)
    ]
    return found


def verdict(found: Evidence, name: str) -> Verdict:
    return next(one for one in judge(found) if one.name == name)


@pytest.mark.parametrize(
    ("client", "checked", "again"),
    [
        ("java-0", (), 1),
        ("go-0", (), 1),
        ("go-0", (TOPIC,), 1),
        ("java-0", (TOPIC,), None),
        ("java-0", ("*",), None),
        ("producers-0", (), None),
    ],
)
def test_what_such_a_client_sent_again_is_counted_unless_brokers_recognise_it(
    client: str, checked: tuple[str, ...], again: int | None
) -> None:
    found = evidence(client, checked=checked)
    sends = verdict(found, "sends")
    if again is None:
        assert not sends.holds and "duplicated: k" in sends.text and not stored_again(found)
    else:
        assert sends.holds and stored_again(found) == again


def test_a_client_that_did_nothing_breaks_a_rule() -> None:
    found = evidence("java-0")
    assert "java has 1 acknowledged sends, and received 0 messages" in verdict(found, "others").text


def test_such_a_consumer_must_receive_everything_of_its_topic_only() -> None:
    found = evidence("java-0")
    found.replay.messages["auto", 0] = list(found.replay.messages[TOPIC, 0])
    assert "java-workers ended at 0" in verdict(found, "handed").text
    found.history.reached["java-workers"] = {(TOPIC, 0): 2}
    assert verdict(found, "handed").holds

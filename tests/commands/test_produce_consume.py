"""`dledger produce` and `consume` against the fake cluster: what is stored, printed, and said at an end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger.local.cluster import wait_for
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection
from dledger.runtime.loops import LoopThread
from tests.client.fake_cluster import FakeBroker, FakeCluster, Stored
from tests.command_line import run

LIMIT_S = 60


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    fake = FakeCluster(topics={"orders": 1, "wide": 4})
    thread = LoopThread("fake cluster")
    thread.run(fake.__aenter__())
    monkeypatch.setenv("NAMESRV_ADDR", fake.namesrv)
    try:
        yield fake
    finally:
        thread.run(fake.__aexit__())
        thread.close()


def parts(one: Stored) -> tuple[bytes, str | None, str | None]:
    return one.body, one.properties.get("KEYS"), one.properties.get("TAGS")


def test_lines_of_a_file_become_messages_in_their_order(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"".join(b"line %d\n" % number for number in range(3000)))
    assert run("produce", "orders", str(file), "--key", "k1", "--key", "k2", "--tag", "t", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["sent"], told["next"]) == (3000, 3000)
    stored = cluster.stored("orders")
    assert [one.body for one in stored] == [b"line %d" % number for number in range(3000)]
    assert parts(stored[0]) == (b"line 0", "k1 k2", "t")


def test_rows_of_csv_and_json_bring_their_own_keys_and_tags(cluster: FakeCluster, tmp_path: Path) -> None:
    table = tmp_path / "orders.csv"
    table.write_text("body,key,tag\none,k1,paid\ntwo,,\n")
    assert run("produce", "orders", str(table), "--key", "none", "--tag", "sent") == 0
    lines = tmp_path / "orders.jsonl"
    lines.write_text('{"body": {"a": 1}, "keys": ["x", "y"], "properties": {"region": "eu"}}\n')
    assert run("produce", "orders", str(lines)) == 0
    stored = cluster.stored("orders")
    assert [parts(one) for one in stored] == [
        (b"one", "k1", "paid"),
        (b"two", "none", "sent"),
        (b'{"a":1}', "x y", None),
    ]
    assert stored[2].properties["region"] == "eu"


def test_messages_with_one_ordering_key_go_to_one_queue(cluster: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("a\nb\nc\nd\n")
    assert run("produce", "wide", str(file), "--ordering-key", "o") == 0
    stored = cluster.stored("wide")
    assert len({one.queue_id for one in stored}) == 1 and [one.body for one in stored] == [
        b"a",
        b"b",
        b"c",
        b"d",
    ]


def test_a_bad_line_ends_it_and_it_goes_on_there(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines.jsonl"
    rows = [json.dumps({"body": f"m{number}"}) for number in range(10)]
    file.write_text("\n".join([*rows[:6], "{broken", *rows[7:]]))
    assert run("produce", "orders", str(file), "--json") == 1
    told = capsys.readouterr()
    assert f"{file}, line 7: not JSON: " in told.err
    assert "6 messages are acknowledged; continue with --skip 6" in told.err
    found = json.loads(told.out)
    assert (found["sent"], found["next"]) == (6, 6) and "line 7" in found["error"]
    file.write_text("\n".join(rows))
    assert run("produce", "orders", str(file), "--skip", "6", "--count", "3") == 0
    assert cluster.bodies("orders") == [b"m%d" % number for number in range(9)]


def test_a_message_that_a_broker_refuses_is_named_by_its_line(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(broker: FakeBroker, connection: Connection, request: Request) -> bool:
        if request.code == RequestCode.SEND_MESSAGE_V2 and request.body == b"bad":
            connection.respond(request, ResponseCode.MESSAGE_ILLEGAL, remark="not this one")
            return True
        return False

    cluster.script = script
    file = tmp_path / "lines"
    file.write_text("good\nfine\nbad\nlater\n")
    assert run("produce", "orders", str(file)) == 1
    said = capsys.readouterr().err
    assert f"{file}, line 3: " in said and "not this one" in said and "continue with --skip 2" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [("a\n\n", "line 2: the body is empty"), ("a\n" + "x" * 5_000_000, "line 2: ")],
    ids=["empty", "too large"],
)
def test_what_no_broker_would_take_is_not_sent(
    text: str, said: str, cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines"
    file.write_text(text)
    assert run("produce", "orders", str(file)) == 1
    assert said in capsys.readouterr().err and cluster.bodies("orders") == [b"a"]


def test_a_check_sends_nothing(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("body\na\nb\n")
    assert run("produce", "orders", str(file), "--check") == 0
    assert capsys.readouterr().out == "2 messages would be sent\n" and not cluster.stored("orders")
    file.write_text("body\na\nb,c\n")
    assert run("produce", "orders", str(file), "--check") == 1
    assert "line 3: the row has 2 columns, and the header has 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("produce", "orders", "/no/such/file"), "/no/such/file: No such file or directory"),
        (("produce", "orders", "/tmp"), "/tmp: is a directory"),
        (("consume", "orders", "--from", "yesterday"), "--from yesterday: give earliest"),
        (("consume", "orders", "--from", "offset:3"), "--from offset:3: each queue has its own offsets"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: tuple[str, ...], said: str, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("a\nb\n", ("--skip", "3"), "there are only 2 records, and --skip 3 skips more than that"),
        ("a\n", ("--key", "with blank", "--key", "x"), "line 1: "),
        ("a\n", ("--tag", "a||b"), "line 1: "),
    ],
)
def test_options_that_fit_no_message_are_said(
    text: str,
    words: tuple[str, ...],
    said: str,
    cluster: FakeCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "lines"
    file.write_text(text)
    assert run("produce", "orders", str(file), *words) == 1
    assert said in capsys.readouterr().err and not cluster.stored("orders")


@pytest.mark.parametrize(("delimiter", "code"), [(";", 0), (r"\t", 0), (";;", 2), ("", 2), ('"', 2)])
def test_a_delimiter_is_one_character(
    delimiter: str, code: int, cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    between = "\t" if delimiter == r"\t" else ";"
    file = tmp_path / "orders.csv"
    file.write_text(f"body{between}key\na{between}k\n")
    assert run("produce", "orders", str(file), "--delimiter", delimiter) == code
    assert len(cluster.stored("orders")) == (1 if code == 0 else 0)
    if code:
        assert "is not a single character" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("--tag", "||"), ("--group", "a b"), ("--group", "x" * 300)], ids=["tag", "blank", "long"]
)
def test_what_no_consumer_may_be_is_said(
    words: tuple[str, ...], cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("consume", "orders", *words) == 1
    assert capsys.readouterr().err.startswith("dledger consume: ")


def test_a_wrong_part_of_a_message_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("produce", "orders", "--field", "boddy=x") == 2
    assert "'boddy=x' is not PART=NAME with one of body, key, tag, ordering-key" in capsys.readouterr().err


def filled(cluster: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "filled.jsonl"
    rows = [
        {"body": "one", "key": "k1", "tag": "a", "properties": {"p": "1"}},
        {"body": 'two, "quoted"', "key": "k2", "tag": "b"},
        {"bodyBase64": "/w==", "key": "k1"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("produce", "orders", str(file)) == 0


def test_what_is_there_is_printed_and_then_it_ends(
    cluster: FakeCluster, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    filled(cluster, tmp_path)
    capfdbinary.readouterr()
    assert run("consume", "orders") == 0
    assert capfdbinary.readouterr().out == b'one\ntwo, "quoted"\n\xff\n'
    assert run("consume", "orders", "--count", "1") == 0
    assert capfdbinary.readouterr().out == b"one\n"
    assert run("consume", "orders", "--key", "k1") == 0
    assert capfdbinary.readouterr().out == b"one\n\xff\n"
    assert run("consume", "orders", "--from", "latest") == 0
    assert capfdbinary.readouterr().out == b""
    assert not cluster.commits, "nothing is committed without --group"


def test_it_says_why_nothing_is_printed(
    cluster: FakeCluster, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run("consume", "orders") == 0
    assert capfdbinary.readouterr().err == b"dledger consume: topic orders has no stored messages\n"
    filled(cluster, tmp_path)
    capfdbinary.readouterr()
    none = b"dledger consume: none of the 3 stored messages of topic orders passes "
    for words, text in (
        (("--key", "k1,k2"), none + b"--key 'k1,k2'; the newest have the keys k1, k2\n"),
        (("--tag", "A"), none + b"--tag 'A'; the newest have the tags a, b, none\n"),
        (("--tag", "a", "--key", "k2"), b"--tag 'a' and --key 'k2'; the newest have the tags a, b, none, "),
        (("--from", "latest"), b"--from latest begins behind the stored messages of topic orders: add "),
        (("--from", "-1m"), b"topic orders has no stored messages from -1m on\n"),
    ):
        assert run("consume", "orders", *words) == 0
        printed = capfdbinary.readouterr()
        assert printed.out == b"" and text in printed.err, words
    assert run("consume", "orders", "--key", "k2") == 0
    assert capfdbinary.readouterr().err == b"", "nothing is said where something is printed"


def test_options_of_kafkas_commands_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for command, option, text in (
        ("consume", "--from-beginning", "No such option: --from-beginning: that is the default"),
        ("consume", "--bootstrap-server", "it is --namesrv here"),
        ("consume", "--partition", "all queues of the topic are read"),
        ("produce", "--bootstrap-server", "it is --namesrv here"),
    ):
        assert run(command, "orders", option, "x") == 2
        assert text in " ".join(capsys.readouterr().err.split()), option


def test_what_is_printed_as_json_or_csv_can_be_sent_again(
    cluster: FakeCluster, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    filled(cluster, tmp_path)
    capfdbinary.readouterr()
    for format, count in (("json", 3), ("csv", 2)):
        assert run("consume", "orders", "--format", format, "--count", str(count)) == 0
        copy = tmp_path / f"copy.{format}"
        copy.write_bytes(capfdbinary.readouterr().out)
        words = ["--ignore-other"] if format == "csv" else []
        assert run("produce", "wide", str(copy), "--ordering-key", format, *words) == 0
        capfdbinary.readouterr()
        (queue,) = {one.queue_id for one in cluster.stored("wide")}
        again = cluster.queue("wide", queue)
        assert [parts(one) for one in again] == [parts(one) for one in cluster.stored("orders")[:count]]
        assert again[0].properties["p"] == "1"
        again.clear()


def test_a_group_goes_on_behind_what_was_printed(
    cluster: FakeCluster, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    filled(cluster, tmp_path)
    capfdbinary.readouterr()
    for expected in (b"one\n", b'two, "quoted"\n', b"\xff\n", b""):
        assert run("consume", "orders", "--group", "readers", "--count", "1") == 0
        assert capfdbinary.readouterr().out == expected
    assert cluster.commits[-1].consumerGroup == "readers"


# As processes


def start(cluster: FakeCluster, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "dledger", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "NAMESRV_ADDR": cluster.namesrv},
    )


def test_lines_from_a_pipe_are_sent_as_they_come_and_ctrl_c_ends_in_order(cluster: FakeCluster) -> None:
    process = start(cluster, "produce", "orders", "--json")
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\nhalf of")
    process.stdin.flush()
    wait_for(lambda: cluster.bodies("orders") == [b"one", b"two"] or None, LIMIT_S, "they are not sent")
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 130  # its standard input is still open
    out, err = process.communicate()
    assert b"Traceback" not in err
    assert b"interrupted: 2 messages are acknowledged; continue with --skip 2" in err
    assert json.loads(out)["next"] == 2


def test_without_a_standard_input_it_says_so(cluster: FakeCluster) -> None:
    line = f"{sys.executable} -m dledger produce orders <&-"
    environ = {**os.environ, "NAMESRV_ADDR": cluster.namesrv}
    done = subprocess.run(line, shell=True, env=environ, capture_output=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"dledger produce: -: standard input is closed" in done.stderr


def test_a_reader_that_goes_away_is_no_error_to_tell(cluster: FakeCluster, tmp_path: Path) -> None:
    filled(cluster, tmp_path)
    process = start(cluster, "consume", "orders", "--follow")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"one\n"
    process.stdout.close()
    filled(cluster, tmp_path)
    assert process.stderr.read() == b""
    assert process.wait(LIMIT_S) == 1


def test_the_end_of_a_pipe_ends_it(cluster: FakeCluster) -> None:
    process = start(cluster, "produce", "orders")
    out, err = process.communicate(b"one\nlast line without an end", timeout=LIMIT_S)
    assert (process.returncode, err) == (0, b"") and out.startswith(b"2 messages sent in ")
    assert cluster.bodies("orders") == [b"one", b"last line without an end"]


def test_what_comes_is_printed_until_ctrl_c(cluster: FakeCluster, tmp_path: Path) -> None:
    filled(cluster, tmp_path)
    process = start(cluster, "consume", "orders", "--follow", "--format", "json")
    assert process.stdout is not None
    seen = [json.loads(process.stdout.readline()) for _ in range(3)]
    assert [one["queueOffset"] for one in seen] == [0, 1, 2]
    filled(cluster, tmp_path)
    assert json.loads(process.stdout.readline())["queueOffset"] == 3
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130 and err == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_said(cluster: FakeCluster, tmp_path: Path) -> None:
    filled(cluster, tmp_path)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dledger", "consume", "orders"],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "NAMESRV_ADDR": cluster.namesrv},
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 2 and b"standard output cannot be written" in done.stderr
    assert b"Traceback" not in done.stderr

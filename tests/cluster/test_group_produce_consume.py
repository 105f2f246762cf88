"""`dledger produce` and `consume` on a real group: thousands of lines, also while its leader is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

from dledger.local.cluster import LocalCluster, wait_for

LIMIT_S = 300.0
LINES = 20_000


def start(group: LocalCluster, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "dledger", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "NAMESRV_ADDR": group.namesrv_addr},
    )


def succeed(group: LocalCluster, *words: str, data: bytes = b"") -> bytes:
    process = start(group, *words)
    out, err = process.communicate(data, timeout=LIMIT_S)
    assert process.returncode == 0, err
    return out


def test_a_file_survives_the_end_of_the_leader(
    new_group: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    group = new_group()
    group.create_topic("Lines", 4)
    group.wait_registered()
    process = start(group, "produce", "Lines", "--json", "--tag", "t")
    assert process.stdin is not None
    lines = [b"line %d" % number for number in range(LINES)]
    half = b"\n".join(lines[: LINES // 2]) + b"\n"
    process.stdin.write(half)
    process.stdin.flush()
    leader = wait_for(group.leader, LIMIT_S, lambda: "no leader")

    def some_are_there() -> bool | None:
        return bool(succeed(group, "consume", "Lines", "--count", "1")) or None

    wait_for(some_are_there, LIMIT_S, lambda: "nothing is stored")
    group.kill(leader)
    out, err = process.communicate(b"\n".join(lines[LINES // 2 :]) + b"\n", timeout=LIMIT_S)
    assert process.returncode == 0, err
    told = json.loads(out)
    assert (told["sent"], told["next"]) == (LINES, LINES)
    group.start_node(leader)
    found = [json.loads(line) for line in succeed(group, "consume", "Lines", "--format", "json").splitlines()]
    assert sorted(one["body"].encode() for one in found) == sorted(lines), "each once, none lost"
    assert {one["tags"] for one in found} == {"t"}


def test_rows_go_from_a_topic_to_another_by_a_pipe(
    new_group: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    group = new_group(nodes=1)
    for topic in ("From", "To"):
        group.create_topic(topic, 1)
    group.wait_registered()
    table = tmp_path / "orders.csv"
    table.write_text("id,amount,kind\n" + "".join(f'{n},"{n}.50",paid\n' for n in range(500)))
    fields = ("--field", "body=*", "--field", "key=id", "--field", "tag=kind")
    succeed(group, "produce", "From", str(table), *fields)
    rows = succeed(group, "consume", "From", "--format", "json", "--tag", "paid")
    assert len(rows.splitlines()) == 500
    succeed(group, "produce", "To", "--format", "json", data=rows)
    copied = [json.loads(line) for line in succeed(group, "consume", "To", "--json").splitlines()]
    assert [json.loads(one["body"])["amount"] for one in copied] == [f"{n}.50" for n in range(500)]
    assert [one["keys"] for one in copied] == [[str(n)] for n in range(500)]
    assert not succeed(group, "consume", "From", "--tag", "sent")
    first = succeed(group, "consume", "From", "-g", "CG_pipe", "-c", "10", "--json")
    then = succeed(group, "consume", "From", "-g", "CG_pipe", "-c", "10", "--json")
    offsets = [json.loads(line)["queueOffset"] for line in (first + then).splitlines()]
    assert offsets == list(range(20))


def test_a_topic_that_is_not_there_is_refused_with_a_suggestion(
    new_group: Callable[..., LocalCluster],
) -> None:
    group = new_group(nodes=1)
    group.create_topic("Orders", 1)
    group.wait_registered()
    hints = {"Ordrs": b"did you mean 'Orders'?", "parcels": b"create it with dledger topic create parcels"}
    for command, (topic, hint) in product(("produce", "consume"), hints.items()):
        process = start(group, command, topic)
        _, err = process.communicate(b"x\n", timeout=LIMIT_S)
        assert process.returncode == 1 and hint in err

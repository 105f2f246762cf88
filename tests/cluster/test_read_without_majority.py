"""A live read of a group without a majority says within seconds what it waits for, and goes on by itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from time import monotonic

import pytest

pytest.importorskip("pyarrow")

from dledger.client import Message, Producer
from dledger.local.cluster import LocalCluster

READ = "import dledger, sys; print(dledger.read(servers=sys.argv[1], subscribe='orders').read_all().num_rows)"


def test_a_read_without_a_majority_is_not_silent(new_group: Callable[..., LocalCluster]) -> None:
    group = new_group()
    group.create_topic("orders")
    with Producer("orders", group.namesrv_addr) as producer:
        for number in range(10):
            producer.send(Message("orders", b"%d" % number))
    for node in group.spec.node_ids[:2]:
        group.kill(node)
    began = monotonic()
    command = [sys.executable, "-c", READ, group.namesrv_addr]
    read = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert read.stderr is not None
    said = read.stderr.readline()
    print(f"\nsaid after {monotonic() - began:.1f} s: {said.strip()}")
    assert said.startswith("no leader answers: waiting until a majority of the group's brokers runs")
    assert "group=" in said
    group.start_node(group.spec.node_ids[0])
    output, rest = read.communicate(timeout=120)
    assert (output, read.returncode) == ("10\n", 0), rest
    assert "the leader answers again" in rest

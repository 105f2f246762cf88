"""The dashboard as a process of its own, beside a real group: what it shows of messages, groups and a killed
leader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from dledger import Message, Producer
from dledger.admin import AdminClient
from dledger.local.cluster import LocalCluster, wait_for
from dledger.remoting.bodies import MessageQueue

LIMIT_S = 30.0
HOSTILE = "<b>bold</b>\x01"


class Browser:
    """Reads pages of a dashboard process."""

    def __init__(self, root: str) -> None:
        self._root = root

    def json(self, path: str) -> Any:
        request = Request(f"{self._root}/cluster/{path}", headers={"Accept": "application/json"})
        with urlopen(request, timeout=LIMIT_S) as answer:
            return json.load(answer)

    def html(self, path: str) -> str:
        with urlopen(f"{self._root}/cluster/{path}", timeout=LIMIT_S) as answer:
            return str(answer.read().decode())

    def until(self, path: str, holds: Callable[[Any], bool]) -> Any:
        """Load a page again and again until its data is as wanted."""
        seen: list[Any] = [None]

        def look() -> Any:
            seen[0] = self.json(path)
            return seen[0] if holds(seen[0]) else None

        return wait_for(look, LIMIT_S, lambda: f"{path}: {seen[0]}")


@pytest.fixture
def browser(new_group: Callable[..., LocalCluster], tmp_path: Path) -> Iterator[tuple[Browser, LocalCluster]]:
    group = new_group()
    group.create_topic("Orders", 2)
    group.wait_registered()
    process = subprocess.Popen(
        [sys.executable, "-m", "dledger", "dashboard", "-n", group.namesrv_addr, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("http://127.0.0.1:"), line
    yield Browser(line.split("/ ")[0]), group
    process.terminate()
    assert process.wait(LIMIT_S) == 0


def test_the_pages_show_a_group_its_messages_and_a_killed_leader(
    browser: tuple[Browser, LocalCluster],
) -> None:
    pages, group = browser
    with Producer("PG", group.namesrv_addr) as producer:
        sent = [
            producer.send(Message("Orders", b'{"number": %d}' % number, tags="paid", keys=[f"k{number}"]))
            for number in range(20)
        ]
        producer.send(Message("Orders", HOSTILE.encode(), keys=["hostile"]))
    with AdminClient(group.namesrv_addr) as admin:
        for number in range(2):
            queue = MessageQueue("Orders", "broker-a", number)
            admin.offsets.commit(group.addr(str(group.leader())), "billing", queue, 3)

    overview = pages.until("", lambda data: [one["state"] for one in data["groups"]] == ["well"])
    assert overview["groups"][0]["spare"] == 1 and overview["problem"] == ""
    leader = overview["groups"][0]["leader"]

    (row,) = pages.json("topics?q=orders")["rows"]
    assert (row["topic"]["name"], row["messages"], row["topic"]["read_queues"]) == ("Orders", 21, 2)
    topic = pages.until("topics/Orders", lambda data: bool(data["consumers"]))
    assert topic["consumers"][0]["behind"] == 15 and len(topic["queues"]) == 2

    found = pages.json("groups/billing")
    assert found["row"]["behind"] == 15 and found["slow"] == ["no member"]
    assert [queue["offset"] for queue in found["queues"]] == [3, 3]
    assert "billing" in [one["group"] for one in pages.until("", lambda data: data["backlogs"])["backlogs"]]

    newest = pages.json("messages?topic=Orders")
    assert len(newest["found"]) == 21 and newest["looked"]["whole"]
    assert len(pages.json("messages?topic=Orders&tag=paid")["found"]) == 20
    (by_key,) = pages.until("messages?topic=Orders&key=k7", lambda data: bool(data["found"]))["found"]
    assert by_key["id"] == sent[7].message_id
    message = pages.json(f"messages/Orders/{by_key['offset_id']}")
    assert message["pretty"] == '{\n  "number": 7\n}' and message["properties"]["KEYS"] == "k7"
    assert message["tracks"][0]["group"] == "billing"
    (hostile,) = pages.until("messages?topic=Orders&key=hostile", lambda data: bool(data["found"]))["found"]
    assert "&lt;b&gt;bold&lt;/b&gt;␁" in pages.html(f"messages/Orders/{hostile['offset_id']}")

    node = pages.json(f"nodes/broker-a/{leader}")
    assert node["settings"]["brokerName"] == "broker-a" and node["node"]["role"] == "LEADER"

    group.kill(leader)
    after = pages.until("", lambda data: data["groups"][0]["leader"] not in (None, leader))
    assert (after["groups"][0]["state"], after["groups"][0]["spare"]) == ("at-risk", 0)
    won = [event for event in after["events"] if event["role"] == "LEADER"]
    assert won[0]["node"] == after["groups"][0]["leader"] and won[0]["why"] == "quorum of votes"
    assert "one more loss stops writes" in pages.html("")
    spans = pages.json("nodes")["groups"][0]["spans"]
    assert [one["node"] for one in spans if one["role"] == "LEADER"][-1] == won[0]["node"]


@pytest.mark.parametrize("path", ["topics/no%20such", "groups/none", "messages?topic=None"])
def test_what_does_not_exist_is_said(browser: tuple[Browser, LocalCluster], path: str) -> None:
    with pytest.raises(HTTPError) as refused:
        browser[0].json(path)
    assert refused.value.code == 404

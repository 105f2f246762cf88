"""The HTTP server of the dashboard: who gets an answer, and in which form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import page_data
import pytest

from dledger.admin import ClusterView
from dledger.client import BrokerRefused, ClientError
from dledger.dashboard import server as module
from dledger.dashboard.facts import MAX_ANSWERS, Facts, gather_bounded
from dledger.dashboard.program import clusters_of
from dledger.dashboard.server import Dashboard
from dledger.dashboard.watching import Watching
from dledger.remoting.bodies import BrokerData, ClusterInfo
from dledger.remoting.node_report import LogReport, NodeReport
from dledger.runtime.options import WrongUsage


class Failing:
    """An admin client whose cluster does not answer."""

    def __getattr__(self, name: str) -> Any:
        return Failing()

    def __call__(self, *words: Any, **more: Any) -> Any:
        raise ClientError("no NameServer answers")

    def now_ms(self) -> int:
        return page_data.NOW_MS


def watched(name: str = "main") -> Watching:
    """A cluster that was looked at once."""
    admin: Any = Failing()
    found = Watching(name, admin)
    found.nodes, found.problem, found.looked_ms = {"broker-a": dict(page_data.NODES)}, "", page_data.NOW_MS
    return found


@asynccontextmanager
async def served(*clusters: Watching) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    dashboard = Dashboard(clusters or (watched(),))
    port = await dashboard.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession() as session:
            yield session, f"http://127.0.0.1:{port}"
    finally:
        await dashboard.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))  # type: ignore[arg-type]


def test_a_page_answers_html_and_the_same_data_as_json() -> None:
    async def test() -> None:
        async with served() as (session, root):
            async with session.get(f"{root}/main/") as answer:
                text = await answer.text()
                assert answer.status == 200 and "2 of 3 nodes: one more loss stops writes." in text
                assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
            async with session.get(f"{root}/main/", headers={"Accept": "application/json"}) as answer:
                found = await answer.json()
                assert found["groups"][0]["state"] == "at-risk" and found["groups"][0]["leader"] == "n0"
            async with session.get(f"{root}/main/nodes?format=json") as answer:
                assert [node["id"] for node in (await answer.json())["groups"][0]["nodes"]] == [
                    "n0",
                    "n1",
                    "n2",
                ]

    run(test)


def test_the_only_cluster_is_the_first_page_and_of_several_one_is_chosen() -> None:
    async def test() -> None:
        async with served() as (session, root), session.get(root, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (302, "/main/")
        async with served(watched("one"), watched("two")) as (session, root), session.get(root) as answer:
            text = await answer.text()
            assert 'href="/one/"' in text and 'href="/two/"' in text

    run(test)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::2]:1"],
)
def test_a_page_of_another_host_cannot_read_the_dashboard_by_a_name_of_its_own(host: str) -> None:
    async def test() -> None:
        async with served() as (session, root):
            for path in ("/", "/main/", "/static/dashboard.js"):
                async with session.get(root + path, headers={"Host": host}) as answer:
                    assert answer.status == 403, path
            for here in ("localhost:1", "[::1]:8080", "127.0.0.1"):
                async with session.get(f"{root}/main/", headers={"Host": here}) as answer:
                    assert answer.status == 200, here

    run(test)


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/other/", 404, "there is no cluster 'other' here"),
        ("/main/nothing", 404, "Not Found"),
        ("/static/..%2fserver.py", 404, "there is no such file"),
        ("/static/vendor.toml", 404, "there is no such file"),
        ("/main/nodes/broker-a/n9", 404, "n9 of broker-a"),
        ("/main/messages?topic=T&since=yesterday", 400, "give an age such as"),
        ("/main/messages?topic=T&since=99999999d", 400, "give at most 10000d"),
        ("/main/messages?topic=T&queue=one", 400, "give a whole number"),
        ("/main/topics", 502, "no NameServer answers"),
        ("/main/" + "x" * 5000, 400, "too long"),
    ],
)
def test_what_cannot_be_shown_is_said(path: str, status: int, said: str) -> None:
    async def test() -> None:
        async with served() as (session, root), session.get(root + path) as answer:
            assert answer.status == status and said in await answer.text()
            assert "Content-Security-Policy" in answer.headers

    run(test)


def test_an_error_is_json_for_programs() -> None:
    async def test() -> None:
        async with served() as (session, root), session.get(f"{root}/main/topics?format=json") as answer:
            assert (answer.status, await answer.json()) == (502, {"error": "no NameServer answers"})

    run(test)


def test_an_open_page_gets_its_changes_and_nothing_while_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LIVE_EVERY_S", 0.01)
    cluster = watched()

    async def test() -> None:
        async with served(cluster) as (session, root):
            stream = session.get(f"{root}/main/", headers={"Accept": "text/event-stream"})
            async with stream as answer:
                first = json.loads((await answer.content.readline()).removeprefix(b"data: "))
                assert first["main"].startswith("<h1>Overview</h1>")
                await answer.content.readline()
                assert await answer.content.readline() == b": nothing new\n"
                cluster.problem = "it went away"
                while not (line := await answer.content.readline()).startswith(b"data:"):
                    pass
                assert "it went away" in json.loads(line.removeprefix(b"data: "))["main"]

    run(test)


def test_the_number_of_open_pages_that_get_changes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LIVE", 1)

    async def test() -> None:
        async with served() as (session, root):
            headers = {"Accept": "text/event-stream"}
            async with session.get(f"{root}/main/", headers=headers) as first:
                await first.content.readline()
                async with session.get(f"{root}/main/", headers=headers) as second:
                    assert second.status == 503

    run(test)


def test_a_page_of_another_host_can_only_link_here() -> None:
    async def test() -> None:
        async with served() as (session, root):
            for mode, status in (("no-cors", 403), ("cors", 403), ("navigate", 200)):
                headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode}
                async with session.get(f"{root}/main/", headers=headers) as answer:
                    assert answer.status == status, mode

    run(test)


def test_the_dashboard_ends_while_a_page_is_open() -> None:
    async def test() -> None:
        dashboard = Dashboard([watched()])
        port = await dashboard.start("127.0.0.1", 0)
        async with aiohttp.ClientSession() as session:
            stream = session.get(f"http://127.0.0.1:{port}/main/", headers={"Accept": "text/event-stream"})
            async with stream as answer:
                await answer.content.readline()
                await dashboard.close()
                assert await answer.content.read() is not None, "the stream has an end"

    run(test)


def test_an_open_page_is_told_what_is_wrong() -> None:
    async def test() -> None:
        async with served() as (session, root):
            stream = session.get(f"{root}/main/topics", headers={"Accept": "text/event-stream"})
            async with stream as answer:
                found = json.loads((await answer.content.readline()).removeprefix(b"data: "))
                assert found == {"problem": "no NameServer answers"}

    run(test)


def test_a_chosen_language_is_kept() -> None:
    async def test() -> None:
        async with served() as (session, root):
            async with session.get(f"{root}/main/?lang=zh") as answer:
                assert "概览" in await answer.text()
                assert "SameSite=Strict" in answer.headers["Set-Cookie"]
            async with session.get(f"{root}/main/", cookies={module.LANGUAGE_COOKIE: "zh"}) as answer:
                assert "概览" in await answer.text()

    run(test)


def test_one_question_is_asked_once_for_all_who_ask_it_and_a_failure_again() -> None:
    asked: list[str] = []

    async def ask(word: str) -> str:
        asked.append(word)
        await asyncio.sleep(0.01)
        if word == "bad" and len(asked) < 3:
            raise ClientError("not now")
        return word.upper()

    async def test() -> None:
        facts = Facts()
        assert await asyncio.gather(*(facts.get(ask, "a") for _ in range(5))) == ["A"] * 5
        assert await facts.get(ask, "a") == "A" and asked == ["a"]
        with pytest.raises(ClientError):
            await facts.get(ask, "bad")
        assert await facts.get(ask, "bad") == "BAD"
        assert await facts.get(ask, "a", fresh_s=0.0) == "A" and asked == ["a", "bad", "bad", "a"]
        for number in range(MAX_ANSWERS + 5):
            await facts.get(ask, str(number), fresh_s=100)
            if number % 64 == 0:
                assert len(facts._answers) <= MAX_ANSWERS
        assert len(facts._answers) == MAX_ANSWERS

    run(test)


def test_who_waits_for_an_answer_asks_anew_if_the_one_who_asked_leaves() -> None:
    begun = asyncio.Event()
    asked = 0

    async def ask() -> str:
        nonlocal asked
        asked += 1
        begun.set()
        await asyncio.sleep(0.01 if asked > 1 else 60)
        return "found"

    async def test() -> None:
        facts = Facts()
        first = asyncio.ensure_future(facts.get(ask))
        await begun.wait()
        second = asyncio.ensure_future(facts.get(ask))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == "found" and asked == 2

    run(test)


def test_few_requests_are_under_way_at_once() -> None:
    under_way = most = 0

    async def one() -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return most

    async def test() -> None:
        await gather_bounded([one] * 50, at_once=4)
        assert most == 4

    run(test)


def test_names_of_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert clusters_of(["h:1;h:2"]) == {"cluster": "h:1;h:2"}
    assert clusters_of(["a=h:1", "b=h:2"]) == {"a": "h:1", "b": "h:2"}
    for given, said in (
        (["h:1", "h:2"], "two clusters"),
        (["a/b=h:1"], "letters, digits"),
        (["static=h:1"], "choose another"),
        (["..=h:1"], "begins with a letter"),
        (["a="], "give the addresses"),
        ([f"c{number}=h:1" for number in range(17)], "at most 16"),
    ):
        with pytest.raises(WrongUsage, match=said):
            clusters_of(given)
    monkeypatch.setenv("NAMESRV_ADDR", "e:1")
    assert clusters_of([]) == {"cluster": "e:1"}


def test_a_broker_whose_answer_cannot_be_read_is_one_that_is_not_reached() -> None:
    """It must not end the dashboard, nor hide the other brokers."""

    async def runtime(address: str) -> dict[str, str]:
        return {"bootTimestamp": "x"}

    async def node(address: str) -> NodeReport:
        if address == "h:1":
            raise BrokerRefused("node: the response cannot be read: $.term")
        return NodeReport(id="n0", role="LEADER", term=1, serving=True, node=LogReport(voters=("n0", "n1")))

    async def cluster_() -> ClusterView:
        group = BrokerData("c", "broker-a", {0: "h:0", 1: "h:1"})
        return ClusterView(ClusterInfo({"broker-a": group}, {"c": ["broker-a"]}))

    async def test() -> None:
        cluster = watched()
        brokers = SimpleNamespace(cluster=cluster_, runtime=runtime, node=node)
        cluster.admin = SimpleNamespace(brokers=brokers, now_ms=lambda: page_data.NOW_MS)  # type: ignore[assignment]
        await cluster.look()
        assert cluster.problem == ""
        one, other = cluster.nodes["broker-a"].values()
        assert one.reached and one.serving and not other.reached
        assert other.id == "n1" and "cannot be read" in other.problem

    run(test)


def test_what_a_node_reported_before_it_went_away_is_remembered() -> None:
    cluster = watched()
    before = cluster._remembered(page_data.LEADER)
    away = cluster._remembered(msgspec.structs.replace(page_data.LEADER, reached=False, changes=()))
    assert [one.why for one in before.changes] == [one.why for one in page_data.LEADER.changes]
    assert away.changes == before.changes[1:], "those of the last hour"


def test_a_look_at_a_cluster_that_does_not_answer_is_noted() -> None:
    async def test() -> None:
        cluster = watched()
        brokers = SimpleNamespace(cluster=Failing())
        cluster.admin = SimpleNamespace(brokers=brokers, now_ms=lambda: 1)  # type: ignore[assignment]
        await cluster.look()
        assert cluster.problem == "no NameServer answers" and cluster.nodes, "the last look stays"

    run(test)

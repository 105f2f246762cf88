"""A new leader tells those who wait at the one before it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dledger.broker.clients import takeover_notices
from dledger.remoting.codes import LanguageCode, RequestCode
from tests.broker.harness import FakeConnection, World, run, skip_s
from tests.broker.test_clients import heartbeat
from tests.broker.test_delays import leading
from tests.client.fake_cluster import eventually

WAIT_S = 30


async def beat(world: World, connection: FakeConnection, *clients: str, **how: LanguageCode) -> None:
    for client in clients:
        body = heartbeat(client, group=f"CG_{client}")
        assert (await world.call(RequestCode.HEART_BEAT, None, body, connection=connection, **how)).code == 0


def said(world: World, connection: FakeConnection) -> list[str | None]:
    """Groups that a leader's notices named since the last time, each with the right address."""
    own = world.broker.settings.now.client_addr
    found = [
        fields["consumerGroup"]
        for code, fields in connection.notices
        if code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and fields.get("leaderAddr") == own
    ]
    connection.notices.clear()
    return found


def test_who_was_not_heard_since_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover_notices, "WAIT_S", WAIT_S)

    async def test() -> None:
        waiting, knowing, other, gone = (FakeConnection(serial) for serial in range(1, 5))
        async with leading(tmp_path) as world:
            world.node.follow("n1")
            await beat(world, waiting, "a", "b")
            await beat(world, knowing, "c")
            await beat(world, other, "d", language=LanguageCode.JAVA)
            await beat(world, gone, "e")
            world.node.lead()
            await beat(world, knowing, "c")
            world.broker.core.clients.connection_closed(gone)  # type: ignore[arg-type]
            await skip_s(WAIT_S)
            await eventually(lambda: any("leaderAddr" in fields for _, fields in waiting.notices))
            assert said(world, waiting) in (["CG_a"], ["CG_b"]), "once a connection"
            assert said(world, knowing) == said(world, other) == said(world, gone) == []
            await skip_s(WAIT_S)
            await asyncio.sleep(0.05)
            assert said(world, waiting) == []

    run(test)


def test_who_leads_no_more_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover_notices, "WAIT_S", WAIT_S)

    async def test() -> None:
        waiting = FakeConnection()
        async with leading(tmp_path) as world:
            world.node.follow("n1")
            await beat(world, waiting, "a")
            world.node.lead()
            world.node.follow("n1")
            await skip_s(WAIT_S)
            await asyncio.sleep(0.05)
            assert said(world, waiting) == []

    run(test)

"""What a leader does with a peer that cannot be installed: says so once (protocol version 1, no snapshot)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.config import NodeConfig
from dledger.messages import InstallSnapshot
from dledger.replication.install import Offer
from dledger.replication.leader import PushState, SendInstall
from dledger.runtime.env import production_env
from dledger.snapshots.sender import InstallSender
from tests.dledger.node_context import context

OFFER = Offer(20, 1, 65536, 7, 1000, "d")


class Log:
    """Counts errors."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def error(self, event: str, **fields: object) -> None:
        self.errors.append(event)

    def info(self, event: str, **fields: object) -> None: ...


def sender(protocol_max: int) -> tuple[InstallSender, Log, list[Any]]:
    log = Log()
    sent: list[Any] = []
    peers: Any = SimpleNamespace(
        hellos={"n1": SimpleNamespace(protocol_max=protocol_max)},
        send=lambda peer, message: sent.append(message),
    )
    env = replace(production_env(), log=log)  # type: ignore[arg-type]
    nothing: Any = SimpleNamespace(first_index=21)
    config = NodeConfig("g", "n0", {"n0": "127.0.0.1:1"}, "unused", push_bytes=300)
    parts = context(env=env, config=config, log=nothing, peers=peers, replicator=nothing)
    return InstallSender(parts, nothing), log, sent


@pytest.mark.parametrize(("version", "count"), [(1, 0), (2, 3)])
def test_a_peer_of_version_1_gets_no_snapshot(version: int, count: int) -> None:
    install, log, sent = sender(version)
    leader: Any = SimpleNamespace(term=3, self_id="n0")
    for _ in range(3):
        install.send_install(leader, SendInstall("n1", OFFER, -1))
    assert len(sent) == count and all(isinstance(message, InstallSnapshot) for message in sent)
    assert len(log.errors) == (1 if version == 1 else 0), "it is said once"


def test_a_peer_that_no_snapshot_helps_is_named_once() -> None:
    install, log, _ = sender(2)
    for _ in range(3):
        install.no_snapshot("n1")
    assert len(log.errors) == 1


@pytest.mark.parametrize("what", ["leadership", "peer"])
@pytest.mark.parametrize("ends", ["after a piece", "while the snapshot is read"])
def test_what_was_read_for_a_peer_is_given_back_when_the_leadership_ends_or_the_peer_goes(
    ends: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        install, _, sent = sender(2)
        was_sent = asyncio.Event()

        def send(peer: str, message: object) -> None:
            sent.append(message)
            was_sent.set()

        install._peers = SimpleNamespace(hellos={}, send=send)  # type: ignore[assignment]
        monkeypatch.setattr("dledger.snapshots.sender.pack_stream", lambda manifest, parts: bytes(1000))
        progress = SimpleNamespace(offer=OFFER, state=PushState.INSTALL)
        leader: Any = SimpleNamespace(term=3, self_id="n0", progress={"n1": progress})
        install._replicator = SimpleNamespace(leader=leader)  # type: ignore[assignment]
        loading, reading = asyncio.Event(), asyncio.Event()

        async def load(manifest: object) -> dict[str, bytes]:
            loading.set()
            await reading.wait()
            return {}

        install._catalog = SimpleNamespace(manifests=[SimpleNamespace(digest="d")], load=load)  # type: ignore[assignment]
        task = asyncio.get_running_loop().create_task(install.run())
        install.send_install(leader, SendInstall("n1", OFFER, 0))
        await asyncio.wait_for(loading.wait(), 20)
        if ends == "after a piece":
            reading.set()
            await asyncio.wait_for(was_sent.wait(), 20)
            assert install._loaded is not None
        if what == "leadership":
            install._replicator.leader = None
            install.forget()
        else:
            progress.state = PushState.DOWN
            install.forget_if_idle(leader)
        reading.set()
        await asyncio.sleep(0.1)
        assert install._loaded is None and len(sent) == (ends == "after a piece")
        task.cancel()

    asyncio.run(scenario())

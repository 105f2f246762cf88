"""TLS between peers on loopback: both sides prove who they are, and who they are must fit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from certificates import Authority
from test_node import CLIENT_S, Group, ListHost

from dledger.node.node import Node
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.env import production_env
from dledger.runtime.tls import PeerTls
from tests.broker.harness import skip_s

pytestmark = pytest.mark.usefixtures("patient_dials")


class TlsGroup(Group):
    """The three nodes, each with contexts of its own."""

    def __init__(self, directory: Path, ports: list[int], contexts: Mapping[str, PeerTls | None]) -> None:
        super().__init__(directory, ports)
        self.contexts = contexts

    def begin(self, *names: str) -> None:
        for name in names:
            self.hosts[name] = ListHost()
            node = Node(production_env(name), self.config(name), self.hosts[name], tls=self.contexts[name])
            self.nodes[name] = node
            self.tasks[name] = asyncio.create_task(node.run(), name=name)

    async def end(self) -> None:
        for name in list(self.tasks):
            await self.stop(name)

    def reasons(self, name: str) -> list[str]:
        told = self.nodes[name].status()["reasons"]
        assert isinstance(told, list)
        return told

    def refused(self, name: str) -> dict[str, int]:
        counts = self.nodes[name].status()["refused"]
        assert isinstance(counts, dict)
        return counts


@pytest.fixture
def ports(unused_tcp_ports: Callable[[int], list[int]]) -> list[int]:
    return unused_tcp_ports(3)


def test_a_group_over_tls_replicates_and_fails_over(tmp_path: Path, ports: list[int]) -> None:
    authority = Authority(tmp_path)
    contexts: dict[str, PeerTls | None] = {
        "n0": authority.tls("n0", "n0"),
        "n1": authority.tls("n1", "n1.g"),
        "n2": authority.tls("n2", "some machine", dns="n2"),
    }
    client_tls = authority.tls("client", "an operator")

    async def scenario() -> None:
        group = TlsGroup(tmp_path, ports, contexts)
        group.begin("n0", "n1", "n2")
        bodies = [b"m%d" % number * 1000 for number in range(300)]
        await group.append(bodies)
        large = [os.urandom(700_000) for _ in range(20)]  # in one turn: they wait, and go in pieces
        await group.append(large)
        async with DLedgerClient(production_env("client"), group.peers, CLIENT_S, tls=client_tls) as client:
            assert (await client.get(await client.append(b"over TLS"))).body == b"over TLS"
        leader = (await group.elected()).config.self_id
        await group.stop(leader)
        await group.append([b"after"])
        group.begin(leader)
        assert await group.agree(321) == [*bodies, *large, b"after"]
        assert not any(group.refused(name) for name in group.nodes)
        await group.end()

    asyncio.run(scenario())


MADE_OUT = "the certificate is issued to n1, n1, not to n2 or n2.g"
WHO_SAYS = {
    "other authority": ("no TLS connection to {}: ", "no TLS connection to {}: "),
    "other node's certificate": ("this node refuses {}: " + MADE_OUT, "{} refuses this node: " + MADE_OUT),
    "no TLS": (
        "{} closes each connection: no TLS handshake (is TLS, tls.peer.*, enabled on one side only?)",
        "{} closes each connection: closed before its hello (is TLS, tls.peer.*, enabled on one side only?)",
    ),
}
"""What n0 says of n2, and n2 of the others."""


@pytest.mark.parametrize("fault", sorted(WHO_SAYS))
def test_who_cannot_prove_its_name_stays_outside(fault: str, tmp_path: Path, ports: list[int]) -> None:
    authority = Authority(tmp_path)
    contexts: dict[str, PeerTls | None] = {name: authority.tls(name, name) for name in ("n0", "n1")}
    if fault == "other authority":
        contexts["n2"] = Authority(tmp_path, "other").tls("n2", "n2")
    elif fault == "no TLS":
        contexts["n2"] = None
    else:
        contexts["n2"] = authority.tls("n2", "n1", dns="n1")

    async def scenario() -> None:
        group = TlsGroup(tmp_path, ports, contexts)
        group.begin("n0", "n1", "n2")
        cause = "certificate" if fault.endswith("certificate") else "tls"
        await group.until(lambda: group.refused("n0").get(cause, 0) > 0)

        def said(who: str, text: str, *others: str) -> bool:
            wanted = [text.format(f"{other} at {group.peers[other]}") for other in others]
            found = [reason.removeprefix("no group yet: ") for reason in group.reasons(who)]
            return len(found) == len(wanted) and all(map(str.startswith, found, wanted))

        await group.until(lambda: said("n0", WHO_SAYS[fault][0], "n2"))
        await group.until(lambda: said("n2", WHO_SAYS[fault][1], "n0", "n1"))
        await asyncio.sleep(0.3)
        assert group.leader is None, "a group forms only of members that know each other"
        assert all(node.term == 0 for node in group.nodes.values())
        await group.end()

    asyncio.run(scenario())


def test_a_plain_client_is_refused_and_counted(tmp_path: Path, ports: list[int]) -> None:
    authority = Authority(tmp_path)
    contexts: dict[str, PeerTls | None] = {name: authority.tls(name, name) for name in ("n0", "n1", "n2")}

    async def scenario() -> None:
        group = TlsGroup(tmp_path, ports, contexts)
        group.begin("n0", "n1", "n2")
        await group.elected()
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        writer.write(b"\0\0\0\x05\0\x03abc")
        await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await group.until(lambda: group.refused("n0").get("tls", 0) >= 1)
        before = group.refused("n0")["tls"]
        nameless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        nameless.check_hostname, nameless.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[0], ssl=nameless)
        await group.until(lambda: group.refused("n0")["tls"] > before)
        with contextlib.suppress(ssl.SSLError):
            assert await asyncio.wait_for(reader.read(), 60) == b"", "no certificate, no connection"
        writer.close()
        await group.end()

    asyncio.run(scenario())


def test_a_client_without_the_certificates_is_told_of_tls(tmp_path: Path, ports: list[int]) -> None:
    """It was told that the outcome of a removal is unknown."""
    authority = Authority(tmp_path)
    contexts: dict[str, PeerTls | None] = {name: authority.tls(name, name) for name in ("n0", "n1", "n2")}

    async def scenario() -> None:
        group = TlsGroup(tmp_path, ports, contexts)
        group.begin("n0", "n1", "n2")
        await group.elected()
        async with DLedgerClient(production_env("client"), group.peers, CLIENT_S) as client:
            asked = asyncio.ensure_future(client.remove_member("n2"))
            await group.until(lambda: client._place > 3)  # each was tried, in vain
            await skip_s(CLIENT_S)
            with pytest.raises(RequestFailed) as refused:
                await asked
        assert "does it ask for TLS?" in str(refused.value) and "unknown" not in str(refused.value)
        await group.end()

    asyncio.run(scenario())


def test_a_failed_handshake_is_news_after_a_good_connection(
    tmp_path: Path, ports: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows whose it was, so any node that connects in good order makes it news.

    Two nodes of three: they do not found the group, which would connect them anew.
    """
    authority = Authority(tmp_path)
    contexts: dict[str, PeerTls | None] = {name: authority.tls(name, name) for name in ("n0", "n1")}

    async def fail(group: TlsGroup) -> None:
        before = group.refused("n0").get("tls", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        writer.write(b"\0\0\0\x05\0\x03abc")
        await group.until(lambda: group.refused("n0").get("tls") == before + 1)
        writer.close()

    async def join(group: TlsGroup) -> None:
        inbound = group.nodes["n0"].peers._inbound
        former = inbound.get("n1")
        group.begin("n1")
        await group.until(lambda: inbound.get("n1") not in (None, former))

    async def scenario() -> None:
        group = TlsGroup(tmp_path, ports, contexts)
        group.begin("n0")
        for life in (1, 2):
            await join(group)
            for _ in range(2):
                await fail(group)
            assert len([record for record in caplog.records if "cause=tls" in record.message]) == life
            await group.stop("n1")
        await group.end()

    asyncio.run(scenario())


def test_new_certificates_count_for_new_connections(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = authority.tls("node", "n0")
    other = authority.tls("other", "n1")
    shown: list[tuple[str, ...]] = []

    async def names() -> tuple[str, ...]:
        """What a server with `tls` shows to a new connection."""
        tls.refresh()
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=tls.server)
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=other.client)
        subject = writer.get_extra_info("peercert")["subject"]
        writer.close()
        server.close()
        return tuple(value for part in subject for _, value in part)

    async def scenario() -> None:
        shown.append(await names())
        authority.issue("new", "n0-new")
        for kind in ("key", "pem"):
            shutil.copy(tmp_path / f"new.{kind}", tmp_path / f"node.{kind}")
            os.utime(tmp_path / f"node.{kind}", (1, 1))
        shown.append(await names())
        (tmp_path / "node.pem").write_text("half written")
        shown.append(await names())

    asyncio.run(scenario())
    assert shown == [("n0",), ("n0-new",), ("n0-new",)]

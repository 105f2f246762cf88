"""Settings that mean one place for two things are found by one look at the file: `-p`, and each start."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker.config import SETTINGS, BrokerConfig
from dledger.namesrv import config as namesrv
from dledger.runtime.settings import ConfigError
from tests.command_line import broker as program
from tests.command_line import namesrv as run_namesrv

BASE = {
    "brokerIP1": "127.0.0.1",
    "listenPort": "10911",
    "httpPort": "10923",
    "dLegerSelfId": "n0",
    "dLegerPeers": "n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913",
    "namesrvAddr": "127.0.0.1:9876;127.0.0.1:9877",
    "storePathRootDir": "/data/store",
    "logDir": "/data/logs",
    "digestShipPath": "/data/digests",
}


def load(**changes: str) -> BrokerConfig:
    return SETTINGS.load(BASE | changes)[0]


def refused(**changes: str) -> str:
    with pytest.raises(ConfigError) as found:
        load(**changes)
    return str(found.value)


COLLIDING = {
    "members at one address": ({"dLegerPeers": "n0-127.0.0.1:35611;n1-127.0.0.1:35611"}, "n0", "n1"),
    "members, in other letters": ({"dLegerPeers": "n0-Host:1;n1-host.:1;n2-x:1"}, "n0", "n1"),
    "one member twice": ({"dLegerPeers": "n0-127.0.0.1:1;n0-127.0.0.1:2"}, "dLegerPeers", "n0"),
    "http and clients": ({"httpPort": "10911"}, "httpPort", "listenPort"),
    "http and the VIP channel": ({"httpPort": "10909"}, "httpPort", "listenPort"),
    "http and peers": ({"httpPort": "40911"}, "httpPort", "dLegerPeers"),
    "http and peers elsewhere": (
        {"httpPort": "40911", "peerBindAddress": "127.0.0.1", "httpAddress": "0.0.0.0"},
        "httpPort",
        "dLegerPeers",
    ),
    "clients and peers": ({"listenPort": "40911"}, "listenPort", "dLegerPeers"),
    "the VIP channel and peers": ({"listenPort": "40913"}, "listenPort", "dLegerPeers"),
    "clients and another member": ({"listenPort": "40912", "vipChannelEnabled": "false"}, "listenPort", "n1"),
    "clients and a NameServer": ({"namesrvAddr": "127.0.0.1:10911"}, "listenPort", "namesrvAddr"),
    "peers and a NameServer": ({"namesrvAddr": "localhost:40911"}, "dLegerPeers", "namesrvAddr"),
    "http and another member": ({"httpPort": "40912"}, "httpPort", "n1"),
    "http and a NameServer": ({"httpPort": "9877"}, "httpPort", "namesrvAddr"),
    "IPv6": (
        {"bindAddress": "::", "httpAddress": "::1", "httpPort": "10911"}, "httpPort", "listenPort"
    ),
    "logs in the log": ({"logDir": "/data/store/dledger-n0"}, "logDir", "storePathRootDir"),
    "logs in the queues": ({"logDir": "/data//store/./consumequeue/logs/"}, "logDir", "storePathRootDir"),
    "digests in the state": ({"digestShipPath": "/data/store/state"}, "digestShipPath", "storePathRootDir"),
    "an address for all": ({"brokerIP1": "0.0.0.0"}, "brokerIP1", "bindAddress"),
    "an address for all, short": ({"brokerIP1": "0"}, "brokerIP1", "bindAddress"),
    "an IPv6 address for all": ({"brokerIP1": "::"}, "brokerIP1", "bindAddress"),
    "the same in brackets": ({"brokerIP1": "[::]"}, "brokerIP1", "bindAddress"),
    "in full": ({"brokerIP1": "0:0:0:0:0:0:0:0"}, "brokerIP1", "bindAddress"),
    "any": ({"brokerIP1": "*"}, "brokerIP1", "bindAddress"),
    "an address with a port": ({"brokerIP1": "10.0.0.1:10911"}, "brokerIP1", "without a port"),
    "a name with a port": ({"brokerIP1": "a.example:10911"}, "brokerIP1", "without a port"),
    "IPv6 with a port": ({"brokerIP1": "[fd00::1]:10911"}, "brokerIP1", "without a port"),
    "where to listen with a port": ({"bindAddress": "0.0.0.0:10911"}, "bindAddress", "port"),
    "http, with a port": ({"httpAddress": "127.0.0.1:80"}, "httpAddress", "port"),
    "peers, with a port": ({"peerBindAddress": "127.0.0.1:80"}, "peerBindAddress", "port"),
    "a member at all addresses": (
        {"dLegerPeers": "n0-0.0.0.0:40911;n1-10.0.0.2:40911"}, "n0", "bindAddress"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", COLLIDING)
def test_what_collides_is_named_with_both_settings(what: str) -> None:
    changes, one, other = COLLIDING[what]
    text = refused(**changes)
    assert one in text
    assert other in text
    assert len(text.splitlines()) < 3, text


@pytest.mark.parametrize("what", COLLIDING)
def test_the_command_ends_with_2_for_p_and_for_a_start(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, one, other = COLLIDING[what]
    path = tmp_path / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in (BASE | changes).items()))
    for arguments in (["-p"], ["-m"], []):
        assert program(["-c", str(path), *arguments]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert one in told.err
        assert other in told.err
        assert "broker.conf, line " in told.err or what.startswith(("clients", "peers and")), told.err


FITTING: list[dict[str, str]] = [
    {},
    {"vipChannelEnabled": "false", "httpPort": "10909"},
    {"httpPort": "10911", "bindAddress": "127.0.0.1", "httpAddress": "127.0.0.2"},
    {"httpPort": "10911", "bindAddress": "0.0.0.0", "httpAddress": "::1"},
    {"dLegerPeers": "n0-a:40911;n1-b:40911;n2-c:40911"},
    {"dLegerPeers": "n0-0.0.0.0:40911"},
    {"brokerIP1": "10.0.0.1", "dLegerPeers": "n0-10.0.0.1:40911;n1-10.0.0.2:10911"},
    {"brokerIP1": "[fd00::1]", "storeHostIP": "10.0.0.1"},
    {"brokerIP1": "fd00::1"},
    {"brokerIP1": "fe80::1%eth0"},
    {"brokerIP1": "broker.example"},
    {"logDir": "/data/store", "digestShipPath": "s3://data/store/state"},
    {"logDir": "/data/store/logs"},
    {"logDir": "/data/store/states"},
]


@pytest.mark.parametrize("changes", FITTING, ids=str)
def test_what_can_work_is_taken(changes: dict[str, str]) -> None:
    load(**changes)


PORTS = ("listenPort", "httpPort", "peers", "other", "namesrv")


@given(st.lists(st.integers(3, 65535), min_size=5, max_size=5, unique=True), st.data())
def test_of_any_two_ports_both_settings_are_named(numbers: list[int], data: st.DataObject) -> None:
    """All ports differ: taken. Two are made equal: refused, and the text names both."""
    ports = dict(zip(PORTS, numbers, strict=True))

    def settings(vip: bool) -> dict[str, str]:
        return {
            "listenPort": str(ports["listenPort"]),
            "httpPort": str(ports["httpPort"]),
            "dLegerPeers": f"n0-127.0.0.1:{ports['peers']};n1-127.0.0.1:{ports['other']}",
            "namesrvAddr": f"127.0.0.1:{ports['namesrv']}",
            "vipChannelEnabled": str(vip).lower(),
        }

    load(**settings(vip=False))
    names = {
        "listenPort": "listenPort",
        "httpPort": "httpPort",
        "peers": "dLegerPeers",
        "other": "dLegerPeers n1",
        "namesrv": "namesrvAddr",
    }
    one, other = data.draw(st.sampled_from([(a, b) for a in PORTS for b in PORTS if a < b]))
    before = dict(ports)
    ports[one] = ports[other]
    if {one, other} != {"namesrv", "other"}:  # that another member is a NameServer cannot be, nor is it ours
        text = refused(**settings(vip=False))
        for end in (one, other):
            assert names[end] in text or ({one, other} == {"peers", "other"} and "n0 and n1" in text)
    ports.update(before)
    vip = data.draw(st.sampled_from(["httpPort", "peers"]))
    ports[vip] = ports["listenPort"] - 2
    if list(ports.values()).count(ports[vip]) == 1:
        text = refused(**settings(vip=True))
        assert names[vip] in text
        assert "listenPort" in text


def test_all_collisions_are_told_at_once() -> None:
    text = refused(httpPort="10911", listenPort="40911", logDir="/data/store/index", deleteWhen="x")
    assert "deleteWhen" in text
    assert "logDir" in text
    assert "listenPort and dLegerPeers" in text


KV = {
    "listenPort": "9876",
    "kvPeers": "127.0.0.1:9870;127.0.0.1:9871;127.0.0.1:9872",
    "kvSelfAddress": "127.0.0.1:9870",
    "kvConfigPath": "/data/kv.json",
}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"listenPort": "9870"}, ("listenPort", "kvSelfAddress")),
        ({"listenPort": "9871"}, ("listenPort", "kvPeers")),
        ({"kvPeers": "127.0.0.1:9870;127.0.0.1:9870;127.0.0.1:9871"}, ("kvPeers", "twice")),
        ({"kvDirectory": "/data/kv.json"}, ("kvDirectory", "kvConfigPath")),
        ({"logDir": "/data/kv.json/logs"}, ("logDir", "kvConfigPath")),
        ({"bindAddress": "0.0.0.0:9876"}, ("bindAddress", "port")),
    ],
)
def test_a_nameserver_finds_its_own(
    changes: dict[str, str], names: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namesrv.SETTINGS.load(KV)
    path = tmp_path / "namesrv.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in (KV | changes).items()))
    assert run_namesrv(["-c", str(path), "-p"]) == 2
    told = capsys.readouterr().err
    for name in names:
        assert name in told

"""Settings of stand-alone nodes from property texts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dledger.commands.access import open_client, serve
from dledger.commands.standalone import SETTINGS, StandaloneConfig
from dledger.runtime.env import production_env
from dledger.runtime.settings import ConfigError
from tests.command_line import options

NEEDED = {
    "dLegerGroup": "g",
    "dLegerSelfId": "n0",
    "dLegerPeers": "n0-127.0.0.1:40911",
    "storePathRootDir": "/store",
}


def load(properties: dict[str, str]) -> StandaloneConfig:
    return SETTINGS.load(properties)[0]


def test_nothing_is_deleted_unless_it_was_set() -> None:
    retention = load(NEEDED).node_config("g").retention
    assert retention.reserved_hours == math.inf and not retention.clean_forcibly


def test_retention_has_the_names_that_brokers_know() -> None:
    config = load(
        NEEDED
        | {
            "fileReservedTime": "48",
            "deleteWhen": "04;16",
            "diskMaxUsedSpaceRatio": "60",
            "diskSpaceCleanForciblyRatio": "70",
            "diskSpaceWarningLevelRatio": "80",
            "cleanFileForciblyEnable": "true",
            "cleanResourceInterval": "5000",
        }
    ).node_config("g")
    retention = config.retention
    assert (retention.reserved_hours, retention.delete_hours) == (48, (4, 16))
    assert (retention.clean_ratio, retention.force_ratio, config.disk_full_ratio) == (0.6, 0.7, 0.8)
    assert retention.clean_forcibly and retention.interval_s == 5


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"fileReservedTime": "-1"}, "fileReservedTime: -1: expected 0 to"),
        ({"fileReservedTime": "ever"}, "fileReservedTime: 'ever': expected a whole number"),
        ({"fileReservedTime": "1", "deleteWhen": "24"}, "deleteWhen: 24: expected 0 to 23"),
        ({"deleteWhen": "04"}, "deleteWhen has no effect without fileReservedTime"),
        ({"diskMaxUsedSpaceRatio": "80"}, "diskMaxUsedSpaceRatio has no effect without fileReservedTime"),
        ({"cleanFileForciblyEnable": "yes"}, "cleanFileForciblyEnable: 'yes': expected true or false"),
        (
            {
                "fileReservedTime": "1",
                "diskMaxUsedSpaceRatio": "90",
                "cleanFileForciblyEnable": "true",
                "diskSpaceCleanForciblyRatio": "85",
            },
            "diskSpaceCleanForciblyRatio must not be below diskMaxUsedSpaceRatio",
        ),
        ({"flushDiskType": "FLUSH"}, "flushDiskType: 'FLUSH': expected SYNC_FLUSH or ASYNC_FLUSH"),
    ],
)
def test_retention_that_cannot_work_is_refused_by_name(properties: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(NEEDED | properties)
    assert text in str(error.value)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What `serve` says of settings that it does not begin with."""
    assert serve(production_env(), options("serve", *arguments), 0) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("dLegerGroup=solo # mine", "dLegerGroup: 'solo # mine': a name may not have blanks or '#'"),
        ("dLegerGroup=solo#mine", "dLegerGroup: 'solo#mine': a name may not have"),
        ("dLegerGroup=blue;dark green", "dLegerGroup: 'dark green': a name may not have"),
        ("dLegerSelfId=n0 # this one", "dLegerSelfId: 'n0 # this one': a name may not have"),
        ("dLegerSelfId=n9", "dLegerSelfId 'n9' is not in dLegerPeers"),
        ("storePathRootDir=/store # large", "storePathRootDir: '/store # large': ' #' in a path"),
        ("segmentPoolSize=-1", "segmentPoolSize: -1: expected 0 to 1024"),
        ("mapedFileSizeCommitLog=4096", "mapedFileSizeCommitLog: 4096: expected 8519680 to"),
        ("mapedFileSizeCommitLog=8519681", "mapedFileSizeCommitLog 8519681: must be a multiple of 4096"),
        ("dLegerPeers=n0", "dLegerPeers: 'n0': expected id-host:port"),
        ("dLegerPeers=;", "dLegerPeers is empty"),
        ("bindAddress=a..b", "bindAddress: 'a..b' is neither"),
        ("tls.peer.certPath=x", "tls.peer.certPath, tls.peer.keyPath and tls.peer.trustCertPath must "
                "all be set"),
        ("deleteWhen=04", "deleteWhen has no effect"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_named_with_its_file(
    line: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "n0.conf"
    key, _, value = line.partition("=")
    properties = {key: value} | {name: text for name, text in NEEDED.items() if name != key}
    path.write_text("# a node\n\n" + "".join(f"{name}={text}\n" for name, text in properties.items()))
    assert refusal(capsys, "--config", str(path)).startswith(f"serve: {path}, line 3: {text}")


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "n0.conf"
    path.write_text(
        "dLegerGroup=a\ndLegerGroup=b\ndLegerSelfId=n0\ndLegerPeers=n0-127.0.0.1:1\nstorePathRootDir=s\n"
    )
    said = refusal(capsys, "--config", str(path))
    assert said == f"serve: {path}, line 2: the key 'dLegerGroup' is already set at {path}, line 1\n"


def test_what_an_option_says_is_no_line_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "n0.conf"
    path.write_text("".join(f"{name}={text}\n" for name, text in NEEDED.items()))
    said = refusal(capsys, "--config", str(path), "--id", "n7")
    assert said.startswith("serve: dLegerSelfId 'n7' is not in")


def test_a_tls_file_that_is_missing_is_named(tmp_path: Path) -> None:
    """By the commands of an operator: OpenSSL's error does not say which."""
    there = tmp_path / "there.pem"
    there.touch()
    tls = ("--tls-cert", str(there), "--tls-key", str(there), "--tls-ca", "/no/ca.pem")
    args = options("append", "x", "--peers", "n0-h:1", *tls)
    with pytest.raises(FileNotFoundError, match=r"/no/ca\.pem"):
        open_client(production_env(), args)

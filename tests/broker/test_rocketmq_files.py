"""A broker.conf made for RocketMQ is taken: all names, all errors at once, defaults that move."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.broker.config import SETTINGS
from dledger.namesrv import config as namesrv
from dledger.remoting.rocketmq_names import BROKER, FOLKLORE, NAMESRV
from dledger.runtime.properties_file import parse_properties
from dledger.runtime.settings import ConfigError
from tests.command_line import broker as program

TYPICAL = """\
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
brokerIP1=10.0.0.1
namesrvAddr=10.0.0.8:9876;10.0.0.9:9876
defaultTopicQueueNums=4
autoCreateTopicEnable=true
autoCreateSubscriptionGroup=true
listenPort=10911
deleteWhen=04
fileReservedTime=120
mapedFileSizeCommitLog=1073741824
mapedFileSizeConsumeQueue=300000
destroyMapedFileIntervalForcibly=120000
redeleteHangedFileInterval=120000
diskMaxUsedSpaceRatio=88
storePathRootDir=/data/rocketmq/store
storePathCommitLog=/data/rocketmq/store/commitlog
storePathConsumeQueue=/data/rocketmq/store/consumequeue
storePathIndex=/data/rocketmq/store/index
storeCheckpoint=/data/rocketmq/store/checkpoint
abortFile=/data/rocketmq/store/abort
maxMessageSize=65536
flushCommitLogLeastPages=4
flushConsumeQueueLeastPages=2
flushCommitLogThoroughInterval=10000
flushConsumeQueueThoroughInterval=60000
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
checkTransactionMessageEnable=false
sendMessageThreadPoolNums=128
pullMessageThreadPoolNums=128
ackMessageThreadPoolNums=3
waitTimeMillsInAckQueue=3000
popPollingMapSize=100000
enableDLegerCommitLog=true
dLegerGroup=broker-a
dLegerPeers=n0-10.0.0.1:40911;n1-10.0.0.2:40911;n2-10.0.0.3:40911
dLegerSelfId=n0
"""
ONE = {"dLegerPeers": "n0-127.0.0.1:40911"}


def test_a_typical_file_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(TYPICAL)
    assert program(["-c", str(path), "-p"]) == 0
    shown = capsys.readouterr().out
    assert "diskMaxUsedSpaceRatio=88\n" in shown
    assert "diskSpaceCleanForciblyRatio=88\n" in shown


@pytest.mark.parametrize("name", ["pullMessageThreadPoolNums", "ackMessageThreadPoolNums"])
def test_what_has_no_counterpart_is_warned_of(name: str) -> None:
    _, warnings = SETTINGS.load(ONE | {name: "16"})
    assert warnings == [
        f"{name} has no effect here: it is a setting of RocketMQ that has no counterpart here"
    ]


def refused_as_typing_errors(schema: object, names: frozenset[str], base: dict[str, str]) -> list[str]:
    assert schema in (SETTINGS, namesrv.SETTINGS)
    wrong = []
    for name in sorted(names - base.keys()):
        try:
            schema.load(base | {name: "1"})  # type: ignore[attr-defined]
        except ConfigError as error:
            if "unknown key" in str(error):
                wrong.append(name)
    return wrong


def test_no_name_of_rocketmqs_is_a_typing_error() -> None:
    """Also those of older versions, and those that files have though no version reads them."""
    assert {"waitTimeMillsInAckQueue", "popPollingMapSize", "mapedFileSizeConsumeQueue"} <= BROKER
    assert refused_as_typing_errors(SETTINGS, BROKER | FOLKLORE, ONE) == []
    assert refused_as_typing_errors(namesrv.SETTINGS, NAMESRV, {}) == []


def test_a_typing_error_is_one_still() -> None:
    for key in ("listenPrt", "namesrvAdr", "diskMaxUsedSpaceRation"):
        with pytest.raises(ConfigError, match="did you mean"):
            SETTINGS.load(ONE | {key: "1"})


@pytest.mark.parametrize(
    ("given", "moved"),
    [
        ({"diskMaxUsedSpaceRatio": "88"}, {"diskSpaceCleanForciblyRatio": "88"}),
        ({"diskMaxUsedSpaceRatio": "70"}, {"diskSpaceCleanForciblyRatio": "85"}),
        ({"diskSpaceCleanForciblyRatio": "60"}, {"diskMaxUsedSpaceRatio": "60"}),
        ({"diskSpaceCleanForciblyRatio": "95"}, {"diskMaxUsedSpaceRatio": "75"}),
        (
            {"heartBeatTimeIntervalMs": "2000"},
            {"electionTimeoutMinMs": "8000", "electionTimeoutMaxMs": "16000"},
        ),
        ({"heartBeatTimeIntervalMs": "150"}, {"electionTimeoutMinMs": "400", "electionTimeoutMaxMs": "800"}),
        (
            {"electionTimeoutMinMs": "1500"},
            {"heartBeatTimeIntervalMs": "100", "electionTimeoutMaxMs": "3000"},
        ),
        (
            {"electionTimeoutMaxMs": "200"},
            {"electionTimeoutMinMs": "100", "heartBeatTimeIntervalMs": "25"},
        ),
        ({"peerRedialMinMs": "5000"}, {"peerRedialMaxMs": "1000000"}),
        ({"peerRedialMaxMs": "2"}, {"peerRedialMinMs": "0.01"}),
    ],
)
def test_defaults_move_with_what_is_said(given: dict[str, str], moved: dict[str, str]) -> None:
    config, _ = SETTINGS.load(ONE | given)
    assert {name: SETTINGS[name].format(SETTINGS[name].value(config)) for name in moved} == moved


@pytest.mark.parametrize(
    "given",
    [
        {"diskMaxUsedSpaceRatio": "88", "diskSpaceCleanForciblyRatio": "85"},
        {"heartBeatTimeIntervalMs": "300", "electionTimeoutMinMs": "400"},
        {"electionTimeoutMinMs": "400", "electionTimeoutMaxMs": "300"},
        {"peerRedialMinMs": "20", "peerRedialMaxMs": "10"},
    ],
)
def test_two_that_are_said_and_do_not_fit_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        SETTINGS.load(ONE | given)
    for name in given:
        assert name in str(refused.value)


def test_what_a_request_changes_moves_nothing_else() -> None:
    """What the file says there is not known any more: it might be set."""
    config, _ = SETTINGS.load(ONE)
    with pytest.raises(ConfigError, match="diskSpaceCleanForciblyRatio"):
        SETTINGS.change(config, parse_properties("diskMaxUsedSpaceRatio=88"))


def test_all_errors_of_a_file_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broker.conf"
    lines = [
        "dLegerPeers=n0-127.0.0.1:40911",
        "nonsense",
        "listenPrt=10911",
        "deleteWhen=noon",
        "maxMessageSize=4194305",
        "diskMaxUsedSpaceRatio=88",
        "diskSpaceCleanForciblyRatio=85",
        "heartBeatTimeIntervalMs=1000",
        "electionTimeoutMinMs=400",
        "aclEnable=true",
        "authenticationEnabled=true",
        "deleteWhen=05",
    ]
    path.write_text("\n".join(lines) + "\n")
    assert program(["-c", str(path), "-p", "--httpPrt", "1"]) == 2
    told = capsys.readouterr().err.splitlines()
    for number, key in (
        (2, "nonsense"),
        (3, "listenPrt"),
        (4, "deleteWhen"),
        (5, "maxMessageSize"),
        (7, "diskSpaceCleanForciblyRatio"),
        (9, "electionTimeoutMinMs"),
        (11, "authenticationEnabled"),
        (12, "deleteWhen"),
    ):
        assert [line for line in told if f"line {number}:" in line and key in line], (number, key, told)
    assert [line for line in told if "httpPrt" in line]
    assert all(line.startswith("error: ") for line in told)
    assert len(told) == 9, told


def test_what_follows_from_an_error_is_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A list of peers that cannot be read is not missing as well."""
    for line in ("dLegerPeers=n0", "dLegerPers=n0-127.0.0.1:40911"):
        path = tmp_path / "broker.conf"
        path.write_text(line + "\n")
        assert program(["-c", str(path), "-p"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1

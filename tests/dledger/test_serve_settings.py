"""Settings of stand-alone nodes from property texts."""

from __future__ import annotations

import math

import pytest

from dledger.config import ConfigError
from dledger.standalone import load

NEEDED = {
    "dLegerGroup": "g",
    "dLegerSelfId": "n0",
    "dLegerPeers": "n0-127.0.0.1:40911",
    "storePathRootDir": "/store",
}


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
            {"fileReservedTime": "1", "diskMaxUsedSpaceRatio": "90"},
            "diskSpaceCleanForciblyRatio must not be below diskMaxUsedSpaceRatio",
        ),
        ({"flushDiskType": "FLUSH"}, "flushDiskType: 'FLUSH': expected SYNC_FLUSH or ASYNC_FLUSH"),
    ],
)
def test_retention_that_cannot_work_is_refused_by_name(properties: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(NEEDED | properties)
    assert text in str(error.value)

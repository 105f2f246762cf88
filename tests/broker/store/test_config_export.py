"""`config/*.json`: what RocketMQ's tools read of topics, groups, consumer offsets and delays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dledger.remoting.codes import RequestCode
from dledger.remoting.headers import UpdateConsumerOffsetHeader
from tests.broker.harness import run
from tests.broker.test_delays import leading


def read(root: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "config" / f"{name}.json").read_text())
    assert found["dataVersion"].keys() == {"counter", "stateVersion", "timestamp"}
    return found


def test_the_tables_are_written_as_rocketmq_has_them_and_only_when_they_changed(tmp_path: Path) -> None:
    async def test() -> None:
        async with leading(tmp_path) as world:
            for _ in range(3):
                await world.send(queue=1)
            await world.send(properties="DELAY\x013\x02")
            await world.pull()
            header = UpdateConsumerOffsetHeader("CG", "T", 1, 2)
            await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)
            exports = world.features.store.exports
            await exports.export()
            topic = read(tmp_path, "topics")["topicConfigTable"]["T"]
            assert (topic["topicName"], topic["readQueueNums"], topic["perm"]) == ("T", 4, 6)
            groups = read(tmp_path, "subscriptionGroup")
            assert groups["subscriptionGroupTable"]["CG"]["retryMaxTimes"] == 16
            assert read(tmp_path, "consumerOffset")["offsetTable"] == {"T@CG": {"1": 2}}
            assert "3" in read(tmp_path, "delayOffset")["offsetTable"]
            written = exports.exports
            await exports.export()
            assert exports.exports <= written + 1, "but for the delay level, nothing changed"
            header = UpdateConsumerOffsetHeader("CG", "T", 1, 3)
            await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)
            await exports.export()
            assert read(tmp_path, "consumerOffset")["offsetTable"] == {"T@CG": {"1": 3}}
            assert not list((tmp_path / "config").glob("*.tmp"))

    run(test)

"""Every code that reads stands in the table of docs/guarantees.md (safety.md S25)."""

from __future__ import annotations

import re
from pathlib import Path

from dledger.remoting.codes import RequestCode
from tests.broker.harness import World, run

WRITES = {
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
}
GUARANTEES = Path(__file__).parents[2] / "docs" / "guarantees.md"


def documented() -> set[int]:
    _, _, behind = GUARANTEES.read_text().partition("## Read points")
    section, _, _ = behind.partition("\n## ")
    codes: set[int] = set()
    for row in section.splitlines():
        if row.startswith("| ") and not row.startswith("| `"):
            cell = row.split("|")[1]
            for first, last in re.findall(r"(\d+) to (\d+)", cell):
                codes.update(range(int(first), int(last) + 1))
            codes.update(map(int, re.findall(r"\d+", cell)))
    return codes


def test_every_code_that_reads_names_its_read_point(tmp_path: Path) -> None:
    async def test() -> None:
        served = set(map(int, World(str(tmp_path)).broker.handlers))
        assert documented() == served - WRITES

    run(test)

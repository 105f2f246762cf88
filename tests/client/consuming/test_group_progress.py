"""Progress of a group at its brokers: what is committed together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dledger.client.consuming.offsets import BrokerProgress, FileProgress
from dledger.client.errors import BrokerRefused, ClientError
from dledger.client.message import MessageQueue
from dledger.runtime.env import production_env

GROUP = "billing"
QUEUES = [MessageQueue("orders", name, number) for name in ("west", "east") for number in range(3)]


class UnguardedBroker:
    """As Apache's brokers: the table of a group and topic is looked up, and then put if there was none."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, str], dict[int, int]] = {}
        self.refuses: set[MessageQueue] = set()

    async def commit(self, queue: MessageQueue, consumer_group: str, offset: int, *, sets_back: bool) -> None:
        assert consumer_group == GROUP
        place = (queue.broker_name, queue.topic)
        table = self.tables.get(place)
        await asyncio.sleep(0)
        if queue in self.refuses:
            raise BrokerRefused(f"{queue} refused", 1)
        if table is None:
            table = self.tables[place] = {}
        table[queue.queue_id] = offset


def progress_at(broker: UnguardedBroker) -> BrokerProgress:
    return BrokerProgress(broker, GROUP)  # type: ignore[arg-type]


def test_the_first_offsets_of_a_group_are_all_kept() -> None:
    async def main() -> None:
        broker = UnguardedBroker()
        await progress_at(broker).save_first(dict.fromkeys(QUEUES, 7))
        assert broker.tables == {(name, "orders"): {0: 7, 1: 7, 2: 7} for name in ("west", "east")}

    asyncio.run(main())


def test_a_first_offset_that_failed_does_not_stand_for_the_table() -> None:
    async def main() -> None:
        broker = UnguardedBroker()
        progress = progress_at(broker)
        broker.refuses = {QUEUES[0]}
        with pytest.raises(BrokerRefused):
            await progress.save_first({QUEUES[0]: 1, QUEUES[1]: 1})
        assert broker.tables == {}, "the others would come together, and be the first"
        broker.refuses = set()
        await progress.save_first(dict.fromkeys(QUEUES[:3], 2))
        assert broker.tables == {("west", "orders"): {0: 2, 1: 2, 2: 2}}

    asyncio.run(main())


def test_a_damaged_file_of_offsets_is_told_each_time_and_written_over_by_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        env = production_env()
        progress = FileProgress(env, str(tmp_path), "client", GROUP)
        path = tmp_path / "client" / GROUP / "offsets.json"
        await progress.save({QUEUES[0]: 7})
        sound = path.read_bytes()
        path.write_bytes(b'{"offsetTable":{')
        damaged = FileProgress(env, str(tmp_path), "client", GROUP)
        for _ in range(2):
            with pytest.raises(ClientError, match="cannot be read"):
                await damaged.load(QUEUES[0])
        with pytest.raises(ClientError, match="cannot be read"):
            await damaged.save({QUEUES[1]: 9})
        path.write_bytes(sound)
        assert await damaged.load(QUEUES[0]) == 7
        env.workers.close()

    asyncio.run(main())

"""The table of all statistics that a broker counts during one leadership (BrokerStatsManager)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import nlargest

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.services import LeaderService
from dledger.broker.stats.stats_item import DAY, HOUR, MINUTE, TICK_S, Puts, Snapshot, StatsItem, Window
from dledger.runtime.cooperative import PAUSE_S
from dledger.runtime.env import Env

MAX_KEYS = 20_000
"""Largest number of keys of one statistic. Topics and groups beyond it are not counted (`statsNotCounted`).
There is room for a further group as soon as a counted group was idle for a day. A key takes 1.2 KB of
samples, so all statistics together stay below 150 MB."""
IDLE_TICKS = DAY.every_ticks * DAY.samples
"""Number of ticks (`TICK_S`) without growth after which a key is forgotten. No window contains its growth any
longer."""
DAY_MS = 24 * 3600 * 1000
LOGGED = {MINUTE: "Minute", HOUR: "Hour", DAY: "Day"}
"""Windows whose statistics are logged at the end of each window, with RocketMQ's word for the window."""
MAX_LOGGED = 200
"""Largest number of lines that are logged for one statistic and window. The keys with the largest sums are
logged."""
SLICE = 500
"""Number of items that are sampled, in about 1 ms, before the loop turns to other work."""

TOPIC_PUT_NUMS, TOPIC_PUT_SIZE = "TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"
GROUP_GET_NUMS, GROUP_GET_SIZE = "GROUP_GET_NUMS", "GROUP_GET_SIZE"
GROUP_GET_LATENCY = "GROUP_GET_LATENCY"
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS, BROKER_GET_NUMS = "BROKER_PUT_NUMS", "BROKER_GET_NUMS"
BROKER_GET_FOUND, BROKER_GET_MISSED = "BROKER_GET_FOUND", "BROKER_GET_MISSED"
NAMES = (
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    GROUP_GET_LATENCY,
    SNDBCK_PUT_NUMS,
    BROKER_PUT_NUMS,
    BROKER_GET_NUMS,
    BROKER_GET_FOUND,
    BROKER_GET_MISSED,
)
"""RocketMQ's names of the statistics, except BROKER_GET_FOUND and BROKER_GET_MISSED. RocketMQ's
StoreStatsService counts these two numbers too, but has no names for them."""
_OF_TOPICS = (TOPIC_PUT_NUMS, TOPIC_PUT_SIZE)
_FORGOTTEN = (GROUP_GET_NUMS, GROUP_GET_SIZE, GROUP_GET_LATENCY, SNDBCK_PUT_NUMS)
"""Statistics whose items are forgotten after `IDLE_TICKS`. This is safe because no other object refers to
these items."""


class BrokerStats(LeaderService):
    """Statistics by name and key, sampled while this node leads. They start at zero with each leadership."""

    def __init__(self, env: Env, cluster_name: str, totals: Callable[[], tuple[int, int]]) -> None:
        """`totals`: a function that returns how many messages were received and how many were delivered since
        this node started."""
        self._wall = env.wall
        self._log = env.log.child("stats")
        self._cluster = cluster_name
        self._totals = totals
        self._day = self._today()
        self.morning: tuple[int, int] = (0, 0)
        """What `totals` returned at the beginning of the day (UTC)."""
        self.yesterday_morning: tuple[int, int] = (0, 0)
        self._writer: CommitLogWriter | None = None
        self._clear(0)

    def _today(self) -> int:
        return self._wall.now_ms() // DAY_MS

    def _clear(self, now_ms: int) -> None:
        self._tick = 0
        self.not_counted: int = 0
        """How many times a count was added to no key, because its statistic had no room for another key."""
        self._items: dict[str, dict[str, StatsItem]] = {name: {} for name in NAMES}
        self._puts: dict[str, Puts] = {}
        self.longest_get_ms: int = 0
        """The longest time to read the messages of a pull, in ms."""
        self._spare = StatsItem(now_ms)
        """Item for counts whose key has no room. It is never shown."""
        self.puts_of_broker: StatsItem = StatsItem(now_ms)
        self.gets_of_broker: StatsItem = StatsItem(now_ms)
        self.found: StatsItem = StatsItem(now_ms)
        self.missed: StatsItem = StatsItem(now_ms)
        broker = (self.puts_of_broker, self.gets_of_broker, self.found, self.missed)
        names = (BROKER_PUT_NUMS, BROKER_GET_NUMS, BROKER_GET_FOUND, BROKER_GET_MISSED)
        for name, item in zip(names, broker, strict=True):
            self._items[name][self._cluster] = item

    # -- counting -------------------------------------------------------------------------------------

    def puts(self, topic: str) -> Puts:
        """Return the counters of the messages sent to a topic. They are valid as long as the log writer of
        this leadership."""
        self._item(TOPIC_PUT_NUMS, topic)
        self._item(TOPIC_PUT_SIZE, topic)
        puts = Puts()
        if topic in self._items[TOPIC_PUT_SIZE]:
            self._puts[topic] = puts
        return puts

    def got(self, group: str, topic: str, queue_id: int, count: int, size: int, took_ms: int) -> None:
        """Count a pull that was answered with `count` messages of `size` bytes in all; reading them took
        `took_ms`."""
        if not count:
            self.missed.add(1)
            return
        self.found.add(1)
        self.gets_of_broker.add(count)
        key = f"{topic}@{group}"
        self._item(GROUP_GET_NUMS, key).add(count)
        self._item(GROUP_GET_SIZE, key).add(size)
        if took_ms:
            self.longest_get_ms = max(self.longest_get_ms, took_ms)
            self._item(GROUP_GET_LATENCY, f"{queue_id}@{key}").add(took_ms)

    def put_totals(self) -> tuple[int, int]:
        """Return the number of messages received since this node began to lead, and the bytes of their
        records. Messages of deleted topics do not count."""
        puts = self._puts.values()
        return sum(one.messages for one in puts), sum(one.size for one in puts)

    def sent_back(self, group: str, topic: str) -> None:
        """Count a message that a consumer of the group sent back, to be retried later."""
        self._item(SNDBCK_PUT_NUMS, f"{topic}@{group}").add(1)

    def item(self, name: str, key: str) -> StatsItem | None:
        """Return one statistic, or None if nothing was counted under this key."""
        self._count_puts()
        if name in _OF_TOPICS:
            self._count_topic(key)
        return self._items.get(name, {}).get(key)

    def consume_tps(self, group: str, topic: str) -> float:
        """Messages a second that a group received from a topic, over one minute (tpsGroupGetNums)."""
        item = self.item(GROUP_GET_NUMS, f"{topic}@{group}")
        return 0.0 if item is None else item.over(MINUTE, now_ms()).tps

    def put_tps(self, topic: str) -> float:
        """Messages a second that were sent to a topic, over one minute (tpsTopicPutNums)."""
        item = self.item(TOPIC_PUT_NUMS, topic)
        return 0.0 if item is None else item.over(MINUTE, now_ms()).tps

    @staticmethod
    def now_ms() -> int:
        """Return the time, in ms, that the methods of the items expect."""
        return now_ms()

    def rates(self, *items: StatsItem) -> str:
        """Return three rates a second as a text, as 28 GET_BROKER_RUNTIME_INFO shows them: over the last 10
        s, 1 min and 10 min. Each is the sum of the rates of all `items`."""
        self._count_puts()
        now = now_ms()
        rates = (
            sum(item.lately(MINUTE, now).tps for item in items),
            sum(item.over(MINUTE, now).tps for item in items),
            sum(item.lately(HOUR, now).tps for item in items),
        )
        return " ".join(f"{rate:g}" for rate in rates)

    def forget(self, writer: CommitLogWriter, kind: str, name: str) -> None:
        """Forget the counters of a topic that is about to be deleted, so that a new topic of the same name
        starts at zero. Statistics by topic and group are not forgotten here; they disappear after a day
        without growth."""
        if kind == "topic":
            self._puts.pop(name, None)
            for statistic in _OF_TOPICS:
                self._items[statistic].pop(name, None)

    def _count_puts(self) -> None:
        """Copy the number of messages that the writer has counted into `puts_of_broker`."""
        if self._writer is not None:
            self.puts_of_broker.value = self.puts_of_broker.times = self._writer.messages

    def _count_topic(self, topic: str) -> None:
        """Copy the counters of a topic (`Puts`, filled on the hot path) into the items of the topic."""
        puts = self._puts.get(topic)
        if puts is not None:
            messages, size = (self._items[name][topic] for name in _OF_TOPICS)
            messages.value, size.value = puts.messages, puts.size
            messages.times = size.times = puts.messages - puts.batched

    def _item(self, name: str, key: str) -> StatsItem:
        items = self._items[name]
        item = items.get(key)
        if item is None:
            if len(items) >= MAX_KEYS:
                self.not_counted += 1
                return self._spare
            item = items[key] = StatsItem(now_ms())
            item.used = self._tick
        return item

    # -- service --------------------------------------------------------------------------------------

    def begin(self, writer: CommitLogWriter) -> None:
        """Start with all counters at zero."""
        self._clear(now_ms())
        self._writer = writer

    def end(self, reason: str) -> None:
        """Stop counting. The numbers stay visible until this node leads again."""
        self._writer = None

    async def run(self) -> None:
        """Take samples every `TICK_S` seconds, and log the windows that end."""
        while True:
            await asyncio.sleep(TICK_S)
            self._tick += 1
            tick, now = self._tick, now_ms()
            self._count_puts()
            if (today := self._today()) != self._day:
                totals = self._totals()
                self.yesterday_morning = self.morning if today == self._day + 1 else totals
                self.morning, self._day = totals, today
            for name in NAMES:
                items = list(self._items[name].items())
                for start in range(0, len(items), SLICE):
                    for key, item in items[start : start + SLICE]:
                        if name == TOPIC_PUT_NUMS:
                            self._count_topic(key)
                        item.sample(tick, now)
                        if tick - item.used > IDLE_TICKS and name in _FORGOTTEN:
                            self._items[name].pop(key, None)
                    if len(items) > SLICE:
                        await asyncio.sleep(PAUSE_S)
            for window, word in LOGGED.items():
                if tick % (window.every_ticks * (window.samples - 1)) == 0:
                    await self._tell(window, word)

    async def _tell(self, window: Window, word: str) -> None:
        """Log the statistics of a window that ends, as RocketMQ does in its `stats.log`."""
        now = now_ms()
        for name in NAMES:
            items = list(self._items[name].items())
            used: list[tuple[Snapshot, str]] = []
            for start in range(0, len(items), SLICE):
                over = ((item.over(window, now), key) for key, item in items[start : start + SLICE])
                used += [(shown, key) for shown, key in over if shown.total]
                if len(items) > SLICE:
                    await asyncio.sleep(PAUSE_S)
            for shown, key in nlargest(MAX_LOGGED, used, key=lambda one: one[0].total):
                self._log.info(
                    f"[{name}] [{key}] Stats In One {word}, SUM: {shown.total} TPS: {shown.tps:.2f} "
                    f"AVGPT: {shown.average:.2f}"
                )


def now_ms() -> int:
    """Return the time of the event loop in ms. Statistics use it because they measure how long something
    took, not when it happened."""
    return int(asyncio.get_running_loop().time() * 1000)

"""The logs from which a table is filled or audited: those of the broker groups that have its topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from dledger.formats.life import Life
from dledger.lake.log_reading import GroupLog, Log, StoreLog, link_before, windows
from dledger.lake.rows import Births, TableRows
from dledger.lake.tables import TableError
from dledger.spark.live_queues import LiveQueues
from dledger.spark.options import parse
from dledger.spark.selection import topic_and_group
from dledger.spark.state import topic_lives
from dledger.spark.stores import best_of_each_group, open_replicas


@dataclass(frozen=True)
class Source:
    """One log. `lives` are the lives that the topics have now (`formats.life`), by topic."""

    log: Log
    lives: dict[str, Life]

    def births_at(self, first: int) -> Births:
        """Return the births of the topics before entry `first` of the log, as far as they are known."""
        position = self.log.chunk(first).position
        return {topic: life.born for topic, life in self.lives.items() if life.born <= position}


@contextmanager
def open_sources(
    topics: Sequence[str], servers: str = "", stores: Sequence[str] = ()
) -> Iterator[list[Source]]:
    """Open the logs that have these topics: of the brokers behind `servers`, or in these store directories.

    Raises TableError if a topic is in none of them, StoreError or ClientError.
    """
    with ExitStack() as stack:
        found = list(_of_stores(stores)) if stores else list(_of_brokers(topics, servers, stack))
        missing = [topic for topic in topics if not any(topic in source.lives for source in found)]
        if stores and missing:
            raise TableError(f"no store has the topic {missing[0]}")
        yield found


def oldest_bodies(sources: Sequence[Source], topics: Sequence[str], most: int) -> Iterator[bytes]:
    """Yield the bodies of the oldest messages of these topics, at most `most` of each log."""
    for source in sources:
        state = source.log.state()
        rows = TableRows(topics, state.cluster, state.group, {})
        left = most
        for window in windows(source.log, link_before(source.log, state.begin, state.begin), state.committed):
            for batch in rows.of_window(window):
                yield from batch.column("body")[:left].to_pylist()
                left = max(0, left - batch.num_rows)
            if not left:
                break


def _of_brokers(topics: Sequence[str], servers: str, stack: ExitStack) -> Iterator[Source]:
    queues = LiveQueues(parse({"servers": servers, "subscribe": ",".join(topics)}, "batch"))
    stack.callback(queues.close)
    lives: dict[str, dict[str, Life]] = {group: {} for group in queues.groups()}
    for name, life in queues.lives(qualify=True)[0].items():
        topic, group = topic_and_group(name)
        lives[group][topic] = Life.parse(life)
    for group, known in lives.items():
        yield Source(stack.enter_context(GroupLog(servers, group)), known)


def _of_stores(stores: Sequence[str]) -> Iterator[Source]:
    for replica in best_of_each_group(open_replicas(stores)):
        now, earlier = topic_lives(replica)
        yield Source(StoreLog(replica), {topic: Life.parse(life) for topic, life in (now or earlier).items()})

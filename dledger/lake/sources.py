"""The logs from which a table is filled or audited: those of the broker groups that have its topics."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from dledger.client.bulk.replicas import find_groups
from dledger.client.errors import ClientError, TopicNotFound
from dledger.formats.life import Life
from dledger.lake.log_reading import GroupLog, Log, StoreLog, link_before, windows
from dledger.lake.opening import Place, make_table, open_table
from dledger.lake.rows import Births, TableRows
from dledger.lake.tables import About, TableError, TopicTable
from dledger.lake.typed import SAMPLE_ROWS, inferred, schema_of
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
    topics: Sequence[str], servers: str = "", stores: Sequence[str] = (), logs: Collection[str] = ()
) -> Iterator[list[Source]]:
    """Open the logs that have these topics: of the brokers behind `servers`, or in these store directories.
    Those whose ids are in `logs` are opened even if their topics were deleted.

    Raises TableError if no store has a topic, TopicNotFound if no broker has any, StoreError or ClientError.
    """
    with ExitStack() as stack:
        if not stores:
            yield list(_of_brokers(topics, servers, logs, stack))
            return
        found = list(_of_stores(stores))
        missing = [topic for topic in topics if not any(topic in source.lives for source in found)]
        if missing and not any(source.log.state().cluster in logs for source in found):
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


def made(place: Place, topics: Sequence[str], schema: str, sources: Sequence[Source]) -> TopicTable:
    """Open a table, or make it with bodies of this schema (`typed.schema_of`): none if it is empty, and
    inferred from the oldest messages if it is `infer`. Raises TableError, StoreError or ClientError."""
    about = About(tuple(topics))
    if not schema:
        return make_table(place, about)
    if schema != "infer":
        return make_table(place, about._replace(schema=schema_of(schema)))
    try:
        found = open_table(place)
    except TableError:
        return make_table(place, about._replace(schema=inferred(oldest_bodies(sources, topics, SAMPLE_ROWS))))
    found.about.check(about, place.to)
    return found


def lives_at_brokers(topics: Sequence[str], servers: str) -> dict[str, dict[str, Life | None]]:
    """Return the lives that topics have now, by broker group and topic; None where brokers report none.
    Topics that do not exist are left out. Raises TopicNotFound if none exists, or another ClientError."""
    found: dict[str, dict[str, Life | None]] = {}
    failure: TopicNotFound | None = None
    for topic in topics:
        queues = LiveQueues(parse({"servers": servers, "subscribe": topic}, "batch"))
        try:
            for group in queues.groups():
                found.setdefault(group, {})[topic] = None
            for name, life in queues.lives(qualify=True)[0].items():
                found[topic_and_group(name)[1]][topic] = Life.parse(life)
        except TopicNotFound as error:
            failure = error
        finally:
            queues.close()
    if not found and failure is not None:
        raise failure
    return found


def _of_brokers(
    topics: Sequence[str], servers: str, logs: Collection[str], stack: ExitStack
) -> Iterator[Source]:
    try:
        there = lives_at_brokers(topics, servers)
    except TopicNotFound:
        if not logs:
            raise
        there = {}
    seen = set()
    for group, known in there.items():
        lives = {topic: life for topic, life in known.items() if life is not None}
        seen |= {life.cluster for life in lives.values()}
        yield Source(stack.enter_context(GroupLog(servers, group)), lives)
    missing, failure = set(logs) - seen, None
    for other in find_groups(servers) if missing else ():
        if other.group not in there:
            log = stack.enter_context(GroupLog(servers, other.group))
            try:
                cluster = log.state().cluster
            except ClientError as error:
                failure = error  # it may be a group without these topics
                continue
            if cluster in missing:
                missing.discard(cluster)
                yield Source(log, {})
    if missing and failure is not None:
        raise failure


def _of_stores(stores: Sequence[str]) -> Iterator[Source]:
    for replica in best_of_each_group(open_replicas(stores)):
        now, earlier = topic_lives(replica)
        yield Source(StoreLog(replica), {topic: Life.parse(life) for topic, life in (now or earlier).items()})

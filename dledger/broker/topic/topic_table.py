"""The topics of a broker group as NameServers and clients read them, encoded once.

A table of 50,000 topics is 10 MB of JSON and takes 0.2 s to encode. That is longer than a leader may be
silent, and every node of the group would do it at the same moment, for every NameServer and every change. So
the encoded entry of each topic is kept, in the order of the names, in pages of a few hundred entries. The
entries of a page are joined once. A change costs the encoding of one entry, the joining of one page, and the
joining of the pages. After a start or a snapshot from another node, many topics must be encoded. `prepare`
does this in steps.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from dledger.formats.state import ReplicatedState, TopicConfig
from dledger.remoting import registration as wire
from dledger.remoting.fastjson import dumps
from dledger.runtime.cooperative import PAUSE_S

SLICE = 500
"""Number of topics that are encoded, in about 3 ms, before the loop turns to other work."""
PAGE = 256
"""Number of entries of a new page. A page with twice as many is divided."""


class TopicTable:
    """All topics of this node, encoded: those of the applied state and those of the configuration. Always up
    to date.

    `entries` and `size` first encode the topics that changed since the last call. Just after `prepare`, these
    are fewer than `SLICE` topics.
    """

    def __init__(self, state: Callable[[], ReplicatedState], system_topics: dict[str, TopicConfig]) -> None:
        self._state = state
        self.system_topics: dict[str, TopicConfig] = system_topics
        """Topics that follow from the configuration."""
        self._of: ReplicatedState | None = None
        """The state whose topics are encoded. It is another object after a snapshot was installed."""
        self._version = -1
        """The value of `topics_version` of that state when the pages were last complete; -1 while they are
        not complete."""
        self._seen: list[TopicConfig] = []
        """The topics of that state that are encoded, in the order of the state. If a topic changes, the state
        has a new object for it, so a comparison of the objects finds the change."""
        self._pages = _Pages()
        self._overridden: set[str] = set()
        """Names in `system_topics` that the state also has. For these names the topic of the state is
        used."""
        self.size_told: int = 0
        """The value of `size` when the pages were last complete. Reading it encodes nothing."""
        self._preparing = asyncio.Lock()
        self._system_changes = 0
        self.encoded: int = 0
        """Number of encodings and deletions of topics since start. While this number stays the same, the
        result of `entries` stays the same."""

    @property
    def version(self) -> int:
        """Number of changes of topics so far (DataVersion.counter)."""
        return self._state().topics_version + self._system_changes

    @property
    def size(self) -> int:
        """Size, in bytes, of all entries with the commas between them."""
        self._advance()
        return self._pages.size

    def __len__(self) -> int:
        """Return the number of topics in the table."""
        self._advance()
        return self._pages.count

    def config(self, name: str) -> TopicConfig | None:
        """Return the configuration of one topic, or None if it does not exist."""
        return self._state().topics.get(name) or self.system_topics.get(name)

    @property
    def system_names(self) -> frozenset[str]:
        """Names of the topics that follow from the configuration."""
        return frozenset(self.system_topics)

    def entries(self) -> list[bytes]:
        """Return the table for `wire.registration_body` and `wire.table_body`, one item for each page."""
        self._advance()
        return self._pages.joined()

    async def prepare(self) -> None:
        """Encode what is new or changed, in steps, so that the loop can do other work in between. Topics that
        change during the call may be left over, but fewer than `SLICE`."""
        async with self._preparing:
            many = False
            while self._advance(SLICE):
                many = True
                await asyncio.sleep(PAUSE_S)
            if many:  # all pages are new, so join them in a turn of their own
                self._pages.joined()
                await asyncio.sleep(PAUSE_S)

    def deleted(self, topics: list[str]) -> None:
        """Remove topics that were deleted from the state. They may have been created again since."""
        state = self._state()
        if state is not self._of:
            return
        gone = set(topics)
        left = [config for config in self._seen if config.name not in gone]
        if len(left) < len(self._seen):
            for config in self._seen:
                if config.name in gone:
                    self._pages.remove(config.name)
            self._seen = left
        self._version = -1
        self.encoded += 1

    def put_system(self, config: TopicConfig) -> None:
        """Put a topic into `system_topics`, or replace it there."""
        self.system_topics[config.name] = config
        self._system_changes += 1
        if self._of is not None and config.name not in self._of.topics:
            self._put(config)

    def _advance(self, limit: int | None = None) -> bool:
        """Encode at most `limit` of the topics that changed. Returns whether more topics are left to
        encode."""
        state = self._state()
        if state is self._of and state.topics_version == self._version:
            return False
        if state is not self._of:
            self._begin(state)
        configs = list(state.topics.values())
        seen = self._seen
        # A topic keeps its place in the dict when it is replaced, and new topics come last. If that did not
        # hold, this would find too many changes, but never too few.
        stale = [at for at, (new, old) in enumerate(zip(configs, seen, strict=False)) if new is not old]
        stale += range(len(seen), len(configs))
        for at in stale[:limit]:
            config = configs[at]
            self._put(config)
            if at < len(seen):
                seen[at] = config
            else:
                seen.append(config)
        if limit is not None and len(stale) > limit:
            return True
        overridden = {name for name in self.system_topics if name in state.topics}
        count = len(configs) + len(self.system_topics) - len(overridden)
        if self._pages.count != count or not self._overridden <= overridden:  # some topics were removed
            self._begin(state)
            return self._advance(limit)
        self._overridden = overridden
        self._version = state.topics_version
        self.size_told = self._pages.size
        return False

    def _begin(self, state: ReplicatedState) -> None:
        self._of = state
        self._version = -1
        self._seen = []
        self._overridden = set()
        self._pages = _Pages()
        for config in self.system_topics.values():
            self._put(config)

    def _put(self, config: TopicConfig) -> None:
        self._pages.put(config.name, encode_topic(config))
        self._version = -1
        self.encoded += 1


class _Pages:
    """Encoded entries in the order of their names, divided into pages."""

    def __init__(self) -> None:
        self.count = 0
        self._bytes = 0
        self._pages = [_Page([], [])]
        self._firsts = [""]
        """For each page, the lowest name that belongs to it."""

    @property
    def size(self) -> int:
        """Size, in bytes, of all entries with the commas between them."""
        return self._bytes + max(0, self.count - 1)

    def put(self, name: str, entry: bytes) -> None:
        """Add or replace an entry."""
        number = bisect_right(self._firsts, name) - 1
        page = self._pages[number]
        at = bisect_left(page.names, name)
        page.joined = None
        self._bytes += len(entry)
        if at < len(page.names) and page.names[at] == name:
            self._bytes -= len(page.entries[at])
            page.entries[at] = entry
            return
        self.count += 1
        page.names.insert(at, name)
        page.entries.insert(at, entry)
        if len(page.names) >= 2 * PAGE:
            upper = _Page(page.names[PAGE:], page.entries[PAGE:])
            self._pages[number] = _Page(page.names[:PAGE], page.entries[:PAGE])
            self._pages.insert(number + 1, upper)
            self._firsts.insert(number + 1, upper.names[0])

    def remove(self, name: str) -> None:
        """Remove an entry, which must exist."""
        page = self._pages[bisect_right(self._firsts, name) - 1]
        at = bisect_left(page.names, name)
        self._bytes -= len(page.entries[at])
        self.count -= 1
        del page.names[at], page.entries[at]
        page.joined = None

    def joined(self) -> list[bytes]:
        """Return all entries, joined by commas: one item for each page."""
        for page in self._pages:
            if page.joined is None:
                page.joined = b",".join(page.entries)
        return [page.joined for page in self._pages if page.joined]


class _Page:
    __slots__ = ("entries", "joined", "names")

    def __init__(self, names: list[str], entries: list[bytes]) -> None:
        self.names = names
        self.entries = entries
        self.joined: bytes | None = None


def encode_topic(config: TopicConfig) -> bytes:
    """Return one topic as an entry of topicConfigTable, as RocketMQ writes it."""
    return wire.topic_entry(config.name, _shown(config))


def topic_body(config: TopicConfig) -> bytes:
    """Return one topic as the body of the answer to 351 GET_TOPIC_CONFIG."""
    return dumps(_shown(config))


def _shown(config: TopicConfig) -> wire.TopicConfig:
    return wire.TopicConfig(
        config.name,
        config.read_queues,
        config.write_queues,
        config.perm,
        topicSysFlag=config.flags,
        order=config.order,
        attributes=dict(config.attributes),
    )

"""Search for messages, and one message with everything that is known of it."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import msgspec

from dledger.admin import StoredMessage
from dledger.client import BrokerRefused, TopicNotFound
from dledger.dashboard.facts import gather_bounded
from dledger.dashboard.pages.page import Asked, NotThere, Page, WrongWords
from dledger.remoting.bodies import MessageQueue
from dledger.remoting.operator_bodies import TopicStats

MOST = 100
"""Largest number of messages that a search shows."""
SCAN_S = 1.0
"""How long a search reads queues, in seconds. What was found until then is shown, and how far was looked."""
SCAN_QUEUES = 16
"""Queues that are read at the same time."""
SCAN_MESSAGES = 3200
"""Largest number of messages that a search reads from one queue."""
SHOWN_BODY = 64 * 1024
"""Largest number of bytes of a body that the page shows."""
SHORT = 120
"""Characters of a body in a list."""


class MessageRow(msgspec.Struct, frozen=True):
    """A message in a list."""

    topic: str
    group: str
    """Broker group."""
    queue: int
    offset: int
    id: str
    offset_id: str
    tag: str
    keys: list[str]
    stored_ms: int
    size: int
    body: str


class Looked(msgspec.Struct, frozen=True):
    """How far a search looked."""

    queues: int
    of_queues: int
    messages: int
    whole: bool
    """Whether it looked at everything that it was asked for."""


class Search(msgspec.Struct, frozen=True):
    """The data of the page: the words of the search, and what was found."""

    cluster: str
    topic: str
    key: str
    id: str
    tag: str
    since: str
    queue: str
    offset: str
    found: list[MessageRow]
    looked: Looked | None
    """None if nothing was searched for, or an index answered."""
    problem: str = ""


class Track(msgspec.Struct, frozen=True):
    """Whether a consumer group has consumed the message (RocketMQ's words)."""

    group: str
    state: str
    reason: str


class MessagePage(msgspec.Struct, frozen=True):
    """The data of the page of one message."""

    cluster: str
    row: MessageRow
    properties: dict[str, str]
    born_ms: int
    born_host: str
    store_host: str
    reconsumed: int
    text: str | None
    """The body as text; None if it is not UTF-8."""
    pretty: str | None
    """The body as JSON with one value a line; None if it is not JSON."""
    hexadecimal: str
    cut: bool
    """Whether only the beginning of the body is shown."""
    tracks: list[Track]


def row_of(stored: StoredMessage) -> MessageRow:
    """A message as a row."""
    one = stored.message
    text = one.body[: 4 * SHORT].decode(errors="replace")
    return MessageRow(
        one.topic,
        one.queue.broker_name,
        one.queue.queue_id,
        one.queue_offset,
        one.message_id,
        one.offset_message_id,
        one.tags or "",
        one.keys,
        one.store_timestamp_ms,
        len(one.body),
        text[:SHORT] + ("…" if len(text) > SHORT or len(one.body) > 4 * SHORT else ""),
    )


async def load(asked: Asked) -> Search:
    """Search for messages: by id, by key, by queue and offset, or the newest of a topic. Raises NotThere if
    there is no such topic."""
    words = {name: asked.word(name) for name in ("topic", "key", "id", "tag", "since", "queue", "offset")}
    topic = words["topic"]
    search = Search(asked.cluster.name, **words, found=[], looked=None)
    if not topic:
        return search
    try:
        if words["id"]:
            found, looked = [await asked.admin.messages.by_id(topic, words["id"])], None
        elif words["key"]:
            found, looked = await asked.admin.messages.by_key(topic, words["key"]), None
        else:
            found, looked = await _scan(asked, topic)
    except TopicNotFound as error:
        raise NotThere(topic) from error
    except BrokerRefused as error:
        return msgspec.structs.replace(search, problem=str(error))
    rows = sorted((row_of(one) for one in found), key=lambda one: -one.stored_ms)[:MOST]
    return msgspec.structs.replace(search, found=rows, looked=looked)


async def _scan(asked: Asked, topic: str) -> tuple[list[StoredMessage], Looked]:
    """Read the newest messages of a topic, or those since a time, or those of one queue from an offset on."""
    stats: TopicStats = await asked.facts.get(asked.admin.topics.stats, topic)
    places = await asked.admin.offsets.brokers_of(topic)
    chosen = [
        (queue, ends)
        for queue, ends in sorted(stats.offsets.items(), key=lambda row: -row[1].lastUpdateTimestamp)
        if ends.maxOffset > ends.minOffset and queue.brokerName in places
    ]
    if asked.word("queue"):
        number = asked.number("queue", 0)
        chosen = [row for row in chosen if row[0].queueId == number]
    since = _since(asked)
    found: list[StoredMessage] = []
    ended = 0
    read = 0

    async def one(queue: MessageQueue, low: int, high: int) -> None:
        nonlocal ended, read
        address = places[queue.brokerName]
        if asked.word("offset"):
            start = max(low, asked.number("offset", 0))
        elif since is not None:
            start = await asked.admin.offsets.at_time(address, queue, since)
        else:
            start = max(low, high - MOST)
        end = min(high, start + SCAN_MESSAGES)
        expression = asked.word("tag") or "*"
        kept = 0
        async for pulled in asked.admin.messages.pulls(address, queue, start, end, expression):
            found.extend(pulled.messages)
            kept += len(pulled.messages)
            read += max(0, pulled.next_offset - start)
            start = pulled.next_offset
            if kept >= MOST and (since is not None or asked.word("offset")):
                break
        ended += 1

    try:
        async with asyncio.timeout(SCAN_S):
            calls = [partial(one, queue, ends.minOffset, ends.maxOffset) for queue, ends in chosen]
            await gather_bounded(calls, SCAN_QUEUES)
    except TimeoutError:
        pass  # `looked` says how far it came
    return found, Looked(ended, len(chosen), read, ended == len(chosen))


def _since(asked: Asked) -> int | None:
    text = asked.word("since")
    if not text:
        return None
    minutes = {"m": 1, "h": 60, "d": 1440}.get(text[-1])
    if minutes is None or not text[:-1].isdecimal() or len(text) > 9:
        raise WrongWords(f"since: give an age such as 30m, 6h or 2d, not {text!r}")
    return asked.cluster.now_ms() - int(text[:-1]) * minutes * 60_000


async def load_message(asked: Asked) -> MessagePage:
    """Load the page of one message. Raises NotThere if there is no such message."""
    topic, id_ = asked.names["topic"], asked.names["id"]
    try:
        stored = await asked.admin.messages.by_id(topic, id_)
        groups = await asked.admin.topics.groups(stored.message.queue.topic)
        tracks = await asked.admin.messages.track(stored, groups)
    except (TopicNotFound, BrokerRefused) as error:
        raise NotThere(f"{id_}: {error}") from error
    one = stored.message
    shown = one.body[:SHOWN_BODY]
    return MessagePage(
        cluster=asked.cluster.name,
        row=row_of(stored),
        properties=dict(sorted(one.properties.items())),
        born_ms=one.born_timestamp_ms,
        born_host=one.born_host,
        store_host=one.store_host,
        reconsumed=one.reconsume_times,
        text=_text(shown, cut=len(shown) < len(one.body)),
        pretty=_pretty(one.body) if len(one.body) <= SHOWN_BODY else None,
        hexadecimal=hex_lines(shown[:4096]),
        cut=len(shown) < len(one.body),
        tracks=[Track(one.group, one.type.value, one.reason or "") for one in tracks],
    )


def _text(body: bytes, *, cut: bool) -> str | None:
    for lost in range(4 if cut else 1):  # the cut may have gone through a character
        try:
            return body[: len(body) - lost].decode()
        except UnicodeDecodeError:
            continue
    return None


def _pretty(body: bytes) -> str | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return json.dumps(found, indent=2, ensure_ascii=False) if isinstance(found, dict | list) else None


def hex_lines(data: bytes) -> str:
    """Bytes as lines of 16: offset, hexadecimal, and the characters of ASCII.

    >>> hex_lines(b"Raft\\n")
    '00000000  52 61 66 74 0a                                   Raft.'
    """
    lines = []
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)


def _search_command(asked: Asked) -> str:
    topic = asked.word("topic") or "TOPIC"
    if asked.word("key"):
        return f"dledger message find {topic} {asked.word('key')}"
    if asked.word("id"):
        return f"dledger message show {topic} {asked.word('id')}"
    since = f" --since -{asked.word('since')}" if asked.word("since") else ""
    return f"dledger message list {topic}{since}"


PAGE = Page("messages", "messages", "Messages", load, _search_command, listed=True)
MESSAGE = Page(
    "message",
    "messages/{topic}/{id}",
    "Message",
    load_message,
    lambda asked: f"dledger message show {asked.names['topic']} {asked.names['id']}",
)

"""Search for messages, and one message with everything that is known of it."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import msgspec

from dledger.admin import StoredMessage
from dledger.client import BrokerRefused, ClientError, TopicNotFound
from dledger.dashboard.facts import gather_bounded
from dledger.dashboard.pages.page import Asked, NotThere, Page, WrongWords, command
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
MAX_AGE_DAYS = 10_000
"""Largest age that a search may name, in days."""
MAX_PRETTY = 4 * 64 * 1024
"""Largest JSON text that is shown with one value a line, in characters. Deep nesting makes it many times as
long as the body."""
SHOWN_HEX = 4096
"""Bytes of a body that are shown as hexadecimal."""
TRACKED_AT_ONCE = 8
"""Consumer groups that are asked at the same time whether they have consumed a message."""
TRACK_S = 5.0
"""Longest wait for the answer about one consumer group, in seconds."""
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
    why: str = ""
    """Why it did not: one of `LIMITS`."""


LIMITS = ("the time of a search was over", "only the newest of each queue", "only a part of each queue")
"""What ends a search early: SCAN_S; SCAN_MESSAGES, of which the last ones of each queue are read for a tag;
and from a time or an offset on also MOST."""


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
    hex_cut: bool
    """Whether only the beginning is shown as hexadecimal."""
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
    for name in ("queue", "offset"):
        asked.number(name, 0)
    _since(asked)
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
    forward = bool(words["since"] or words["offset"])
    rows = sorted((row_of(one) for one in found), key=lambda one: one.stored_ms)
    rows = rows[:MOST] if forward else rows[::-1][:MOST]
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
    expression = asked.word("tag") or "*"
    newest = since is None and not asked.word("offset")
    found: list[StoredMessage] = []
    ended = read = 0
    cut = False

    async def one(queue: MessageQueue, low: int, high: int) -> None:
        nonlocal ended, read, cut
        address = places[queue.brokerName]
        if asked.word("offset"):
            start = max(low, asked.number("offset", 0))
        elif since is not None:
            start = await asked.admin.offsets.at_time(address, queue, since)
        else:
            start = max(low, high - (MOST if expression == "*" else SCAN_MESSAGES))
            cut = cut or (expression != "*" and start > low)
        end = min(high, start + SCAN_MESSAGES)
        cut = cut or end < high
        kept = 0
        async for pulled in asked.admin.messages.pulls(address, queue, start, end, expression):
            found.extend(pulled.messages)
            kept += len(pulled.messages)
            read += max(0, pulled.next_offset - start)
            start = pulled.next_offset
            if kept >= MOST and not newest:
                cut = cut or start < high
                break
        ended += 1

    try:
        async with asyncio.timeout(SCAN_S):
            calls = [partial(one, queue, ends.minOffset, ends.maxOffset) for queue, ends in chosen]
            await gather_bounded(calls, SCAN_QUEUES)
    except TimeoutError:
        pass  # `looked` says how far it came
    why = LIMITS[0] if ended < len(chosen) else "" if not cut else LIMITS[1] if newest else LIMITS[2]
    return found, Looked(ended, len(chosen), read, not why, why)


def _since(asked: Asked) -> int | None:
    text = asked.word("since")
    if not text:
        return None
    minutes = {"m": 1, "h": 60, "d": 1440}.get(text[-1])
    if minutes is None or not text[:-1].isdecimal() or len(text) > 9:
        raise WrongWords(f"since: give an age such as 30m, 6h or 2d, not {text!r}")
    age = int(text[:-1]) * minutes
    if age > MAX_AGE_DAYS * 1440:
        raise WrongWords(f"since: give at most {MAX_AGE_DAYS}d, not {text!r}")
    return asked.cluster.now_ms() - age * 60_000


async def load_message(asked: Asked) -> MessagePage:
    """Load the page of one message. Raises NotThere if there is no such message."""
    topic, id_ = asked.names["topic"], asked.names["id"]
    try:
        stored = await asked.admin.messages.by_id(topic, id_)
        groups = await asked.admin.topics.groups(stored.message.queue.topic)
    except (TopicNotFound, BrokerRefused) as error:
        raise NotThere(f"{id_}: {error}") from error
    tracks = await gather_bounded([partial(_track, asked, stored, name) for name in groups], TRACKED_AT_ONCE)
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
        hexadecimal=hex_lines(shown[:SHOWN_HEX]),
        cut=len(shown) < len(one.body),
        hex_cut=len(one.body) > SHOWN_HEX,
        tracks=tracks,
    )


async def _track(asked: Asked, stored: StoredMessage, group: str) -> Track:
    try:
        async with asyncio.timeout(TRACK_S):
            (found,) = await asked.admin.messages.track(stored, [group])
    except (ClientError, TimeoutError) as error:
        return Track(group, "UNKNOWN", str(error) or f"no answer within {TRACK_S:g} s")
    return Track(group, found.type.value, found.reason or "")


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
        if not isinstance(found, dict | list):
            return None
        lines: list[str] = []
        left = MAX_PRETTY
        for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(found):
            lines.append(piece)
            left -= len(piece)
            if left < 0:
                return None
        text = "".join(lines)
        text.encode()  # a single half of a pair of surrogates is no text
    except (ValueError, RecursionError):
        return None
    return text


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
    if asked.word("id"):
        return command("dledger message show", topic, asked.word("id"))
    if asked.word("key"):
        return command("dledger message find", topic, asked.word("key"))
    since = [f"--since=-{asked.word('since')}"] if asked.word("since") else []
    tags = [f"--tags={asked.word('tag')}"] if asked.word("tag") else []
    return command("dledger message list", topic, options=[*since, *tags])


PAGE = Page("messages", "messages", "Messages", load, _search_command, listed=True)
MESSAGE = Page(
    "message",
    "messages/{topic}/{id}",
    "Message",
    load_message,
    lambda asked: command("dledger message show", asked.names["topic"], asked.names["id"]),
)

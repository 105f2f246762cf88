"""The body of 103 REGISTER_BROKER, by which a broker reports its topics to a NameServer, with the version of
the table.

The body is JSON (RegisterBrokerBody), or compressed: one zlib stream of

```
length (4), DataVersion as JSON
count (4), per topic: length (4), "name readQueues writeQueues perm filterType attributesJson"
length (4), filter servers as JSON list
count (4), per static topic mapping: length (4), JSON          (from brokers of version >= V5_0_0)
```

bodyCrc32 in the header is CRC-32 & 0x7FFFFFFF of the body as it is sent; 0 is not checked.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import msgspec

from dledger.formats.checksum import crc32
from dledger.remoting.bodies import PERM_READ, PERM_WRITE, Body, convert_body
from dledger.remoting.commands import DECODE_ERRORS
from dledger.remoting.errors import BadBody
from dledger.remoting.fastjson import dumps, dumps_plain, loads, without_nulls
from dledger.remoting.limits import MAX_FRAME_SIZE
from dledger.runtime.cooperative import at_once

CRC_MASK = 0x7FFFFFFF
MAX_DECOMPRESSED = 4 * MAX_FRAME_SIZE
"""Limit, in bytes, of a decompressed body; a larger one is refused."""

UNPACKED_AT_ONCE = 256 * 1024
"""Number of bytes that are decompressed in one step."""

SINGLE_TAG = "SINGLE_TAG"
_LENGTH = struct.Struct(">i")
_FILTER_TYPES = (SINGLE_TAG, "MULTI_TAG")


class TopicConfig(Body, gc=False):
    """Settings of a topic on one broker group. Names of attributes have no sign "+" or "-" here."""

    topicName: str
    readQueueNums: int = 16
    writeQueueNums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topicFilterType: str = SINGLE_TAG
    topicSysFlag: int = 0
    order: bool = False
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


class DataVersion(msgspec.Struct, frozen=True, order=True):
    """Version of a table. In our brokers stateVersion is the Raft term (safety.md S23). timestamp is in
    ms."""

    stateVersion: int = 0
    counter: int = 0
    timestamp: int = 0

    def encode(self) -> bytes:
        """Encode as JSON with sorted keys."""
        return dumps(self)


class TopicTable(Body):
    """Answer to 21 GET_ALL_TOPIC_CONFIG, and the topic part of a registration
    (TopicConfigSerializeWrapper)."""

    topicConfigTable: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    dataVersion: DataVersion = DataVersion()


class _RawTable(msgspec.Struct):
    topicConfigTable: msgspec.Raw = msgspec.Raw(b"{}")
    dataVersion: DataVersion = DataVersion()


class _RegisterBrokerBody(msgspec.Struct):
    """The JSON body in its usual form. The table of topics stays encoded, because it can be large."""

    topicConfigSerializeWrapper: _RawTable
    filterServerList: list[str] | None = None


TOPIC_OBJECTS = 600
"""Number of bytes of memory that a decoded topic takes in addition to its encoded form (measured: 540)."""


PIECE_BYTES = 64 * 1024
"""Number of bytes of a table of topics that are decoded in one step: about 300 topics, in half a
millisecond."""
PIECE_LINES = 300
"""Number of topics of the compressed form that are decoded in one step."""
CUTS = 8
"""How many positions are tried as the end of a step before the whole table is decoded at once."""


class KnownTopics:
    """A table of topics in encoded and decoded form. When the next table arrives, only the differences are
    decoded.

    All nodes of a group send the same table, and mostly it differs from the previous one in one topic. For
    50,000 topics, decoding all takes 70 ms, and finding the differences 25 ms.
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._entries: dict[str, msgspec.Raw] = {}
        self._topics: dict[str, TopicConfig] = {}

    @property
    def size(self) -> int:
        """Approximate memory in bytes."""
        return self._bytes + TOPIC_OBJECTS * len(self._topics)

    def read(self, raw: msgspec.Raw) -> Generator[None, None, dict[str, TopicConfig]]:
        """Decode the topics of this topicConfigTable in several steps; the result must not be changed. Raises
        one of DECODE_ERRORS if it is malformed."""
        known, topics = self._entries, self._topics
        new: dict[str, msgspec.Raw] = {}
        decoded: dict[str, TopicConfig] = {}
        kept = 0
        for at, entries in enumerate(_entries(raw)):
            if at:
                yield
            new |= entries
            for name, entry in entries.items():
                if known.get(name) == entry:
                    decoded[name] = topics[name]
                    kept += 1
                else:
                    decoded[name] = msgspec.json.decode(entry, type=TopicConfig, strict=False)
        if not kept == len(decoded) == len(topics):
            self._bytes, self._entries, self._topics = len(memoryview(raw)), new, decoded
        return self._topics


def _entries(raw: msgspec.Raw) -> Iterator[dict[str, msgspec.Raw]]:
    """Yield the members of a JSON object in parts, because decoding 10 MB at once takes 10 to 17 ms."""
    table = memoryview(raw)
    at, end = 1, len(table) - 1
    if len(table) <= PIECE_BYTES or table[0] != ord("{"):
        yield _members(table)
        return
    while end - at > PIECE_BYTES:
        entries, size = _piece(bytes(table[at : at + PIECE_BYTES]))
        if entries is None:
            break
        yield entries
        at += size
    yield _members(b"".join((b"{", table[at:end], b"}")))


def _members(text: bytes | memoryview) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(bytes(text), type=dict[str, msgspec.Raw])


def _piece(text: bytes) -> tuple[dict[str, msgspec.Raw] | None, int]:
    """Decode as many whole members as `text` contains. Also returns how many bytes they take, including the
    comma after them.

    A member ends at `},"`. These characters may also occur inside a member, or at the end of a string. But
    then the text before them is not valid JSON, and an earlier position is tried."""
    cut = len(text)
    for _ in range(CUTS):
        cut = text.rfind(b'},"', 0, cut)
        if cut < 0:
            break
        try:
            return _members(b"{%b}}" % text[:cut]), cut + 2
        except DECODE_ERRORS:
            continue
    return None, 0


class Registration(msgspec.Struct):
    """A decoded body of 103 REGISTER_BROKER. `filter_servers` is None when the body does not mention them."""

    topics: dict[str, TopicConfig]
    data_version: DataVersion
    filter_servers: list[str] | None = None


def decode_data_version(data: bytes) -> DataVersion:
    """Decode a body of 322 QUERY_DATA_VERSION."""
    return _data_version(loads(data))


def decode_topic_table(data: bytes) -> TopicTable:
    """Decode an answer to 21 GET_ALL_TOPIC_CONFIG."""
    topics, version = _topic_table(loads(data))
    return TopicTable(topics, version)


def decode_topic_config(data: bytes) -> TopicConfig:
    """Decode one topic's settings (answer to 351 GET_TOPIC_CONFIG)."""
    return _topic_config(loads(data))


def body_crc(body: bytes) -> int:
    """Return the value of bodyCrc32 in the header for this body."""
    return crc32(body) & CRC_MASK


def encode_registration(registration: Registration, *, compressed: bool = False) -> bytes:
    """Encode a body of 103 REGISTER_BROKER."""
    if compressed:
        return zlib.compress(_encode_lines(registration))
    entries = [topic_entry(name, config) for name, config in sorted(registration.topics.items())]
    return registration_body(entries, registration.data_version, registration.filter_servers or [])


def topic_entry(name: str, config: TopicConfig) -> bytes:
    """Encode one topic of a topicConfigTable: `"name":{settings}`."""
    return dumps_plain(name) + b":" + dumps_plain(config)


def registration_body(entries: Sequence[bytes], version: DataVersion, filter_servers: list[str]) -> bytes:
    """Encode a body of 103 REGISTER_BROKER from results of `topic_entry`, sorted by name: single ones, or
    several joined by commas."""
    servers = dumps(filter_servers)
    head = b'{"filterServerList":%b,"topicConfigSerializeWrapper":%b' % (servers, _table_head(version))
    return _enclosed(head, entries, b"}}}")


def table_body(entries: Sequence[bytes], version: DataVersion) -> bytes:
    """Encode an answer to 21 GET_ALL_TOPIC_CONFIG (TopicTable) from results of `topic_entry`, sorted by
    name."""
    return _enclosed(_table_head(version), entries, b"}}")


def _table_head(version: DataVersion) -> bytes:
    return b'{"dataVersion":%b,"topicConfigTable":{' % version.encode()


def _enclosed(head: bytes, entries: Sequence[bytes], tail: bytes) -> bytes:
    """Join the parts. The entries, which can have many megabytes, are copied only once."""
    if not entries:
        return head + tail
    if len(entries) == 1:
        return b"".join((head, entries[0], tail))
    return b",".join((head + entries[0], *entries[1:-1], entries[-1] + tail))


def decode_registration(
    body: bytes, *, compressed: bool = False, crc: int = 0, known: KnownTopics | None = None
) -> Registration:
    """Decode a body of 103 REGISTER_BROKER. An empty body is an empty table, as for Java. `known` is the
    previous table of the same broker name, so that less has to be decoded. Raises BadBody if the body is
    malformed.
    """
    return at_once(registration_in_pieces(body, compressed=compressed, crc=crc, known=known))


def registration_in_pieces(
    body: bytes, *, compressed: bool = False, crc: int = 0, known: KnownTopics | None = None
) -> Generator[None, None, Registration]:
    """Decode a body of 103 REGISTER_BROKER in steps of at most a millisecond. This is a generator, which
    yields after each step. A body that is not strict JSON, or has other white space than RocketMQ's, is
    decoded in one step."""
    if crc and body_crc(body) != crc:
        raise BadBody("crc32 not match")
    if not body:
        return Registration({}, DataVersion())
    if compressed:
        data = yield from _decompress(body)
        return (yield from _decode_lines(data))
    try:
        plain = msgspec.json.decode(body, type=_RegisterBrokerBody, strict=False)
        table = plain.topicConfigSerializeWrapper
        if len(body) > PIECE_BYTES:
            yield
        topics = yield from (known or KnownTopics()).read(table.topicConfigTable)
    except DECODE_ERRORS:
        return _decode_json(body)
    return Registration(topics, table.dataVersion, plain.filterServerList)


def _decode_json(body: bytes) -> Registration:
    """Decode a body of 103 REGISTER_BROKER that may have nulls, missing names, enums by ordinal, or unquoted
    keys."""
    value = loads(body)
    if not isinstance(value, dict):
        raise BadBody("the registration is not a JSON object")
    topics, version = _topic_table(value.get("topicConfigSerializeWrapper") or {})
    servers = value.get("filterServerList")
    return Registration(
        topics, version, None if servers is None else convert_body(servers, list[str], "filterServerList")
    )


# --- JSON ---------------------------------------------------------------------------------------------


def _topic_table(value: Any) -> tuple[dict[str, TopicConfig], DataVersion]:
    if not isinstance(value, dict):
        raise BadBody("the topic table is not a JSON object")
    table = value.get("topicConfigTable") or {}
    if not isinstance(table, dict):
        raise BadBody("topicConfigTable is not a JSON object")
    topics = {name: _topic_config(config, name) for name, config in table.items()}
    return topics, _data_version(value.get("dataVersion") or {})


def _topic_config(value: Any, name: str = "") -> TopicConfig:
    if not isinstance(value, dict):
        raise BadBody(f"the settings of topic {name!r} are not a JSON object")
    value = without_nulls(value)
    kind = value.get("topicFilterType")
    if isinstance(kind, int) and kind in (0, 1):
        value["topicFilterType"] = _FILTER_TYPES[kind]
    value.setdefault("topicName", name)
    return convert_body(value, TopicConfig, f"topic {name!r}")


def _data_version(value: Any) -> DataVersion:
    if not isinstance(value, dict):
        raise BadBody("the data version is not a JSON object")
    value = without_nulls(value)
    if isinstance(value.get("counter"), dict):  # AtomicLong as an object, by other JSON writers
        value["counter"] = value["counter"].get("value", 0)
    return convert_body(value, DataVersion, "data version")


# --- compressed ---------------------------------------------------------------------------------------


def encode_topic_line(config: TopicConfig) -> str:
    """Encode a topic as one line of the compressed form (TopicConfig.encode)."""
    return (
        f"{config.topicName} {config.readQueueNums} {config.writeQueueNums} {config.perm} "
        f"{config.topicFilterType} {dumps(config.attributes).decode()}"
    )


def decode_topic_line(line: str) -> TopicConfig:
    """Decode what `encode_topic_line` encodes; the attributes may be missing (brokers before V5_0_0)."""
    parts = line.split(" ", 5)
    try:
        name, read, write, perm = parts[0], int(parts[1]), int(parts[2]), int(parts[3])
    except (IndexError, ValueError) as error:
        raise BadBody(f"not a topic line: {line[:200]!r}") from error
    kind = parts[4] if len(parts) > 4 else SINGLE_TAG
    attributes: dict[str, str] = {}
    if len(parts) > 5 and parts[5].strip():
        attributes = convert_body(loads(parts[5].encode()) or {}, dict[str, str], "topic attributes")
    return TopicConfig(name, read, write, perm, kind, attributes=attributes)


def _encode_lines(registration: Registration) -> bytes:
    lines = [encode_topic_line(config).encode() for _, config in sorted(registration.topics.items())]
    servers = dumps(registration.filter_servers or [])
    parts = [_sized(registration.data_version.encode()), _LENGTH.pack(len(lines))]
    parts += [_sized(line) for line in lines]
    parts += [_sized(servers), _LENGTH.pack(0)]
    return b"".join(parts)


def _sized(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _decode_lines(data: bytearray) -> Generator[None, None, Registration]:
    at = 0

    def number() -> int:
        nonlocal at
        if at + 4 > len(data):
            raise BadBody("the compressed registration is cut off")
        (value,) = _LENGTH.unpack_from(data, at)
        at += 4
        if value < 0:
            raise BadBody(f"the compressed registration has a length of {value}")
        return int(value)

    def piece() -> bytes:
        nonlocal at
        size = number()
        if at + size > len(data):
            raise BadBody("the compressed registration is cut off")
        at += size
        return bytes(data[at - size : at])

    version = _data_version(loads(piece()))
    topics: dict[str, TopicConfig] = {}
    for count in range(1, number() + 1):
        if count % PIECE_LINES == 0:
            yield
        try:
            config = decode_topic_line(piece().decode())
        except UnicodeDecodeError as error:
            raise BadBody(f"not a topic line: {error}") from error
        topics[config.topicName] = config
    servers = convert_body(loads(piece()) or [], list[str], "filter servers")
    return Registration(topics, version, servers)  # static topic mappings follow; they are not used


def _decompress(body: bytes) -> Generator[None, None, bytearray]:
    unpacker = zlib.decompressobj()
    data = bytearray()
    rest = body
    try:
        while not unpacker.eof and (piece := unpacker.decompress(rest, UNPACKED_AT_ONCE)):
            data += piece
            rest = unpacker.unconsumed_tail
            if len(data) > MAX_DECOMPRESSED:
                raise BadBody(f"the registration is larger than {MAX_DECOMPRESSED} bytes when unpacked")
            if len(piece) == UNPACKED_AT_ONCE:
                yield
    except zlib.error as error:
        raise BadBody(f"the compressed registration cannot be unpacked: {error}") from error
    if not unpacker.eof:
        raise BadBody("the compressed registration is cut off")
    return data

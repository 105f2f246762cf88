from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

def set_up(texts: tuple[bytes, ...], special_flags: int) -> None:
    """Set what makes a message special (`dledger.formats.plain_messages`). Raises ValueError if there are too
    many texts."""

SOURCE: str
"""Hash of the `compiled.pyx` from which this module was built (`dledger._fast.source_hash`)."""
NUMBERS: dict[str, int]
"""Sizes, bits and limits that this module defines again. A test compares them with their definitions."""

def seal_sends(
    buffer: bytearray,
    at: int,
    end: int,
    born_host: bytes,
    terms: Any,
    slots: Mapping[str, Any],
    run: Any,
    answers: Any,
    key_of: Callable[[str, str], Any] | None,
) -> int:
    """Handle the plain sends at the front of `buffer`. Returns where it stopped; the Python twin continues
    there.

    `key_of`: returns the key with which an account must sign sends to a topic (`Access.key_of`). A send with
    no valid signature is left to the Python code. None if requests need no signature.
    """

class Restored:
    """Delayed messages that are due and can be delivered: the result of `restore`."""

    taken: int
    """Number of records, from the front, that it covers. The others are left to the Python twin."""
    messages: int
    """Number of messages among these records that are delivered."""
    recalled: int
    """Number of messages among these records that are not delivered, because they were recalled."""
    size: int
    """Size, in bytes, of the entries of the messages that are delivered."""

    def seal(self, run: Any, store_host: bytes, following: int) -> None:
        """Seal the messages that are delivered into a run, in this turn of the event loop. `following`: how
        many entries of the same batch follow them."""

def restore(
    records: Sequence[Any],
    slots: Mapping[str, Any],
    deleted: Container[str],
    recalled: list[Container[tuple[str, str]] | None] | None,
    delayed: bool,
    room: int,
) -> Restored:
    """Examine the plain messages at the front of `records`.

    `deleted`: topics whose messages are left to the Python twin; `recalled`: for each record, the (topic,
    unique key) of messages that are not delivered; `delayed`: whether the messages wait in a delay level;
    `room`: largest size, in bytes, of their entries together.
    """

def check_run(
    data: bytes,
    first: int,
    last: int,
    pos: int,
    min_term: int,
    max_term: int,
    previous_chain: int | None,
    run: Any,
) -> bool:
    """Whether all entries are valid. If they are, `run` describes them; otherwise `run` is filled only in
    part."""

def dispatch(
    data: bytes,
    at: int,
    count: int,
    pos: int,
    by_raw_topic: Mapping[bytes, Mapping[int, Any]],
    tag_codes: Mapping[bytes, int],
    timer_topic: bytes,
    store_time: int,
    touched: dict[Any, None],
) -> tuple[int, int, int]:
    """Return the number of dispatched messages, where the function stopped, and the store time of the newest
    message."""

def measure_batch(body: bytes, most: int, added: int) -> tuple[int, int, bytes] | None:
    """Return the number of messages, the size of their bodies and stored properties in bytes, and the unique
    key of the first message. None if the body is no batch of up to `most` plain messages. `added`: how many
    bytes of properties are added to each message."""

def seal_batch(
    body: bytes,
    added: bytes,
    born_host: bytes,
    store_host: bytes,
    host_hex: bytes,
    slot: Any,
    queue_id: int,
    sys_flag: int,
    born_timestamp: int,
    messages: int,
    size: int,
    following: int,
    run: Any,
) -> bytes:
    """Seal the messages of a batch into `run`. Returns their offset message ids, separated by commas.

    `messages`, `size`: what `measure_batch` returned. The caller advances the queue's next offset.
    """

def read_messages(
    data: bytes,
    at: int,
    broker_name: str,
    message_type: Any,
    queue_type: Any,
    messages: list[Any],
) -> int:
    """Append the plain messages at the front of `data` to `messages`. Returns where it stopped; the Python
    twin continues there."""

def crc32(data: Sequence[int], begin: int) -> int:
    """Return the CRC of a small piece of data. The other functions use it internally; it is public only for a
    test."""

def index_keys(data: bytes, pos: int) -> tuple[bytes, int] | None:
    """Return one row for each key of the messages in the complete entries, and where the last of these
    entries ends. A row has four numbers of 8 bytes: position, hash, store time, index. None if an entry is
    not plain."""

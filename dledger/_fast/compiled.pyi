from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

def set_up(texts: tuple[bytes, ...], special_flags: int) -> None:
    """Take over what makes a message special (`dledger.formats.plain_messages`). ValueError for too many."""

SOURCE: str
"""Hash of the `compiled.pyx` that it was built from (`dledger._fast.source_hash`)."""
NUMBERS: dict[str, int]
"""Sizes, bits and limits that it knows by itself. A test compares them with their definitions."""

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
    """Where it stopped: what lies behind is for the Python twin. `key_of`: of an account and a topic that it
    sends to, see `Access.key_of`; what is not signed with it is left."""

class Restored:
    """Messages that waited in the log, as they go on: what `restore` found."""

    taken: int
    """Records from the front that it is about: what lies behind is for the Python twin."""
    messages: int
    """Those that come,"""
    recalled: int
    """and those that do not, as they were recalled."""
    size: int
    """Bytes of the entries of those that come."""

    def seal(self, run: Any, store_host: bytes, following: int) -> None:
        """In this turn of the loop: seal them into a run, as a part of a batch of which as many entries
        follow."""

def restore(
    records: Sequence[Any],
    slots: Mapping[str, Any],
    deleted: Container[str],
    recalled: list[Container[tuple[str, str]] | None] | None,
    delayed: bool,
    room: int,
) -> Restored:
    """`deleted`: topics that are looked at elsewhere; `recalled`: for each record the (topic, unique key) of
    those that do not come; `delayed`: of a delay level; `room`: bytes that their entries may have."""

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
    """Whether all is well; `run` is filled then, and half filled otherwise."""

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
    """Messages dispatched, where it stopped, store time of the newest one."""

def measure_batch(body: bytes, most: int, added: int) -> tuple[int, int, bytes] | None:
    """Messages, bytes of their bodies and stored properties (`added` to each), unique key of the first; None
    where it is no batch of up to `most` plain messages."""

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
    """The offset message ids, with commas, of what is sealed into `run` now. `messages`, `size`: as it was
    measured. The queue's next offset is counted on by who called."""

def read_messages(
    data: bytes,
    at: int,
    broker_name: str,
    message_type: Any,
    queue_type: Any,
    messages: list[Any],
) -> int:
    """Where it stopped: what lies behind is for the Python twin. `messages` got the others."""

def crc32(data: Sequence[int], begin: int) -> int:
    """Of small pieces: what the others use inside, for a test."""

def index_keys(data: bytes, pos: int) -> tuple[bytes, int] | None:
    """Rows of four numbers of 8 bytes (position, hash, store time, index) of the messages in whole entries,
    and where the last of these ends; None where any is not plain."""

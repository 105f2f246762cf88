"""Small files and names of a store directory (docs/reference/formats.md).

```
<storePathRootDir>/
  dledger-<id>/
    data/<20 digits>      segments, named by the pos of their first byte
    index/<20 digits>     index files, named likewise (index * 32)
    pool/                 prepared segments, never read
    identity              who this store is: JSON
    hardstate             term and vote: two slots of 512 bytes, each with a CRC, and a mirror of both
    checkpoint            end and committed index: a hint for tools, as text
    members               configurations in the log: JSON
    poisoned              reason, when a write or fsync failed
    refill                reason, when entries may be gone: no vote until a leader has refilled the store
    flight/               recording of the flight recorder; may be deleted while the node is stopped
    lock                  held by the running process
  importing/              what `dledger import` has written so far; becomes dledger-<id>
  consumequeue/<topic>/<queueId>/<20 digits>
  state/                  snapshots of the applied state
```
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, field

from dledger.formats.checksum import crc32

FORMAT_VERSION = 1
DATA_DIR = "data"
INDEX_DIR = "index"
POOL_DIR = "pool"
SNAPSHOTS_DIR = "snapshots"
FLIGHT_DIR = "flight"
IDENTITY_FILE = "identity"
HARD_STATE_FILE = "hardstate"
CHECKPOINT_FILE = "checkpoint"
MEMBERS_FILE = "members"
POISONED_FILE = "poisoned"
REFILL_FILE = "refill"
LOCK_FILE = "lock"
APACHE_TERM_FILE = "currterm"
"""File in which Apache's DLedger keeps term and vote."""
IMPORTING_DIR = "importing"

SLOT_SIZE = 512
SLOT_OFFSETS = (0, SLOT_SIZE)
"""Offsets of the two slots of the hard state."""
MIRROR_OFFSET = 4096
"""Distance, in bytes, between a slot and its second copy. There are two copies so that one bad sector cannot
lose a vote."""
HARD_STATE_SIZE = MIRROR_OFFSET + 2 * SLOT_SIZE
CHECKPOINT_SIZE = 128
_SLOT_HEAD = struct.Struct(">4sIQqH")
_SLOT_MAGIC = b"DLHS"
_MAX_VOTE_SIZE = SLOT_SIZE - _SLOT_HEAD.size - 4


class CorruptFile(Exception):
    """Raised when a small file of the store cannot be trusted."""


def segment_name(start: int) -> str:
    """File name of the segment, index file or ConsumeQueue file whose first byte has this offset."""
    return f"{start:020d}"


def parse_segment_name(name: str) -> int | None:
    """Offset of the first byte of a file with this name; None if it is no name of a segment."""
    return int(name) if len(name) == 20 and name.isdigit() else None


@dataclass(frozen=True)
class HardState:
    """State that a Raft node must never forget: the current term and the vote given in it (Raft figure 2)."""

    term: int = 0
    vote: str | None = None


def encode_slot(sequence: int, state: HardState) -> bytes:
    """Encode one slot of 512 bytes: magic, version, sequence, term, vote, and a CRC-32 in the last 4
    bytes."""
    vote = (state.vote or "").encode()
    if len(vote) > _MAX_VOTE_SIZE:
        raise ValueError(f"the node id has {len(vote)} bytes; the limit is {_MAX_VOTE_SIZE}")
    data = _SLOT_HEAD.pack(_SLOT_MAGIC, FORMAT_VERSION, sequence, state.term, len(vote)) + vote
    data = data.ljust(SLOT_SIZE - 4, b"\0")
    return data + crc32(data).to_bytes(4, "big")


def decode_hard_state(data: bytes) -> tuple[int, HardState] | None:
    """Return the sequence number and the state of the newest valid slot; None if no slot is valid.

    A slot that was never written has zeros, and is not valid. A node without a valid slot counts as wiped
    (safety.md S7).
    """
    best: tuple[int, HardState] | None = None
    for offset in (*SLOT_OFFSETS, *(MIRROR_OFFSET + offset for offset in SLOT_OFFSETS)):
        slot = data[offset : offset + SLOT_SIZE]
        if len(slot) < SLOT_SIZE or crc32(slot[:-4]).to_bytes(4, "big") != slot[-4:]:
            continue
        magic, version, sequence, term, vote_size = _SLOT_HEAD.unpack_from(slot)
        if magic != _SLOT_MAGIC or version > FORMAT_VERSION or vote_size > _MAX_VOTE_SIZE:
            continue
        vote = slot[_SLOT_HEAD.size : _SLOT_HEAD.size + vote_size].decode()
        if best is None or sequence > best[0]:
            best = (sequence, HardState(term, vote or None))
    return best


@dataclass(frozen=True)
class Identity:
    """Identity of the store of one node (safety.md S18).

    `cluster` is the id of the group's log; it is empty until the group was formed or joined. `incarnation` is
    a random id that is made with the directory, so a wiped node comes back with another identity. `members`
    is the configuration with which the group was formed, as a map of node id to incarnation.
    """

    group: str
    node: str
    incarnation: str
    segment_size: int
    cluster: str = ""
    members: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION


def encode_json(value: Identity | dict[str, object]) -> bytes:
    """Encode as sorted JSON followed by a CRC-32 line, so that damage can be detected."""
    data = json.dumps(asdict(value) if isinstance(value, Identity) else value, sort_keys=True).encode()
    return data + b"\n" + f"{crc32(data):08x}\n".encode()


def decode_json(data: bytes) -> dict[str, object]:
    """Inverse of `encode_json`. Raises CorruptFile if the CRC does not match."""
    text, _, crc = data.rstrip(b"\n").rpartition(b"\n")
    if not text or f"{crc32(text):08x}".encode() != crc:
        raise CorruptFile("the content does not match its CRC line")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorruptFile("not a JSON object")
    return value


def decode_identity(data: bytes) -> Identity:
    """Read an identity file. Raises CorruptFile if the file cannot be trusted or comes from a newer
    version."""
    value = decode_json(data)
    version = value.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise CorruptFile(f"format version {version} is newer than this program's {FORMAT_VERSION}")
    try:
        identity = Identity(**value)  # type: ignore[arg-type]
    except TypeError as error:
        raise CorruptFile(str(error)) from error
    texts = (identity.group, identity.node, identity.incarnation, identity.cluster)
    if not all(isinstance(text, str) for text in texts) or not isinstance(identity.segment_size, int):
        raise CorruptFile("a field has the wrong type")
    members = identity.members
    if not isinstance(members, dict) or not all(
        isinstance(text, str) for pair in members.items() for text in pair
    ):
        raise CorruptFile("the members are not a map of texts")
    return identity


@dataclass(frozen=True)
class Checkpoint:
    """Where the log ended and what was committed when the file was written. This is only a hint, and may be
    out of date."""

    end_index: int = -1
    committed_index: int = -1


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encode as the Java properties text that DLedger writes, with a CRC line as a comment, padded to a fixed
    size.

    The file is overwritten in place without fsync. A file that was only partly written does not match its CRC
    and is ignored.
    """
    text = f"endIndex={checkpoint.end_index}\ncommittedIndex={checkpoint.committed_index}\n".encode()
    return (text + f"# crc={crc32(text):08x}\n".encode()).ljust(CHECKPOINT_SIZE, b"\n")


def decode_checkpoint(data: bytes) -> Checkpoint | None:
    """Decode a checkpoint; None if it cannot be trusted. A file of Apache's DLedger has no CRC line and is
    accepted without one."""
    text, separator, crc = data.partition(b"# crc=")
    if separator and crc.strip() != f"{crc32(text):08x}".encode():
        return None
    values = dict(
        line.split("=", 1)
        for line in text.decode(errors="replace").splitlines()
        if "=" in line and line[0] != "#"
    )
    try:
        return Checkpoint(int(values["endIndex"]), int(values["committedIndex"]))
    except (KeyError, ValueError):
        return None

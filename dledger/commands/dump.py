"""Lists the entries of a store directory, without a running node. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dledger.audit.segment_places import find_directories, list_segments
from dledger.audit.small_files import NODE_PREFIX
from dledger.audit.store_directory import open_store
from dledger.formats.entry import HEADER_SIZE, CorruptEntry, Kind, check_entry, is_blank, unpack_header
from dledger.formats.record import CorruptRecord, decode_record
from dledger.formats.store_files import DATA_DIR, IDENTITY_FILE
from dledger.runtime import Files


@dataclass(frozen=True)
class Line:
    """One line of the listing: an entry, or in `problem` the reason why the listing ends."""

    index: int
    term: int
    pos: int
    size: int
    kind: str
    topic: str
    queue: str
    problem: str = ""


class Log(NamedTuple):
    """One log: the directory of its node, and the directories of its segments."""

    node_dir: str
    directories: tuple[str, ...]


def find_logs(files: Files, store: str) -> list[Log]:
    """Return the logs of the nodes in a storePathRootDir, of the node whose directory this is, or of the
    broker of Apache's whose broker.conf this is. Raises StoreError. Blocking."""
    if not files.is_dir(store) and files.exists(store):
        return [Log(one.directory, one.places.directories) for one in open_store(files, store)]
    if files.is_dir(f"{store}/{DATA_DIR}"):
        return [Log(store, (f"{store}/{DATA_DIR}",))]
    nodes = [name for name in files.listdir(store) if name.startswith(NODE_PREFIX)]
    return [Log(f"{store}/{name}", _directories(files, store, name, alone=len(nodes) == 1)) for name in nodes]


def _directories(files: Files, store: str, name: str, *, alone: bool) -> tuple[str, ...]:
    node_dir = f"{store}/{name}"
    if not alone or files.exists(f"{node_dir}/{IDENTITY_FILE}"):
        return (f"{node_dir}/{DATA_DIR}",)
    return find_directories(files, store, node_dir)


def dump(files: Files, directories: Sequence[str], start_index: int) -> Iterator[Line]:
    """Yield the entries from `start_index` on of the log with segments in these directories, in order, until
    the log ends. Blocking."""
    places, segments = list_segments(files, directories, "", [])
    chain: int | None = None
    index = -1
    term = -1
    for start in (one.start for one in segments):
        file = files.open_read(places.path_of(start))
        view = file.view()
        try:
            if index < 0:
                index = unpack_header(view).index - 1
            offset = 0
            while offset + HEADER_SIZE <= len(view) and not is_blank(view, offset):
                if not any(view[offset : offset + HEADER_SIZE]):
                    return
                try:
                    header = check_entry(view, offset, index + 1, start + offset, term, chain)
                except CorruptEntry as error:
                    yield Line(index + 1, -1, start + offset, 0, "?", "", "", str(error))
                    return
                index, term, chain = header.index, header.term, header.chain_crc
                if index >= start_index:
                    yield _line(view, offset)
                offset += header.size
        finally:
            view.release()
            file.close()


def _line(view: memoryview, offset: int) -> Line:
    header = unpack_header(view, offset)
    kind = Kind(header.kind).name if header.kind in Kind.__members__.values() else str(header.kind)
    try:
        record = decode_record(view[offset + HEADER_SIZE : offset + header.size], with_body=False)
    except CorruptRecord as error:
        return Line(
            header.index,
            header.term,
            header.pos,
            header.size,
            kind,
            "",
            "",
            f"the body is not a record: {error}",
        )
    queue = f"{record.queue_id}/{record.queue_offset}" if header.kind == Kind.MESSAGE else ""
    return Line(header.index, header.term, header.pos, header.size, kind, record.topic, queue)

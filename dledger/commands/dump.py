"""Lists the entries of a store directory, without a running node. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dledger.formats.entry import HEADER_SIZE, CorruptEntry, Kind, check_entry, is_blank, unpack_header
from dledger.formats.record import CorruptRecord, decode_record
from dledger.formats.store_files import DATA_DIR, parse_segment_name, segment_name
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


def node_directories(files: Files, store: str) -> list[str]:
    """Return the directories `dledger-*` in a storePathRootDir; if the given directory itself holds
    `data/`, only that directory."""
    if files.is_dir(f"{store}/{DATA_DIR}"):
        return [store]
    return [f"{store}/{name}" for name in files.listdir(store) if name.startswith("dledger-")]


def dump(files: Files, node_dir: str, start_index: int) -> Iterator[Line]:
    """Yield the entries from `start_index` on, in order, until the log ends. Blocking."""
    data = f"{node_dir}/{DATA_DIR}"
    starts = [start for name in files.listdir(data) if (start := parse_segment_name(name)) is not None]
    chain: int | None = None
    index = -1
    term = -1
    for start in starts:
        file = files.open_read(f"{data}/{segment_name(start)}")
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

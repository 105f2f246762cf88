"""Checks of the IndexFiles of one replica as a whole: that they continue each other, and that they are the
files that the broker recorded in `state/index`.

Of a running broker, the header of the newest file may be older than its units, and retention removes the
oldest files. `state/index` is read before the files, so they hold at least what it names.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from dledger.audit.key_index import KeyFile
from dledger.formats.index_file import HEADER_SIZE, NAME_DIGITS, SLOT_SIZE, unpack_index_header
from dledger.formats.store_files import CorruptFile, decode_json
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file

PROGRESS_FILE = "index"
"""File in the directory of the state in which the broker records its IndexFiles."""
_SLOTS_READ = 1 << 16
"""Number of bytes of the slots that are read of a file without units, to see whether it should have some."""


class Listed(NamedTuple):
    """An IndexFile according to `state/index`: its name, the number of its next unit, and the log offset of
    its last message."""

    name: str
    count: int  # type: ignore[assignment]  # RocketMQ's indexCount; tuple.count is not used
    end_position: int


def read_listed(files: Files, state_dir: str) -> list[Listed]:
    """Return the IndexFiles that the broker has recorded; none if it recorded nothing. Raises OSError, and
    CorruptFile if the record cannot be trusted."""
    data = read_file(files, f"{state_dir}/{PROGRESS_FILE}") if state_dir else None
    if data is None:
        return []
    try:
        value = decode_json(data)
        if not isinstance(value["position"], int):
            raise CorruptFile("it holds no position")
        return [Listed(str(name), int(count), int(end)) for name, count, end in value["files"]]  # type: ignore[attr-defined]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFile(f"it holds no list of files: {error!r}") from error


def check_listed(
    listed: list[Listed], names: list[str], found: list[KeyFile], log_start: int
) -> Iterator[str]:
    """Yield the files that are missing, or hold fewer units than the broker recorded. `names` are all files
    of the directory, `found` those with units, and `log_start` is the log offset at which the log begins."""
    by_name = {key_file.path.rpartition("/")[2]: key_file for key_file in found}
    for one in listed:
        if one.count <= 1 or one.end_position < log_start:
            continue  # without units, or removed by retention
        key_file = by_name.get(one.name)
        if one.name not in names:
            yield f"{one.name} is missing, though the file state/index names it"
        elif key_file is None or key_file.header.count < one.count:
            units = 0 if key_file is None else key_file.units
            yield f"{one.name} has {units} units by its header, {one.count - 1} by the file state/index"


def check_sequence(files: Files, root: str, found: list[KeyFile], *, ours: bool) -> Iterator[str]:
    """Yield what does not fit between the files: their order, and a file without units before others. `found`
    are the files with units, in order of the log."""
    for before, after in pairwise(found):
        end, begin = before.header.end_position, after.header.begin_position
        if begin < end or (ours and begin == end):  # ours hold all keys of a message in one file
            yield f"{after.path}: it begins at log offset {begin}, and {before.path} ends at {end}"
        elif before.path > after.path:
            yield f"{before.path}: it has earlier messages than {after.path}, but a later name"
    newest = max((key_file.path for key_file in found), default="")
    for name in sorted(files.listdir(root)):
        if len(name) != NAME_DIGITS or not name.isdigit():
            continue
        path = f"{root}/{name}"
        try:
            empty, used, odd = _look(files, path)
        except FileNotFoundError:
            continue  # a live broker has removed it meanwhile
        if odd:
            yield f"{path}: {odd}"
        elif empty and path < newest:
            yield f"{path}: the header says that it has no units, but there are later files"
        elif empty and used and not ours:  # ours writes the header of the newest file after its slots
            yield f"{path}: the header says that it has no units, but its slots are in use"


def _look(files: Files, path: str) -> tuple[bool, bool, str]:
    """Return whether a file has no units by its header, whether its first slots are in use, and what is wrong
    with its size."""
    file = files.open_read(path)
    try:
        size = file.size()
        head = file.pread(HEADER_SIZE, 0)
        if len(head) < HEADER_SIZE:
            return False, False, ""  # reported when it was opened
        empty = unpack_index_header(head).count <= 1
        used = empty and any(file.pread(min(_SLOTS_READ, size - HEADER_SIZE), HEADER_SIZE))
    finally:
        file.close()
    odd = f"{size} bytes are no whole number of units" if (size - HEADER_SIZE) % SLOT_SIZE else ""
    return empty, used, odd

"""State versions that every reader of the log must know."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from dledger.formats.state.table import Declared, Row


class VersionNote(Row, frozen=True):
    """Notes that the log holds, or will hold, operations of this state version. The note is made before the
    first of these operations, while all voters are connected. From then on these operations may be written
    whichever voters are connected, even when their tables are empty."""

    operation: ClassVar[str] = "version"
    version: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]


VERSIONS = Declared[int, VersionNote]("versions", VersionNote, key=("version",), since=4)

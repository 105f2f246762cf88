"""State versions that the log needs: whoever reads it knows them."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from dledger.formats.state.table import Declared, Row


class VersionNote(Row, frozen=True):
    """The log holds operations of this state version, or will. It is noted before the first of them, while
    all voters are heard: from then on they may be written whoever is heard, also when their tables are
    empty."""

    operation: ClassVar[str] = "version"
    version: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]


VERSIONS = Declared[int, VersionNote]("versions", VersionNote, key=("version",), since=4)

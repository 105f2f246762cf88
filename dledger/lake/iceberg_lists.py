"""Mends a fault of pyiceberg: where a list of structs is null, it writes and reads an empty list.

pyiceberg builds such a list again from its offsets and values, and leaves out which lists are null
(`ArrowProjectionVisitor.list`, in 0.12 and before). Then a body without a field would have an empty list in
the table, and would differ from its row.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import ArrowProjectionVisitor

_built_again = ArrowProjectionVisitor.list


def _with_nulls(
    self: ArrowProjectionVisitor, list_type: Any, list_array: pa.Array | None, value_array: pa.Array | None
) -> pa.Array | None:
    found = _built_again(self, list_type, list_array, value_array)
    if found is None or list_array is None or found.null_count == list_array.null_count:
        return found
    return pc.if_else(list_array.is_valid(), found, pa.scalar(None, found.type))


def keep_nulls() -> None:
    """Let pyiceberg keep null lists, in this process. Calling it again changes nothing."""
    ArrowProjectionVisitor.list = _with_nulls  # type: ignore[method-assign]

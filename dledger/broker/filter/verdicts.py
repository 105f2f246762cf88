"""Results of a filter for a tag code."""

from __future__ import annotations

from typing import Final

NO: Final = 0
YES: Final = 1
LOOK: Final = 2
"""The tag code is not enough: read the message, and ask `by_properties`."""

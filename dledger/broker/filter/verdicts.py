"""What a filter says of a tag code."""

from __future__ import annotations

from typing import Final

NO: Final = 0
YES: Final = 1
LOOK: Final = 2
"""The code does not tell: read the message, and ask `by_properties`."""

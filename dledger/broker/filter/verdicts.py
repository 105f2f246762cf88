"""The three results that a filter may return for a tag code."""

from __future__ import annotations

from typing import Final

NO: Final = 0
YES: Final = 1
LOOK: Final = 2
"""The tag code alone does not decide. The message must be read, and `by_properties` decides."""

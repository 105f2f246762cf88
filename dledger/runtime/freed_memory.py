"""Gives free memory back to the system.

Once a block of up to 32 MiB was freed, glibc keeps freed blocks of up to this size for itself. So memory that
was used only for a short time would stay in the process for ever."""

from __future__ import annotations

import ctypes
import sys


def give_back_freed() -> bool:
    """Give unused pages back. Returns False if the C library cannot do it (only glibc can)."""
    if sys.platform != "linux":
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True

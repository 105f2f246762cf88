"""Gives free memory back to the system. glibc keeps freed blocks of up to 32 MiB for itself once a block of
that size was freed, so memory of a burst would stay in the process for ever."""

from __future__ import annotations

import ctypes
import sys


def give_back_freed() -> bool:
    """Give unused pages back; False where the C library cannot (only glibc can)."""
    if sys.platform != "linux":
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True

"""Freed memory goes back to the system."""

from __future__ import annotations

import sys

import pytest

from dledger.runtime.freed_memory import give_back_freed


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can")
def test_freed_memory_may_be_given_back_at_any_time() -> None:
    blocks = [bytes(1024) for _ in range(1000)]
    del blocks[::2]
    assert give_back_freed() in (True, False)  # musl has no way to do it
    assert all(block == bytes(1024) for block in blocks)

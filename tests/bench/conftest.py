"""Fixtures of the measurements' tests, of which some have client and NameServer in one process."""

from __future__ import annotations

from tests.client.conftest import patience

__all__ = ["patience"]

"""Kinds of arguments: what a word on the command line must be."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime


def positive(text: str) -> int:
    """A number from 1 on."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def moment_ms(text: str) -> int:
    """A point in time in ISO form, UTC unless it says otherwise, as ms since the epoch."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 2026-11-21 or 2026-11-21T15:30:00") from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)

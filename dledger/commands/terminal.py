"""Makes texts safe to show in a terminal. Pure."""

from __future__ import annotations


def plain(text: str) -> str:
    """Escape control characters, because texts of messages, topics and clients come from anywhere, and
    could control a terminal with them.

    >>> plain("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(one if one.isprintable() or one in "\n\t" else f"\\x{ord(one):02x}" for one in text)

"""What a terminal may be shown. Pure."""

from __future__ import annotations


def plain(text: str) -> str:
    """Without what would steer a terminal: texts of messages, topics and clients come from anybody.

    >>> plain("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(one if one.isprintable() or one in "\n\t" else f"\\x{ord(one):02x}" for one in text)

"""Identifies the source of the pure core, because only the same source can replay a recording."""

from __future__ import annotations

import inspect
from hashlib import sha256

from dledger import messages
from dledger.election import effects, elector, transitions, votes
from dledger.flight import blocks, calls, cores, states, tape
from dledger.replication import follower, install, leader, quorum

VERSION_DIGITS = 16
"""Number of hexadecimal digits of a version."""
SOURCES = (
    elector, transitions, votes, effects, leader, follower, quorum, install, messages, calls, cores,
    states, tape, blocks,
)  # fmt: skip
"""The modules that decide what the core does with its inputs, and how they are encoded."""


def _hash_sources() -> str:
    digest = sha256()
    for module in SOURCES:
        try:
            source = inspect.getsource(module)
        except OSError:  # installed without its source: such programs only replay each other's recordings
            source = f"no source of {module.__name__}"
        digest.update(f"{module.__name__}\n{source}\n".encode())
    return digest.hexdigest()[:VERSION_DIGITS]


CORE_VERSION = _hash_sources()
"""Hash of the sources of the core. It is computed at import, so an edit while the process runs does not
change it."""

"""Identifies the source of the pure core, because only the same source can replay a recording."""

from __future__ import annotations

from hashlib import sha256
from types import ModuleType

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


def _source_of(module: ModuleType) -> bytes:
    """Return the file from which the module was loaded, as its loader reads it: its source, or its compiled
    code if the program was installed without sources."""
    read = getattr(module.__loader__, "get_data", None)
    if read is None or module.__file__ is None:
        return b""  # frozen into a program: the names of the modules are the version
    return bytes(read(module.__file__))


def core_version() -> str:
    """Hash of the sources of the core, as VERSION_DIGITS hexadecimal digits.

    It reads a dozen files, so it blocks, and only recorders and replays call it. A recorder calls it once,
    when it begins, so an edit while the process runs does not change the version of its recording.
    """
    digest = sha256()
    for module in SOURCES:
        source = _source_of(module)
        digest.update(f"{module.__name__} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:VERSION_DIGITS]

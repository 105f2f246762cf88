"""Errors of the replicated log."""

from __future__ import annotations

import errno

from dledger.messages import Code

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors that a node may wait out. Any other error of a write or fsync is final (S3)."""
TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
"""Errors of opening a file: too many files are open."""
OUT_OF_MEANS = (*TOO_MANY_FILES, errno.ENOMEM)
"""Errors of the process or the system that say nothing about the disk. While a file is prepared, or opened
only to check it, they are waited out, too. Data that could not be read because of them never counts as
damaged."""
PASSING = DISK_IS_FULL + OUT_OF_MEANS
"""Errors of preparing a file that may be gone at a later attempt."""

DEVICE_FAILED = (None, errno.EIO, errno.EBADMSG, *([errno.EUCLEAN] if hasattr(errno, "EUCLEAN") else []))
"""Errors that mean that the device or its file system is damaged. Any other error is a refusal by the system
(rights, a read-only mount, no room); the store is intact once its cause is removed."""

NO_ACCESS = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR)
"""Errors of opening a file that could not be reached: the file itself was not touched."""


class NodeFailed(Exception):
    """The node must end (architecture rule 7). `reason` says why and what to do.

    `exit_code` for supervisors: 1 it could not start (restart when the cause is gone), 70 the store needs
    repair or replacement (do not restart), 71 a bug was caught (an invariant broke), 78 wrong configuration
    (do not restart).
    """

    def __init__(self, reason: str, exit_code: int = 70, *, poisons: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.exit_code = exit_code
        self.poisons = poisons
        """Leave a marker, so that the next start trusts nothing above the durable mark (S3)."""


EXIT_START = 1
EXIT_STORE = 70
EXIT_BUG = 71
EXIT_CONFIG = 78


def refused_by_system(what: str, error: OSError) -> NodeFailed:
    """The NodeFailed for something that the system refused to do. The exit code depends on the kind of
    error."""
    if error.errno in DEVICE_FAILED:
        return NodeFailed(f"{what}: {error}", EXIT_STORE)
    return NodeFailed(f"{what}: {error}; correct that and start it again", EXIT_START)


class InvariantBroken(Exception):
    """Something that Raft proves impossible was seen: a bug or corruption. Ends the node."""


def why_ended(error: BaseException) -> NodeFailed:
    """Turn the error that ended a node into the reason for the operator. Of a group of errors the first one
    counts."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, NodeFailed):
        return error
    if isinstance(error, OSError):
        return refused_by_system("the disk failed" if error.errno in DEVICE_FAILED else "refused", error)
    if isinstance(error, InvariantBroken):
        return NodeFailed(f"invariant broken: {error}", EXIT_BUG)
    return NodeFailed(f"unexpected {error!r}", EXIT_BUG)


class ChangeRefused(Exception):
    """A change of the members or of the leader was refused. Holds the reason and the code for the client."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

"""Errors of the replicated log."""

from __future__ import annotations

import errno

from dledger.messages import Code

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers that mean that the disk is full. A node may wait until there is room again. Any other error
of a write or fsync is final (S3)."""
TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
"""Error numbers that mean that too many files are open."""
OUT_OF_MEANS = (*TOO_MANY_FILES, errno.ENOMEM)
"""Error numbers that mean that the process or the system lacks something, and that say nothing about the
disk. When a file is prepared, or opened only to be checked, the node waits and tries again. Data that could
not be read because of them never counts as damaged."""
PASSING = DISK_IS_FULL + OUT_OF_MEANS
"""Error numbers after which preparing a file may succeed at a later attempt."""

DEVICE_FAILED = (None, errno.EIO, errno.EBADMSG, *([errno.EUCLEAN] if hasattr(errno, "EUCLEAN") else []))
"""Error numbers that mean that the device or its file system is damaged. After any other error the store is
intact: the system refused something (rights, a read-only mount, no room), and the node can go on once the
cause is removed."""

NO_ACCESS = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR)
"""Error numbers that mean that a file could not be opened because of its path or its rights. The file itself
was not touched."""


class NodeFailed(Exception):
    """The node must end (architecture rule 7). `reason` says why and what to do.

    `exit_code` is for supervisors. 1: the node could not start (restart it when the cause is gone). 70: the
    store needs repair or replacement (do not restart). 71: a bug was caught, for example a broken invariant.
    78: the configuration is wrong (do not restart).
    """

    def __init__(self, reason: str, exit_code: int = 70, *, poisons: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.exit_code = exit_code
        self.poisons = poisons
        """Whether to leave a marker in the store. Because of it the next start trusts no entry after the
        durable mark (S3)."""


EXIT_START = 1
EXIT_STORE = 70
EXIT_BUG = 71
EXIT_CONFIG = 78


def refused_by_system(what: str, error: OSError) -> NodeFailed:
    """Make the NodeFailed for something that the operating system refused to do. Its exit code depends on the
    kind of error."""
    if error.errno in DEVICE_FAILED:
        return NodeFailed(f"{what}: {error}", EXIT_STORE)
    return NodeFailed(f"{what}: {error}; correct that and start it again", EXIT_START)


class InvariantBroken(Exception):
    """Something was seen that Raft proves impossible, so there is a bug or corruption. It ends the node."""


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

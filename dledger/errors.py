"""Errors of the replicated log."""

from __future__ import annotations

import errno

from dledger.messages import Code

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors that a node may wait out; any other of a write or fsync is final (S3)."""
TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
"""Errors of opening a file."""
OUT_OF_MEANS = (*TOO_MANY_FILES, errno.ENOMEM)
"""Errors of the process or the system that say nothing of the disk: while a file is prepared or opened for a
look, they are waited out, too. What could not be read for them is never damaged."""
PASSING = DISK_IS_FULL + OUT_OF_MEANS
"""Errors of preparing that a later try may not meet."""

DEVICE_FAILED = (None, errno.EIO, errno.EBADMSG, *([errno.EUCLEAN] if hasattr(errno, "EUCLEAN") else []))
"""Errors that say that the device or its file system is damaged; any other is the system's refusal (rights, a
read-only mount, no room), and the store is well once that is mended."""

NO_ACCESS = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR)
"""Errors of opening a name that was not reached: nothing was done to what it names."""


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
        """Leave a marker: the next start trusts nothing above the durable mark (S3)."""


EXIT_START = 1
EXIT_STORE = 70
EXIT_BUG = 71
EXIT_CONFIG = 78


def refused_by_system(what: str, error: OSError) -> NodeFailed:
    """The end of a node for which the system did not do something; the exit code is by the kind of error."""
    if error.errno in DEVICE_FAILED:
        return NodeFailed(f"{what}: {error}", EXIT_STORE)
    return NodeFailed(f"{what}: {error}; start it again when that is mended", EXIT_START)


class InvariantBroken(Exception):
    """Something that Raft proves impossible was seen: a bug or corruption. Ends the node."""


def why_ended(error: BaseException) -> NodeFailed:
    """What the operator is told of a node's failure; of those of several tasks the first one counts."""
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
    """A change of the members or the leader that was not made: why, and the code for the client."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

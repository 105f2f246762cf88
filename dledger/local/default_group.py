"""The group of the working directory, in which commands look when no address is given."""

from __future__ import annotations

import os
from pathlib import Path

from dledger.runtime.environment_variables import NAMESRV_ADDR

DIRECTORY = "dledger-data"
"""Directory of the group that `dledger up` makes in the working directory."""
DIRECTORY_VARIABLE = "DLEDGER_DIR"


def local_namesrv() -> str | None:
    """The NameServers of the group that `dledger up` made in this directory; None if there is none.

    It is the default of options that name NameServers. NAMESRV_ADDR comes first.
    """
    directory = Path(os.environ.get(DIRECTORY_VARIABLE) or DIRECTORY)
    from dledger.local.cluster import ClusterError, LocalCluster

    try:
        return LocalCluster.open(directory).namesrv_addr
    except (ClusterError, OSError):
        return None  # there is none, or `dledger status` reports what is wrong with it


def no_address(option: str) -> str:
    """Return the error text of a command that found no NameServer address. `option` is the one that names
    them."""
    return (
        f"no NameServer address: give it with {option} host:port, set {NAMESRV_ADDR}, or call the command in "
        "the directory in which `dledger up` was called"
    )

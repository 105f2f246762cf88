"""The address of the cluster from the environment: one variable for every client and every command.

`NAMESRV_ADDR` is RocketMQ's name. An empty variable counts as not set.
"""

from __future__ import annotations

import os

NAMESRV_ADDR = "NAMESRV_ADDR"
"""Name of the variable for the addresses of NameServers: host:port, several separated by `;`."""


def variable(name: str) -> str:
    """Value of an environment variable; empty if it is not set."""
    return os.environ.get(name, "")


def namesrv_addr() -> str:
    """Value of `NAMESRV_ADDR`, or the empty text."""
    return os.environ.get(NAMESRV_ADDR, "").strip()

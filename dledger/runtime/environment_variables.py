"""Reads the address of the cluster from the environment. The same variable is used for every client and every
command.

`NAMESRV_ADDR` is RocketMQ's name. An empty variable counts as not set.
"""

from __future__ import annotations

import os

NAMESRV_ADDR = "NAMESRV_ADDR"
"""Name of the variable with the addresses of NameServers: host:port, several separated by `;`."""


def variable(name: str) -> str:
    """Return the value of an environment variable; empty if it is not set."""
    return os.environ.get(name, "")


def namesrv_addr() -> str:
    """Return the value of `NAMESRV_ADDR`; empty if it is not set."""
    return os.environ.get(NAMESRV_ADDR, "").strip()

"""Where the cluster is, as the environment says it: one variable for every client and every command.

`NAMESRV_ADDR` is RocketMQ's name. A variable that is empty counts as not set.
"""

from __future__ import annotations

import os

NAMESRV_ADDR = "NAMESRV_ADDR"
"""Addresses of NameServers, host:port, several with `;`."""


def variable(name: str) -> str:
    """Of the environment; empty where it is not set."""
    return os.environ.get(name, "")


def namesrv_addr() -> str:
    """What `NAMESRV_ADDR` says, else the empty text."""
    return os.environ.get(NAMESRV_ADDR, "").strip()

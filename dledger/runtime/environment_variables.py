"""Where the cluster is, as the environment says it: one variable for every client and every command.

`NAMESRV_ADDR` is RocketMQ's name. A variable that is empty counts as not set.
"""

from __future__ import annotations

import argparse
import os

NAMESRV_ADDR = "NAMESRV_ADDR"
"""Addresses of NameServers, host:port, several with `;`."""


def variable(name: str) -> str:
    """Of the environment; empty where it is not set."""
    return os.environ.get(name, "")


def namesrv_addr() -> str:
    """What `NAMESRV_ADDR` says, else the empty text."""
    return os.environ.get(NAMESRV_ADDR, "").strip()


def add_namesrv(parser: argparse.ArgumentParser, text: str, when: str = "") -> None:
    """The option `--namesrv`. None where it is not given: then `namesrv_addr()` counts, for a command with
    other sources only `when` none of them is given."""
    parser.add_argument(
        "--namesrv", metavar="ADDR", help=f"{text} (default: {' '.join(filter(None, (NAMESRV_ADDR, when)))})"
    )

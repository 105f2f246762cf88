"""Declares `dledger dashboard`."""

from __future__ import annotations

import click

from dledger.commands import exit_codes
from dledger.commands.declaring import Declared, option
from dledger.runtime.environment_variables import NAMESRV_ADDR

DASHBOARD = Declared(
    "dashboard",
    "dledger.dashboard.program:run",
    [
        option(
            "-n",
            "--namesrv",
            metavar="[NAME=]ADDR",
            multiple=True,
            help="NameServers of a cluster, host:port;host:port; may be given several times, each with a "
            f"NAME. Without it: {NAMESRV_ADDR}, or those of the group that `dledger up` made in this "
            "directory.",
        ),
        option(
            "--port",
            type=click.IntRange(0, 65535),
            default=8080,
            show_default=True,
            help="Port; 0 takes a free one.",
        ),
    ],
    codes=exit_codes.SERVER,
    summary="show clusters in a browser",
    text="Show clusters in a browser: their health, nodes, topics, groups and messages.\n\nIt listens on "
    "this machine only (127.0.0.1), until Ctrl-C or SIGTERM.",
    extra="dashboard",
)

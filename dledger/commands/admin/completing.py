"""Completes names of topics and groups in a shell. The names come from the cluster; if it does not answer
within `LIMIT_S`, nothing is completed."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from dledger.runtime.environment_variables import NAMESRV_ADDR

LIMIT_S = 1.0
"""Time limit, in seconds, for a cluster to answer with names while a shell waits to complete one."""

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def complete_nothing(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return no completions, so that the shell does not offer file names for this argument."""
    return []


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics of the cluster that begin with the typed text."""
    return [name for name in _names(ctx, groups=False) if name.startswith(incomplete)]


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the consumer groups of the cluster that begin with the typed text."""
    return [name for name in _names(ctx, groups=True) if name.startswith(incomplete)]


def _names(ctx: click.Context, groups: bool) -> list[str]:
    namesrv = ctx.params.get("namesrv") or os.environ.get(NAMESRV_ADDR)
    if not namesrv:
        return []
    from dledger.admin import AdminClient
    from dledger.client import ClientError, ClientOptions

    options = ClientOptions(namesrv_timeout_s=LIMIT_S)
    try:
        with AdminClient(namesrv, options) as admin:
            return admin.groups.names() if groups else admin.topics.names()
    except ClientError:  # a shell that completes is no place to tell why there are no names
        return []

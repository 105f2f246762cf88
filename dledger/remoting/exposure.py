"""Checks whether any machine that reaches a port can connect. If so, that is logged at the start, because it
is easily overlooked. Pure."""

from __future__ import annotations

import ipaddress

from dledger.formats.addresses import join_address
from dledger.runtime.remoting_tls import TlsSettings


def open_address(host: str, port: int, tls: TlsSettings) -> str:
    """The address at which other machines may connect without a certificate of their own; empty when none
    can."""
    certified = tls.listens and tls.mode == "enforcing" and tls.client_auth == "require"
    return "" if certified or _is_loopback(host) else join_address(host, port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"

"""Checks whether any machine that reaches a port can connect. A server logs this at its start, because
operators easily overlook it. Pure."""

from __future__ import annotations

import ipaddress

from dledger.formats.addresses import join_address
from dledger.runtime.remoting_tls import TlsSettings


def open_address(host: str, port: int, tls: TlsSettings) -> str:
    """Return the address at which other machines may connect without a certificate of their own; empty if
    there is none."""
    certified = tls.listens and tls.mode == "enforcing" and tls.client_auth == "require"
    return "" if certified or _is_loopback(host) else join_address(host, port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"

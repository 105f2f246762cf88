"""Whether anybody who reaches a port gets in: said at the start, as nobody notices it otherwise. Pure."""

from __future__ import annotations

import ipaddress

from dledger.formats.addresses import join_address
from dledger.runtime.remoting_tls import TlsSettings


def open_address(host: str, port: int, tls: TlsSettings) -> str:
    """Where other machines may connect without a certificate of their own; empty where none may."""
    certified = tls.listens and tls.mode == "enforcing" and tls.client_auth == "require"
    return "" if certified or _is_loopback(host) else join_address(host, port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"

"""Addresses as text, "host:port": in settings, in configuration entries, in answers of a NameServer."""

from __future__ import annotations

import ipaddress

MAX_ADDRESS = 256
"""Limit, in bytes, of an address. With it, the addresses of all members together fit into the header of one
frame."""
_IN_NO_NAME = frozenset(" /;,")
"""Characters that no host name has. They come from common mistakes, for example a URL, or two addresses in
one text."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port" or "[v6]:port". Raises ValueError, which says what is wrong."""
    host, _, port = address.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    host = host.removeprefix("[").removesuffix("]")
    if not host or not 0 < number < 65536 or len(address.encode(errors="replace")) > MAX_ADDRESS:
        raise ValueError(
            f"{address[:MAX_ADDRESS]!r}: expected host:port, at most {MAX_ADDRESS} bytes, port 1 to 65535"
        )
    return check_host(host), number


def join_address(host: str, port: int) -> str:
    """Make the text "host:port". An IPv6 address is put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_addresses(text: str) -> tuple[str, ...]:
    """Split "host:port;host:port" (or with commas) into addresses; empty for a blank text. Raises ValueError
    as `split_address` does."""
    addresses = tuple(part.strip() for part in text.replace(",", ";").split(";") if part.strip())
    for address in addresses:
        split_address(address)
    return addresses


def check_host(host: str) -> str:
    """Return the host if it is an IP address or can be a host name. Raises ValueError, which says what is
    wrong.

    Without this check the resolver would raise UnicodeError. That is no OSError, so callers would not treat
    it as an ordinary failure to connect.
    """
    wrong = f"{host[:MAX_ADDRESS]!r} is neither an IP address nor a host name"
    if not host.isprintable() or not _IN_NO_NAME.isdisjoint(host):
        raise ValueError(f"{wrong}: it has a character that is not allowed in a host name")
    if ":" in host and not _is_ipv6(host):
        raise ValueError(f"{wrong}: give the host without a port")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError(f"{wrong}: a part between dots is empty, or longer than 63 characters") from None
    return host


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True

"""Addresses as text: what is one, and that the resolver has no surprises left for what is one."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dledger.formats.addresses import MAX_ADDRESS, check_host, split_address


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:40911", "127.0.0.1", 40911),
        ("n0:1", "n0", 1),
        ("n0.example.com.:65535", "n0.example.com.", 65535),
        ("[::1]:40911", "::1", 40911),
        ("::1:40911", "::1", 40911),
        ("[fe80::1%eth0]:40911", "fe80::1%eth0", 40911),
        ("bücher.example:40911", "bücher.example", 40911),
        ("under_score:40911", "under_score", 40911),
    ],
)
def test_an_address_is_host_and_port(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)


BAD = [
    "", "n0", ":1", "[]:1", "n0:", "n0:x", "n0:0", "n0:65536", "n0:-1", "n0:+1", "n0:\u0663",
    "n0:" + "9" * 999,
    "x" * MAX_ADDRESS + ":1", "\u4e2d." * 100 + "x:1",
    "n3..example.com:1", ".n3:1", "..:1", "x" * 64 + ":1", "\u00df" * 64 + ":1", "\udc80:1",
    "n0\0:1", "n 0:1", "n0\n:1", "http://n0:1", "n0:1;n1:1", "n0:1,n1:1",
]  # fmt: skip


@pytest.mark.parametrize("address", BAD)
def test_what_is_none_is_said_in_few_words(address: str) -> None:
    with pytest.raises(ValueError, match=r"expected host:port|neither an IP address") as error:
        split_address(address)
    assert type(error.value) is ValueError
    assert len(str(error.value)) < 5 * MAX_ADDRESS


@pytest.mark.parametrize("host", ["n3..example.com", ".n3", ".", "x" * 64, "\udc80"])
def test_the_resolver_raises_no_oserror_for_what_the_check_refuses(host: str) -> None:
    """Else the check would not be needed."""

    async def ask() -> None:
        await asyncio.get_running_loop().getaddrinfo(host, 1, type=socket.SOCK_STREAM)

    with pytest.raises(UnicodeError):
        asyncio.run(ask())
    with pytest.raises(ValueError, match="nor a host name"):
        check_host(host)

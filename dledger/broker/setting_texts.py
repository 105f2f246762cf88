"""Parsers for the values of a broker's settings. Each raises ValueError, which says what is expected, if the
text is invalid. Pure."""

from __future__ import annotations

from dledger.formats.addresses import check_host, split_address
from dledger.formats.message_ids import pack_ipv4_host
from dledger.remoting.address_server import DOMAIN, url_of
from dledger.remoting.listening import ip_of, is_anywhere
from dledger.runtime.remote_files import absolute, is_url
from dledger.runtime.settings import name, parts

MAX_REGION = 127
"""Largest number of characters of a region. A longer one is an error, because each message contains the
region."""
MAX_NAMESRVS = 64
"""Largest number of NameServers in one setting. More are an error, because each NameServer has a task and
gets the whole table of topics."""
MAX_CHECKED_TOPICS = 1000
"""Largest number of topics in `duplicateCheckTopics`. More are an error."""
MAX_MESSAGE_RATE = 1_000_000_000
"""Highest rate, in messages a second, that a setting of rates may contain. A higher rate is an error."""
MAX_RATES = 1000
"""Largest number of names in one setting of rates. More are an error."""


def parse_name_or_none(text: str) -> str:
    """Parse a name, or an empty text."""
    return name(text) if text else text


def parse_host_or_none(text: str) -> str:
    """Parse a host, or an empty text."""
    return check_host(text) if text else text


def parse_region(text: str) -> str:
    """Parse a name of at most `MAX_REGION` characters."""
    if len(text) > MAX_REGION:
        raise ValueError(f"{len(text)} characters; the limit is {MAX_REGION}")
    return name(text)  # without control characters: they separate the properties of a message


def parse_topics(text: str) -> tuple[str, ...]:
    """Parse topics separated by `;` or `,`; `*` stands for all topics."""
    topics = tuple(dict.fromkeys(parts(text.replace(",", ";"))))
    if len(topics) > MAX_CHECKED_TOPICS:
        raise ValueError(f"{len(topics)} topics; the limit is {MAX_CHECKED_TOPICS}, or use * for all")
    for topic in topics:
        if topic != "*":
            name(topic)
    return topics


def parse_rates(text: str) -> dict[str, int]:
    """Parse rates in the form `NAME=MESSAGES_A_SECOND;...`."""
    rates: dict[str, int] = {}
    for part in parts(text):
        what, _, rate = (piece.strip() for piece in part.rpartition("="))
        number = int(rate[:11]) if rate.isascii() and rate.isdecimal() else 0
        if not what or not 0 < number <= MAX_MESSAGE_RATE:
            raise ValueError(f"{part!r}: expected NAME=MESSAGES_A_SECOND, 1 to {MAX_MESSAGE_RATE}")
        if what in rates:
            raise ValueError(f"{what!r} is given twice")
        rates[what if what == "*" else name(what)] = number
    if len(rates) > MAX_RATES:
        raise ValueError(f"{len(rates)} rates; the limit is {MAX_RATES}")
    return rates


def rates_text(rates: dict[str, int]) -> str:
    """Return rates as a text that `parse_rates` reads."""
    return ";".join(f"{what}={rate}" for what, rate in rates.items())


def parse_place(text: str) -> str:
    """Parse a directory, or a URL of an object store. A URL that begins with `file:` stands for a
    directory."""
    if not is_url(text) and not text.startswith("file:"):
        return text.rstrip("/") or text[:1]
    scheme, separator, rest = text.partition("://")
    if "::" in text or not separator or not rest.strip("/"):
        raise ValueError(f"{text!r}: expected a directory, or a URL such as s3://bucket/digests")
    # Files have renames, and would be written in place through a driver.
    return absolute(f"file://{rest}") if scheme.lower() in ("file", "local") else text.rstrip("/")


def parse_address_server(text: str) -> str:
    """Parse a domain, with or without a port, or a URL."""
    url_of(text)
    return text


def parse_subgroup(text: str) -> str:
    """Parse the name of a list of addresses at an address server."""
    url_of(DOMAIN, text)
    return text


def parse_host(text: str) -> str:
    """Parse the address of this broker to which clients connect. It has no port and is not a wildcard."""
    bare = text.removeprefix("[").removesuffix("]")
    if is_anywhere(bare):
        raise ValueError(
            f"{text!r}: clients and peers connect to this address, so it must be one of this machine. "
            "To set where the broker listens, use bindAddress"
        )
    try:
        host, port = split_address(text)
    except ValueError:
        return check_host(bare)
    if ip_of(bare) is None:  # else it is an IPv6 address without brackets
        raise ValueError(f"{text!r}: give {host} without a port; the port is listenPort ({port} here)")
    return bare


def parse_ipv4(text: str) -> str:
    """Parse an IPv4 address, or an empty text."""
    if text:
        pack_ipv4_host(text, 0)
    return text


def parse_addresses(text: str) -> tuple[str, ...]:
    """Parse addresses of NameServers separated by `;`."""
    addresses = tuple(parts(text))
    if len(addresses) > MAX_NAMESRVS:
        raise ValueError(f"{len(addresses)} addresses; the limit is {MAX_NAMESRVS}")
    for address in addresses:
        split_address(address)
    return addresses

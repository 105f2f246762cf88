"""Asks an address server, which is a web server, for the addresses of the NameServers (DefaultTopAddressing).

`GET http://DOMAIN:8080/rocketmq/SUBGROUP` is answered with one line, `host:port;host:port`. Without such an
answer a client keeps the addresses that it knows.
"""

from __future__ import annotations

import asyncio
import importlib

from dledger.formats.addresses import check_host, join_address, split_address, split_addresses

DOMAIN = "jmenv.tbsite.net"
"""Domain of the address server that RocketMQ uses by default (rocketmq.namesrv.domain)."""
SUBGROUP = "nsaddr"
"""Name in the URL that RocketMQ uses by default (rocketmq.namesrv.domain.subgroup)."""
PORT = 8080
"""Port of the address server if only its domain is given."""
TIMEOUT_S = 3.0
"""Time-out of one request to the address server, until the whole answer has arrived; as in RocketMQ."""
CLIENT_INTERVAL_S = 120.0
"""Interval at which clients ask, as in RocketMQ."""
MAX_ANSWER = 16 * 1024
"""Limit, in bytes, of an answer; a longer one is refused."""
MAX_ADDRESSES = 64
"""Largest number of NameServers in an answer; an answer with more is refused."""
MAX_URL = 1024
"""Limit, in characters, of a URL; a longer one is refused."""
MAX_REDIRECTS = 3


class NoAddresses(Exception):
    """The address server did not return addresses; the text says why."""


def url_of(place: str, subgroup: str = SUBGROUP) -> str:
    """Return the URL of an address server that is given as a domain, `domain:port`, or a URL
    (MixAll.getWSAddr). Raises ValueError for anything else."""
    place = place.strip()
    if len(place) > MAX_URL or not place.isprintable() or " " in place or not place:
        raise ValueError(f"{place[:80]!r}: expected a domain, domain:port, or a URL")
    if "://" in place:
        if not place.startswith(("http://", "https://")) or not place.partition("://")[2].strip("/"):
            raise ValueError(f"{place!r}: expected http:// or https:// with a host")
        return place
    host, port = split_address(place) if ":" in place else (check_host(place), PORT)
    if not subgroup or not subgroup.isprintable() or any(sign in subgroup for sign in " /?#%"):
        raise ValueError(f"{subgroup!r} is not a valid name of a group of addresses")
    return f"http://{join_address(host, port)}/rocketmq/{subgroup}"


def addresses_in(answer: bytes) -> tuple[str, ...]:
    """Return the addresses in the first line of an answer. Raises NoAddresses if it has none, wrong ones or
    too many."""
    text = answer.decode("utf-8", "replace").strip()
    line = text.splitlines()[0] if text else ""
    try:
        addresses = tuple(dict.fromkeys(split_addresses(line)))
    except ValueError as error:
        raise NoAddresses(f"its response holds no valid addresses: {error}") from None
    if not addresses:
        raise NoAddresses("its response is empty")
    if len(addresses) > MAX_ADDRESSES:
        raise NoAddresses(f"its response holds {len(addresses)} addresses; the limit is {MAX_ADDRESSES}")
    return addresses


def load_http() -> None:
    """Load the HTTP client in advance, because loading it takes too long for a busy loop. Raises NoAddresses
    if it is not installed."""
    try:
        importlib.import_module("aiohttp")
    except ImportError:
        raise NoAddresses("asking an address server needs aiohttp: pip install 'dledger[server]'") from None


async def fetch_addresses(url: str, timeout_s: float = TIMEOUT_S) -> tuple[str, ...]:
    """Ask an address server for the NameServers that it knows now. Raises NoAddresses if it does not return
    any."""
    load_http()
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
            session.get(
                url, headers={"Accept-Encoding": "identity"}, max_redirects=MAX_REDIRECTS
            ) as response,
        ):
            if response.status != 200:
                raise NoAddresses(f"it responded with HTTP status {response.status}")
            answer = bytearray()
            async for piece in response.content.iter_chunked(4096):
                answer += piece
                if len(answer) > MAX_ANSWER:
                    raise NoAddresses(f"its response is longer than {MAX_ANSWER} bytes")
    except TimeoutError:
        raise NoAddresses(f"no answer within {timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise NoAddresses(f"{error or type(error).__name__}") from None
    return addresses_in(bytes(answer))


async def looked_up(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Return all IP addresses behind these names, by the system's resolver (fetchNameSrvAddrByDnsLookup).
    Raises NoAddresses if a name has none now."""
    found: dict[str, None] = {}
    loop = asyncio.get_running_loop()
    for address in addresses:
        host, port = split_address(address)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                infos = await loop.getaddrinfo(host, port)
        except OSError as error:  # TimeoutError is one
            raise NoAddresses(f"{host}: {error or 'no answer from the resolver'}") from None
        found.update(dict.fromkeys(join_address(str(info[4][0]), port) for info in infos))
    if len(found) > MAX_ADDRESSES:
        raise NoAddresses(f"the names resolve to {len(found)} addresses; the limit is {MAX_ADDRESSES}")
    return tuple(sorted(found))

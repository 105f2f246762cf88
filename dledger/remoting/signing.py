"""Signed requests, as RocketMQ's AclClientRPCHook and AclUtils make and check them.

A request names its account in the header field `AccessKey`. Its field `Signature` is Base64 of HMAC-SHA1,
keyed with the account's secret, over the values of all other header fields in the order of their names,
followed by the body. The secret itself is never sent.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from hashlib import sha1
from operator import itemgetter

from dledger.runtime.environment_variables import variable

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
ACCESS_KEY_VARIABLE = "ROCKETMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE = "ROCKETMQ_SECRET_KEY"
SECURITY_TOKEN_VARIABLE = "ROCKETMQ_SECURITY_TOKEN"


_BLOCK = 64
"""Size of a SHA-1 block in bytes."""


MAX_ORDERS = 100
"""Limit of the sets of header fields whose order one key remembers. When there are more, all of them are
forgotten."""


class SigningKey:
    """HMAC-SHA1 (RFC 2104) with one key. The hash states of the two padded keys are computed only once; the
    module `hmac` takes twice as long for 1 KiB."""

    def __init__(self, secret: bytes) -> None:
        key = (sha1(secret).digest() if len(secret) > _BLOCK else secret).ljust(_BLOCK, b"\0")
        self.inner = sha1(bytes(octet ^ 0x36 for octet in key))
        self.outer = sha1(bytes(octet ^ 0x5C for octet in key))
        """This hash object must be copied (`dledger._fast` does it too), never changed."""
        self._in_order: dict[tuple[str, ...], Callable[[Mapping[str, str]], Iterable[str]]] = {}
        """Maps the names of header fields, in the order of a request, to a function that returns their values
        sorted by name. A client sends the same fields again and again."""

    def signature(self, fields: Mapping[str, str], body: bytes) -> bytes:
        """Return the signature of header fields (without `Signature`) and a body, in ASCII."""
        inner, outer = self.inner.copy(), self.outer.copy()
        names = tuple(fields)
        in_order = self._in_order.get(names)
        if in_order is None:
            if len(self._in_order) >= MAX_ORDERS:
                self._in_order.clear()
            in_order = self._in_order[names] = itemgetter(*sorted(names)) if names else lambda fields: ()
        inner.update("".join(in_order(fields)).encode("utf-8", "replace"))
        inner.update(body)
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)


@dataclass(frozen=True)
class Credentials:
    """The account of a client, for brokers with access control (SessionCredentials)."""

    access_key: str
    """Name of the account."""
    secret_key: str = field(repr=False)
    """The key that signs requests; it is never sent."""
    security_token: str = field(default="", repr=False)
    """Sent with each request, and signed; our brokers ignore it."""

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            raise ValueError("credentials need an access key and a secret key; neither may be empty")

    @cached_property
    def _key(self) -> SigningKey:
        return SigningKey(self.secret_key.encode())

    def __getstate__(self) -> dict[str, str]:
        """Return the three texts, from which a copy or an unpickled object is made. The signing key cannot be
        copied, and is made again."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def from_environment(cls) -> Credentials | None:
        """Return the credentials in ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY, or None if neither is set.
        Raises ValueError if only one is set."""
        access, secret = variable(ACCESS_KEY_VARIABLE), variable(SECRET_KEY_VARIABLE)
        if not access and not secret:
            return None
        if not access or not secret:
            raise ValueError(f"{ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE}: set both, or neither")
        return cls(access, secret, variable(SECURITY_TOKEN_VARIABLE))

    def sign(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return the header fields of a request, with this account and its signature added."""
        signed = {**fields, ACCESS_KEY: self.access_key}
        if self.security_token:
            signed[SECURITY_TOKEN] = self.security_token
        signed[SIGNATURE] = self._key.signature(signed, body).decode("ascii")
        return signed

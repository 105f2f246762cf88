"""Proofs that a request to this process comes from a member of the group.

The programs that use the log (brokers) also send requests to each other over connections of their own, at a
port that clients reach, too. Such a request carries a proof that its sender is a member:

* A node that connects to a peer sends the peer a secret in its hello. The secret is new for each connection,
  and different for each peer. It becomes valid when the peer's answer was accepted. The accepting side never
  sends a secret. So a valid secret is known only to a node that answers as a member at a member's address. A
  node that merely connects to a peer port, and repeats the hello of a member, learns nothing.
* The peer uses the secret to sign its requests to the process that sent it. The signature is keyed BLAKE2b
  (RFC 7693) over a number and the whole content of the request. A proof is valid for one receiver, one
  process of the receiver, and one content.
* Each number is accepted once. The receiver keeps a sliding window of numbers for each secret. No clock is
  needed.

A secret is kept in memory only and is never logged. Pure, except for the random secret from which all others
are derived.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from hmac import compare_digest

SECRET_BYTES = 32
"""Size in bytes of a process's secret, from which all others are derived, and of each derived secret."""
MAX_TOLD = 8
"""Largest number of valid secrets per peer; the newest are kept. Several are valid at a time because requests
that were signed before a connection was lost may arrive after it."""
WINDOW = 8192
"""How far a number may be below the highest number seen with its secret; one further below is refused. A
connection delivers in order, and a lost connection leaves no more requests than its buffer holds."""
_DERIVE = b"dledger-secret"
_SIGN = b"dledger-proof"
_SECRET = re.compile(r"([0-9]{1,15})\.([0-9a-f]{64})")
_PROOF = re.compile(r"([0-9]{1,15})\.([0-9]{1,15})\.([0-9a-f]{64})\.(.{1,128})", re.DOTALL)


class _Window:
    """The numbers that have been used with one secret."""

    __slots__ = ("seen", "top")

    def __init__(self) -> None:
        self.top = -1
        self.seen = 0
        """Bit `k` says whether number `top - k` was used."""

    def take(self, number: int) -> bool:
        """Mark a number as used. Returns False if it was used before, or may have been used."""
        ahead = number - self.top
        if ahead > 0:
            self.seen = 1 if ahead >= WINDOW else (self.seen << ahead | 1) & ((1 << WINDOW) - 1)
            self.top = number
            return True
        bit = 1 << -ahead
        if -ahead >= WINDOW or self.seen & bit:
            return False
        self.seen |= bit
        return True


class Proofs:
    """The secrets that this process sent to its peers, and the secrets that the peers sent to this
    process."""

    def __init__(self, own: str, secret: bytes) -> None:
        """`own` is the id of this node. `secret` is random, and different in every process."""
        self._own = own
        self._secret = secret
        self._dials = 0
        self._told: dict[str, OrderedDict[int, _Window]] = {}
        """Maps a peer to a map of the secrets that were sent to it. The key in that map is the number of the
        dial (connection attempt); the value has the numbers used with the secret of this dial. The newest
        dial comes last."""
        self._heard: dict[str, tuple[int, bytes]] = {}
        """Maps a peer to the number and the secret of its newest dial (connection attempt)."""
        self._made = 0

    # The receiver

    def tell(self, peer: str) -> str:
        """Make a secret for the hello to a peer at its address. The secret is not valid before `introduced`
        is called."""
        self._dials = dial = self._dials + 1
        return f"{dial}.{self._key(peer, dial).hex()}"

    def introduced(self, peer: str, secret: str) -> None:
        """Make this secret valid, because the node to which it was sent has answered as that peer and was
        accepted."""
        told = self._told.setdefault(peer, OrderedDict())
        told[int(secret.partition(".")[0])] = _Window()
        if len(told) > MAX_TOLD:
            told.popitem(last=False)

    def revoke(self, peer: str) -> None:
        """Make all secrets that were sent to a peer invalid."""
        self._told.pop(peer, None)

    def check(self, proof: str, content: Sequence[bytes]) -> str | None:
        """Return the peer that made this proof for this content. None if the proof is invalid or was used
        before."""
        found = _PROOF.fullmatch(proof)
        if found is None:
            return None
        dial, number, peer = int(found[1]), int(found[2]), found[4]
        told = self._told.get(peer)
        window = None if told is None else told.get(dial)
        if window is None:
            return None
        if not compare_digest(_mac(self._key(peer, dial), number, content), found[3]):
            return None
        return peer if window.take(number) else None

    def _key(self, peer: str, dial: int) -> bytes:
        text = f"{dial}.{peer}".encode()
        return blake2b(text, digest_size=SECRET_BYTES, key=self._secret, person=_DERIVE).digest()

    # The sender

    def hear(self, peer: str, secret: str | None) -> None:
        """Note the secret that a peer sent when it connected to this node. None if its program sends none."""
        found = _SECRET.fullmatch(secret or "")
        if found is None:
            self._heard.pop(peer, None)
        else:
            self._heard[peer] = int(found[1]), bytes.fromhex(found[2])

    def forget(self, peer: str) -> None:
        """Forget a peer that is not connected any more, because its process may have ended."""
        self._heard.pop(peer, None)

    @property
    def receivers(self) -> Sequence[str]:
        """Peers for which proofs can be made."""
        return tuple(self._heard)

    def make(self, peer: str, content: Sequence[bytes]) -> str:
        """Make a proof for one request to a peer. Empty if the peer sent no secret."""
        heard = self._heard.get(peer)
        if heard is None:
            return ""
        self._made = number = self._made + 1
        dial, key = heard
        return f"{dial}.{number}.{_mac(key, number, content)}.{self._own}"


def _mac(key: bytes, number: int, content: Sequence[bytes]) -> str:
    mac = blake2b(b"%d" % number, digest_size=SECRET_BYTES, key=key, person=_SIGN)
    for part in content:
        mac.update(b":%d:" % len(part))
        mac.update(part)
    return mac.hexdigest()

"""Proofs in the requests between the brokers of a group: they show that a request comes from a member of the
group (`dledger.peers.proofs`).

The proof is a header field. It covers the request code, whether the request is forwarded, all other header
fields and the body, so it cannot be moved to another request. It does not cover the language, the version and
the number of the request. These cannot change anything that only a member may do. BLAKE2b takes some 5 ms for
a body of 4 MiB, so no worker is needed.

A member with an older program shares no secret and makes no proof. A request to it has no proof either,
because it would treat the proof as a field that a client has signed. A request from it is accepted by its IP
address, as long as an older program answers at the peer address of that member.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dledger.broker.ports import Node
from dledger.remoting.commands import FLAG_FORWARDED

_SORTED = msgspec.json.Encoder(order="sorted")
MEMBER_PROOF = "memberProof"
"""Header field with the proof, in a request from one broker to another broker of its group."""


def content_of(code: int, flag: int, fields: Mapping[str, str], body: bytes) -> list[bytes]:
    """Return the content that a proof covers. `fields`: the header fields without the proof."""
    return [b"%d" % code, b"%d" % (flag & FLAG_FORWARDED), _SORTED.encode(fields), body]


def with_proof(
    node: Node, address: str, code: int, fields: Mapping[str, str], body: bytes, flag: int = 0
) -> dict[str, str]:
    """Return the header fields of a request to the broker at `address`. They include a proof if that broker
    has shared a secret."""
    own = {
        name: value for name, value in fields.items() if name != MEMBER_PROOF
    }  # a client's proof is ignored
    for peer in node.proof_receivers:
        if node.peer_meta(peer).get("client_addr") == address:
            proof = node.prove(peer, content_of(code, flag, own, body))
            return {**own, MEMBER_PROOF: proof} if proof else own
    return own
